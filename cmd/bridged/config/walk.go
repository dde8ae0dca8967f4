package config

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// walker reads a YAML tree against the schema. The tree and not a decoder,
// because only its nodes know line and column (library facts §4).
type walker struct {
	place  place
	locate func(*yaml.Node) string
	found  []problem
	origin map[string]string // key → where it was said
}

func (w *walker) wrong(n *yaml.Node, at, format string, args ...any) {
	w.found = append(w.found, problem{where: w.locate(n), key: at, says: fmt.Sprintf(format, args...)})
}

// value returns what n holds for r, or nil where nothing is said or something
// is wrong. at is the key's full path.
func (w *walker) value(n *yaml.Node, r rule, at string) any {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil
	}
	switch r.kind {
	case table, dict:
		if n.Kind != yaml.MappingNode {
			w.wrong(n, at, "must be %s and is %s; write %s", r.kind, describe(n), sampleOf(r))
			return nil
		}
	case list:
		if n.Kind != yaml.SequenceNode {
			w.wrong(n, at, "must be %s and is %s; write %s", r.kind, describe(n), sampleOf(r))
			return nil
		}
	default:
		if n.Kind != yaml.ScalarNode {
			w.wrong(n, at, "must be %s and is %s; write %s", r.kind, describe(n), sampleOf(r))
			return nil
		}
	}
	w.origin[at] = w.locate(n)
	switch r.kind {
	case table:
		return w.table(n, r, at)
	case dict:
		return w.dict(n, r, at)
	case list:
		return w.list(n, r, at)
	}
	return w.scalar(n, r, at)
}

func (w *walker) scalar(n *yaml.Node, r rule, at string) any {
	if n.Value == "" && r.name != "" && (r.kind == text || r.kind == path) {
		return nil // uri: "" says as little as uri:
	}
	v, says := w.place.parse(r, n.Value)
	if says != "" {
		w.wrong(n, at, "%s", says)
		return nil
	}
	return v
}

func (w *walker) table(n *yaml.Node, r rule, at string) any {
	out := map[string]any{}
	w.pairs(n, at, func(k, v *yaml.Node) {
		for _, f := range r.fields {
			if f.name != k.Value {
				continue
			}
			if got := w.value(v, f, join(at, f.name)); got != nil {
				out[f.name] = got
			}
			return
		}
		if at == "" && strings.Contains(k.Value, ".") && knownPath(k.Value) {
			w.wrong(k, k.Value, "a key is not written with dots here; write %s", nested(k.Value))
			return
		}
		w.wrong(k, shown(at, k.Value), "%s", unknown(nearestKey(at, k.Value, r)))
	})
	for _, name := range r.required {
		if _, ok := out[name]; !ok && !w.blames(join(at, name)) {
			w.wrong(n, at, "%s is missing; write %s", name, r.sample)
		}
	}
	return out
}

func (w *walker) dict(n *yaml.Node, r rule, at string) any {
	out := map[string]any{}
	w.pairs(n, at, func(k, v *yaml.Node) {
		if says := r.key(k.Value); says != "" {
			w.wrong(k, at, "%s", says)
			return
		}
		got := w.value(v, *r.elem, join(at, k.Value))
		switch {
		case got != nil:
			out[k.Value] = got
		case v.Tag == "!!null" && r.elem.kind == list:
			out[k.Value] = []any{} // "hostb:" lists nothing, which is not the same as no list
		case v.Tag == "!!null" && r.elem.kind == text:
			out[k.Value] = ""
		case v.Tag == "!!null":
			w.wrong(k, join(at, k.Value), "holds nothing; write %s", r.elem.sample)
		}
	})
	return out
}

func (w *walker) list(n *yaml.Node, r rule, at string) any {
	out := []any{}
	for i, item := range n.Content {
		here := fmt.Sprintf("%s[%d]", at, i)
		if got := w.value(item, *r.elem, here); got != nil {
			out = append(out, got)
		} else if item.Tag == "!!null" {
			w.wrong(item, here, "holds nothing; write %s", r.elem.sample)
		}
	}
	if int64(len(out)) < r.min && !w.blames(at) {
		w.wrong(n, at, "is empty; write %s", r.sample)
	}
	if r.max > 0 && int64(len(out)) > r.max {
		w.wrong(n, at, "lists %d; write at most %d", len(out), r.max)
	}
	return out
}

// pairs calls visit for each key and value of a mapping and refuses what YAML
// lets pass: a key that is said twice, a merge key.
func (w *walker) pairs(n *yaml.Node, at string, visit func(k, v *yaml.Node)) {
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		switch {
		case k.Kind != yaml.ScalarNode:
			w.wrong(k, at, "a key must be a word and is %s", describe(k))
		case k.Tag == "!!merge":
			w.wrong(k, at, "merge keys (<<) are not read here; write the keys out")
		case seen[k.Value]:
			w.wrong(k, shown(at, k.Value), "is said twice; leave one of them out")
		default:
			seen[k.Value] = true
			visit(k, v)
		}
	}
}

// blames reports whether something under at was already found wrong, so that
// one mistake is not reported twice.
func (w *walker) blames(at string) bool {
	for _, p := range w.found {
		if strings.HasPrefix(p.key, at) {
			return true
		}
	}
	return false
}

func shown(at, name string) string {
	if keyShape.MatchString(name) {
		return join(at, name)
	}
	return join(at, quoteKey(name))
}

func knownPath(path string) bool {
	for _, k := range keys {
		if k.path == path {
			return true
		}
	}
	return false
}

// nested is a dotted key as YAML has it: broker: {uri: …}.
func nested(path string) string {
	head, rest, more := strings.Cut(path, ".")
	if !more {
		return head + ": …"
	}
	return head + ": {" + nested(rest) + "}"
}

func sampleOf(r rule) string {
	if r.kind == table && r.name == "" && r.sample == "" {
		return "host: " + r.fields[0].sample
	}
	if r.kind == table && r.sample == "" {
		return fmt.Sprintf("%s: {%s: %s}", r.name, r.fields[0].name, sampleOf(r.fields[0]))
	}
	return r.sample
}

// describe says what a node is without repeating it.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		switch n.Tag {
		case "!!int", "!!float":
			return "a number"
		case "!!bool":
			return "true or false"
		case "!!null":
			return "nothing"
		}
		return "text"
	}
	return "something else"
}
