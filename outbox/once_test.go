package outbox

import (
	"context"
	"sync"
	"testing"
	"time"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// Fault: a second message under a key, or a key that takes another's content.
func TestAKeyStandsForOneMessageForADay(t *testing.T) {
	w := newWorld(t)
	first := w.sent(Request{Key: "k"})
	again := w.sent(Request{Key: "k"})
	if again.MsgID != first.MsgID || !again.Repeated || again.TraceID != first.TraceID || !again.ExpiresAt.Equal(first.ExpiresAt) {
		t.Errorf("repeated: %+v, first %+v", again, first)
	}
	_, err := w.send(Request{Key: "k", Content: []byte("other")})
	wantCode(t, err, fault.Conflict)
	_, err = w.send(Request{Key: "k", To: "critic"})
	wantCode(t, err, fault.Conflict)
	if s := w.sent(Request{Key: "k", From: aide}); s.MsgID == first.MsgID {
		t.Error("two entities share a key")
	}
	w.crash()
	if s := w.sent(Request{Key: "k"}); s.MsgID != first.MsgID {
		t.Error("the key was forgotten by a restart")
	}
	w.clock.add(24 * time.Hour)
	if s := w.sent(Request{Key: "k", Content: []byte("other")}); s.MsgID == first.MsgID || s.Repeated {
		t.Error("the key stands for longer than a day")
	}
}

// Fault: a repeated reply that does not know what it answered, or still does a
// day later; a message that counts as a reply.
func TestAKeyKnowsWhatItsReplyAnswered(t *testing.T) {
	w := newWorld(t)
	b := brief()
	want := func(key, msgID string) {
		t.Helper()
		got, found, err := w.out.AnsweredUnder(aide, key)
		if err != nil || found != (msgID != "") || found && (got.MsgID != msgID || got.Sender != b.Sender) {
			t.Errorf("%s: %+v, %v, %v", key, got, found, err)
		}
	}
	want("r", "")
	began, free := w.blocked()
	done := make(chan error, 1)
	go func() {
		_, err := w.out.Reply(context.Background(), Answer{From: aide, Brief: b, Content: []byte("done"), Key: "r"})
		done <- err
	}()
	<-began
	want("r", b.MsgID)
	free()
	must(t, <-done)
	w.crash()
	want("r", b.MsgID)
	w.sent(Request{From: aide, Key: "s"})
	want("s", "")
	w.clock.add(24 * time.Hour)
	want("r", "")
}

// Fault: a repeated call that learns nothing of what became of its message.
func TestARepeatedCallLearnsWhatBecameOfIt(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		name    string
		become  func(id string)
		outcome store.Outcome
		reason  string
		code    fault.Code
	}{
		{"accepted", func(string) {}, "", "", ""},
		{"deferred", func(id string) { w.signal(envelope.Deferred, "BUSY", id) }, "waiting", "BUSY", ""},
		{"injected", func(id string) { w.signal(envelope.Injected, "", id) }, "injected", "", ""},
		{"failed", func(id string) { w.signal(envelope.Failed, "PANE_GONE", id) }, "failed", "PANE_GONE", ""},
		{"abandoned", func(id string) { w.signal(envelope.Abandoned, "PANE_GONE", id) }, "failed", "ABANDONED", ""},
		{"answered", func(id string) { w.out.Arrived(report(envelope.Reply, "", id)) }, "injected", "", ""},
	} {
		first := w.sent(Request{Key: c.name})
		c.become(first.MsgID)
		calls := 0
		got := w.sent(Request{Key: c.name, Leaving: func(string, string) { calls++ }})
		if got.MsgID != first.MsgID || got.Outcome != c.outcome || got.Reason != c.reason || calls != 1 {
			t.Errorf("%s: %q %q, Leaving called %d times", c.name, got.Outcome, got.Reason, calls)
		}
	}
	w.broker.script(reply{out: fabric.InDoubt})
	_, err := w.send(Request{Key: "doubt"})
	wantCode(t, err, fault.InDoubt)
	_, err = w.send(Request{Key: "doubt"})
	wantCode(t, err, fault.InDoubt)
	if n := len(w.broker.mail()); n != 7 {
		t.Errorf("%d publications of 7 messages", n)
	}
	coderGone := w.dir.who["coder"]
	coderGone.Gone = true
	w.dir.who["coder"] = coderGone
	if s := w.sent(Request{Key: "injected"}); s.Outcome != "injected" {
		t.Errorf("the outcome %q is lost with its recipient", s.Outcome)
	}
}

// Fault: a refused message answered as sent while its end waits for a commit,
// or tried again under another id.
func TestARefusedMessageIsTriedAgainUnderItsID(t *testing.T) {
	w := newWorld(t)
	for _, word := range []fabric.Outcome{fabric.Returned, fabric.Nacked, fabric.Refused, fabric.NotSent} {
		key := word.String()
		var id string
		w.broker.script(reply{out: word, err: errNoLink})
		if _, err := w.send(Request{Key: key, Leaving: func(m, _ string) { id = m }}); err == nil {
			t.Fatalf("%s: accepted", word)
		}
		w.broker.script(reply{out: fabric.Confirmed})
		s := w.sent(Request{Key: key})
		if s.MsgID != id || s.Repeated {
			t.Errorf("%s: sent as %s (repeated %v), want %s anew", word, s.MsgID, s.Repeated, id)
		}
		if in, _ := w.stored(id); in.State != store.IntentAccepted || in.Outcome != "" {
			t.Errorf("%s: the intent is %s/%s", word, in.State, in.Outcome)
		}
	}
	w.broker.down = "connecting: cut"
	_, err := w.send(Request{Key: "down"})
	wantCode(t, err, fault.BrokerDown)
	w.broker.down = ""
	if s := w.sent(Request{Key: "down"}); s.Repeated {
		t.Error("what was never sent counts as sent")
	}
}

