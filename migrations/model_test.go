package migrations_test

import (
	"context"
	"strings"
	"sync"
	"testing"

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

// marks is how many marks were put into the queue.
func (m *model) marks() (n int) {
	for _, l := range m.queue {
		if l.MessageID != "" {
			n++
		}
	}
	return n
}
