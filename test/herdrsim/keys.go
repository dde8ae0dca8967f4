package herdrsim

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// namedKeys are the plain encodings of reference §5.5. Home, end, page keys,
// insert and delete do not exist there.
var namedKeys = map[string]string{
	"enter": "\r", "return": "\r", "esc": "\x1b", "escape": "\x1b", "tab": "\t",
	"backspace": "\x7f", "bs": "\x7f", "space": " ",
	"up": "\x1b[A", "down": "\x1b[B", "right": "\x1b[C", "left": "\x1b[D",
	"minus": "-", "comma": ",", "period": ".", "slash": "/", "backslash": `\`, "quote": "'",
	"double_quote": `"`, "semicolon": ";", "colon": ":", "percent": "%", "ampersand": "&",
	"backtick": "`", "plus": "+", "+": "+",
}

var functionKeys = []string{"\x1bOP", "\x1bOQ", "\x1bOR", "\x1bOS", "\x1b[15~", "\x1b[17~", "\x1b[18~", "\x1b[19~", "\x1b[20~", "\x1b[21~", "\x1b[23~", "\x1b[24~"}

var modifiers = map[string]string{
	"ctrl": "ctrl", "control": "ctrl", "shift": "shift", "alt": "alt", "option": "alt", "meta": "alt",
	"cmd": "super", "command": "super", "super": "super", "hyper": "hyper",
}

// encodeKey gives the bytes of one key name, or invalid_key.
func encodeKey(name string) ([]byte, error) {
	if strings.EqualFold(name, "c-c") {
		return []byte{3}, nil
	}
	mods := map[string]bool{}
	rest := name
	for {
		head, tail, found := strings.Cut(rest, "+")
		mod, known := modifiers[strings.ToLower(head)]
		if !found || !known || tail == "" {
			break
		}
		mods[mod], rest = true, tail
	}
	base, ok := baseKey(rest)
	if !ok {
		return nil, refuse("invalid_key", "unsupported key %s", name)
	}
	return modified(base, mods), nil
}

func baseKey(name string) (string, bool) {
	if s, ok := namedKeys[strings.ToLower(name)]; ok {
		return s, true
	}
	if n, err := strconv.Atoi(strings.TrimPrefix(strings.ToLower(name), "f")); err == nil && len(name) > 1 && n >= 1 && n <= len(functionKeys) {
		return functionKeys[n-1], true
	}
	if utf8.RuneCountInString(name) == 1 && name != "\x1b" {
		return name, true
	}
	return "", false
}

// modified applies modifiers as a plain terminal can: shift+tab, ctrl+letter,
// alt as ESC before. The others cannot be told apart there.
func modified(base string, mods map[string]bool) []byte {
	out := []byte(base)
	switch {
	case mods["shift"] && base == "\t":
		out = []byte("\x1b[Z")
	case mods["shift"] && len(out) == 1:
		out = []byte(strings.ToUpper(base))
	}
	if mods["ctrl"] && len(out) == 1 {
		switch ch := out[0]; {
		case ch >= '@' && ch <= '~':
			out[0] = ch & 0x1f
		case ch == ' ':
			out[0] = 0
		}
	}
	if mods["alt"] {
		out = append([]byte{0x1b}, out...)
	}
	return out
}

func encodeKeys(names []string) ([][]byte, error) {
	var out [][]byte
	for _, n := range names {
		b, err := encodeKey(n)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}
