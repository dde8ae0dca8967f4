package fabric

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/test/faultproxy"
	"fleetd/test/rabbit"
	"fleetd/wait"
)

// Fails if a letter that is delivered again is another message than it was,
// still carries what brokers added, stays behind, or takes others with it.
func TestRedeliveredAsItWas(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a, b := fl.up("hosta", unreported), fl.up("hostb", unreported)
	from, to, other := fl.entity("hosta"), fl.entity("hostb"), fl.entity("hostb")
	box := b.attach(to)
	g := newGrave(t, fl)
	before, after := g.buryMany(3, from, other), []string(nil)

	e := fl.letter(envelope.Send, "hosta", from, to, "do it", func(e *envelope.Envelope) {
		e.Headers = map[string]string{"later": "of a minor version to come"}
	})
	a.publish(envelope.LaneMail, e, Confirmed)
	if err := got(t, "the brief", box.mail).Reject(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is dead", func() bool { return g.ready() == 4 })
	after = g.buryMany(3, from, other)

	wire, err := g.ch.QueueDeclare("", false, true, true, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.ch.QueueBind(wire.Name, "#", fl.names().Msg(), false, nil); err != nil {
		t.Fatal(err)
	}
	done, _, err := b.Redeliver(t.Context(), Filter{MsgID: e.MsgID}, nil) // any host may
	if err != nil || len(done) != 1 || done[0].Err != nil || done[0].MsgID != e.MsgID || done[0].NewID != "" {
		t.Fatalf("%+v, %v", done, err)
	}
	d := box.take(t, "do it")
	if d.MsgID != e.MsgID || d.Headers["sig"] != e.Headers["sig"] || d.Headers["later"] == "" || d.ExpiresAt != e.ExpiresAt {
		t.Errorf("it came as %+v", d.Envelope)
	}
	eventually(t, "it went over the exchange", func() bool {
		raw, ok, err := g.ch.Get(wire.Name, true)
		if err != nil {
			t.Fatal(err)
		}
		if !ok || raw.MessageId != e.MsgID { // probes pass here too
			return false
		}
		for name := range raw.Headers {
			if strings.HasPrefix(name, "x-") {
				t.Errorf("it still carries %s", name)
			}
		}
		if raw.RoutingKey != to || raw.DeliveryMode != amqp.Persistent || raw.Expiration == "" {
			t.Errorf("key %s, mode %d, expiration %q", raw.RoutingKey, raw.DeliveryMode, raw.Expiration)
		}
		return true
	})
	g.stays("the others", append(before, after...))
}

// Fails if a letter goes into the inbox of a host that is away and does not
// renew its lease: the inbox may go before the letter's life is over.
func TestARedeliveryRenewsTheLease(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta", unreported)
	for lease := 4 * time.Second; !redelivers(t, fl, a, lease); lease *= 2 {
	}
}

// redelivers reports whether it could bring letters in time to renew a lease,
// twice as often as has to be.
func redelivers(t *testing.T, fl *fleet, a *gateway, lease time.Duration) bool {
	t.Helper()
	from, kept, left := fl.entity("hosta"), fl.entity("hostb"), fl.entity("hostb")
	g := newGrave(t, fl)
	letters := g.buryMany(40, from, kept)
	returns := g.ch.NotifyReturn(make(chan amqp.Return, 64))
	for _, gid := range []string{left, kept} {
		if _, err := g.ch.QueueDeclare(fl.names().Inbox(gid), true, false, false, false, amqp.Table{argExpires: lease.Milliseconds()}); err != nil {
			t.Fatal(err)
		}
		if err := g.ch.QueueBind(fl.names().Inbox(gid), gid, fl.names().Msg(), false, nil); err != nil {
			t.Fatal(err)
		}
	}
	gone := func() bool { // that asks without renewing anything
		c, err := g.ch.PublishWithDeferredConfirm(fl.names().Msg(), left, true, false, amqp.Publishing{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.WaitContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case <-returns:
			return true
		default:
			return false
		}
	}
	renewed := time.Now()
	for i, over := 0, false; !over; i++ {
		over = gone() // once more after it
		now := time.Now()
		done, _, err := a.Redeliver(t.Context(), Filter{MsgID: letters[i]}, nil)
		if time.Since(renewed) > lease/2 { // a busy machine: the broker's clock goes on
			return false
		}
		if renewed = now; err != nil || len(done) != 1 || done[0].Err != nil {
			t.Fatalf("letter %d, into an inbox that others were brought to: %+v, %v", i, done, err)
		}
		if !over {
			_ = wait.Pause(t.Context(), lease/20)
		}
	}
	return true
}

// Fails if a letter is published that no recipient may take, is removed
// although nobody has it, if its refusal is not said with its code, or if one
// letter's refusal keeps another from going.
func TestWhatCannotBeRedeliveredStaysAndSaysWhy(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	small := func(g *gateway) *gateway { g.inboxCap = 1; g.run().await(Connected); return g }
	a, b := small(fl.gateway("hosta", unreported)), small(fl.gateway("hostb", unreported))
	from, good, gone, full := fl.entity("hosta"), fl.entity("hostb"), fl.entity("hostb"), fl.entity("hostb")
	box := b.attach(good)
	b.attach(full)
	b.Detach(full)
	a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", from, full, "x"), Confirmed)
	g := newGrave(t, fl)
	hour, now := time.Hour.Milliseconds(), time.Now().UnixMilli()
	aged := func(ts, end int64) func(*envelope.Envelope) {
		return func(e *envelope.Envelope) { e.TS, e.ExpiresAt = ts, end }
	}
	forged := fl.letter(envelope.Send, "hosta", from, good, "x")
	forged.Body = []byte("y")
	astray := fl.letter(envelope.Send, "hosta", from, good, "x")
	var ids []string
	var codes []fault.Code
	bury := func(code fault.Code, e *envelope.Envelope) {
		ids, codes = append(ids, g.bury(e)), append(codes, code)
	}
	bury(fault.Expired, fl.letter(envelope.Send, "hosta", from, good, "x", aged(now-2*hour, now-1000)))
	bury(fault.Refused, fl.letter(envelope.Send, "hosta", from, good, "x", aged(now-9*24*hour, now+hour)))
	bury(fault.Refused, fl.letter(envelope.Send, "hosta", from, good, "x", aged(now+9*24*hour, now+10*24*hour)))
	bury(fault.Refused, forged)
	bury(fault.Refused, newFleet(t, "").letter(envelope.Send, "hostz", from, good, "x"))
	bury(fault.Refused, fl.letter(envelope.Send, "hostb", from, good, "x")) // hosta's entity in hostb's mouth
	bury(fault.Refused, fl.letter(envelope.Spawn, "hosta", from, "hostb", "{}"))
	g.put(amqp.Table(astray.Table()), astray.Body, fl.names().Inbox(good))
	ids, codes = append(ids, astray.MsgID), append(codes, fault.Refused)
	bury(fault.Unroutable, fl.letter(envelope.Send, "hosta", from, gone, "x"))
	bury(fault.Unroutable, fl.letter(envelope.Broadcast, "hosta", from, "broadcast.nobody", "x"))
	bury(fault.InboxFull, fl.letter(envelope.Send, "hosta", from, full, "x"))
	g.put(amqp.Table{"msgId": "rubbish"}, nil, good)
	ids, codes = append(ids, "rubbish"), append(codes, fault.Refused)
	g.bury(fl.letter(envelope.Send, "hosta", from, good, "the good one"))

	done, b2, err := a.Redeliver(t.Context(), Filter{}, nil)
	if err != nil || !b2.Complete || len(done) != len(ids)+1 {
		t.Fatalf("%d done, %+v, %v", len(done), b2, err)
	}
	for i, want := range codes {
		if d := done[i]; d.MsgID != ids[i] || fault.CodeOf(d.Err) != want || !strings.Contains(d.Err.Error(), "the letter stays") {
			t.Errorf("letter %d: %v, want %s", i, d.Err, want)
		}
	}
	box.take(t, "the good one")
	if len(box.mail) != 0 {
		t.Errorf("%d more came", len(box.mail))
	}
	g.stays("the refused ones", ids)
	if r := b.Refusals(); len(r) != 0 {
		t.Errorf("the recipient had to refuse %v", r)
	}
}

// Fails if several copies of one letter are each published, or one is left
// behind; or if a copy under a foreign key rides along.
func TestCopiesOfALetterGoOutOnce(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta", unreported)
	from, to := fl.entity("hosta"), fl.entity("hosta")
	box := a.attach(to)
	g := newGrave(t, fl)
	e := fl.letter(envelope.Send, "hosta", from, to, "once")
	for range 3 {
		g.bury(e)
	}
	g.put(amqp.Table(e.Table()), e.Body, "elsewhere")
	done, _, err := a.Redeliver(t.Context(), Filter{MsgID: e.MsgID}, nil)
	if err != nil || len(done) != 4 || done[2].Err != nil || !fault.Is(done[3].Err, fault.Refused) {
		t.Fatalf("%+v, %v", done, err)
	}
	a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", from, to, "then"), Confirmed)
	box.take(t, "once")
	box.take(t, "then")
	g.stays("the strange copy", []string{e.MsgID})
}

// asked is an Owner that tells when it is asked.
type asked struct {
	Owner
	about string
	tell  func()
}

func (a asked) Owns(gid string) bool {
	if gid == a.about {
		a.tell()
	}
	return a.Owner.Owns(gid)
}

// Fails if a letter is removed although the broker has not said that it has
// the message.
func TestALetterInDoubtStays(t *testing.T) {
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	proxy, err := faultproxy.Start(hostOf(t, uri))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	from, to := fl.entity("hosta"), fl.entity("hosta")
	a := fl.up("hosta", unreported, func(c *Config, d *Deps) {
		c.URI = through(t, uri, proxy.Addr())
		// When a letter is read, right before it is published: the broker gets
		// the message, and its word does not come back.
		d.Owner = asked{d.Owner, from, func() { proxy.Set(faultproxy.StallDown) }}
	})
	g := newGrave(t, fl)
	_, sink := stranger(t, uri)
	q, err := sink.QueueDeclare("", false, true, true, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := sink.QueueBind(q.Name, to, fl.names().Msg(), false, nil); err != nil {
		t.Fatal(err)
	}
	ids := g.buryMany(3, from, to)
	type outcome struct {
		done []Redelivery
		err  error
	}
	result := make(chan outcome, 1)
	go func() {
		done, _, err := a.Redeliver(context.Background(), Filter{}, nil)
		result <- outcome{done, err}
	}()
	eventually(t, "the broker has the first one", func() bool {
		q, err := sink.QueueDeclarePassive(q.Name, false, true, true, false, nil)
		return err == nil && q.Messages == 1
	})
	proxy.Reset() // before another mode: that would let the broker's word through
	r := got(t, "the end of it", result)
	if len(r.done) != 1 || !fault.Is(r.done[0].Err, fault.InDoubt) || !fault.Is(r.err, fault.BrokerDown) {
		t.Errorf("%+v, %v", r.done, r.err)
	}
	eventually(t, "all are back", func() bool { return g.ready() == 3 })
	g.stays("after the cut", ids)
	proxy.Set(faultproxy.Pass)
	a.await(Connected)
}

// Fails if something else than an expired brief of our own is sent anew, or
// one that was is left, or removed without having been.
func TestOnlyExpiredBriefsOfOursAreSentAnew(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta", unreported)
	here, there := fl.entity("hosta"), fl.entity("hostb")
	g := newGrave(t, fl)
	over := func(e *envelope.Envelope) { e.TS, e.ExpiresAt = e.TS-10_000, e.TS-5_000 }
	ancient := func(e *envelope.Envelope) { e.TS, e.ExpiresAt = 1_000, 2_000 }
	cases := []struct {
		e    *envelope.Envelope
		want fault.Code
	}{
		{fl.letter(envelope.Send, "hosta", here, there, "sent", over), ""},
		{fl.letter(envelope.Send, "hosta", here, there, "sent", ancient), ""},
		{fl.letter(envelope.Send, "hosta", here, there, "refused", over), fault.HostOffline},
		{fl.letter(envelope.Send, "hosta", here, there, "x"), fault.Conflict},
		{fl.letter(envelope.Send, "hostb", there, here, "x", over), fault.NotAllowed},
		{fl.letter(envelope.Failed, "hosta", here, there, "", over, func(e *envelope.Envelope) { e.InReplyTo, e.Reason = here, "EXPIRED" }), fault.BadRequest},
		{newFleet(t, "").letter(envelope.Send, "hosta", here, there, "x", over), fault.Refused},
	}
	var stay []string
	for _, c := range cases {
		if id := g.bury(c.e); c.want != "" {
			stay = append(stay, id)
		}
	}
	var asked []string
	done, _, err := a.Redeliver(t.Context(), Filter{}, func(_ context.Context, e *envelope.Envelope) (string, error) {
		asked = append(asked, string(e.Body))
		if string(e.Body) == "refused" {
			return "", fault.New(fault.HostOffline, "away")
		}
		return "new of " + e.MsgID, nil
	})
	if err != nil || len(done) != len(cases) || !slices.Equal(asked, []string{"sent", "sent", "refused"}) {
		t.Fatalf("asked %v, %v", asked, err)
	}
	for i, c := range cases {
		if d := done[i]; fault.CodeOf(d.Err) != c.want || c.want == "" && d.NewID != "new of "+c.e.MsgID {
			t.Errorf("letter %d: %q, %v, want %q", i, d.NewID, d.Err, c.want)
		}
	}
	g.stays("what was not sent", stay)
}
