package outbox

import (
	"slices"

	"fleetd/fabric/envelope"
)

// Progress is a live word on a message: INJECTED, or DEFERRED and why.
type Progress struct {
	Kind   envelope.Kind
	Reason string
}

// Watch follows one message for one caller. A negative end is not here: it is
// mail of the sender.
type Watch struct {
	out *Outbox
	id  string
	c   chan Progress // never blocks a teller: old words make room
}

// Watch registers a watch; close it.
func (o *Outbox) Watch(msgID string) *Watch {
	w := &Watch{out: o, id: msgID, c: make(chan Progress, 4)}
	o.mu.Lock()
	o.watches[msgID] = append(o.watches[msgID], w)
	o.mu.Unlock()
	return w
}

// C yields what is learned, in order.
func (w *Watch) C() <-chan Progress { return w.c }

// Close ends the watch and returns what was told and not read: INJECTED if it
// is among it, so that the caller's answer can say so.
func (w *Watch) Close() Progress {
	w.out.mu.Lock()
	left := slices.DeleteFunc(w.out.watches[w.id], func(x *Watch) bool { return x == w })
	if len(left) == 0 {
		delete(w.out.watches, w.id)
	} else {
		w.out.watches[w.id] = left
	}
	w.out.mu.Unlock()
	var last Progress
	for {
		select {
		case p := <-w.c:
			if last.Kind != envelope.Injected {
				last = p
			}
		default:
			return last
		}
	}
}

// tell hands a word to those who watch, and reports whether anybody does.
func (o *Outbox) tell(msgID string, p Progress) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.watches[msgID]
	for _, w := range all {
		for {
			select {
			case w.c <- p:
			default:
				select {
				case <-w.c:
				default:
				}
				continue
			}
			break
		}
	}
	return len(all) > 0
}
