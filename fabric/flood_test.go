package fabric

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/test/rabbit"
)

// A trusted gateway that keeps to no pace fills an inbox nobody reads. Fails
// when its mail takes the room of others', when what is too much is shown,
// counts under no reason or as a sender's of his own host, or when every single
// one is reported.
func TestAFloodFromOneSenderLeavesRoomForOthers(t *testing.T) {
	t.Attr("threat", "G5")
	const perPair, flood = 20, 600
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	now := time.Now() // stands still: on a slow machine none becomes free
	b := fl.up("hostb", func(c *Config, d *Deps) { c.PerPair, d.Now = perPair, func() time.Time { return now } })
	from, friend, to := fl.entity("hosta"), fl.entity("hosta"), fl.entity("hostb")
	box := b.attach(to) // its window is 64, and nothing is settled
	_, ch := stranger(t, uri)
	for i := range flood {
		kind := []envelope.Kind{envelope.Send, envelope.Reply, envelope.Failed}[i%3]
		e := fl.letter(kind, "hosta", from, to, "", func(e *envelope.Envelope) {
			if e.TS = now.UnixMilli(); kind == envelope.Send {
				e.Body = []byte("flood")
				return
			}
			if e.InReplyTo = e.MsgID; kind == envelope.Failed {
				e.Reason = "EXPIRED"
			}
		})
		raw(t, ch, fl.names().Msg(), to, e, nil)
	}
	raw(t, ch, fl.names().Msg(), to, fl.letter(envelope.Send, "hosta", friend, to, "a friend's"), nil)
	taken := 0
	for string(got(t, "the friend's mail", box.mail).Body) != "a friend's" {
		taken++
	}
	if taken != floodSlack*perPair {
		t.Errorf("%d of the flood were taken, want %d", taken, floodSlack*perPair)
	}
	eventually(t, "the rest is refused", func() bool { return b.Refusals()["rate_limited"] == flood-floodSlack*perPair })
	if code := got(t, "report", b.reported); code != fault.RateLimited {
		t.Errorf("reported as %s", code)
	}
	if n := len(b.reported); n != 0 {
		t.Errorf("reported %d times more", n)
	}
}

// Fails when mail that waited while its recipient was away is taken for a
// flood, when a flood passes by what it says of its times, when a sender is kept
// out for longer than his flood, or when one sender or recipient costs another.
func TestWhatAFloodIs(t *testing.T) {
	t.Attr("threat", "G5 B8")
	const perPair = 60
	now := time.UnixMilli(1_800_000_000_000)
	letter := func(from, to string, sent time.Time) *envelope.Envelope {
		return &envelope.Envelope{Kind: envelope.Send, From: from, To: to, TS: sent.UnixMilli()}
	}
	// passed sends n letters, the i-th at(i), and counts those that are taken.
	passed := func(f *floods, from, to string, n int, at func(i int) time.Time) (taken int) {
		for i := range n {
			if f.take(now, letter(from, to, at(i))).verdict == accept {
				taken++
			}
		}
		return taken
	}
	ago := func(d time.Duration) func(int) time.Time {
		return func(i int) time.Time { return now.Add(-d + time.Duration(i)*time.Second) }
	}
	const burst = floodSlack * perPair
	for name, c := range map[string]struct {
		n, want int
		at      func(i int) time.Time
	}{
		"an honest backlog of six hours":  {6 * 3600, 6 * 3600, ago(6 * time.Hour)},
		"all at once":                     {5000, burst, func(int) time.Time { return now }},
		"all at once, long ago":           {5000, burst, func(int) time.Time { return now.Add(-time.Hour) }},
		"from the future":                 {5000, burst, func(i int) time.Time { return now.Add(time.Duration(i) * time.Minute) }},
		"to and fro between two old days": {5000, burst, func(i int) time.Time { return now.Add(-time.Duration(i%2+1) * 24 * time.Hour) }},
	} {
		f := &floods{perMinute: perPair}
		if n := passed(f, "x", "y", c.n, c.at); n != c.want {
			t.Errorf("%s: %d of %d are taken, want %d", name, n, c.n, c.want)
		}
		if n := passed(f, "x", "z", 1, c.at) + passed(f, "w", "y", 1, c.at); n != 2 {
			t.Errorf("%s: others were kept out", name)
		}
	}
	f := &floods{perMinute: perPair}
	passed(f, "x", "y", 5000, ago(0))
	now = now.Add(-time.Hour) // our clock is put right
	passed(f, "x", "y", 5000, ago(0))
	now = now.Add(time.Minute)
	if n := passed(f, "x", "y", 5000, func(int) time.Time { return now }); n != burst {
		t.Errorf("a minute after the clock was put back %d are taken, want %d", n, burst)
	}
	// Times that stand still: the sender's clock was put back, or dead letters of
	// long ago come again after something newer.
	for name, back := range map[string]time.Duration{"a clock put back": time.Hour, "dead letters again": 7 * 24 * time.Hour} {
		old := now.Add(-back)
		passed(f, name, "y", 1, func(int) time.Time { return now })
		passed(f, name, "y", 5000, func(int) time.Time { return old })
		now = now.Add(time.Minute)
		if n := passed(f, name, "y", 5000, func(int) time.Time { return old }); n != burst {
			t.Errorf("%s: a minute later %d are taken, want %d", name, n, burst)
		}
	}
	for i := range 10 * floodPairs {
		f.take(now, letter(fmt.Sprint("made up ", i), "y", now))
	}
	if len(f.pairs) > floodPairs {
		t.Errorf("%d pairs are remembered", len(f.pairs))
	}
	j := judgement{}
	for range 5000 {
		j = f.take(now, letter("x", strings.Repeat("y", 36), now))
	}
	if j.verdict != refuse || j.reason != "rate_limited" || j.code != fault.RateLimited {
		t.Errorf("%+v", j)
	}
}

