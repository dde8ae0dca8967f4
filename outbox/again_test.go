package outbox

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fabric/roster"
	"fleetd/fault"
	"fleetd/store"
)

// doubtReply sends a reply whose confirm does not come in time.
func (w *world) doubtReply() string {
	w.t.Helper()
	w.broker.script(reply{late: true})
	_, err := w.reply("")
	wantCode(w.t, err, fault.InDoubt)
	mail := w.broker.mail()
	return mail[len(mail)-1].MsgID
}

// Fault: a reply in doubt lost with its link, with the gateway, or published
// under another id.
func TestAReplyInDoubtIsPublishedAgainUntilConfirmed(t *testing.T) {
	w := newWorld(t)
	id := w.doubtReply()
	w.broker.cut()
	w.turn()
	w.broker.script(reply{out: fabric.InDoubt})
	for _, again := range []func(){w.reconnect, func() { w.crash(); w.reconnect() }} {
		before := len(w.broker.mail())
		again()
		mail := w.broker.mail()
		if len(mail) != before+1 || mail[before].MsgID != id || string(mail[before].Body) != "done" {
			t.Fatalf("published again: %v, want %s once", ids(mail[before:]), id)
		}
		w.broker.cut()
	}
	w.broker.script(reply{out: fabric.Confirmed})
	w.reconnect()
	n := len(w.broker.mail())
	w.broker.cut()
	w.reconnect()
	w.crash()
	w.reconnect()
	if got := len(w.broker.mail()); got != n {
		t.Errorf("published %d times more after the confirm", got-n)
	}
	if in, _ := w.stored(id); in.State != store.IntentEnded || in.Body != nil {
		t.Errorf("the confirmed reply is %s with a body of %d", in.State, len(in.Body))
	}
}

// Fault: a reply stored and never published, because the daemon ended in
// between.
func TestAReplyIsPublishedByTheNextRun(t *testing.T) {
	w := newWorld(t)
	w.broker.answer = func(publication) reply { panic("the daemon ends here") }
	func() {
		defer func() { _ = recover() }()
		_, _ = w.reply("")
	}()
	w.broker.answer = nil
	w.crash()
	w.reconnect()
	if n := len(w.broker.mail()); n != 1 {
		t.Errorf("published %d times", n)
	}
}

// Fault: what is published again in another order, or behind new mail of the
// same sender; or others made to wait for it.
func TestOlderMailGoesFirst(t *testing.T) {
	w := newWorld(t)
	var old []string
	for range 5 {
		old = append(old, w.doubtReply())
	}
	w.crash() // the order is that of leaving, also for the next run
	w.broker.script(reply{out: fabric.Confirmed})

	n := len(w.broker.mail())
	must(t, func() error { _, err := w.send(Request{From: boss}); return err }()) // another sender goes at once
	if mail := w.broker.mail(); len(mail) != n+1 || mail[n].From != boss {
		t.Fatalf("published %v", ids(mail[n:]))
	}

	waits := make(chan error)
	go func() { _, err := w.send(Request{From: aide}); waits <- err }()
	until(t, "it waits, and asks the loop to look", func() bool { return len(w.out.wake) > 0 })
	if got := len(w.broker.mail()); got != n+1 {
		t.Fatalf("new mail of the same sender did not wait: %v", ids(w.broker.mail()[n+1:]))
	}
	w.turn()
	must(t, <-waits)
	mail := w.broker.mail()[n+1:]
	if !slices.Equal(ids(mail[:5]), old) || mail[5].Kind != envelope.Send {
		t.Errorf("published %v, want first %v", ids(mail), old)
	}
}

