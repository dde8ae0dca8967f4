package migrations_test

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetd/fault"
	"fleetd/migrations"
	"fleetd/test/rabbit"
)

// A reader that is no consumer, or no longer one, held replies when the queue was
// looked through: an old daemon that finds its port taken comes and goes. Fails
// when what it gives back, in front of others that say the same, is taken for
// them: they were acked as sent and never were.
func TestEqualRepliesThatComeBackInFront(t *testing.T) {
	type at struct {
		step string
		n    int
	}
	for _, x := range []struct {
		name string
		back at // they come back after that
		cut  at // the run is cut after that, and a second one goes on
	}{
		{"before the first batch", at{"giveback", 1}, at{}},
		{"before the first batch, and a cut when it is out", at{"giveback", 1}, at{"settled", 1}},
		{"right before the first batch, and a cut when it is out", at{"look", 3}, at{"settled", 1}}, // its turn, and before each step
		{"in the first batch", at{"deliver", 1}, at{}},
		{"in the first batch, and a cut when it is out", at{"deliver", 1}, at{"settled", 1}},
		{"behind the first batch", at{"settled", 1}, at{}},
		{"behind the first batch, and a cut in the second", at{"settled", 1}, at{"deliver", 3}},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := newWorld(t, rabbit.URI(t), roomy)
			sent := same(4)
			w.old(sent...)
			release := w.hold(2)
			uri, proxy := w.proxied()
			c, err := w.runAt(uri, disturb(nil, func(step string, n int) {
				switch (at{step, n}) {
				case x.back:
					release()
				case x.cut:
					proxy.Reset()
				}
			}))
			if x.cut.n > 0 && fault.Is(err, fault.BrokerDown) {
				c, err = w.run(nil)
			}
			if err != nil || c.Left != 0 {
				t.Errorf("it came to %+v, %v", c, err)
			}
			w.inOrder(sent)
		})
	}
}

// of says what letters text has.
func of(text string) string {
	letters := strings.Split(text, "")
	slices.Sort(letters)
	return strings.Join(letters, "")
}

// A reader that is no consumer held some of several replies that say the same,
// and gives them back in front at any step; the run is killed at any later one that
// sends or settles, and made again; at last the broker loses all acks. Fails when one of them is
// taken for another that was sent, and dropped, or comes twice, or when what was
// back before anything was sent comes out of order.
//
// Left out is what nobody can tell from what a broker hands out again whose acks
// it lost: equals that come back when others are out, if the run is killed before
// it looked again. They are taken for sent. Nor is a reply known again that came
// back when the mark behind it was out, and whose ack is lost.
func TestEqualRepliesAtEveryStep(t *testing.T) {
	journal, err := migrations.OpenJournal(filepath.Join(t.TempDir(), "j"))
	if err != nil {
		t.Fatal(err)
	}
	defer journal.Close()
	journal.NoSync()
	for _, x := range []struct {
		texts string
		batch int
	}{{"abAB", 1}, {"aAAA", 2}, {"0aAA", 10}} {
		mover := migrations.Mover{Journal: journal, Limit: limit, Now: time.Now}
		mover.SetBatch(x.batch)
		want := strings.ToUpper(strings.ReplaceAll(x.texts, "0", "A"))
		for back, reached := 0, true; reached; back++ {
			reached = false
			for kill, killed := back, true; killed; kill++ {
				m, queue := newModel(x.texts), fmt.Sprint("agent.", x, back, kill, ".inbox")
				killed = m.run(t, mover, queue, func(step int) {
					if step == back {
						m.turn(hidden, ready)
						reached = true
					}
					if next := m.steps[step]; step >= kill && (next == "deliver" || next == "settled") && m.known(back) {
						kill = step
						runtime.Goexit()
					}
				})
				m.turn(hidden, ready)
				say := fmt.Sprintf("%+v, back before step %d, killed %t before step %d of %q", x, back, killed, kill, m.steps)
				sent := slices.Index(m.steps, "deliver")
				m.run(t, mover, queue, func(step int) {
					if m.steps[step] == "settled" {
						m.turn(longer, ready)
					}
				})
				m.turn(longer, ready)
				m.run(t, mover, queue, func(int) {})
				if got := m.got(); of(got) != of(want) || (sent < 0 || back < sent) && got != want {
					t.Fatalf("%s: the main gets %s, want %s", say, got, want)
				}
				if m.marks() > 1 {
					continue
				}
				m.turn(acked, ready)
				m.run(t, mover, queue, func(int) {})
				if got := m.got(); of(got) != of(want) {
					t.Fatalf("%s, and the acks lost: the main gets %s, want %s", say, got, want)
				}
			}
		}
	}
}

// known reports whether a run knows by now of what came back before step back:
// it looked since then and before it acked anything, or it went on to send.
func (m *model) known(back int) bool {
	first := slices.Index(m.steps, "ack")
	switch {
	case first < 0:
		return true
	case back < first && slices.Contains(m.steps[back:first], "look"):
		return true
	}
	given := slices.Index(m.steps[back:], "giveback")
	return given >= 0 && slices.Contains(m.steps[back+given:], "deliver")
}
