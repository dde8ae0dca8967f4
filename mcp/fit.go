package mcp

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxResultBytes bounds one tool result, counted on its JSON: one agent cuts
// at 12 KB, in the middle (design §11, agent facts §9).
const maxResultBytes = 8 << 10

// fitter is a result that can make itself smaller without losing anything for
// good: content stays readable with bridge_read, lists say that they were cut.
// The verbs page their results themselves; this is the guard behind them.
type fitter interface {
	// fit shrinks the result until over reports no excess bytes, as far as it
	// can. It also turns nil lists into empty ones.
	fit(over func() int)
}

// fitted returns the JSON of v within limit, and false if it does not fit.
func fitted(v any, limit int) ([]byte, bool, error) {
	var failed error
	over := func() int {
		b, err := compact(v)
		if err != nil {
			failed = err
			return 0
		}
		return max(0, len(b)-limit)
	}
	if f, ok := v.(fitter); ok {
		f.fit(over)
	}
	if failed != nil {
		return nil, false, failed
	}
	b, err := compact(v)
	return b, err == nil && len(b) <= limit, err
}

// withLists is v with empty lists for nil ones, and nothing cut.
func withLists(v any) any {
	if f, ok := v.(fitter); ok {
		f.fit(func() int { return 0 })
	}
	return v
}

// compact is v as JSON without the escapes that only HTML needs: agents are
// shown these bytes.
func compact(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(buf.Bytes(), "\n"), nil
}

// bite is how much of s to cut at once for so many bytes of JSON too many. A
// byte of text is one byte of JSON or up to six, so that what is cut for each
// of them could be all there is.
func bite(s string, excess int) int { return min(excess, 1+len(s)/2) }

// cutText takes at least n bytes off the end of s, at a character boundary.
// One byte of text is at least one byte of JSON.
func cutText(s string, n int) string {
	end := max(0, len(s)-n)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// cutList drops entries from the end of *list until over reports no excess, and
// leaves a note of how many and what to do.
func cutList[E any](list *[]E, note *string, what string, over func() int) {
	cut(list, note, what, over, func(l []E, drop int) []E { return l[:len(l)-drop] })
}

// cutOldest is cutList for a list that begins with what matters least.
func cutOldest[E any](list *[]E, note *string, what string, over func() int) {
	cut(list, note, what, over, func(l []E, drop int) []E { return l[drop:] })
}

func cut[E any](list *[]E, note *string, what string, over func() int, off func(l []E, drop int) []E) {
	if *list == nil {
		*list = []E{}
	}
	whole, said := *list, *note
	for excess := over(); excess > 0 && len(*list) > 0; excess = over() {
		size, _ := compact(*list)
		// Cut in proportion, and never so much that one more round is needed
		// for every entry.
		drop := max(1, len(*list)*excess/(len(size)+1))
		*list = off(*list, min(drop, len(*list)))
		*note = strings.TrimSpace(fmt.Sprintf("%s %d of %d %s are left out here.", said, len(whole)-len(*list), len(whole), what))
	}
}

func (r *PollResult) fit(over func() int) {
	if r.Messages == nil {
		r.Messages = []Message{}
	}
	for excess := over(); excess > 0; excess = over() {
		longest := -1
		for i := range r.Messages {
			if n := len(r.Messages[i].Content); n > 0 && (longest < 0 || n > len(r.Messages[longest].Content)) {
				longest = i
			}
		}
		if longest < 0 {
			return
		}
		r.Messages[longest].cut(bite(r.Messages[longest].Content, excess))
	}
}

// cut shortens the content by n bytes or more and says where the rest begins.
func (m *Message) cut(n int) {
	m.Total = cmp.Or(m.Total, len(m.Content))
	m.Content = cutText(m.Content, n)
	m.NextOffset = len(m.Content)
	if m.Content == "" {
		m.Note = "Too long to show here; get it with bridge_read from offset 0."
	}
}

func (r *SendResult) fit(over func() int) {
	m := r.Reply
	if m == nil {
		m = r.Question
	}
	if m == nil {
		return
	}
	for excess := over(); excess > 0 && m.Content != ""; excess = over() {
		m.cut(bite(m.Content, excess))
	}
}

func (r *ReadResult) fit(over func() int) {
	for excess := over(); excess > 0 && r.Content != ""; excess = over() {
		r.Content = cutText(r.Content, bite(r.Content, excess))
		r.NextOffset = r.Offset + len(r.Content)
	}
}

func (r *RosterResult) fit(over func() int) {
	cutList(&r.Entities, &r.Note, "entities (use the filters)", over)
	cutList(&r.Hosts, &r.Note, "hosts (use the filters)", over)
}

func (r *TraceResult) fit(over func() int) {
	// What became of a message is in the newest steps, who says so in the hosts.
	cutOldest(&r.Hops, &r.Note, "steps, the oldest,", over)
	if len(r.Hops) == 0 {
		cutList(&r.Hosts, &r.Note, "hosts", over)
	}
}

func (r *WhoamiResult) fit(over func() int) {
	cutList(&r.Drained, &r.Note, "fetched messages", over)
	cutList(&r.OpenBriefs, &r.Note, "open briefs", over)
	cutList(&r.Questions, &r.Note, "open questions", over)
}
