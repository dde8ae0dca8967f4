package outbox

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// Fault: a lower outcome told after a higher one, a correction not told, or
// anything told twice, also after a restart.
func TestOutcomesInEveryOrder(t *testing.T) {
	for _, c := range []struct{ come, told string }{
		{"INJECTED", "INJECTED"},
		{"INJECTED INJECTED", "INJECTED"},
		{"INJECTED FAILED", "INJECTED"},
		{"INJECTED verdict", "INJECTED"},
		{"INJECTED ABANDONED ABANDONED", "INJECTED, ABANDONED PANE_GONE"},
		{"FAILED FAILED", "FAILED NOT_INJECTED"},
		{"FAILED verdict", "FAILED NOT_INJECTED"},
		{"FAILED INJECTED", "FAILED NOT_INJECTED, INJECTED"},
		{"FAILED INJECTED FAILED", "FAILED NOT_INJECTED, INJECTED"},
		{"FAILED ABANDONED", "FAILED NOT_INJECTED, ABANDONED PANE_GONE"},
		{"ABANDONED FAILED", "ABANDONED PANE_GONE"},
		{"ABANDONED INJECTED", "ABANDONED PANE_GONE"}, // only what is in a pane is abandoned
		{"ABANDONED verdict", "ABANDONED PANE_GONE"},
		{"verdict INJECTED", "FAILED IN_DOUBT, INJECTED"},
		{"verdict FAILED", "FAILED IN_DOUBT, FAILED NOT_INJECTED"},
		{"verdict FAILED INJECTED", "FAILED IN_DOUBT, FAILED NOT_INJECTED, INJECTED"},
		{"verdict ABANDONED", "FAILED IN_DOUBT, ABANDONED PANE_GONE"},
		{"REPLY", ""}, // which is mail itself
		{"REPLY INJECTED", ""},
		{"REPLY FAILED", ""},
		{"REPLY ABANDONED", ""},
		{"REPLY verdict", ""},
		{"FAILED REPLY ABANDONED", "FAILED NOT_INJECTED"},
		{"INJECTED REPLY ABANDONED", "INJECTED"},
		{"ABANDONED REPLY FAILED INJECTED", "ABANDONED PANE_GONE"},
	} {
		for _, crash := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s crash=%v", c.come, crash), func(t *testing.T) {
				w := newWorld(t)
				s := w.sent(Request{Life: time.Minute})
				for _, kind := range strings.Fields(c.come) {
					switch kind {
					case "verdict":
						w.after(3 * time.Minute)
					case "REPLY":
						w.out.Arrived(report(envelope.Reply, "", s.MsgID))
					case "FAILED":
						w.signal(envelope.Failed, "NOT_INJECTED", s.MsgID)
					case "ABANDONED":
						must(t, w.out.Outcome(context.Background(), report(envelope.Abandoned, "PANE_GONE", s.MsgID)))
					default:
						w.signal(envelope.Kind(kind), "", s.MsgID)
					}
					if crash {
						w.crash()
						w.reconnect()
					}
				}
				if got := strings.Join(w.local.notices(s.MsgID), ", "); got != c.told {
					t.Errorf("told %q, want %q", got, c.told)
				}
			})
		}
	}
}

// Fault: the same end told in the same words again.
func TestTheRecipientsWordThatSaysTheSameIsNotToldAgain(t *testing.T) {
	w := newWorld(t)
	s := w.sent(Request{Life: time.Minute})
	w.after(3 * time.Minute)
	w.signal(envelope.Failed, "IN_DOUBT", s.MsgID)
	w.wantNotices(s.MsgID, "FAILED IN_DOUBT")
	w.signal(envelope.Failed, "EXPIRED", s.MsgID) // that was his last word
	w.signal(envelope.Injected, "", s.MsgID)
	w.wantNotices(s.MsgID, "FAILED IN_DOUBT", "INJECTED")
}

