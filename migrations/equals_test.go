package migrations_test

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fleetd/migrations"
)

// lies is where a message of a modelled queue is.
type lies int

const (
	ready  lies = iota
	inHand      // a run took it
	hidden      // a reader took it that is no consumer
	longer      // and another one, that has it longer
	acked
)

// model is a broker with one old queue. Each call is a step, before which
// something may happen.
type model struct {
	queue []*lying
	tag   uint64
	inbox []migrations.Letter
	steps []string
	at    func(step int)
	lock  func() bool // whether it can be had; nil: always
}

type lying struct {
	migrations.Old
	lies
	takes int // how often it was taken
}

// newModel has a message for each letter of texts; a reader holds those whose
// letters are in lower case, which say the same, and another one those that are
// zero, which say A.
func newModel(texts string) *model {
	m := &model{}
	for _, c := range texts {
		is := ready
		switch {
		case c >= 'a':
			is = hidden
		case c == '0':
			c, is = 'A', longer
		}
		m.queue = append(m.queue, &lying{Old: migrations.Old{Body: []byte(strings.ToUpper(string(c)))}, lies: is})
	}
	return m
}

// turn has all messages that are from be to.
func (m *model) turn(from, to lies) {
	for _, l := range m.queue {
		if l.lies == from {
			l.lies = to
		}
	}
}

func (m *model) step(name string) {
	m.steps = append(m.steps, name)
	m.at(len(m.steps) - 1)
}

func (m *model) Look(context.Context, string) (migrations.Queue, error) {
	m.step("look")
	n := 0
	for _, l := range m.queue {
		if l.lies == ready {
			n++
		}
	}
	return migrations.Queue{Ready: n}, nil
}

func (m *model) Replicated(context.Context, string) (bool, error) { return false, nil }

func (m *model) Lock(context.Context, string) (bool, error) { return m.lock == nil || m.lock(), nil }

func (m *model) Take(context.Context, string) (migrations.Old, bool, error) {
	m.step("take")
	for _, l := range m.queue {
		if l.lies == ready {
			m.tag++
			l.lies, l.Tag, l.takes = inHand, m.tag, l.takes+1
			return l.Old, true, nil
		}
	}
	return migrations.Old{}, false, nil
}

func (m *model) GiveBack(_ context.Context, last uint64) error {
	m.step("giveback")
	for _, l := range m.queue {
		if l.lies == inHand && l.Tag <= last {
			l.lies = ready
		}
	}
	return nil
}

func (m *model) Mark(_ context.Context, _, id, text string) error {
	m.step("mark")
	m.queue = append(m.queue, &lying{Old: migrations.Old{MessageID: id, Body: []byte(text)}})
	return nil
}

func (m *model) Deliver(_ context.Context, l migrations.Letter) error {
	m.step("deliver")
	m.inbox = append(m.inbox, l)
	return nil
}

func (m *model) Ack(tag uint64) error {
	m.step("ack")
	for _, l := range m.queue {
		if l.lies == inHand && l.Tag == tag {
			l.lies = acked
		}
	}
	return nil
}

func (m *model) Settled(context.Context) error {
	m.step("settled")
	return nil
}

func (m *model) Release() {}

func (m *model) Delete(context.Context, string) (bool, error) { return true, nil }

// run makes a run; killed: it did not come to its end.
func (m *model) run(t *testing.T, mover migrations.Mover, queue string, at func(step int)) (killed bool) {
	t.Helper()
	m.steps, m.at, mover.Broker = nil, at, m
	row := migrations.Row{Queue: queue, FromID: "worker", ToID: "main"}
	killed = true
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := mover.Move(t.Context(), []migrations.Row{row}); err != nil {
			t.Error(err)
		}
		killed = false
	})
	wg.Wait()
	m.turn(inHand, ready)
	return killed
}

// got is what the main gets, in order: of letters with one id the first.
func (m *model) got() string {
	ids := map[string]bool{}
	var all []string
	for _, l := range m.inbox {
		if !ids[l.MsgID] {
			all = append(all, string(l.Body))
		}
		ids[l.MsgID] = true
	}
	return strings.Join(all, "")
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

// marks is how many marks were put into the queue.
func (m *model) marks() (n int) {
	for _, l := range m.queue {
		if l.MessageID != "" {
			n++
		}
	}
	return n
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

// A policy can limit how often a message is handed out. Fails when one that waits
// for mail that a run that is gone held is taken more often than to see that this is
// not there, to see it again, and to be moved; or when that mail is not waited for.
func TestMailThatWaitsIsNotTakenAgainAndAgain(t *testing.T) {
	for _, back := range []time.Duration{time.Second, time.Hour} {
		t.Run(back.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, mover, queue := newModel("ABCD"), migrations.Mover{Limit: limit, Now: time.Now, Return: 5 * time.Second}, "agent.w:p1.inbox"
				mover.SetBatch(2)
				var err error
				if mover.Journal, err = migrations.OpenJournal(filepath.Join(t.TempDir(), "j")); err != nil {
					t.Fatal(err)
				}
				defer mover.Journal.Close()
				m.run(t, mover, queue, func(step int) {
					if m.steps[step] == "deliver" {
						m.turn(inHand, hidden)
						runtime.Goexit()
					}
				})
				began := time.Now()
				for _, l := range m.queue {
					l.takes = 0
				}
				m.run(t, mover, queue, func(int) {
					if time.Since(began) >= back {
						m.turn(hidden, ready)
					}
				})
				if got := m.got(); back < mover.Return && got != "ABCD" {
					t.Errorf("the main gets %s", got)
				}
				for _, l := range m.queue {
					if l.takes > 3 {
						t.Errorf("%.20s was taken %d times", l.Body, l.takes)
					}
				}
			})
		})
	}
}

// The broker lets the lock of a run go, and puts back what it held, side by side,
// and of another host's run no journal here says what that was. Fails when a run
// that saw such a one go on without what comes back a little later: it would be
// moved behind its successors. A run that did not see it sees more come in, as any.
func TestWhatAnotherHostsRunHeldIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, queue, began := newModel("abCD"), "agent.w:p1.inbox", time.Now()
		m.lock = func() bool { return time.Since(began) > time.Minute }
		j, err := migrations.OpenJournal(filepath.Join(t.TempDir(), "j"))
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		mover := migrations.Mover{Journal: j, Limit: limit, Now: time.Now, Patience: time.Hour, Return: 5 * time.Second}
		m.run(t, mover, queue, func(int) {
			if time.Since(began) > time.Minute+4*time.Second {
				m.turn(hidden, ready)
			}
		})
		if got := m.got(); got != "ABCD" {
			t.Errorf("the main gets %s", got)
		}
	})
}
