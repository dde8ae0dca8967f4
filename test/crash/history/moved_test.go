package history

import (
	"slices"
	"testing"
)

// old is a queue of the old daemon whose mail a killed run and a second one
// moved.
func old() History {
	h := History{Moves: []Moved{{
		Case: 1, Queue: "q", From: "w@a", To: "m@a", Want: []string{"q 0", "q done", "q done", "q 3"},
		Runs: []Run{{Found: 2, Moved: 2}},
	}}}
	for i, text := range h.Moves[0].Want {
		h.Shown = append(h.Shown, Shown{At: at(i), Reader: "m@a", MsgID: string(rune('a' + i)), Kind: "REPLY", From: "w@a", Content: text})
	}
	return h
}

// Each fails when its verdict is not found, or another one as well.
func TestVerdictsOnMovedMail(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(h *History)
		want []Verdict
	}{
		{"all is well", func(*History) {}, nil},
		{"one is missing", func(h *History) { h.Shown = h.Shown[:3] }, []Verdict{Lost}},
		{"one of two that say the same is missing", func(h *History) { h.Shown = slices.Delete(h.Shown, 1, 2) }, []Verdict{Lost}},
		{"one came under two ids", func(h *History) {
			m := h.Shown[3]
			m.MsgID, m.At = "z", at(9)
			h.Shown = append(h.Shown, m)
		}, []Verdict{Doubled}},
		{"one came twice, unmarked", func(h *History) {
			m := h.Shown[3]
			m.At = at(9)
			h.Shown = append(h.Shown, m)
		}, []Verdict{Doubled}},
		{"they came in another order", func(h *History) { h.Shown[0], h.Shown[3] = h.Shown[3], h.Shown[0] }, []Verdict{Untrue}},
		{"one has another sender", func(h *History) { h.Shown[2].From = "x@a" }, []Verdict{Untrue}},
		{"one went to another main", func(h *History) { h.Shown[2].Reader = "x@a" }, []Verdict{Untrue}},
		{"a run that went well left some", func(h *History) { h.Moves[0].Runs[0] = Run{Found: 3, Moved: 2, Left: 1} }, []Verdict{Untrue}},
		{"counts do not add up", func(h *History) { h.Moves[0].Runs[0].Found = 3 }, []Verdict{Untrue}},
		{"more were moved than there were", func(h *History) { h.Moves[0].Runs[0] = Run{Found: 5, Moved: 5} }, []Verdict{Untrue}},
		{"no run came to its end", func(h *History) { h.Moves[0].Runs = nil }, []Verdict{Unreported}},
		{"mail is left in the old queue", func(h *History) { h.Left = []Left{{Where: "the queue q", What: "1 message"}} }, []Verdict{Unreported}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := old()
			c.make(&h)
			var got []Verdict
			for _, f := range Check(h) {
				got = append(got, f.Verdict)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("found %+v, want %v", Check(h), c.want)
			}
		})
	}
}