// Fails when mail that nobody was too fast with is refused: what was handed
// back and comes again, or what our own migration brings all at once.
func TestMailIsNoFloodBecauseItComesAgainOrIsOurOwn(t *testing.T) {
	const perPair = 2
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta")
	b := fl.gateway("hostb", func(c *Config, _ *Deps) { c.PerPair = perPair })
	pass, _ := clocked(b)
	b.run().await(Connected)
	from, to := fl.entity("hosta"), fl.entity("hostb")
	box := b.attach(to)
	for i := range floodSlack * perPair {
		a.send(from, to, fmt.Sprint("mail ", i))
	}
	for range 3 {
		for i := range floodSlack * perPair {
			if d := got(t, "mail", box.mail); string(d.Body) != fmt.Sprint("mail ", i) {
				t.Fatalf("%q came, want mail %d", d.Body, i)
			}
		}
		pass(refreshAfter)
	}
	for i := range 10 * perPair {
		b.send(to, to, fmt.Sprint("ours ", i))
	}
	for ours := 0; ours < 10*perPair; {
		if d := got(t, "our own mail", box.mail); strings.HasPrefix(string(d.Body), "ours ") {
			ours++
		}
	}
	if n := b.Refusals()["rate_limited"]; n != 0 {
		t.Errorf("%d were refused", n)
	}
}

// A trusted gateway asks and announces without end. Fails when more of its
// requests and questions are served than of its mail would be taken, whoever it
// says asks, when each of its expired briefs is reported, or each refusal of its
// presence logged; or when another host's request is kept out.
func TestAFloodOfRequestsIsServedAtAPace(t *testing.T) {
	t.Attr("threat", "G5 B8")
	const perPair, flood = 20, 200
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	now := time.Now() // stands still: on a slow machine none becomes free
	var served, asked, reported atomic.Int64
	friends := make(chan bool, 1)
	b := fl.up("hostb", func(c *Config, d *Deps) {
		c.PerPair, d.Now = perPair, func() time.Time { return now }
		d.OnControl = func(e *envelope.Envelope) error {
			if served.Add(1); e.Signer == "hostc" {
				friends <- true
			}
			return nil
		}
		d.OnSignal = func(*envelope.Envelope) { asked.Add(1) }
		d.RefusedBrief = func(*envelope.Envelope, fault.Code) { reported.Add(1) }
		d.OnPresence = func(*envelope.Envelope) error {
			return &envelope.Refusal{Reason: "bad_presence", Err: fault.New(fault.BadRequest, "it is nonsense")}
		}
	})
	eventually(t, "the host id is claimed", func() bool { return b.Claim().Status == ClaimHeld })
	a, to := fl.entity("hosta"), fl.entity("hostb")
	b.attach(to)
	_, ch := stranger(t, uri)
	names := fl.names()
	for range flood {
		raw(t, ch, names.Control(), "hostb", fl.letter(envelope.Trace, "hosta", fl.entity("hosta"), "hostb", ""), nil)
		raw(t, ch, names.Msg(), to+".signal", fl.letter(envelope.Ask, "hosta", a, to, "?", func(e *envelope.Envelope) { e.TurnID = e.MsgID }), nil)
		raw(t, ch, names.Msg(), to, fl.letter(envelope.Send, "hosta", a, to, "late", func(e *envelope.Envelope) {
			e.TS, e.ExpiresAt = now.Add(-2*time.Hour).UnixMilli(), now.Add(-time.Hour).UnixMilli()
		}), nil)
		key := envelope.RosterKey("hosta", envelope.RosterGateway)
		raw(t, ch, names.Roster(), key, fl.letter(envelope.Presence, "hosta", envelope.GatewayAddress("hosta"), key, "{}"), nil)
	}
	raw(t, ch, names.Control(), "hostb", fl.letter(envelope.Trace, "hostc", envelope.GatewayAddress("hostc"), "hostb", ""), nil)
	got(t, "the friend's request", friends)
	const most = floodSlack * perPair
	eventually(t, "the rest is refused", func() bool {
		r := b.Refusals()
		return r["rate_limited"] == 2*(flood-most) && r["expired"] == flood && r["bad_presence"] >= flood
	})
	if s, a, r := served.Load(), asked.Load(), reported.Load(); s != most+1 || a != most || r != most {
		t.Errorf("%d requests and %d questions were served and %d briefs reported, want %d", s, a, r, most)
	}
	said := 0
	for _, line := range b.log.lines() {
		if strings.Contains(line, "bad_presence") {
			said++
		}
	}
	if said == 0 || said > flood/2 {
		t.Errorf("%d of %d refusals of presence are in the log", said, flood)
	}
}
