package inbox

import (
	"fmt"
	"testing"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// newBacklog is a main with n pieces of local mail, of which few fit memory.
func newBacklog(t *testing.T, n int) (w *world, gid string, all []*envelope.Envelope) {
	w = newWorldOn(t, openStore(t))
	t.Cleanup(w.stop)
	w.begin(small)
	gid = w.main("m").GID
	for i := range n {
		env := w.mail(envelope.Reply, gid, fmt.Sprint(i))
		env.InReplyTo, env.Signer = newID(), here
		w.deliver(env)
		all = append(all, env)
	}
	w.inMemory(gid, 2)
	same(t, "held", n, w.in.Held(gid))
	return w, gid, all
}

// inMemory demands that no more than most items of gid are in memory.
func (w *world) inMemory(gid string, most int) {
	w.t.Helper()
	b := w.in.box(gid)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.items.Len() > most {
		w.t.Errorf("%d items in memory, want at most %d", b.items.Len(), most)
	}
}

// Fails if local mail beyond the window is lost, doubled, out of order or held
// in memory, over restarts and whatever else is delivered meanwhile.
func TestBacklogIsReadInOrder(t *testing.T) {
	w, gid, all := newBacklog(t, 9)
	var want, got []string
	for i := range all {
		want = append(want, fmt.Sprint(i))
	}
	for round := 0; len(got) < len(want)+1 && round < 20; round++ {
		if round == 2 {
			w.stop()
			w.begin(small)
			same(t, "held after a restart", 9-len(got), w.in.Held(gid))
			w.inMemory(gid, 2)
			w.deliver(w.mail(envelope.Reply, gid, "last"))
		}
		batch, some := w.poll(gid, Filter{}, Limit{Max: 1})
		got = append(got, some...)
		batch.Settle(true)
	}
	same(t, "polls", append(want, "last"), got)
	same(t, "held", 0, w.in.Held(gid))
	same(t, "on disk", 0, len(w.held(gid)))
}

// Fails if an answer that somebody waits for, or mail of a sender whom a poll
// asks for, hides behind the window.
func TestBacklogHidesNothing(t *testing.T) {
	w, gid, all := newBacklog(t, 9)
	answer := w.mail(envelope.Reply, gid, "answer")
	answer.InReplyTo = newID()
	wait := waiter(t, w, gid, Filter{InReplyTo: answer.InReplyTo})
	w.deliver(answer)
	same(t, "at once", 1, len(wait.C()))
	wait.Close()

	late := waiter(t, w, gid, Filter{InReplyTo: all[8].InReplyTo})
	await(t, "the last of the backlog", func() bool { return len(late.C()) == 1 })
	late.Close()
}

// Fails if a copy of mail in the backlog is delivered, is refused or stays on
// the broker, or another body under its id passes.
func TestDuplicatesOfBacklog(t *testing.T) {
	w, gid, all := newBacklog(t, 5)
	w.deliver(all[4])
	if copied := w.broker.publish(gid, all[4]); w.broker.state(copied) != "acked" {
		t.Errorf("the broker's copy is %q", w.broker.state(copied))
	}
	other := *all[4]
	other.Body = []byte("other")
	if err := w.in.Deliver(t.Context(), &other, nil); !fault.Is(err, fault.Refused) {
		t.Errorf("another body: %v", err)
	}
	if forged := w.broker.publish(gid, &other); w.broker.state(forged) != "rejected" {
		t.Errorf("another body on the broker is %q", w.broker.state(forged))
	}
	outcome, _ := w.in.Local(gid, all[4].MsgID)
	same(t, "outcome", store.Waiting, outcome)
	var got []string
	for round := 0; round < 10; round++ {
		batch, some := w.poll(gid, Filter{}, Limit{Max: 1})
		got = append(got, some...)
		batch.Settle(true)
	}
	same(t, "polls", []string{"0", "1", "2", "3", "4"}, got)
}

// Fails if the backlog does not count for the cap.
func TestBacklogCountsForTheCap(t *testing.T) {
	w := newWorldOn(t, openStore(t))
	t.Cleanup(w.stop)
	w.begin(small, func(c *Config) { c.LocalCap = 4 })
	gid := w.main("m").GID
	for i := range 4 {
		w.deliver(w.brief(gid, fmt.Sprint(i)))
	}
	if err := w.in.Deliver(t.Context(), w.brief(gid, "5"), nil); !fault.Is(err, fault.InboxFull) {
		t.Errorf("deliver: %v", err)
	}
}

// Fails if a brief that expires behind mail that does not is never reported.
func TestBacklogExpires(t *testing.T) {
	w, gid, _ := newBacklog(t, 4)
	brief := w.brief(gid, "short")
	brief.ExpiresAt = w.clock.now().Add(time.Second).UnixMilli()
	w.deliver(brief)
	w.clock.pass(2 * backlogSweep)
	await(t, "the report", func() bool { return len(w.reports.ends(brief.MsgID)) == 1 })
	same(t, "told", []string{"FAILED EXPIRED"}, w.reports.ends(brief.MsgID))
	await(t, "one less", func() bool { return w.in.Held(gid) == 4 && len(w.held(gid)) == 4 })
}

// Fails if mail that is being stored while the backlog is read may expire
// before anybody looks for it: it would stay past its end.
func TestMailThatIsBeingStoredMayExpireFirst(t *testing.T) {
	w, gid, _ := newBacklog(t, 4)
	b, now := w.in.box(gid), w.clock.now()
	short := w.brief(gid, "short")
	short.ExpiresAt = now.Add(time.Second).UnixMilli()
	w.deliver(short) // so that the backlog is read
	next := newLocal(w.brief(gid, "next"), now)
	next.env.ExpiresAt = now.Add(10 * time.Minute).UnixMilli()
	if _, err := w.in.reserve(b, next); err != nil {
		t.Fatal(err)
	}
	w.clock.pass(2 * backlogSweep)
	await(t, "the end of the first", func() bool { return len(w.reports.ends(short.MsgID)) == 1 && len(w.held(gid)) == 4 })
	w.clock.pass(2 * backlogSweep)
	await(t, "its end to be looked for", func() bool {
		w.disk.flush()
		var expiry int64
		err := w.store.View(func(tx *store.Tx) (err error) {
			_, expiry, err = tx.CountLocal(gid)
			return err
		})
		return err == nil && expiry == next.env.ExpiresAt
	})
	b.mu.Lock()
	b.drop(next)
	close(next.stored)
	b.mu.Unlock()
}

// Fails if an entity ends and leaves senders in its backlog without a word.
func TestBacklogOfAnEntityThatEnds(t *testing.T) {
	w, gid, _ := newBacklog(t, 4)
	var briefs []*envelope.Envelope
	for i := range 5 {
		briefs = append(briefs, w.brief(gid, fmt.Sprint(i)))
		w.deliver(briefs[i])
	}
	if _, err := w.in.Unregister(t.Context(), "m"); err != nil {
		t.Fatal(err)
	}
	for _, b := range briefs {
		await(t, "the report", func() bool { return len(w.reports.ends(b.MsgID)) == 1 })
	}
	await(t, "an empty store", func() bool { return len(w.held(gid)) == 0 })
}
