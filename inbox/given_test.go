package inbox

import (
	"testing"
	"time"

	"fleetd/fabric/envelope"
)

// Fails if whoami, or a question to the sender of a brief, does not know of a
// brief whose response is still being written, or if one that came back from a
// client that was gone counts as given.
func TestABriefJustGivenIsOpen(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	brief := w.brief(e.GID, "do this")
	w.deliver(brief)
	open := func() (ids []string) {
		all, err := w.in.OpenBriefs(e.GID)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range all {
			ids = append(ids, b.MsgID)
		}
		return ids
	}
	same(t, "held", []string(nil), open())
	batch, _ := w.poll(e.GID, Filter{}, Limit{})
	same(t, "given", []string{brief.MsgID}, open())
	batch.Settle(false)
	same(t, "held again", []string(nil), open())
	batch, _ = w.poll(e.GID, Filter{}, Limit{})
	batch.Settle(true)
	same(t, "drained", []string{brief.MsgID}, open())
}

// Fails if the brief that a client acts on is not known while its response is
// still being written, so that a quick answer to it looks like the first word
// of an exchange; or if an answer counts as a brief.
func TestTheBriefGivenLastIsKnownAtOnce(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	last := func() string {
		env, found := w.in.GivenLast(e.GID)
		if !found {
			return ""
		}
		return string(env.MsgID)
	}
	same(t, "before anything", "", last())
	first, second := w.brief(e.GID, "first"), w.brief(e.GID, "second")
	w.deliver(first)
	same(t, "held", "", last())
	batch, _ := w.poll(e.GID, Filter{}, Limit{})
	same(t, "offered", first.MsgID, last())
	batch.Settle(true)
	same(t, "drained", first.MsgID, last())
	w.broker.publish(e.GID, second)
	batch, _ = w.poll(e.GID, Filter{}, Limit{})
	same(t, "the next one offered", second.MsgID, last())
	batch.Settle(true)
	reply := w.mail(envelope.Reply, e.GID, "done")
	reply.InReplyTo = newID()
	w.deliver(reply)
	batch, _ = w.poll(e.GID, Filter{}, Limit{})
	batch.Settle(true)
	same(t, "after an answer", second.MsgID, last())
}

// Fails if an agent that answers a brief and then writes because of it counts as
// one that nobody wrote to; or if it counts so for ever, as with several briefs
// that it never answers.
func TestTheBriefAnsweredLastIsKnownForAnHour(t *testing.T) {
	w := newWorld(t)
	e := w.worker("a")
	last := func() string {
		t.Helper()
		b, _, err := w.in.BriefLast(e.GID)
		if err != nil {
			t.Fatal(err)
		}
		return b.MsgID
	}
	take := func(what string) *envelope.Envelope {
		env := w.brief(e.GID, what)
		w.broker.publish(e.GID, env)
		await(t, "injected", func() bool { return w.outcome(e.GID, env.MsgID) == "injected" })
		return env
	}
	reply := func(env *envelope.Envelope) {
		t.Helper()
		w.clock.pass(time.Second)
		b, err := w.in.BriefToAnswer(e.GID, env.MsgID)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.disk.Write(t.Context(), MarkReplied(b, w.clock.now())); err != nil {
			t.Fatal(err)
		}
	}
	same(t, "before anything", "", last())
	first := take("first")
	same(t, "given", first.MsgID, last())
	reply(first)
	same(t, "answered", first.MsgID, last())
	w.clock.pass(time.Second)
	long, short := take("that takes long"), take("that does not")
	reply(short)
	same(t, "answered while another is open", short.MsgID, last())
	w.clock.pass(recentFor + time.Second)
	same(t, "an hour later", long.MsgID, last())
	reply(long)
	w.clock.pass(recentFor + time.Second)
	same(t, "an hour after all were answered", "", last())
	take("a report")
	w.clock.pass(time.Second)
	report := take("another report")
	same(t, "two that are open", report.MsgID, last())
	w.clock.pass(recentFor + time.Second)
	same(t, "an hour after two that are open", "", last())
}
