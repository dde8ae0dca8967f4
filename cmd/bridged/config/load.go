package config

import (
	"fmt"
	"os"
	"slices"
	"sort"
	"strings"

	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/structs"
	"github.com/knadh/koanf/v2"
	"go.yaml.in/yaml/v3"

	"fleetd/fault"
)

// envPrefix begins every variable that is ours.
const envPrefix = "BRIDGED_"

// reserved are variables that are ours and no key: the file's own name, and
// what an agent or a shell is given to find and identify itself to the daemon or
// the broker.
var reserved = []string{"BRIDGED_CONFIG", "BRIDGED_TOKEN", "BRIDGED_URL", "BRIDGED_AS", "BRIDGED_MANAGEMENT_PASSWORD"}

// testPrefix begins variables of the test harness.
const testPrefix = envPrefix + "TEST_"

// Source is where a configuration comes from.
type Source struct {
	File     string            // --config; "" if it was not given
	Environ  []string          // as os.Environ
	Flags    map[string]string // flags that were given, from FlagValues
	Hostname string            // "": os.Hostname
	Dir      string            // of relative paths; "": the working directory
}

// layer is what one source says, nested as in the file.
type layer struct {
	values map[string]any
	origin map[string]string
}

// Load reads all layers, the later over the earlier: defaults, file,
// environment, flags. A variable that is set and empty says nothing; a flag
// that is given and empty takes the value away. All that is wrong is reported
// in one BAD_REQUEST.
func Load(src Source) (Config, error) {
	env := environment(src.Environ)
	here, err := workingPlace(src.Dir, env)
	if err != nil {
		return Config{}, err
	}
	var found []problem
	name, file, problems, err := fileLayer(src.File, env, here)
	if err != nil {
		return Config{}, err
	}
	found = append(found, problems...)
	fromEnv, problems := envLayer(env, here)
	found = append(found, problems...)
	fromFlags, problems := flagLayer(src.Flags, here)
	if err := asError(append(found, problems...)); err != nil {
		return Config{}, err
	}
	m, err := merge(file, fromEnv, fromFlags)
	if err != nil {
		return Config{}, err
	}
	m.config.File = name
	f := finisher{src: src, env: env, here: here, merged: m}
	cfg, problems := f.finish()
	if err := asError(problems); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

func environment(environ []string) map[string]string {
	env := make(map[string]string, len(environ))
	for _, pair := range environ {
		if name, value, ok := strings.Cut(pair, "="); ok {
			env[name] = value
		}
	}
	return env
}

func workingPlace(dir string, env map[string]string) (place, error) {
	if dir == "" {
		wd, err := os.Getwd()
		if err != nil {
			return place{}, fault.Wrap(err, fault.Internal, "the working directory is gone; change to another one")
		}
		dir = wd
	}
	return place{home: env["HOME"], dir: dir}, nil
}

// merged is all layers in one, and where each key was said last.
type merged struct {
	config Config
	origin map[string]string
}

func merge(layers ...layer) (merged, error) {
	k := koanf.New(".")
	m := merged{origin: map[string]string{}}
	internal := func(err error) error {
		return fault.Wrap(err, fault.Internal, "the configuration's layers do not fit together; report this")
	}
	if err := k.Load(structs.Provider(Defaults(), "koanf"), nil); err != nil {
		return m, internal(err)
	}
	for _, l := range layers {
		for _, key := range keys {
			// A mapping replaces the earlier one: what a later layer leaves
			// out of control.allow is not allowed.
			if _, said := l.origin[key.path]; said && key.kind == dict {
				k.Delete(key.path)
			}
		}
		if err := k.Load(confmap.Provider(l.values, ""), nil); err != nil {
			return m, internal(err)
		}
		for path, where := range l.origin {
			m.origin[path] = where
		}
	}
	if err := k.Unmarshal("", &m.config); err != nil {
		return m, internal(err)
	}
	return m, nil
}

// envLayer reads the variables of the known keys and refuses unknown ones.
func envLayer(env map[string]string, here place) (layer, []problem) {
	known := map[string]key{}
	names := slices.Clone(reserved)
	for _, k := range keys {
		known[k.env()] = k
		names = append(names, k.env())
	}
	set := make([]string, 0, len(env))
	for name := range env {
		if strings.HasPrefix(name, envPrefix) && !strings.HasPrefix(name, testPrefix) && !slices.Contains(reserved, name) {
			set = append(set, name)
		}
	}
	sort.Strings(set)
	out := newLayer()
	var found []problem
	for _, name := range set {
		k, ok := known[name]
		switch {
		case !ok:
			found = append(found, problem{where: "$" + name, says: fmt.Sprintf(
				"there is no such variable; the nearest is %s", nearest(name, names))})
		case env[name] != "":
			found = append(found, out.say(k, env[name], "$"+name, here)...)
		}
	}
	return out, found
}

// flagLayer reads the flags that were given.
func flagLayer(flags map[string]string, here place) (layer, []problem) {
	out := newLayer()
	var found []problem
	for _, k := range keys {
		if s, given := flags[k.path]; given {
			found = append(found, out.say(k, s, "--"+k.flag(), here)...)
		}
	}
	return out, found
}

func newLayer() layer { return layer{values: map[string]any{}, origin: map[string]string{}} }

// say sets one key from text, which for a list or a mapping is YAML.
func (l layer) say(k key, s, where string, here place) []problem {
	w := walker{place: here, origin: l.origin, locate: func(*yaml.Node) string { return where }}
	var v any
	switch {
	case s == "" && (k.kind == text || k.kind == path):
		v = ""
		l.origin[k.path] = where
	case k.kind == list || k.kind == dict:
		doc := yaml.Node{}
		if err := yaml.Unmarshal([]byte(s), &doc); err != nil || len(doc.Content) != 1 {
			return []problem{{where: where, key: k.path, says: "is not YAML that can be read; write " + k.sample}}
		}
		v = w.value(doc.Content[0], k.rule, k.path)
	default:
		v = w.value(&yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}, k.rule, k.path)
	}
	if v != nil {
		put(l.values, k.path, v)
	}
	return w.found
}

// put sets a dotted path in nested maps.
func put(m map[string]any, path string, v any) {
	head, rest, more := strings.Cut(path, ".")
	if !more {
		m[head] = v
		return
	}
	sub, ok := m[head].(map[string]any)
	if !ok {
		sub = map[string]any{}
		m[head] = sub
	}
	put(sub, rest, v)
}