// Fault: a caller who waits not told, or told by mail as well.
func TestWhoWaitsIsToldAndNobodyElse(t *testing.T) {
	w := newWorld(t)
	var watch *Watch
	s := w.sent(Request{Leaving: func(id, _ string) { watch = w.out.Watch(id) }})
	w.signal(envelope.Deferred, "BUSY", s.MsgID)
	w.answers(envelope.Deferred, "UNSEEN", s.MsgID) // says nothing to him
	if n := len(watch.C()); n != 1 {
		t.Errorf("heard %d words", n)
	}
	w.signal(envelope.Injected, "", s.MsgID)
	w.signal(envelope.Deferred, "LATE", s.MsgID)
	if p := <-watch.C(); p.Kind != envelope.Deferred || p.Reason != "BUSY" {
		t.Errorf("heard %+v first", p)
	}
	if p := watch.Close(); p.Kind != envelope.Injected {
		t.Errorf("heard %+v last", p)
	}
	w.wantNotices(s.MsgID)
	if len(w.out.watches) != 0 {
		t.Errorf("%d watches are left", len(w.out.watches))
	}
}

// Fault: a slow reader of a watch that blocks everybody, or misses INJECTED.
func TestAWatchNeverBlocksWhoTells(t *testing.T) {
	w := newWorld(t)
	watch := w.out.Watch("m")
	for range 100 {
		w.out.tell("m", Progress{Kind: envelope.Deferred, Reason: "BUSY"})
	}
	w.out.tell("m", Progress{Kind: envelope.Injected})
	if p := watch.Close(); p.Kind != envelope.Injected {
		t.Errorf("the last word was %+v", p)
	}
}

// Fault: an end that is stored although its notice is not, or the reverse.
func TestANoticeAndTheEndAreOneCommit(t *testing.T) {
	w := newWorld(t)
	s := w.sent(Request{})
	w.local.err = fault.New(fault.StoreUnavailable, "disk full")
	err := w.out.Signal(context.Background(), report(envelope.Failed, "PANE_GONE", s.MsgID))
	wantCode(t, err, fault.StoreUnavailable)
	if in, _ := w.stored(s.MsgID); in.State != store.IntentAccepted {
		t.Fatalf("the intent is %s without a notice", in.State)
	}
	w.local.err = nil
	w.signal(envelope.Failed, "PANE_GONE", s.MsgID)
	w.wantNotices(s.MsgID, "FAILED PANE_GONE")
	if in, _ := w.stored(s.MsgID); in.State != store.IntentEnded || in.Outcome != store.EndFailed {
		t.Errorf("the intent is %s/%s after its notice", in.State, in.Outcome)
	}
}

// Fault: the broker's word that comes while a notice is being committed
// reopening the intent for the next run.
func TestAConfirmDuringTheCommitOfANoticeReopensNothing(t *testing.T) {
	for _, fails := range []bool{false, true} {
		w := newWorld(t)
		w.broker.script(reply{late: true})
		var id string
		_, err := w.send(Request{Leaving: func(m, _ string) { id = m }})
		wantCode(t, err, fault.InDoubt)
		w.out.Use(deliverHook{w.local, func() error {
			w.broker.settle(id, fabric.Confirmed)
			if fails {
				return fault.New(fault.StoreUnavailable, "disk full")
			}
			return nil
		}})
		err = w.out.Signal(context.Background(), report(envelope.Failed, "PANE_GONE", id))
		in, _ := w.stored(id)
		if fails {
			wantCode(t, err, fault.StoreUnavailable)
			if in.State != store.IntentAccepted {
				t.Errorf("the confirm is lost: %s", in.State)
			}
			continue
		}
		must(t, err)
		if in.State != store.IntentEnded || in.Outcome != store.EndFailed {
			t.Errorf("the intent is %s/%s", in.State, in.Outcome)
		}
	}
}

// deliverHook does something in the middle of a delivery.
type deliverHook struct {
	*fakeLocal
	hook func() error
}

func (d deliverHook) Deliver(ctx context.Context, env *envelope.Envelope, also func(*store.Tx) error) error {
	if err := d.fakeLocal.Deliver(ctx, env, also); err != nil {
		return err
	}
	return d.hook()
}

