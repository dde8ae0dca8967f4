package inbox

import (
	"testing"

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
