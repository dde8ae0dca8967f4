package inbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

func same(t TB, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// Fails if an ack goes out before the commit of the drain, or a drained
// message stays in the held index.
func TestMailIsDrainedDurablyBeforeItIsAcked(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	remote, local := w.brief(e.GID, "remote"), w.brief(e.GID, "local")
	m := w.broker.publish(e.GID, remote)
	w.deliver(local)
	same(t, "held", 2, w.in.Held(e.GID))
	batch, got := w.poll(e.GID, Filter{}, Limit{})
	same(t, "poll", []string{"remote", "local"}, got)
	same(t, "held while offered", 0, w.in.Held(e.GID))
	same(t, "the broker's copy while offered", "", w.broker.state(m))
	acked := ""
	w.broker.onAck(func(env *envelope.Envelope) {
		_ = w.store.View(func(tx *store.Tx) error {
			s, _, err := tx.FindSeen(env.MsgID, e.GID)
			acked = string(s.Outcome)
			return err
		})
	})
	batch.Settle(true)
	same(t, "on disk at the ack", "drained", acked)
	same(t, "the broker's copy", "acked", w.broker.state(m))
	same(t, "held index", 0, len(w.held(e.GID)))
	same(t, "outcome", []string{"drained", "drained"}, []string{w.outcome(e.GID, remote.MsgID), w.outcome(e.GID, local.MsgID)})
	same(t, "query", "INJECTED", w.query(remote, e.GID, there))
	// A main may answer what it was sent.
	brief, err := w.in.BriefToAnswer(e.GID, local.MsgID)
	if err != nil || brief.State != "open" {
		t.Errorf("brief: %+v, %v", brief, err)
	}
}

// Fails if mail whose response was lost loses its place or its mark.
func TestMailThatWasNotWrittenComesAgainInItsPlaceAndMarked(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	w.broker.publish(e.GID, w.brief(e.GID, "1"))
	w.deliver(w.brief(e.GID, "2"))
	w.deliver(w.brief(e.GID, "3"))
	batch, got := w.poll(e.GID, Filter{}, Limit{Max: 2})
	same(t, "poll", []string{"1", "2"}, got)
	batch.Settle(false)
	batch.Settle(true) // only the first counts
	batch, got = w.poll(e.GID, Filter{}, Limit{})
	same(t, "second poll", []string{"1!", "2!", "3"}, got)
	batch.Settle(false)
	w.disk.flush()
	w.restart() // the broker delivers its own again, behind the local mail
	_, got = w.poll(e.GID, Filter{}, Limit{})
	slices.Sort(got)
	same(t, "poll after a restart", []string{"1!", "2!", "3!"}, got)
}

// Fails if what a client saw in the moment of a crash comes again unmarked.
func TestMailThatWasBeingWrittenAtACrashComesAgainMarked(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	w.broker.publish(e.GID, w.brief(e.GID, "remote"))
	w.deliver(w.brief(e.GID, "local"))
	w.deliver(w.brief(e.GID, "not offered"))
	w.poll(e.GID, Filter{}, Limit{Max: 2})
	w.disk.flush() // within a second
	w.restart()
	_, got := w.poll(e.GID, Filter{}, Limit{})
	slices.Sort(got)
	same(t, "poll", []string{"local!", "not offered", "remote!"}, got)
}

// Fails if what a client saw right before a crash, so that no record says so,
// comes again unmarked; or if mail is marked that came only after it.
func TestMailOfWhichTheCrashTookTheNoteComesAgainMarked(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	w.deliver(w.brief(e.GID, "local"))
	w.broker.publish(e.GID, w.brief(e.GID, "on record"))
	w.disk.flush()
	w.broker.publish(e.GID, w.brief(e.GID, "remote"))
	w.poll(e.GID, Filter{}, Limit{Max: 3})
	w.crash()
	w.begin(func(c *Config) { c.Crashed = true })
	w.broker.publish(e.GID, w.brief(e.GID, "new"))
	_, got := w.poll(e.GID, Filter{}, Limit{})
	slices.Sort(got)
	same(t, "poll", []string{"local!", "new", "on record!", "remote!"}, got)
}

// Fails likewise for a worker's poll, whose mail is not in the index before.
func TestAnAnswerThatAWorkerWasGivenComesAgainMarked(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	w.panes.gate("pane-a", "BUSY")
	w.broker.publish(e.GID, w.mail(envelope.Reply, e.GID, "remote"))
	w.deliver(w.mail(envelope.Reply, e.GID, "local"))
	w.poll(e.GID, Filter{}, Limit{})
	w.disk.flush()
	w.restart()
	batch, got := w.poll(e.GID, Filter{}, Limit{})
	slices.Sort(got)
	same(t, "poll", []string{"local!", "remote!"}, got)
	batch.Settle(true)
	same(t, "held index", 0, len(w.held(e.GID)))
}

// Fails if a batch that was never taken counts as seen.
func TestMailThatNobodyTookComesAgainUnmarked(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	wait, err := w.in.Wait(e.GID, Filter{}, Limit{Max: 1})
	if err != nil {
		t.Fatal(err)
	}
	w.deliver(w.brief(e.GID, "1"))
	same(t, "offered", 0, w.in.Held(e.GID))
	wait.Close()
	next := waiter(t, w, e.GID, Filter{})
	same(t, "held while it is offered again", 0, w.in.Held(e.GID))
	next.Close()
	w.disk.flush()
	same(t, "on disk", false, w.held(e.GID)[0].Offered)
	_, got := w.poll(e.GID, Filter{}, Limit{})
	same(t, "poll", []string{"1"}, got)
}

// Fails if mail whose end is being committed is written to the held index all
// the same, or if its record stays away when that commit failed.
func TestHeldIndexFollowsWhatIsTrueAtTheCommit(t *testing.T) {
	st := openStore(t)
	var riders []func(*store.Tx) error
	b := newBox(store.Entity{GID: newID(), Kind: store.Main}, func(fn func(*store.Tx) error) { riders = append(riders, fn) })
	it := newItem(&envelope.Envelope{MsgID: newID(), Kind: envelope.Reply}, time.Now())
	if _, taken, _ := b.admit(it); !taken {
		t.Fatal("not admitted")
	}
	index := func() (offered []bool) {
		t.Helper()
		err := st.Write(t.Context(), func(tx *store.Tx) error {
			for _, r := range riders {
				if err := r(tx); err != nil {
					return err
				}
			}
			all, err := tx.HeldIndex(b.gid)
			offered = nil
			for _, h := range all {
				offered = append(offered, h.Offered)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		riders = nil
		return offered
	}
	b.note(it)
	b.leave([]*item{it})
	same(t, "while it leaves", []bool(nil), index())
	b.stay([]*item{it})
	same(t, "after all", []bool{false}, index())
	b.noteOffered(it)
	same(t, "offered", []bool{true}, index())
}

// Fails if the store refuses and the mail is acked or forgotten all the same.
func TestMailWhoseDrainCannotBeRecordedIsHeldAgain(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	m := w.broker.publish(e.GID, w.brief(e.GID, "1"))
	batch, _ := w.poll(e.GID, Filter{}, Limit{})
	w.disk.set(func(d *disk) { d.down = true })
	batch.Settle(true)
	same(t, "the broker's copy", "", w.broker.state(m))
	w.disk.set(func(d *disk) { d.down = false })
	batch, got := w.poll(e.GID, Filter{}, Limit{})
	same(t, "poll", []string{"1!"}, got)
	batch.Settle(true)
	same(t, "the broker's copy", "acked", w.broker.state(m))
}

// Fails if a commit that only seemed to fail makes two open briefs of one.
func TestMailDrainedTwiceIsOneBrief(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	w.broker.publish(e.GID, w.brief(e.GID, "1"))
	batch, _ := w.poll(e.GID, Filter{}, Limit{})
	w.disk.set(func(d *disk) { d.lie = true })
	batch.Settle(true)
	batch, got := w.poll(e.GID, Filter{}, Limit{})
	same(t, "poll", []string{"1!"}, got)
	batch.Settle(true)
	open, err := w.in.OpenBriefs(e.GID)
	if err != nil || len(open) != 1 {
		t.Errorf("open: %v, %v", open, err)
	}
}

// Fails if mail from others is handed out, or order or bounds are not kept.
func TestAPollGetsWhatItsFilterAndLimitsAdmit(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	other := newID()
	for i := range 6 {
		env := w.brief(e.GID, fmt.Sprint(i))
		if i%2 == 1 {
			env.From = other
		}
		w.broker.publish(e.GID, env)
	}
	batch, got := w.poll(e.GID, Filter{From: other}, Limit{Max: 2})
	same(t, "from the other", []string{"1", "3"}, got)
	batch.Settle(true)
	_, got = w.poll(e.GID, Filter{InReplyTo: newID()}, Limit{})
	same(t, "answers to something else", []string(nil), got)
	big := w.brief(e.GID, strings.Repeat("x", 4000))
	w.broker.publish(e.GID, big)
	w.broker.publish(e.GID, w.brief(e.GID, "small"))
	batch, got = w.poll(e.GID, Filter{}, Limit{Bytes: 4000})
	same(t, "what fits; nothing overtakes", []string{"0", "2", "4", "5"}, got)
	batch.Settle(true)
	batch, got = w.poll(e.GID, Filter{}, Limit{Bytes: 4000})
	same(t, "the first, however long", []string{string(big.Body)}, got)
	batch.Settle(true)
	_, got = w.poll(e.GID, Filter{}, Limit{})
	same(t, "the rest", []string{"small"}, got)
}

func waiter(t *testing.T, w *world, gid string, f Filter) *Waiter {
	t.Helper()
	wait, err := w.in.Wait(gid, f, Limit{Max: 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(wait.Close)
	return wait
}

func taken(t *testing.T, wait *Waiter) []string {
	t.Helper()
	select {
	case b := <-wait.C():
		return bodies(t, b)
	default:
		return nil
	}
}

// Fails if a younger client gets mail before an older one, or a poll an answer
// before the call that waits for it.
func TestTheExactWaiterComesFirstThenTheOneThatWaitsLongest(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	question := newID()
	first, second := waiter(t, w, e.GID, Filter{}), waiter(t, w, e.GID, Filter{})
	exact := waiter(t, w, e.GID, Filter{InReplyTo: question})
	answer := w.mail(envelope.Reply, e.GID, "answer")
	answer.InReplyTo = question
	w.broker.publish(e.GID, answer)
	same(t, "exact", []string{"answer"}, taken(t, exact))
	w.broker.publish(e.GID, w.brief(e.GID, "1"))
	same(t, "second", []string(nil), taken(t, second))
	same(t, "first", []string{"1"}, taken(t, first))
	w.broker.publish(e.GID, w.brief(e.GID, "2"))
	same(t, "second", []string{"2"}, taken(t, second))
}

// Fails if mail that comes back is not offered to whoever waits already.
func TestMailThatComesBackGoesToTheNextWhoWaits(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	w.deliver(w.brief(e.GID, "1"))
	batch, _ := w.poll(e.GID, Filter{}, Limit{})
	next := waiter(t, w, e.GID, Filter{})
	batch.Settle(false)
	same(t, "next", []string{"1!"}, taken(t, next))
}

// Fails if who sent without waiting for an answer is given one as the outcome.
func TestAWaiterForTheOutcomeAloneGetsNoAnswer(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	wait := waiter(t, w, e.GID, Filter{InReplyTo: newID(), Reports: true})
	answer := w.mail(envelope.Reply, e.GID, "answer")
	answer.InReplyTo = wait.filter.InReplyTo
	w.broker.publish(e.GID, answer)
	same(t, "answer", []string(nil), taken(t, wait))
	report := w.mail(envelope.Failed, e.GID, "")
	report.InReplyTo, report.Reason = answer.InReplyTo, "EXPIRED"
	w.deliver(report)
	same(t, "report", []string{""}, taken(t, wait))
}

// Fails if a worker can poll a brief, or its pane gets the answer that its own
// call waits for.
func TestAWorkersOwnCallGetsItsAnswerBeforeItsPane(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	w.panes.gate("pane-a", "BUSY")
	brief := w.brief(e.GID, "brief")
	w.broker.publish(e.GID, brief)
	await(t, "DEFERRED", func() bool { return len(w.reports.told(brief.MsgID)) == 1 })
	_, got := w.poll(e.GID, Filter{}, Limit{})
	same(t, "poll", []string(nil), got)
	same(t, "held", 0, w.in.Held(e.GID))
	wait := waiter(t, w, e.GID, Filter{InReplyTo: newID()})
	answer := w.mail(envelope.Reply, e.GID, "answer")
	answer.InReplyTo = wait.filter.InReplyTo
	m := w.broker.publish(e.GID, answer)
	batch := <-wait.C()
	same(t, "the call", []string{"answer"}, bodies(t, batch))
	batch.Settle(true)
	same(t, "the broker's copy", "acked", w.broker.state(m))
	w.panes.gate("pane-a", "")
	w.awaitScreen("pane-a", brief)
}

// Fails if the loop holds up a brief for an answer that a poll took while its
// pane was busy, or writes that answer as well.
func TestAnAnswerThatAPollTookIsNotInjected(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	w.panes.gate("pane-a", "BUSY")
	answer, brief := w.mail(envelope.Reply, e.GID, "answer"), w.brief(e.GID, "brief")
	w.broker.publish(e.GID, answer)
	await(t, "the answer's wait at the gate", func() bool { return len(w.gates.seen()) == 1 })
	w.broker.publish(e.GID, brief)
	batch, got := w.poll(e.GID, Filter{}, Limit{})
	same(t, "poll", []string{"answer"}, got)
	await(t, "the brief's own wait", func() bool { return slices.Equal(w.reports.told(brief.MsgID), []string{"DEFERRED BUSY"}) })
	batch.Settle(true)
	w.panes.gate("pane-a", "")
	w.awaitScreen("pane-a", brief)
}

// Fails if local mail is stored beyond the cap, or the cap never opens again.
func TestLocalMailIsRefusedWhenTheInboxIsFull(t *testing.T) {
	w := newWorldOn(t, openStore(t))
	t.Cleanup(w.stop)
	w.begin(func(c *Config) { c.LocalCap = 2 })
	e := w.main("m")
	w.deliver(w.brief(e.GID, "1"))
	w.deliver(w.brief(e.GID, "2"))
	err := w.in.Deliver(t.Context(), w.brief(e.GID, "3"), nil)
	if !fault.Is(err, fault.InboxFull) {
		t.Errorf("deliver: %v", err)
	}
	same(t, "stored", 2, len(w.held(e.GID)))
	w.broker.publish(e.GID, w.brief(e.GID, "remote")) // the broker has a cap of its own
	batch, got := w.poll(e.GID, Filter{}, Limit{})
	same(t, "poll", []string{"1", "2", "remote"}, got)
	batch.Settle(true)
	w.deliver(w.brief(e.GID, "4"))
}

// Fails if what was written to a frozen client is gone for good.
func TestWhatWasDrainedCanBeReadForAnHour(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	env, held := w.brief(e.GID, "1"), w.brief(e.GID, "2")
	w.deliver(env)
	batch, _ := w.poll(e.GID, Filter{}, Limit{})
	batch.Settle(true)
	w.deliver(held)
	w.clock.pass(59 * time.Minute)
	m, err := w.in.Read(e.GID, env.MsgID)
	if err != nil || string(m.Body) != "1" {
		t.Errorf("read: %v, %v", m, err)
	}
	lately := w.in.Recently(e.GID)
	if len(lately) != 1 || lately[0].MsgID != env.MsgID || lately[0].FromName != "name-of-"+sender {
		t.Errorf("lately: %v", lately)
	}
	if _, err := w.in.Read(e.GID, held.MsgID); !fault.Is(err, fault.BadRequest) {
		t.Errorf("what was not handed over could be read: %v", err)
	}
	w.clock.pass(2 * time.Minute)
	if _, err := w.in.Read(e.GID, env.MsgID); !fault.Is(err, fault.BadRequest) {
		t.Errorf("after the hour: %v", err)
	}
	same(t, "lately", 0, len(w.in.Recently(e.GID)))
}

// Fails if the order in which two responses are recorded, which is chance, is
// told for that in which they were given out.
func TestWhatWasDrainedIsListedAsItWasGiven(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	var ids []string
	for _, body := range []string{"1", "2", "3", "4"} {
		env := w.brief(e.GID, body)
		w.deliver(env)
		ids = append(ids, env.MsgID)
	}
	first, _ := w.poll(e.GID, Filter{}, Limit{Max: 2})
	w.clock.pass(time.Millisecond)
	second, _ := w.poll(e.GID, Filter{}, Limit{Max: 2})
	second.Settle(true)
	first.Settle(true)
	var lately, open []string
	for _, r := range slices.Backward(w.in.Recently(e.GID)) {
		lately = append(lately, r.MsgID)
	}
	briefs, err := w.in.OpenBriefs(e.GID)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range briefs {
		open = append(open, b.MsgID)
	}
	same(t, "lately", ids, lately)
	same(t, "open", ids, open)
}

// Fails if what is kept to be read again grows without bound.
func TestWhatCanBeReadAgainIsBounded(t *testing.T) {
	b := newBox(store.Entity{Kind: store.Main}, nil)
	now := time.Now()
	for range 40_000 {
		b.keep(now, &envelope.Envelope{Body: make([]byte, 100)})
	}
	if n := len(b.recent); n < 10_000 || n > recentBytes/perRecent {
		t.Errorf("%d are kept", n)
	}
	b.keep(now, &envelope.Envelope{Body: make([]byte, 2*recentBytes)})
	same(t, "beside a huge one", 1, len(b.recent))
	same(t, "its size", 2*recentBytes+perRecent, b.recentSize)
}

// Fails if what is kept to be read again holds more than is reckoned with, or
// changes the message that its reader still has.
func TestWhatCanBeReadAgainHasNoHeaders(t *testing.T) {
	b := newBox(store.Entity{Kind: store.Main}, nil)
	given := &envelope.Envelope{MsgID: "m1", Body: []byte("text"), Headers: map[string]string{"sig": "long"}}
	b.keep(time.Now(), given)
	kept := *b.recent[0].env
	same(t, "headers", 0, len(kept.Headers))
	same(t, "headers of the reader's", 1, len(given.Headers))
	same(t, "message", "m1 text", kept.MsgID+" "+string(kept.Body))
}

// Fails if the bodies of all that waits are in memory.
func TestLocalMailWaitsOnDisk(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	w.deliver(w.brief(e.GID, "stored"))
	look := func() {
		t.Helper()
		for _, it := range w.in.box(e.GID).byID {
			if len(it.env.Body) > 0 {
				t.Errorf("%q is in memory", it.env.Body)
			}
		}
	}
	look()
	w.restart()
	look()
	_, got := w.poll(e.GID, Filter{}, Limit{})
	same(t, "poll", []string{"stored"}, got)
}
