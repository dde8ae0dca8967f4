package outbox

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/store"
)

// Fault: publishing before the commit.
func TestNothingLeavesBeforeItIsStoredAndAWaiterIsRegistered(t *testing.T) {
	w := newWorld(t)
	var waiting string
	w.broker.answer = func(p publication) reply {
		in, found, err := w.out.stored(p.env.MsgID)
		must(t, err)
		if !found || in.State != store.IntentIntended || string(in.Body) != "do it" {
			t.Errorf("published with the intent %+v in the store", in)
		}
		if waiting != p.env.MsgID {
			t.Errorf("published %s while %q was waited for", p.env.MsgID, waiting)
		}
		return reply{out: fabric.Confirmed}
	}
	s := w.sent(Request{Leaving: func(id, _ string) { waiting = id }})
	if len(w.broker.mail()) != 1 || w.broker.mail()[0].MsgID != s.MsgID {
		t.Errorf("published %v", ids(w.broker.mail()))
	}
}

// Fault: keeping the body of what the broker has, or ending a watched intent.
func TestABodyIsForgottenOnceTheBrokerHasIt(t *testing.T) {
	w := newWorld(t)
	s := w.sent(Request{})
	in, _ := w.stored(s.MsgID)
	if in.State != store.IntentAccepted || in.Body != nil {
		t.Errorf("a brief to a worker is %s with body %q after its confirm", in.State, in.Body)
	}
	for _, kind := range []string{"SEND to a main", "REPLY"} {
		var err error
		if kind == "REPLY" {
			s, err = w.reply("")
		} else {
			s, err = w.send(Request{To: "chief"})
		}
		must(t, err)
		if in, _ := w.stored(s.MsgID); in.State != store.IntentEnded || in.Outcome != store.EndAccepted || in.Body != nil {
			t.Errorf("%s is %s/%s after its confirm, want ended", kind, in.State, in.Outcome)
		}
	}
}

// Fault: speaking about another host, or writing, without a link.
func TestWithoutALinkEveryRemoteSendIsBrokerDown(t *testing.T) {
	w := newWorld(t)
	w.broker.down = "connecting: dial"
	w.dir.host(func(h *roster.HostView) { h.State = roster.Offline })
	ghost := w.dir.who["coder"]
	ghost.Gone = true
	w.dir.who["ghost"] = ghost
	for _, to := range []string{"coder", "chief", "nobody", "nobody@hostb", "ghost"} {
		_, err := w.send(Request{To: to, Key: to, QueueIfOffline: to == "chief"})
		wantCode(t, err, fault.BrokerDown)
	}
	_, err := w.reply("")
	wantCode(t, err, fault.BrokerDown)
	must(t, w.store.View(func(tx *store.Tx) error {
		open, err := tx.OpenIntents()
		if len(open) != 0 {
			t.Errorf("%d intents were written", len(open))
		}
		return err
	}))
	for _, to := range []string{"nobody@hosta", "wQ:p9"} {
		_, err := w.send(Request{To: to})
		wantCode(t, err, fault.UnknownRecipient) // this host knows its own
	}
	w.sent(Request{To: "aide"})
}

// Fault: denying somebody's existence from an old view.
func TestNobodyIsDeniedFromAnOldView(t *testing.T) {
	w := newWorld(t)
	_, err := w.send(Request{To: "nobody"})
	wantCode(t, err, fault.UnknownRecipient)
	w.dir.stale = true
	_, err = w.send(Request{To: "nobody"})
	wantCode(t, err, fault.BrokerDown)
}

// Fault: a message that leaves while no answer could come back.
func TestNobodySendsBeforeAnAnswerCanReachHim(t *testing.T) {
	w := newWorld(t)
	w.broker.unreachable = fault.New(fault.BrokerDown, "the inbox is not there yet")
	_, err := w.send(Request{})
	wantCode(t, err, fault.BrokerDown)
	if n := len(w.broker.all); n != 0 {
		t.Errorf("%d messages were published", n)
	}
}

// Fault: queueing for a host that is away without being asked to, or refusing
// a reply to it.
func TestMailForAHostThatIsAway(t *testing.T) {
	w := newWorld(t)
	w.dir.host(func(h *roster.HostView) { h.State = roster.Unknown })
	_, err := w.send(Request{})
	wantCode(t, err, fault.HostOffline)
	if n := len(w.broker.mail()); n != 0 {
		t.Fatalf("%d messages were published", n)
	}
	w.sent(Request{QueueIfOffline: true})
	if _, err := w.reply(""); err != nil {
		t.Errorf("a reply was refused: %v", err)
	}
	if want := []string{coder, chief}; !slices.Equal(w.broker.renews, want) {
		t.Errorf("leases renewed: %v, want %v", w.broker.renews, want)
	}
}

