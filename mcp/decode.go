package mcp

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"

	"fleetd/fault"
)

// decode reads the arguments of a verb strictly: an unknown one, a wrong type,
// a missing one and a number out of bounds are each one sentence that says how
// to do it right. null counts as absent. A field without omitempty is required
// and, if text, not empty.
func decode[A any](v verb, raw json.RawMessage) (A, error) {
	var out A
	given, err := decodeObject(v, raw)
	if err != nil {
		return out, err
	}
	fields := fieldsOf(reflect.TypeFor[A]())
	if err := resolveNames(v, given, fields); err != nil {
		return out, err
	}
	dst := reflect.ValueOf(&out).Elem()
	for _, f := range fields {
		val, ok := given[f.name]
		if !ok {
			if f.required {
				return out, fault.New(fault.BadRequest, "%s needs the argument %q.", v.tool(), f.name)
			}
			continue
		}
		if err := decodeField(v, f, val, dst.Field(f.index)); err != nil {
			return out, err
		}
	}
	return out, nil
}

func decodeObject(v verb, raw json.RawMessage) (map[string]json.RawMessage, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return map[string]json.RawMessage{}, nil
	}
	var given map[string]json.RawMessage
	if err := json.Unmarshal(raw, &given); err != nil {
		return nil, fault.Wrap(err, fault.BadRequest, "%s takes its arguments as one JSON object; this is not one.", v.tool())
	}
	for k, val := range given {
		if string(val) == "null" {
			delete(given, k)
		}
	}
	return given, nil
}

// resolveNames maps the old daemon's names to today's and refuses unknown ones.
func resolveNames(v verb, given map[string]json.RawMessage, fields []field) error {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	for k, val := range given {
		if slices.Contains(names, k) {
			continue
		}
		today, ok := v.alias[k]
		if !ok {
			return unknownArgument(v, k, names)
		}
		if other, both := given[today]; both && !bytes.Equal(other, val) {
			return fault.New(fault.BadRequest, "%s got both %q and its old name %q, with different values; give only %q.", v.tool(), today, k, today)
		}
		given[today] = val
		delete(given, k)
	}
	return nil
}

func unknownArgument(v verb, name string, known []string) error {
	if len(known) == 0 {
		return fault.New(fault.BadRequest, "%s takes no arguments; leave out %.40q.", v.tool(), name)
	}
	return fault.New(fault.BadRequest, "%s has no argument %.40q; did you mean %q? It takes: %s.",
		v.tool(), name, nearest(name, known), strings.Join(known, ", "))
}

func decodeField(v verb, f field, val json.RawMessage, dst reflect.Value) error {
	wrong := func() error {
		return fault.New(fault.BadRequest, "%q of %s must be %s, not %s.", f.name, v.tool(), typeWords(dst.Type()), jsonWords(val))
	}
	if dst.Kind() == reflect.Int {
		// A schema's integer may be written 50.0, which Go's int does not take.
		var n float64
		if err := json.Unmarshal(val, &n); err != nil || n != float64(int64(n)) {
			return wrong()
		}
		if a := v.args[f.name]; a.bounded && (n < float64(a.min) || n > float64(a.max)) {
			return fault.New(fault.BadRequest, "%q of %s must be from %d to %d.", f.name, v.tool(), a.min, a.max)
		}
		dst.SetInt(int64(n))
		return nil
	}
	if err := json.Unmarshal(val, dst.Addr().Interface()); err != nil {
		return wrong()
	}
	if f.required && dst.Kind() == reflect.String && dst.String() == "" {
		return fault.New(fault.BadRequest, "%q of %s must not be empty.", f.name, v.tool())
	}
	return nil
}

// field is one argument as Go sees it.
type field struct {
	name     string
	index    int
	required bool
}

func fieldsOf(t reflect.Type) []field {
	var out []field
	for i := range t.NumField() {
		name, opts, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		out = append(out, field{name: name, index: i, required: !strings.Contains(opts, "omitempty")})
	}
	return out
}

func typeWords(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return typeWords(t.Elem())
	case reflect.String:
		return "text"
	case reflect.Int:
		return "a whole number"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list of texts"
	}
	return fmt.Sprintf("a %s", t.Kind())
}

func jsonWords(val json.RawMessage) string {
	switch val[0] {
	case '"':
		return "text"
	case '{':
		return "an object"
	case '[':
		return "a list"
	case 't', 'f':
		return "true or false"
	}
	return "the number " + string(val[:min(len(val), 20)])
}

// nearest is the known name with the least edit distance to name, of which only
// the first 64 bytes count.
func nearest(name string, known []string) string {
	name = strings.ToLower(name[:min(len(name), 64)])
	return slices.MinFunc(known, func(a, b string) int {
		return cmp.Compare(levenshtein.ComputeDistance(name, a), levenshtein.ComputeDistance(name, b))
	})
}
