package agent

import (
	"strings"
	"unicode/utf8"
)

// composer is the input line: typed text and pastes, of which long ones are
// shown as markers.
type composer struct {
	parts  []part
	pastes int // over the whole session
}

type part struct {
	text   string
	marker string // shown instead of text
}

func (c *composer) empty() bool { return len(c.parts) == 0 }

// clear keeps the count of pastes.
func (c *composer) clear() { c.parts = nil }

// text is what Enter would submit.
func (c *composer) text() string {
	var b strings.Builder
	for _, p := range c.parts {
		b.WriteString(p.text)
	}
	return b.String()
}

// shown is what is drawn.
func (c *composer) shown() string {
	var b strings.Builder
	for _, p := range c.parts {
		if p.marker != "" {
			b.WriteString(p.marker)
		} else {
			b.WriteString(p.text)
		}
	}
	return b.String()
}

func (c *composer) collapsed() bool {
	for _, p := range c.parts {
		if p.marker != "" {
			return true
		}
	}
	return false
}

func (c *composer) typed(s string) {
	if s != "" {
		c.parts = append(c.parts, part{text: s})
	}
}

// paste adds a paste and tells whether it was collapsed.
func (c *composer) paste(k *kind, s string) bool {
	if s == "" {
		return false
	}
	if !k.collapses(s) {
		c.typed(s)
		return false
	}
	c.pastes++
	var before []string
	for _, p := range c.parts {
		before = append(before, p.marker)
	}
	text := s
	if k.name == "opencode" { // a collapsed paste gets one blank
		text += " "
	}
	c.parts = append(c.parts, part{text: text, marker: k.marker(s, c.pastes, before)})
	return true
}

// backspace takes a whole marker, or one character.
func (c *composer) backspace() {
	if len(c.parts) == 0 {
		return
	}
	last := &c.parts[len(c.parts)-1]
	if last.marker == "" {
		_, n := utf8.DecodeLastRuneInString(last.text)
		if last.text = last.text[:len(last.text)-n]; last.text != "" {
			return
		}
	}
	c.parts = c.parts[:len(c.parts)-1]
}