// Fault: taking a confirmed message for delivered where its queue has gone.
func TestMailWhoseInboxWentWithItIsUnroutable(t *testing.T) {
	w := newWorld(t)
	w.dir.host(func(h *roster.HostView) { h.State = roster.Offline })
	w.broker.gone[coder], w.broker.gone[chief] = true, true
	_, err := w.send(Request{QueueIfOffline: true, Key: "k"})
	wantCode(t, err, fault.Unroutable)
	undone := false
	b := brief()
	_, err = w.out.Reply(context.Background(), Answer{From: aide, Brief: b, Content: []byte("x"), Key: "r",
		Undo: func(*store.Tx) error { undone = true; return nil }})
	wantCode(t, err, fault.Unroutable)
	must(t, w.store.Flush(context.Background()))
	if !undone {
		t.Error("what was committed with a reply that reached nobody stays")
	}
	w.broker.gone = map[string]bool{}
	first := w.broker.mail()[0].MsgID
	if s := w.sent(Request{QueueIfOffline: true, Key: "k"}); s.MsgID != first || s.Repeated {
		t.Errorf("tried again as %s (repeated %v), want %s sent anew", s.MsgID, s.Repeated, first)
	}
}

// Fault: confusing the ways in which a broker can refuse.
func TestARefusalSaysWhy(t *testing.T) {
	for _, c := range []struct {
		name string
		word fabric.Outcome
		full bool
		want fault.Code
	}{
		{"returned", fabric.Returned, false, fault.Unroutable},
		{"nacked by a full inbox", fabric.Nacked, true, fault.InboxFull},
		{"nacked for another reason", fabric.Nacked, false, fault.BrokerRefused},
		{"channel closed over it", fabric.Refused, false, fault.BrokerRefused},
		{"not sent", fabric.NotSent, false, fault.BrokerDown},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.broker.full = c.full
			w.broker.script(reply{out: c.word, err: errNoLink})
			var id string
			_, err := w.send(Request{Leaving: func(m, _ string) { id = m }})
			wantCode(t, err, c.want)
			w.turn()
			if in, _ := w.stored(id); in.State != store.IntentEnded || in.OutcomeReason != string(c.want) || in.Body != nil {
				t.Errorf("the intent is %s, %s", in.State, in.OutcomeReason)
			}
			w.after(30 * time.Minute)
			w.wantNotices(id) // the caller was told
		})
	}
}

// Fault: letting through what no recipient could take, or a loop; or holding up
// an answer, which ends one.
func TestWhatNobodyCouldTakeIsRefused(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		r    Request
		want fault.Code
	}{
		{Request{Content: []byte(" \n")}, fault.BadContent},
		{Request{Content: []byte("\xff")}, fault.BadContent},
		{Request{Content: bytes.Repeat([]byte("x"), 256<<10+1)}, fault.TooLarge},
		{Request{Life: 8 * 24 * time.Hour}, fault.BadRequest},
		{Request{Life: -time.Second}, fault.BadRequest},
		{Request{Hops: maxHops + 1}, fault.Loop},
	} {
		_, err := w.send(c.r)
		wantCode(t, err, c.want)
	}
	w.sent(Request{Hops: maxHops})
	b := brief()
	b.Hops = maxHops - 1
	_, err := w.out.Reply(context.Background(), Answer{From: aide, Brief: b, Content: []byte("x")})
	must(t, err)
	b.Hops = maxHops
	_, err = w.out.Reply(context.Background(), Answer{From: aide, Brief: b, Content: []byte("x")})
	must(t, err) // it begins nothing
	for i, e := range w.broker.mail()[1:] {
		if e.Kind != envelope.Reply || e.Hops != maxHops {
			t.Errorf("the reply to a brief with %d hops is a %s with %d", maxHops-1+i, e.Kind, e.Hops)
		}
	}
}

// Fault: a gone recipient taken for one who may come back.
func TestSomebodyWhoIsGoneGetsNoBrief(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"coder", "aide"} {
		target := w.dir.who[name]
		target.Gone = true
		w.dir.who[name] = target
		_, err := w.send(Request{To: name})
		wantCode(t, err, fault.PaneGone)
	}
}

// Fault: a broker being asked on the way to somebody of this host.
func TestALocalSendDoesNotTouchTheBroker(t *testing.T) {
	w := newWorld(t)
	w.out.cfg.Broker = nil
	s := w.sent(Request{To: "aide"})
	if len(w.local.mail) != 1 || w.local.mail[0].MsgID != s.MsgID {
		t.Errorf("delivered %v", ids(w.local.mail))
	}
	_, err := w.send(Request{To: "coder"})
	wantCode(t, err, fault.BrokerDown)
	if !strings.Contains(err.Error(), "broker.uri") {
		t.Errorf("the error does not say what to set: %v", err)
	}
}

