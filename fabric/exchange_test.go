package fabric

import (
	"testing"

	"fleetd/fabric/envelope"
	"fleetd/test/rabbit"
)

// Fails if the topology, a routing key or the signature is built otherwise by
// the sending than by the receiving side.
func TestTwoGatewaysExchangeMailAndSignals(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a, b := fl.up("hosta"), fl.up("hostb")
	main, worker := fl.entity("hosta"), fl.entity("hostb")
	inbox := b.attach(worker, func(i *Inbox) { i.Worker = true; i.Groups = []string{"reviewers"} })
	replies := a.attach(main)

	a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", main, worker, "review this"), Confirmed)
	inbox.take(t, "review this")
	b.publish(envelope.LaneMail, fl.letter(envelope.Reply, "hostb", worker, main, "looks good"), Confirmed)
	replies.take(t, "looks good")
	for _, group := range []string{"all", "reviewers"} {
		a.publish(envelope.LaneMail, fl.letter(envelope.Broadcast, "hosta", main, envelope.BroadcastKey(group), group), Confirmed)
		inbox.take(t, group)
	}
	ask := fl.letter(envelope.Ask, "hostb", worker, main, "which branch?")
	b.publish(envelope.LaneSignal, ask, Confirmed)
	if e := got(t, "the ask", a.signals); e.MsgID != ask.MsgID || string(e.Body) != "which branch?" {
		t.Errorf("got signal %s %q", e.MsgID, e.Body)
	}
	b.publish(envelope.LanePresence, fl.letter(envelope.Presence, "hostb", envelope.GatewayAddress("hostb"), envelope.RosterKey("hostb", envelope.RosterGateway), "{}"), Confirmed)
	if e := got(t, "presence", a.presence); e.Signer != "hostb" {
		t.Errorf("presence of %s", e.Signer)
	}
	eventually(t, "both ready", func() bool {
		ra, _ := a.Ready()
		rb, _ := b.Ready()
		return ra && rb
	})
	for _, g := range []*gateway{a, b} {
		if r := g.Refusals(); len(r) != 0 {
			t.Errorf("%s refused %v", g.host, r)
		}
	}
}
