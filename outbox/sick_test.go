package outbox

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/store"
)

// onSickDisk has a step of the outbox meet a disk whose last sync fails, which
// has to be an error.
func (w *world) onSickDisk(step func() error) {
	w.t.Helper()
	w.sick.Store(true)
	if err := step(); !errors.Is(err, errSync) {
		w.t.Fatalf("on a sick disk: %v, want its error", err)
	}
}

// Fault: what was refused because the store could not be written is sent or
// told all the same, after a kill or when the disk is well again; or the same
// call does not bring it on its way then.
func TestWhatTheStoreRefusedDidNotHappen(t *testing.T) {
	ctx := context.Background()
	answered := brief()
	dead := &envelope.Envelope{}
	for name, c := range map[string]struct {
		before func(w *world)
		step   func(w *world) error
		mail   int                     // that the step sends in the end
		told   func(w *world) []string // what it tells
		want   []string
	}{
		"a reply": {
			step: func(w *world) error {
				_, err := w.out.Reply(ctx, Answer{From: aide, Brief: answered, Content: []byte("done")})
				return err
			},
			mail: 1,
		},
		"a reply under a key": {
			step: func(w *world) error { _, err := w.reply("key"); return err },
			mail: 1,
		},
		"a brief": {
			step: func(w *world) error { _, err := w.send(Request{}); return err },
			mail: 1,
		},
		"a brief under a key": {
			step: func(w *world) error { _, err := w.send(Request{Key: "key"}); return err },
			mail: 1,
		},
		"a broadcast": {
			step: func(w *world) error {
				_, err := w.out.Broadcast(ctx, Broadcast{From: boss, Group: "all", Content: []byte("all of you"), Key: "key"})
				return err
			},
			mail: 1,
		},
		"a report to another host": {
			step: func(w *world) error {
				return w.out.Final(ctx, envelope.Report{Kind: envelope.Abandoned, Reason: "PANE_GONE", MsgID: answered.MsgID, TraceID: answered.TraceID, Sender: chief, SenderHost: "hostb", Recipient: aide})
			},
			mail: 1,
		},
		"a notice": {
			before: func(w *world) { dead.MsgID = w.sent(Request{}).MsgID },
			step:   func(w *world) error { return w.out.Outcome(ctx, report(envelope.Failed, "NOT_INJECTED", dead.MsgID)) },
			told:   func(w *world) []string { return w.local.notices(dead.MsgID) },
			want:   []string{"FAILED NOT_INJECTED"},
		},
		"a dead letter": {
			before: func(w *world) {
				w.sent(Request{Life: time.Minute})
				*dead = *w.broker.mail()[0]
			},
			step: func(w *world) error { return w.out.DeadLetter(dead, "expired") },
			told: func(w *world) []string {
				w.turn()
				w.answers(envelope.Deferred, "UNSEEN", dead.MsgID)
				w.after(time.Minute)
				return w.local.notices(dead.MsgID)
			},
			want: []string{"FAILED EXPIRED"},
		},
	} {
		for _, killed := range []bool{true, false} {
			t.Run(name+map[bool]string{true: ", killed", false: ", healed"}[killed], func(t *testing.T) {
				w := newWorld(t)
				if c.before != nil {
					c.before(w)
				}
				sent := len(w.broker.mail())
				var open []store.Intent
				look := func() (in []store.Intent) {
					must(t, w.store.View(func(tx *store.Tx) (err error) { in, err = tx.OpenIntents(); return err }))
					return in
				}
				must(t, w.store.Flush(ctx))
				open = look()
				w.onSickDisk(func() error { return c.step(w) })
				if got := look(); len(got) != len(open) {
					t.Errorf("%d open intents are stored after the refusal, want the %d of before", len(got), len(open))
				}
				if killed {
					w.fall()
				} else {
					w.sick.Store(false)
					until(t, "the disk is well", func() bool { return w.store.Healthy() == nil })
				}
				w.reconnect()
				w.after(answerWait / 2)
				if got := len(w.broker.mail()) - sent; got != 0 {
					t.Errorf("%d were sent that had been refused", got)
				}
				if got := w.local.notices(dead.MsgID); c.told != nil && killed && len(got) != 0 {
					t.Errorf("told without being asked again: %q", got)
				}
				must(t, c.step(w))
				w.after(time.Second)
				if got := len(w.broker.mail()) - sent; got != c.mail {
					t.Errorf("%d were sent when it was tried again, want %d", got, c.mail)
				}
				if c.told != nil {
					if got := c.told(w); !slices.Equal(got, c.want) {
						t.Errorf("told %q, want %q", got, c.want)
					}
				}
			})
		}
	}
}