// Fault: a SEND published again after its link broke, in whatever state.
func TestASendInDoubtIsNeverPublishedAgain(t *testing.T) {
	w := newWorld(t)
	w.broker.script(reply{late: true})
	_, err := w.send(Request{})
	wantCode(t, err, fault.InDoubt)
	w.broker.script(reply{out: fabric.InDoubt})
	_, err = w.send(Request{To: "chief"})
	wantCode(t, err, fault.InDoubt)
	w.broker.script(reply{out: fabric.Confirmed})
	w.broker.cut()
	w.reconnect()
	w.crash()
	w.reconnect()
	w.after(time.Hour)
	if n := len(w.broker.sent(envelope.LaneMail, envelope.Send)); n != 2 {
		t.Errorf("%d publications of 2 messages", n)
	}
}

// Fault: a confirm that comes late leaves the intent in doubt.
func TestALateConfirmMakesItAccepted(t *testing.T) {
	w := newWorld(t)
	w.broker.script(reply{late: true})
	var worker, main string
	_, err := w.send(Request{Leaving: func(id, _ string) { worker = id }})
	wantCode(t, err, fault.InDoubt)
	_, err = w.send(Request{To: "chief", Leaving: func(id, _ string) { main = id }})
	wantCode(t, err, fault.InDoubt)
	w.broker.settle(worker, fabric.Confirmed)
	w.broker.settle(main, fabric.Confirmed)
	if in, _ := w.stored(worker); in.State != store.IntentAccepted {
		t.Errorf("the brief to a worker is %s", in.State)
	}
	if in, _ := w.stored(main); in.State != store.IntentEnded || in.Outcome != store.EndAccepted {
		t.Errorf("the brief to a main is %s/%s", in.State, in.Outcome)
	}
}

// Fault: a refusal that comes after the caller was told IN_DOUBT gets lost.
func TestALateRefusalIsTold(t *testing.T) {
	w := newWorld(t)
	w.broker.full = true
	for word, want := range map[fabric.Outcome]string{fabric.Returned: "FAILED UNROUTABLE", fabric.Nacked: "FAILED INBOX_FULL", fabric.Refused: "FAILED BROKER_REFUSED"} {
		w.broker.script(reply{late: true})
		var id string
		_, err := w.send(Request{Leaving: func(m, _ string) { id = m }})
		wantCode(t, err, fault.InDoubt)
		w.turn()
		w.broker.settle(id, word)
		if len(w.out.wake) == 0 {
			t.Error("the loop is not woken")
		}
		w.turn()
		w.wantNotices(id, want)
		w.after(time.Hour)
		w.wantNotices(id, want)
	}
}

// Fault: the lease of an inbox not renewed because the confirm was late.
func TestALateConfirmRenewsTheLease(t *testing.T) {
	w := newWorld(t)
	w.dir.host(func(h *roster.HostView) { h.State = roster.Offline })
	w.broker.gone[coder] = true
	w.broker.script(reply{late: true})
	var id string
	_, err := w.send(Request{QueueIfOffline: true, Leaving: func(m, _ string) { id = m }})
	wantCode(t, err, fault.InDoubt)
	w.broker.settle(id, fabric.Confirmed)
	w.turn()
	w.wantNotices(id, "FAILED UNROUTABLE")
}

// Fault: a caller told IN_DOUBT of a message that is known to have arrived.
func TestAnOutcomeMayOvertakeTheConfirm(t *testing.T) {
	for _, kind := range []envelope.Kind{envelope.Injected, envelope.Deferred, envelope.Failed} {
		t.Run(string(kind), func(t *testing.T) {
			w := newWorld(t)
			w.broker.answer = func(p publication) reply {
				if p.lane == envelope.LaneMail {
					w.signal(kind, "EXPIRED", p.env.MsgID)
				}
				return reply{out: fabric.InDoubt}
			}
			var watch *Watch
			s, err := w.send(Request{Leaving: func(id, _ string) { watch = w.out.Watch(id) }})
			must(t, err)
			got := watch.Close().Kind
			if kind != envelope.Failed && got != kind {
				t.Errorf("the waiting caller heard %q, want %q", got, kind)
			}
			if kind == envelope.Failed {
				w.wantNotices(s.MsgID, "FAILED EXPIRED")
			}
		})
	}
}

// Fault: INJECTED given to the watch of a call that has just failed with
// IN_DOUBT, and lost with it.
func TestWhoWasToldInDoubtGetsTheOutcomeAsMail(t *testing.T) {
	w := newWorld(t)
	w.broker.script(reply{out: fabric.InDoubt})
	var id string
	var watch *Watch
	_, err := w.send(Request{Leaving: func(m, _ string) { id, watch = m, w.out.Watch(m) }})
	wantCode(t, err, fault.InDoubt)
	w.signal(envelope.Injected, "", id)
	watch.Close()
	w.wantNotices(id, "INJECTED")

	_, err = w.send(Request{Key: "k", Leaving: func(m, _ string) { id = m }})
	wantCode(t, err, fault.InDoubt)
	w.crash() // and whoever asks again after a restart is told the same
	_, err = w.send(Request{Key: "k", Leaving: func(m, _ string) { watch = w.out.Watch(m) }})
	wantCode(t, err, fault.InDoubt)
	w.signal(envelope.Injected, "", id)
	watch.Close()
	w.wantNotices(id, "INJECTED")
}
