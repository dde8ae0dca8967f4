package fabric

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/test/rabbit"
)

// raw publishes an envelope as anyone with a broker login can: on any
// exchange, under any key, with any further headers.
func raw(t testing.TB, ch *amqp.Channel, exchange, key string, e *envelope.Envelope, more amqp.Table) {
	t.Helper()
	headers := amqp.Table(e.Table())
	for k, v := range more {
		headers[k] = v
	}
	err := ch.PublishWithContext(context.Background(), exchange, key, false, false, amqp.Publishing{Headers: headers, Body: e.Body})
	if err != nil {
		t.Fatal(err)
	}
}

// Fails if one of the checks of design §4 is missing, if a refusal is given
// the reason of another, is not dead-lettered or not counted, if it reaches
// the handler, or if it wedges the consumer.
func TestRefusedMailIsDeadLetteredUnderItsReason(t *testing.T) {
	t.Attr("threat", "B1 B3 B4 G1 G3")
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	a, b := fl.up("hosta"), fl.up("hostb")
	from, to, other := fl.entity("hosta"), fl.entity("hostb"), fl.entity("hostb")
	box, otherBox := b.attach(to, func(i *Inbox) { i.Groups = []string{"reviewers"} }), b.attach(other)
	conn, ch := stranger(t, uri)
	n := fl.names()
	dead := consumeDLQ(t, conn, n)

	cases := []struct {
		reason string
		report fault.Code
		send   func() *envelope.Envelope
	}{
		{"bad_signature", "", func() *envelope.Envelope {
			e := fl.letter(envelope.Send, "hosta", from, to, "was changed")
			e.Body = []byte("changed")
			raw(t, ch, n.Msg(), to, e, nil)
			return e
		}},
		{"unknown_signer", "", func() *envelope.Envelope {
			e := newFleet(t, "").letter(envelope.Send, "stranger", from, to, "x")
			raw(t, ch, n.Msg(), to, e, nil)
			return e
		}},
		{"newer_major", "", func() *envelope.Envelope {
			e := fl.letter(envelope.Send, "hosta", from, to, "x")
			e.Headers["v"] = "2"
			e.Headers["sig"] = base64.RawURLEncoding.EncodeToString(ed25519.Sign(fl.key("hosta"), envelope.SigningInput(e.Headers, e.Body)))
			raw(t, ch, n.Msg(), to, e, nil)
			return e
		}},
		{"malformed_header", "", func() *envelope.Envelope {
			e := &envelope.Envelope{MsgID: "rubbish", Headers: map[string]string{"msgId": "rubbish"}}
			raw(t, ch, n.Msg(), to, e, nil)
			return e
		}},
		{"wrong_queue", "", func() *envelope.Envelope { // an unsigned CC header copies it into another inbox
			e := fl.letter(envelope.Send, "hosta", from, other, "for other alone")
			raw(t, ch, n.Msg(), other, e, amqp.Table{"CC": []any{to}})
			otherBox.take(t, "for other alone")
			return e
		}},
		{"wrong_queue", "", func() *envelope.Envelope { // a foreign binding does the same
			if err := ch.QueueBind(n.Inbox(to), other, n.Msg(), false, nil); err != nil {
				t.Fatal(err)
			}
			e := fl.letter(envelope.Send, "hosta", from, other, "again")
			raw(t, ch, n.Msg(), other, e, nil)
			otherBox.take(t, "again")
			if err := ch.QueueUnbind(n.Inbox(to), other, n.Msg(), nil); err != nil {
				t.Fatal(err)
			}
			return e
		}},
		{"wrong_key", "", func() *envelope.Envelope { // past the exchange, straight into the queue
			e := fl.letter(envelope.Send, "hosta", from, to, "x")
			raw(t, ch, "", n.Inbox(to), e, nil)
			return e
		}},
		{"wrong_lane", "", func() *envelope.Envelope {
			e := fl.letter(envelope.Ask, "hosta", from, to, "x")
			raw(t, ch, n.Msg(), to, e, nil)
			return e
		}},
		{"foreign_home", "", func() *envelope.Envelope { // a trusted host speaks for another's entity
			e := fl.letter(envelope.Send, "hosta", other, to, "x")
			raw(t, ch, n.Msg(), to, e, nil)
			return e
		}},
		{"expired", fault.Expired, func() *envelope.Envelope {
			e := fl.letter(envelope.Send, "hosta", from, to, "x", func(e *envelope.Envelope) { e.ExpiresAt = time.Now().Add(-time.Minute).UnixMilli() })
			raw(t, ch, n.Msg(), to, e, nil)
			return e
		}},
		{"outside_horizon", fault.Refused, func() *envelope.Envelope {
			e := fl.letter(envelope.Send, "hosta", from, to, "x", func(e *envelope.Envelope) { e.TS -= (9 * 24 * time.Hour).Milliseconds() })
			raw(t, ch, n.Msg(), to, e, nil)
			return e
		}},
		{"unknown_kind", fault.Refused, func() *envelope.Envelope {
			e := fl.letter("GREETING", "hosta", from, to, "x", func(e *envelope.Envelope) { e.ExpiresAt = time.Now().Add(time.Minute).UnixMilli() })
			raw(t, ch, n.Msg(), to, e, nil)
			return e
		}},
		{"wrong_witness", "", func() *envelope.Envelope { // an outcome from a host that the message never went to
			id := fl.letter(envelope.Send, "hostb", to, from, "x").MsgID
			b.note(id, from, "hostc")
			e := fl.letter(envelope.Failed, "hosta", from, to, "", func(e *envelope.Envelope) { e.InReplyTo, e.Reason = id, "EXPIRED" })
			raw(t, ch, n.Msg(), to, e, nil)
			return e
		}},
	}
	for _, c := range cases {
		before := b.Refusals()[c.reason]
		e := c.send()
		d := got(t, "dead letter for "+c.reason, dead)
		if id, _ := d.Headers["msgId"].(string); id != e.MsgID {
			t.Errorf("%s: dead letter %q, want %q", c.reason, id, e.MsgID)
		}
		if n := b.Refusals()[c.reason]; n != before+1 {
			t.Errorf("%s: counted %d times; all: %v", c.reason, n-before, b.Refusals())
		}
		if c.report != "" {
			if code := got(t, "report of "+c.reason, b.reported); code != c.report {
				t.Errorf("%s: reported as %s, want %s", c.reason, code, c.report)
			}
		}
		if !contains(b.log.lines(), "message refused", "reason="+c.reason) {
			t.Errorf("%s: no line says so", c.reason)
		}
	}
	if len(b.reported) != 0 {
		t.Errorf("a refusal was reported that must not be: %s", <-b.reported)
	}
	a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", from, to, "still here"), Confirmed)
	box.take(t, "still here")
}

