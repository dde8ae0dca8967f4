package inbox

import (
	"testing"

	"fleetd/fabric/envelope"
)

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