// Fault: the place in the order that a message had before it was refused.
func TestAMessageTriedAgainLeavesAnew(t *testing.T) {
	w := newWorld(t)
	b := brief()
	answer := func() error {
		_, err := w.out.Reply(context.Background(), Answer{From: aide, Brief: b, Content: []byte("done"), Key: "k"})
		return err
	}
	w.broker.script(reply{out: fabric.Nacked})
	wantCode(t, answer(), fault.BrokerRefused)
	first := w.broker.mail()[0].MsgID
	other := w.doubtReply()
	wantCode(t, answer(), fault.InDoubt)
	w.crash()
	n := len(w.broker.mail())
	w.broker.script(reply{out: fabric.Confirmed})
	w.reconnect()
	if got := ids(w.broker.mail()[n:]); !slices.Equal(got, []string{other, first}) {
		t.Errorf("published %v, want %v", got, []string{other, first})
	}
}

// Fault: a sender who waits for ever behind mail that does not go.
func TestNewMailDoesNotWaitForEver(t *testing.T) {
	w := newWorld(t)
	w.doubtReply()
	w.broker.cut()
	w.broker.down = "" // and nothing turns
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := w.out.Send(ctx, Request{From: aide, To: "coder", Content: []byte("x")})
		ended <- err
	}()
	until(t, "it waits, and asks the loop to look", func() bool { return len(w.out.wake) > 0 })
	cancel()
	wantCode(t, <-ended, fault.BrokerDown)
	w.out.behind = 10 * time.Millisecond
	_, err := w.out.Send(context.Background(), Request{From: aide, To: "coder", Content: []byte("x")})
	wantCode(t, err, fault.BrokerDown)
}

// Fault: a message whose confirm is only late published twice over one link.
func TestWhatIsOnItsWayIsNotPublishedAgainOverTheSameLink(t *testing.T) {
	w := newWorld(t)
	w.broker.script(reply{late: true})
	_, err := w.reply("")
	wantCode(t, err, fault.InDoubt)
	w.reconnect() // told of the link after the reply had been written to it
	w.after(10 * time.Second)
	if n := len(w.broker.mail()); n != 1 {
		t.Errorf("published %d times", n)
	}
	w.broker.cut()
	w.reconnect()
	if n := len(w.broker.mail()); n != 2 {
		t.Errorf("published %d times after the link broke, want 2", n)
	}
}

// Fault: a message that no link carries holding up all that its sender writes.
func TestAMessageThatCannotBeCarriedHoldsUpNobody(t *testing.T) {
	w := newWorld(t)
	bad, good := w.doubtReply(), w.doubtReply()
	w.broker.cut()
	w.broker.mu.Lock()
	w.broker.answer = func(p publication) reply {
		if p.env.MsgID == bad {
			return reply{out: fabric.NotSent, err: fault.New(fault.TooLarge, "too large")}
		}
		return reply{out: fabric.Confirmed}
	}
	w.broker.mu.Unlock()
	w.reconnect()
	if in, _ := w.stored(good); in.State != store.IntentEnded || in.Outcome != store.EndAccepted {
		t.Errorf("the one behind it is %s/%s", in.State, in.Outcome)
	}
	w.wantNotices(bad, "FAILED TOO_LARGE")
}

// Fault: a reply that finally reaches nobody, and nobody is told.
func TestWhoAnsweredIsToldThatNobodyGotIt(t *testing.T) {
	for name, c := range map[string]struct {
		word fabric.Outcome
		wait time.Duration
		want string
	}{
		"inbox gone": {fabric.Returned, 0, "FAILED UNROUTABLE"},
		"inbox full": {fabric.Nacked, 0, "FAILED INBOX_FULL"},
		"too old":    {fabric.Confirmed, 8 * 24 * time.Hour, "FAILED EXPIRED"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.broker.full = true
			id := w.doubtReply()
			w.broker.cut()
			w.clock.add(c.wait)
			w.broker.script(reply{out: c.word})
			w.reconnect()
			w.after(time.Minute)
			w.wantNotices(id, c.want)
		})
	}
}