// consumeDLQ reads the dead letters as a person's tool would.
func consumeDLQ(t testing.TB, conn *amqp.Connection, n Names) <-chan amqp.Delivery {
	t.Helper()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	dead, err := ch.Consume(n.DLQ(), "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return dead
}

// Fails if a group's mail reaches a non-member, or broadcast.all a main.
func TestBroadcastReachesMembersOnly(t *testing.T) {
	t.Attr("threat", "B3")
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	a := fl.up("hosta")
	from, main := fl.entity("hosta"), fl.entity("hosta")
	a.attach(main, func(i *Inbox) { i.Groups = []string{"reviewers"} })
	_, ch := stranger(t, uri)
	n := fl.names()
	for _, key := range []string{"broadcast.all", "broadcast.testers"} { // bound by a stranger or left over
		if err := ch.QueueBind(n.Inbox(main), key, n.Msg(), false, nil); err != nil {
			t.Fatal(err)
		}
		a.publish(envelope.LaneMail, fl.letter(envelope.Broadcast, "hosta", from, key, key), Confirmed)
	}
	eventually(t, "both refused", func() bool { return a.Refusals()["wrong_queue"] == 2 })
}

// Fails if the signal, presence or control lane takes what is not for it, or
// stops at it.
func TestOtherLanesRefuseToo(t *testing.T) {
	t.Attr("threat", "B1 B3 G1 G3")
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	a, b := fl.up("hosta"), fl.up("hostb")
	from, to := fl.entity("hosta"), fl.entity("hostb")
	b.attach(to)
	_, ch := stranger(t, uri)
	n := fl.names()
	id := fl.letter(envelope.Send, "hostb", to, from, "x").MsgID
	b.note(id, from, "hostc")
	witness := fl.letter(envelope.Injected, "hosta", from, to, "", func(e *envelope.Envelope) { e.InReplyTo = id })
	raw(t, ch, n.Msg(), to+".signal", witness, nil)
	raw(t, ch, n.Msg(), to+".signal", fl.letter(envelope.Send, "hosta", from, to, "x"), nil)
	raw(t, ch, n.Msg(), to+".signal", fl.letter("GREETING", "hosta", from, to, "x", func(e *envelope.Envelope) { e.ExpiresAt = time.Now().Add(time.Minute).UnixMilli() }), nil)
	raw(t, ch, n.Roster(), "roster.hostb._gateway", fl.letter(envelope.Presence, "hosta", envelope.GatewayAddress("hosta"), "roster.hostb._gateway", "{}"), nil)
	raw(t, ch, n.Roster(), "roster.hosta._gateway", fl.letter(envelope.Presence, "hosta", envelope.GatewayAddress("hostb"), "roster.hosta._gateway", "{}"), nil)
	raw(t, ch, n.Control(), "hostb", fl.letter(envelope.Spawn, "hosta", from, "hosta", "{}"), nil)
	eventually(t, "all refused", func() bool {
		r := b.Refusals()
		return r["wrong_witness"] == 1 && r["wrong_lane"] == 1 && r["foreign_home"] == 2 && r["wrong_queue"] == 1 && b.Stats().UnknownKinds == 1
	})
	a.publish(envelope.LaneControl, fl.letter(envelope.Spawn, "hosta", from, "hostb", "{}"), Confirmed)
	eventually(t, "an unserved control message is acked and counted", func() bool { return b.Stats().Unsupported == 1 })
	late := fl.letter(envelope.Presence, "hosta", envelope.GatewayAddress("hosta"), "roster.hosta._gateway", "{}", func(e *envelope.Envelope) { e.TS, e.ExpiresAt = 1, 2 })
	raw(t, ch, n.Roster(), "roster.hosta._gateway", late, nil) // a wrong clock is seen, not refused
	if e := got(t, "presence", b.presence); e.TS != 1 {
		t.Errorf("presence of %d", e.TS)
	}
	deferred := fl.letter(envelope.Deferred, "hosta", from, to, "", func(e *envelope.Envelope) {
		e.InReplyTo, e.Reason = fl.letter(envelope.Send, "hostb", to, from, "x").MsgID, "BUSY"
	})
	a.publish(envelope.LaneSignal, deferred, Confirmed)
	a.publish(envelope.LaneSignal, deferred, Confirmed)
	query := fl.letter(envelope.Query, "hosta", from, to, "")
	a.publish(envelope.LaneSignal, query, Confirmed)
	if first, second := got(t, "signal", b.signals), got(t, "signal", b.signals); first.MsgID != deferred.MsgID || second.MsgID != query.MsgID {
		t.Errorf("got %s and %s; want the repeated signal once", first.Kind, second.Kind)
	}
}

// Fails if a dead letter of ours is not reported once, another's is, or what
// the handler could not take does not come again.
func TestOwnDeadLettersAreReported(t *testing.T) {
	t.Attr("threat", "B5")
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	fails := 2
	var a *gateway
	a = fl.up("hosta", func(_ *Config, d *Deps) {
		d.OnDeadLetter = func(e *envelope.Envelope, q, r string) error {
			if fails > 0 {
				fails--
				return context.DeadlineExceeded
			}
			a.dead <- deadLetter{e, q, r}
			return nil
		}
	})
	b := fl.up("hostb")
	from, to := fl.entity("hosta"), fl.entity("hostb")
	box := b.attach(to)
	a.reporting()
	b.reporting()
	e := fl.letter(envelope.Send, "hosta", from, to, "x")
	a.publish(envelope.LaneMail, e, Confirmed)
	if err := got(t, "mail", box.mail).Reject(); err != nil {
		t.Fatal(err)
	}
	d := got(t, "the report", a.dead)
	if d.env.MsgID != e.MsgID || d.queue != fl.names().Inbox(to) || d.reason != "rejected" {
		t.Errorf("reported %s from %s for %s", d.env.MsgID, d.queue, d.reason)
	}
	eventually(t, "acked unseen by the other", func() bool { return b.Stats().ForeignDead == 1 })
	_, ch := stranger(t, uri)
	forged := fl.letter(envelope.Send, "hosta", from, to, "x")
	forged.Body = []byte("y")
	raw(t, ch, fl.names().DLX(), "", forged, nil)
	eventually(t, "a forged one is not ours", func() bool { return a.Stats().ForeignDead == 1 })
	if len(a.dead) != 0 || len(b.dead) != 0 {
		t.Error("more was reported than died")
	}
}

func (g *gateway) inspect(queue string) (q amqp.Queue, err error) {
	s, err := g.session()
	if err != nil {
		return q, err
	}
	err = aside(s.con, func(ch *amqp.Channel) error {
		q, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err
	})
	return q, err
}
