package agent

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// token is one piece of input: a paste, a key, or typed text.
type token struct {
	kind   tokenKind
	text   string // paste and text
	key    string // enter, esc, tab, backspace, up, down, left, right, ctrl+c, …
	joined bool   // came in one read with a paste before it
}

type tokenKind int

const (
	textToken tokenKind = iota
	pasteToken
	keyToken
)

var (
	pasteStart = []byte("\x1b[200~")
	pasteEnd   = []byte("\x1b[201~")
)

// parser cuts the bytes of the terminal into tokens; what is incomplete waits
// for the next read.
type parser struct {
	buf     []byte
	pasting bool
}

var keyNames = map[string]string{
	"\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left", "\x1b[Z": "shift+tab",
	"\x1b[I": "focus-in", "\x1b[O": "focus-out",
}

// feed takes what one read gave. An Esc at its very end waits; see flush.
func (p *parser) feed(b []byte) []token {
	p.buf = append(p.buf, b...)
	var out []token
	pasted := false
	for len(p.buf) > 0 {
		t, n := p.next()
		if n == 0 {
			break
		}
		p.buf = p.buf[n:]
		if t == nil {
			continue
		}
		t.joined = pasted
		pasted = pasted || t.kind == pasteToken
		out = append(out, *t)
	}
	return out
}

// flush gives a lone Esc that no sequence followed.
func (p *parser) flush() []token {
	if p.pasting || len(p.buf) == 0 || p.buf[0] != 0x1b {
		return nil
	}
	rest := p.buf[1:]
	p.buf = nil
	return append([]token{{kind: keyToken, key: "esc"}}, p.feed(rest)...)
}

// next returns one token and its length; 0: incomplete. A nil token with a
// length is one to pass over.
func (p *parser) next() (*token, int) {
	switch {
	case p.pasting:
		return p.paste()
	case bytes.HasPrefix(p.buf, pasteStart):
		p.pasting = true
		return nil, len(pasteStart)
	case p.buf[0] == 0x1b:
		return p.escape()
	case p.buf[0] < 0x20 || p.buf[0] == 0x7f:
		return &token{kind: keyToken, key: controlKey(p.buf[0])}, 1
	}
	n := 0
	for n < len(p.buf) && p.buf[n] >= 0x20 && p.buf[n] != 0x7f {
		if !utf8.FullRune(p.buf[n:]) {
			break
		}
		_, size := utf8.DecodeRune(p.buf[n:])
		n += size
	}
	return &token{kind: textToken, text: string(p.buf[:n])}, n
}

func (p *parser) paste() (*token, int) {
	i := bytes.Index(p.buf, pasteEnd)
	if i < 0 {
		return nil, 0
	}
	p.pasting = false
	return &token{kind: pasteToken, text: strings.ToValidUTF8(string(p.buf[:i]), "\ufffd")}, i + len(pasteEnd)
}

// escape reads ESC [ … final; anything else after ESC is Esc and then that.
func (p *parser) escape() (*token, int) {
	if len(p.buf) == 1 {
		return nil, 0
	}
	if p.buf[1] != '[' && p.buf[1] != 'O' {
		return &token{kind: keyToken, key: "esc"}, 1
	}
	for i := 2; i < len(p.buf); i++ {
		if p.buf[i] >= 0x40 && p.buf[i] <= 0x7e {
			name, known := keyNames[string(p.buf[:i+1])]
			if !known {
				return nil, i + 1 // an answer of the terminal, or a key without meaning here
			}
			return &token{kind: keyToken, key: name}, i + 1
		}
	}
	return nil, 0
}

func controlKey(b byte) string {
	switch b {
	case '\r':
		return "enter"
	case '\n':
		return "newline"
	case '\t':
		return "tab"
	case 0x7f, 8:
		return "backspace"
	}
	return "ctrl+" + string(rune(b|0x60))
}