// Fault: a key that only works for other hosts.
func TestAKeyWorksForThisHostToo(t *testing.T) {
	w := newWorld(t)
	first := w.sent(Request{To: "aide", Key: "k"})
	w.local.outcomes[first.MsgID] = "injected"
	again := w.sent(Request{To: "aide", Key: "k"})
	if again.MsgID != first.MsgID || again.Outcome != "injected" || len(w.local.mail) != 1 {
		t.Errorf("repeated: %+v with %d deliveries", again, len(w.local.mail))
	}
	w.local.err = fault.New(fault.InboxFull, "full")
	_, err := w.send(Request{To: "aide", Key: "full"})
	wantCode(t, err, fault.InboxFull)
	w.local.err = nil
	if s := w.sent(Request{To: "aide", Key: "full"}); s.Repeated {
		t.Error("what was refused counts as delivered")
	}
}

// blocked makes Publish of mail wait until the returned function is called.
func (w *world) blocked() (began chan string, free func()) {
	began = make(chan string, 16)
	gate := make(chan struct{})
	w.broker.mu.Lock()
	w.broker.answer = func(p publication) reply {
		if p.lane == envelope.LaneMail {
			began <- p.env.MsgID
			<-gate
		}
		return reply{out: fabric.Confirmed}
	}
	w.broker.mu.Unlock()
	return began, sync.OnceFunc(func() { close(gate) })
}

// Fault: a call that finds the first one running sends a second message, or
// is told of it as its own.
func TestACallJoinsTheOneThatRuns(t *testing.T) {
	w := newWorld(t)
	began, free := w.blocked()
	defer free()
	results := make(chan Sent, 8)
	call := func() {
		s, err := w.send(Request{Key: "k"})
		if err != nil {
			t.Error(err)
		}
		results <- s
	}
	var wg sync.WaitGroup
	wg.Go(call)
	id := <-began
	waits := noticing{context.Background(), make(chan struct{}, 1)}
	for range 7 {
		wg.Go(func() {
			s, err := w.out.Send(waits, Request{From: boss, To: "coder", Content: []byte("do it"), Key: "k"})
			if err != nil {
				t.Error(err)
			}
			results <- s
		})
		<-waits.asked
	}
	_, err := w.send(Request{Key: "k", Content: []byte("other")})
	wantCode(t, err, fault.Conflict)
	free()
	wg.Wait()
	close(results)
	news := 0
	for s := range results {
		if s.MsgID != id {
			t.Errorf("a call returned %s, want %s", s.MsgID, id)
		}
		if !s.Repeated {
			news++
		}
	}
	if news != 1 || len(w.broker.mail()) != 1 {
		t.Errorf("%d calls say that they sent it, %d publications", news, len(w.broker.mail()))
	}
}

// noticing says when somebody begins to wait with it.
type noticing struct {
	context.Context
	asked chan struct{}
}

func (n noticing) Done() <-chan struct{} {
	select {
	case n.asked <- struct{}{}:
	default:
	}
	return n.Context.Done()
}

// Fault: the error of a caller who hung up told to those who joined him.
func TestAJoinedCallSurvivesTheFirstCaller(t *testing.T) {
	w := newWorld(t)
	w.broker.mu.Lock()
	gate := make(chan struct{})
	began := make(chan struct{}, 1)
	first := true
	w.broker.answer = func(publication) reply {
		if !first {
			return reply{out: fabric.Confirmed}
		}
		first = false
		began <- struct{}{}
		<-gate
		return reply{out: fabric.NotSent, err: fault.Wrap(context.Canceled, fault.BrokerDown, "the call ended")}
	}
	w.broker.mu.Unlock()
	ctx, hangUp := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := w.out.Send(ctx, Request{From: boss, To: "coder", Content: []byte("do it"), Key: "k"})
		if err == nil {
			t.Error("the first call succeeded")
		}
	})
	<-began
	joined := make(chan error, 1)
	waits := noticing{context.Background(), make(chan struct{}, 16)}
	wg.Go(func() {
		_, err := w.out.Send(waits, Request{From: boss, To: "coder", Content: []byte("do it"), Key: "k"})
		joined <- err
	})
	<-waits.asked
	hangUp()
	close(gate)
	wg.Wait()
	if err := <-joined; err != nil {
		t.Errorf("the second caller got %v", err)
	}
}

// Fault: a CONFLICT that undoes what the running answer has committed.
func TestAConflictUndoesNothing(t *testing.T) {
	w := newWorld(t)
	b := brief()
	answer := func(content string) error {
		_, err := w.out.Reply(context.Background(), Answer{From: aide, Brief: b, Content: []byte(content), Key: "k",
			Undo: func(*store.Tx) error { t.Error("undone"); return nil }})
		return err
	}
	must(t, answer("yes"))
	wantCode(t, answer("no"), fault.Conflict)
	must(t, w.store.Flush(context.Background()))
}