// Fault: a report about somebody who has ended keeping its intent open for
// ever.
func TestANoticeForSomebodyWhoIsGoneEndsTheIntent(t *testing.T) {
	for _, code := range []fault.Code{fault.UnknownRecipient, fault.PaneGone, fault.InboxFull} {
		w := newWorld(t)
		s := w.sent(Request{})
		w.local.err = fault.New(code, "nobody")
		w.signal(envelope.Failed, "EXPIRED", s.MsgID)
		if in, _ := w.stored(s.MsgID); in.State != store.IntentEnded || in.Outcome != store.EndFailed {
			t.Errorf("%s: the intent is %s/%s", code, in.State, in.Outcome)
		}
	}
}

// Fault: a word on a message from somebody else than its recipient believed.
func TestOnlyTheRecipientsWordCounts(t *testing.T) {
	t.Attr("threat", "G3")
	w := newWorld(t)
	s := w.sent(Request{})
	e := report(envelope.Failed, "PANE_GONE", s.MsgID)
	e.From = critic
	must(t, w.out.Signal(context.Background(), e))
	e.Kind = envelope.Reply
	w.out.Arrived(e)
	w.wantNotices(s.MsgID)
	if in, _ := w.stored(s.MsgID); in.State != store.IntentAccepted {
		t.Errorf("the intent is %s", in.State)
	}
	if host, ok := w.out.RecipientHost(s.MsgID, coder); !ok || host != "hostb" {
		t.Errorf("the noted host is %q, %v", host, ok)
	}
	if _, ok := w.out.RecipientHost(s.MsgID, critic); ok {
		t.Error("a host is noted for somebody who did not get it")
	}
}

// A signal about a spawn or a stop is about no message. Fault: each of them is
// logged as an intent that cannot be read.
func TestNobodyWasSentNoMessage(t *testing.T) {
	w := newWorld(t)
	var log bytes.Buffer
	w.out.log = hclog.New(&hclog.LoggerOptions{Output: &log})
	if host, ok := w.out.RecipientHost("", coder); ok || log.Len() > 0 {
		t.Errorf("noted is %q, %v; the log has %s", host, ok, log.String())
	}
}

// Fault: a report about a forgotten message lost, where it is bad news.
func TestAWordOnAForgottenMessage(t *testing.T) {
	w := newWorld(t)
	id := newID()
	w.answers(envelope.Failed, "EXPIRED", id)
	w.signal(envelope.Deferred, "BUSY", id)
	w.signal(envelope.Injected, "", id)
	w.wantNotices(id)
	w.signal(envelope.Abandoned, "PANE_GONE", id) // a brief may be open for a week
	w.signal(envelope.Failed, "PANE_GONE", id)
	w.wantNotices(id, "ABANDONED PANE_GONE", "FAILED PANE_GONE")
}

// Fault: a sender of this host told later, twice, or in another order than
// things happened.
func TestASenderOfThisHostIsTold(t *testing.T) {
	w := newWorld(t)
	r := envelope.Report{MsgID: newID(), TraceID: newTrace(), Sender: boss, SenderHost: "hosta", Recipient: aide}
	watch := w.out.Watch(r.MsgID)
	r.Kind, r.Reason = envelope.Deferred, "BUSY"
	w.out.Progress(r)
	r.Kind, r.Reason = envelope.Injected, ""
	w.out.Progress(r)
	if p := <-watch.C(); p.Kind != envelope.Deferred {
		t.Errorf("heard %+v first", p)
	}
	if p := watch.Close(); p.Kind != envelope.Injected {
		t.Errorf("heard %+v last", p)
	}
	w.out.Progress(r) // nobody waits now
	w.turn()
	r.Kind, r.Reason = envelope.Failed, "IN_DOUBT"
	must(t, w.out.Final(context.Background(), r))
	must(t, w.out.Final(context.Background(), r))
	w.wantNotices(r.MsgID, "INJECTED", "FAILED IN_DOUBT")
	if n := len(w.broker.all); n != 0 {
		t.Errorf("%d messages went to the broker", n)
	}
	r.Sender = envelope.GatewayAddress("hosta")
	must(t, w.out.Final(context.Background(), r))
}

