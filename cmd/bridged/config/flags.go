package config

import (
	"fmt"
	"strings"

	"github.com/knadh/koanf/providers/structs"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
)

// AddFlags adds the flags of the named keys to fs, of all keys if none is
// named. Keys that fs has already are left out.
func AddFlags(fs *pflag.FlagSet, names ...string) {
	defaults := flat(Defaults())
	for _, k := range keys {
		if !wanted(k.path, names) || fs.Lookup(k.flag()) != nil {
			continue
		}
		usage := k.usage + " ($" + k.env() + ")"
		if k.kind == boolean {
			fs.Bool(k.flag(), false, usage)
			continue
		}
		def := defaults.String(k.path)
		if k.kind == duration {
			def = short(defaults.Duration(k.path))
		}
		fs.String(k.flag(), def, usage)
	}
}

func wanted(path string, names []string) bool {
	for _, n := range names {
		if n == path {
			return true
		}
	}
	return len(names) == 0
}

// FlagValues returns what was given on the command line, key by key, for
// Source.Flags.
func FlagValues(fs *pflag.FlagSet) map[string]string {
	out := map[string]string{}
	for _, k := range keys {
		if f := fs.Lookup(k.flag()); f != nil && f.Changed {
			out[k.path] = f.Value.String()
		}
	}
	return out
}

// flat is a configuration by dotted keys.
func flat(c Config) *koanf.Koanf {
	k := koanf.New(".")
	if err := k.Load(structs.Provider(c, "koanf"), nil); err != nil {
		panic(err) // a struct provider has nothing to fail with
	}
	return k
}

// String lists every key with its value, one a line, without the password of
// the URI and without the values of the profiles' variables.
func (c Config) String() string {
	k := flat(c)
	var b strings.Builder
	for _, key := range keys {
		fmt.Fprintf(&b, "%s: %v\n", key.path, k.Get(key.path))
	}
	return b.String()
}

// GoString is String, for %#v.
func (c Config) GoString() string { return c.String() }