// Fault: a reply to a host that is away published again without renewing the
// lease of the inbox it goes to.
func TestPublishingAgainRenewsTheLease(t *testing.T) {
	w := newWorld(t)
	id := w.doubtReply()
	w.broker.cut()
	w.dir.host(func(h *roster.HostView) { h.State = roster.Offline })
	w.broker.gone[chief] = true
	w.broker.script(reply{out: fabric.Confirmed})
	w.reconnect()
	if want := []string{chief}; !slices.Equal(w.broker.renews, want) {
		t.Errorf("leases renewed: %v, want %v", w.broker.renews, want)
	}
	w.wantNotices(id, "FAILED UNROUTABLE")
}

// Fault: a report that is not durable when the recipient's side forgets, that
// goes out once only, under a changing id, or on one lane.
func TestAReportIsPublishedUntilConfirmed(t *testing.T) {
	for _, kind := range []envelope.Kind{envelope.Failed, envelope.Abandoned} {
		t.Run(string(kind), func(t *testing.T) {
			w := newWorld(t)
			r := envelope.Report{Kind: kind, Reason: "PANE_GONE", MsgID: newID(), TraceID: newTrace(),
				Sender: chief, SenderHost: "hostb", Recipient: aide}
			id := envelope.ReportID(r.MsgID, aide, kind)
			w.broker.down = "connecting: cut"
			must(t, w.out.Final(context.Background(), r))
			if in, found := w.stored(id); !found || in.State != store.IntentIntended {
				t.Fatal("the report is not in the store")
			}
			w.crash()
			must(t, w.out.Final(context.Background(), r)) // told twice
			w.broker.script(reply{out: fabric.InDoubt})
			w.reconnect()
			w.broker.cut()
			w.broker.script(reply{out: fabric.Confirmed})
			w.reconnect()
			must(t, w.out.Final(context.Background(), r))
			w.turn()
			if got := ids(w.broker.mail()); !slices.Equal(got, []string{id, id}) {
				t.Errorf("published %v, want %s until it was confirmed", got, id)
			}
			if in, _ := w.stored(id); in.State != store.IntentEnded {
				t.Errorf("the confirmed report is %s", in.State)
			}
		})
	}
}

// Fault: a report that was never written to the wire waiting for the next
// connection.
func TestAReportThatWasNotTakenIsTriedAgainOverTheSameLink(t *testing.T) {
	w := newWorld(t)
	w.broker.script(reply{out: fabric.NotSent, err: errNoLink})
	r := envelope.Report{Kind: envelope.Failed, Reason: "EXPIRED", MsgID: newID(), TraceID: newTrace(), Sender: chief, SenderHost: "hostb", Recipient: aide}
	must(t, w.out.Final(context.Background(), r))
	w.turn()
	w.broker.script(reply{out: fabric.Confirmed})
	w.after(time.Second)
	if n := len(w.broker.mail()); n != 1 {
		t.Errorf("published %d times", n)
	}
	if n := len(w.broker.sent(envelope.LaneSignal, envelope.Failed)); n != 1 {
		t.Errorf("%d live copies, want 1", n)
	}
}

// Fault: a storm of new connections that blocks the fabric or the next report.
func TestANewConnectionIsToldWithoutWaiting(t *testing.T) {
	w := newWorld(t)
	w.broker.down = "connecting: cut"
	for i := range 200 {
		r := envelope.Report{Kind: envelope.Failed, Reason: "EXPIRED", MsgID: newID(), TraceID: newTrace(),
			Sender: chief, SenderHost: "hostb", Recipient: fmt.Sprintf("01890000-0000-7000-8000-%012d", 500+i)}
		must(t, w.out.Final(context.Background(), r))
	}
	for range 5000 { // nothing runs: whoever waited would wait for ever
		w.out.Connected()
	}
	w.reconnect()
	if n := len(w.broker.mail()); n != 200 {
		t.Errorf("%d of 200 reports were published", n)
	}
}