// Fault: records that are kept for ever, or forgotten while they still count.
func TestEndedIntentsAreKeptForADayAndTheirLife(t *testing.T) {
	w := newWorld(t)
	short := w.sent(Request{To: "chief"})
	long := w.sent(Request{To: "chief", Life: 3 * 24 * time.Hour})
	open := w.sent(Request{Life: 7 * 24 * time.Hour})
	answer, err := w.reply("")
	must(t, err)
	there := func() (ids []string) {
		w.out.prune(w.clock.Now())
		for _, s := range []Sent{short, long, open, answer} {
			if _, found := w.stored(s.MsgID); found {
				ids = append(ids, s.MsgID)
			}
		}
		return ids
	}
	w.turn()
	w.clock.add(24 * time.Hour)
	if got := there(); len(got) != 4 {
		t.Errorf("after a day %d of 4 are known", len(got))
	}
	w.clock.add(time.Second)
	if got, want := there(), []string{long.MsgID, open.MsgID}; !slices.Equal(got, want) {
		t.Errorf("then %v are known, want %v", got, want)
	}
	w.clock.add(48 * time.Hour)
	if got := there(); len(got) != 1 {
		t.Errorf("after three days %v are known, want the open one", got)
	}
}

// Fault: memory that grows with every message.
func TestWhatHasEndedLeavesMemory(t *testing.T) {
	w := newWorld(t)
	for range 50 {
		s := w.sent(Request{Key: newID()})
		w.signal(envelope.Injected, "", s.MsgID)
		w.sent(Request{To: "chief"})
		_, err := w.reply("")
		must(t, err)
	}
	w.turn()
	w.turn()
	o := w.out
	if n := len(o.open) + len(o.done) + len(o.lanes) + len(o.calls) + len(o.watches); n != 0 {
		t.Errorf("%d open, %d done, %d lanes, %d calls, %d watches are left", len(o.open), len(o.done), len(o.lanes), len(o.calls), len(o.watches))
	}
}

// Fault: a reply from this host, then a notice that its brief is in: the reply
// said so.
func TestAnAnswerFromThisHostIsNotFollowedByTheWordThatItsBriefIsIn(t *testing.T) {
	w := newWorld(t)
	s := w.sent(Request{To: "aide"})
	in := envelope.Report{Kind: envelope.Injected, MsgID: s.MsgID, TraceID: s.TraceID, Sender: boss, SenderHost: "hosta", Recipient: aide}
	w.out.Arrived(&envelope.Envelope{Kind: envelope.Reply, InReplyTo: s.MsgID, From: aide, To: boss, Signer: "hosta"})
	must(t, w.out.settle(context.Background(), in))
	if got := w.local.notices(s.MsgID); len(got) != 0 {
		t.Errorf("told %q after the answer", got)
	}
	other := w.sent(Request{To: "aide"})
	in.MsgID = other.MsgID
	must(t, w.out.settle(context.Background(), in))
	if got := w.local.notices(other.MsgID); !slices.Equal(got, []string{"INJECTED"}) {
		t.Errorf("of a message without an answer %q was told", got)
	}
}

// Fault: a notice that dies before a main that pulls rarely has seen it.
func TestEveryNoticeLivesAsLongAsMail(t *testing.T) {
	w := newWorld(t)
	for _, kind := range []envelope.Kind{envelope.Injected, envelope.Failed} {
		s := w.sent(Request{Life: time.Minute})
		w.signal(kind, "", s.MsgID)
		w.local.mu.Lock()
		notice := w.local.mail[len(w.local.mail)-1]
		w.local.mu.Unlock()
		if life := notice.Expiry().Sub(notice.Sent()); notice.InReplyTo != s.MsgID || life != envelope.MaxLife {
			t.Errorf("%s about %s lives %s", notice.Kind, notice.InReplyTo, life)
		}
	}
}

// Fault: an error is logged for each old reply that a migration brings.
func TestAReplyToNothingKnownIsNoError(t *testing.T) {
	w := newWorld(t)
	var log bytes.Buffer
	w.out.log = hclog.New(&hclog.LoggerOptions{Output: &log})
	w.out.Arrived(report(envelope.Reply, "", ""))
	if log.Len() != 0 {
		t.Errorf("logged: %s", log.String())
	}
}
