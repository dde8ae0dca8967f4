package fabric

import (
	"context"
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/test/rabbit"
)

// Who wants to know whether two hosts believe each other asks the other one.
// Fails when the one that answers is not told from the one that is not there, or
// that one from the one that has the question and is silent,
// when another host can answer for it, or when an answer also reaches those who
// read signals.
func TestReachTellsWhoAnswers(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a, b, c := fl.up("hosta"), fl.up("hostb"), fl.up("hostc")
	reached := make(chan map[string]Reached, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		reached <- a.Reach(ctx, []string{"hostb", "nobody"})
	}()
	q := got(t, "the question", b.signals)
	if q.Kind != envelope.Query || q.From != envelope.GatewayAddress("hosta") || q.To != envelope.GatewayAddress("hostb") {
		t.Fatalf("hostb is asked %s from %s to %s", q.Kind, q.From, q.To)
	}
	answer := func(g *gateway) {
		g.publish(envelope.LaneSignal, fl.letter(envelope.Deferred, g.host, envelope.GatewayAddress(g.host), q.From, "", func(e *envelope.Envelope) {
			e.InReplyTo, e.Reason = q.MsgID, "UNSEEN"
		}), Confirmed)
	}
	answer(c)
	if e := got(t, "an answer that nobody asked for", a.signals); e.Signer != "hostc" {
		t.Fatalf("a signal of %s came", e.Signer)
	}
	select {
	case all := <-reached:
		t.Fatalf("hostc answered for hostb: %v", all)
	default:
	}
	answer(b)
	if all := got(t, "who answered", reached); len(all) != 2 || all["hostb"] != Answered || all["nobody"] != Unreached {
		t.Errorf("it came to %v", all)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { reached <- a.Reach(ctx, []string{"hostc"}) }() // hostb may have been asked more than once
	got(t, "a question that nobody answers", c.signals)
	got(t, "the next, so that the first is known to be there", c.signals)
	cancel()
	if all := got(t, "who is silent", reached); all["hostc"] != Silent {
		t.Errorf("without an answer it came to %v", all)
	}
	if len(a.signals) > 0 {
		t.Errorf("the answer was handed on: %+v", <-a.signals)
	}
}

// Whoever nobody trusts yet is named, so that somebody can. Fails when a host
// whose messages are refused for want of its key is not, when one without a host
// id is, or when made-up names push out the room of all others.
func TestStrangersAreNamed(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta")
	to := fl.entity("hosta")
	a.attach(to)
	_, ch := stranger(t, fl.uri)
	send := func(signer string) {
		t.Helper()
		e := fl.letter(envelope.Send, signer, fl.entity("hosta"), to, "believe me")
		fl.mu.Lock()
		delete(fl.keys, signer)
		fl.mu.Unlock()
		before := a.Refusals()[envelope.UnknownSigner]
		err := ch.PublishWithContext(t.Context(), a.Names().Msg(), to, true, false, amqp.Publishing{Headers: amqp.Table(e.Table()), Body: e.Body})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the refusal", func() bool { return a.Refusals()[envelope.UnknownSigner] > before })
	}
	send("hostz")
	if all := a.Strangers(time.Hour); len(all) != 1 || all[0].Host != "hostz" || all[0].Reason != envelope.UnknownSigner {
		t.Fatalf("the strangers are %+v", all)
	}
	if all := a.Strangers(-1); len(all) != 0 {
		t.Errorf("those that were heard long ago are told: %+v", all)
	}
	for i := range strangersMost {
		send(fmt.Sprintf("made-up-%d", i))
	}
	send("hostz")
	all := a.Strangers(time.Hour)
	if len(all) != strangersMost {
		t.Errorf("%d are remembered, not %d", len(all), strangersMost)
	}
	named := false
	for _, s := range all {
		named = named || s.Host == "hostz"
	}
	if !named {
		t.Errorf("the newest is not remembered: %+v", all)
	}
}

// A host that is asked again just as its first answer comes answers both times.
// Fails when the second answer ends the daemon, or is taken for another signal.
func TestTwoAnswersToOneQuestion(t *testing.T) {
	var r reaches
	one := reach{"hostb", make(chan struct{})}
	for _, id := range []string{"first", "again"} {
		r.add(id, one)
		env := &envelope.Envelope{Kind: envelope.Deferred, From: envelope.GatewayAddress("hostb"), Signer: "hostb", InReplyTo: id}
		if !r.answered(env) {
			t.Errorf("the answer to %s is none", id)
		}
	}
	got(t, "the answer", one.answered)
}
