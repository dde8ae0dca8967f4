package main

import (
	"bytes"
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
)

// acts reports whether a terminal would obey r, or a person not see it: controls
// in either spelling, separators, marks that turn the direction of writing, and
// characters without a picture. Joiners stay, scripts and emoji need them.
func acts(r rune) bool {
	switch {
	case unicode.IsControl(r), r == 0x2028, r == 0x2029, r >= 0xe0100 && r <= 0xe01ef:
		return true
	case r == 0x200c, r == 0x200d:
		return false
	}
	return unicode.Is(unicode.Cf, r) && !unicode.Is(unicode.Prepended_Concatenation_Mark, r)
}

// inertJSON passes JSON on with what acts on a terminal written as \uXXXX, which
// means the same; of that the encoder escapes C0 alone. Each Write is whole text.
type inertJSON struct{ io.Writer }

func (w inertJSON) Write(p []byte) (int, error) {
	var b bytes.Buffer
	for _, r := range string(p) {
		switch {
		case r == '\n' || !acts(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	if _, err := w.Writer.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}
