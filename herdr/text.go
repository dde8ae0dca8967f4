package herdr

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// fullWidthAt stands for '@', which makes one agent read a file and attach it
// (agent fact §1.8).
const fullWidthAt = '＠'

var newlines = strings.NewReplacer("\r\n", "\n", "\r", "\n")

// Clean makes text from a peer safe to paste, so that what a person sees is
// what the agent gets (design §11, agent fact §3):
//
//   - CRLF and CR become LF; a tab becomes four blanks; the text is NFC;
//   - C0 controls, ESC among them, and DEL become control pictures (U+2400…);
//     C1 controls, bytes that are no UTF-8, line separators, bidi controls and
//     other characters without a picture become their number: ⟨U+202E⟩, ⟨0x9B⟩
//     (not in <>: a combining stroke after > makes another character of it);
//   - every '@' becomes '＠';
//   - leading and trailing blanks and blank lines go.
//
// NFC comes first and the replacing is one pass over its result, which writes
// no character that means anything next to another. Clean(Clean(s)) is Clean(s).
//
// A first character '!', '/', '#' or '?' stays: Frame puts a header before it,
// and the injector refuses a text that begins with one.
func Clean(s string) string {
	s = norm.NFC.String(newlines.Replace(s))
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, "⟨0x%02X⟩", s[i])
		case r == '\n':
			b.WriteByte('\n')
		case r == '\t':
			b.WriteString("    ")
		case r < 0x20:
			b.WriteRune(0x2400 + r)
		case r == 0x7f:
			b.WriteRune(0x2421)
		case r == '@':
			b.WriteRune(fullWidthAt)
		case unseen(r):
			fmt.Fprintf(&b, "⟨U+%04X⟩", r)
		default:
			b.WriteRune(r)
		}
		i += n
	}
	return strings.TrimFunc(b.String(), unicode.IsSpace)
}

// unseen reports whether r acts on a screen or on a reader without being seen.
// Joiners and variation selectors stay, scripts and emoji need them.
func unseen(r rune) bool {
	switch {
	case r >= 0x80 && r <= 0x9f, r == 0x2028, r == 0x2029:
		return true
	case r == 0x200c, r == 0x200d:
		return false
	case unicode.Is(unicode.Cf, r):
		return !unicode.Is(unicode.Prepended_Concatenation_Mark, r)
	case r >= 0xe0100 && r <= 0xe01ef: // supplementary selectors carry hidden bytes
		return true
	case r == 0x115f, r == 0x1160, r == 0x3164, r == 0xffa0: // fillers
		return true
	}
	return unicode.Is(unicode.Noncharacter_Code_Point, r)
}

// checkSafe refuses what the injector must never paste, whoever made it: the
// last guard behind Clean and Frame.
func checkSafe(text string) error {
	if text == "" {
		return errNothing
	}
	if !utf8.ValidString(text) {
		return errUnclean
	}
	for _, r := range text {
		if r != '\n' && (unicode.IsControl(r) || r == '@') {
			return errUnclean
		}
	}
	switch first, _ := utf8.DecodeRuneInString(text); {
	case strings.ContainsRune("!/#?&", first), unicode.IsSpace(first):
		return errCommand
	}
	return nil
}

// oneLine cleans s for use within a line of our own.
func oneLine(s string) string {
	const most = 200 // runes; ids and addresses are far below
	r := []rune(strings.ReplaceAll(Clean(s), "\n", " "))
	if len(r) > most {
		r = append(r[:most], '…')
	}
	return string(r)
}

// squash keeps the letters and digits of s: what wrapping, indenting and boxes
// on a screen leave of a text.
func squash(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return r
		}
		return -1
	}, s)
}
