package fabric

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/test/faultproxy"
	"fleetd/test/rabbit"
)

// unreported has nobody told of dead letters of our own.
func unreported(_ *Config, d *Deps) { d.OnDeadLetter = nil }

// Fails if looking takes a letter out of the queue or out of its place, shows
// what came only after it began, or gives back late.
func TestLookingChangesNothing(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta")
	from, to := fl.entity("hosta"), fl.entity("hosta")
	g := newGrave(t, fl)
	ids := g.buryMany(60, from, to)
	for range 2 {
		var seen []string
		before := slices.Clone(ids)
		done, err := a.Browse(t.Context(), func(l *DeadLetter) Fate {
			if len(seen) == 30 {
				ids = append(ids, g.buryMany(10, from, to)...)
			}
			seen = append(seen, l.MsgID)
			return Keep
		})
		if err != nil || !slices.Equal(seen, before) {
			t.Fatalf("saw %v, want %v; %v", seen, before, err)
		}
		if n := g.ready(); n != len(ids) { // at once, for anybody
			t.Errorf("%d of %d are back", n, len(ids))
		}
		if want := (Browsed{Total: len(before), Seen: len(before), Complete: true}); done != want {
			t.Errorf("%+v, want %+v", done, want)
		}
	}
	var few []string
	done, err := a.Browse(t.Context(), func(l *DeadLetter) Fate {
		if few = append(few, l.MsgID); len(few) == 5 {
			return Last
		}
		return Keep
	})
	if err != nil || done.Complete || done.Seen != 5 || !slices.Equal(few, ids[:5]) {
		t.Errorf("a short look: %+v, %v, %v", done, few, err)
	}
	g.stays("after three looks", ids)
}

// Fails if two who look at the same time each see a part.
func TestLooksTakeTurns(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta")
	from, to := fl.entity("hosta"), fl.entity("hosta")
	g := newGrave(t, fl)
	ids := g.buryMany(5, from, to)
	second := make(chan []string, 1)
	begun := false
	_, err := a.Browse(t.Context(), func(l *DeadLetter) Fate {
		if !begun {
			begun = true
			started := make(chan struct{})
			go func() {
				close(started)
				var seen []string
				_, _ = a.Browse(context.Background(), func(l *DeadLetter) Fate { seen = append(seen, l.MsgID); return Keep })
				second <- seen
			}()
			<-started
		}
		return Keep
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen := got(t, "the second look", second); !slices.Equal(seen, ids) {
		t.Errorf("the second saw %v", seen)
	}
	_, err = a.Browse(t.Context(), func(*DeadLetter) Fate {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond) // an eternity for who must not wait
		defer cancel()
		_, err := a.Browse(ctx, func(*DeadLetter) Fate { t.Error("looked at the same time"); return Keep })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait for one's turn that was called off: %v", err)
		}
		return Last
	})
	if err != nil {
		t.Error(err)
	}
	g.stays("after", ids)
}

// Fails if a client that goes away, a connection that breaks, or time that runs
// out in the middle of a look costs a letter or its place.
func TestALookCutShortLosesNothing(t *testing.T) {
	uri := rabbit.URI(t)
	fl := newFleet(t, uri)
	proxy, err := faultproxy.Start(hostOf(t, uri))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	a := fl.up("hosta", func(c *Config, _ *Deps) { c.URI = through(t, uri, proxy.Addr()) })
	from, to := fl.entity("hosta"), fl.entity("hosta")
	g := newGrave(t, fl)
	ids := g.buryMany(40, from, to)
	back := func(what string, want int) {
		t.Helper()
		eventually(t, what+": all are back", func() bool { return g.ready() == want })
	}
	again := func(lost uint64) {
		t.Helper()
		eventually(t, "a new session", func() bool { return a.Stats().SessionsLost > lost && a.State().Phase == Connected })
	}

	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	done, err := a.Browse(ctx, func(*DeadLetter) Fate {
		if n++; n == 20 {
			cancel()
		}
		return Keep
	})
	if !errors.Is(err, context.Canceled) || done.Seen != 20 {
		t.Errorf("a client that went away: %+v, %v", done, err)
	}
	back("client gone", len(ids))

	n, lost := 0, a.Stats().SessionsLost
	_, err = a.Browse(t.Context(), func(*DeadLetter) Fate {
		if n++; n == 20 {
			proxy.Reset()
		}
		return Keep
	})
	if !fault.Is(err, fault.BrokerDown) {
		t.Errorf("a connection that broke: %v", err)
	}
	back("connection broken", len(ids))
	again(lost)

	ctx, cancel = context.WithCancel(t.Context())
	n, lost = 0, a.Stats().SessionsLost
	_, err = a.Browse(ctx, func(*DeadLetter) Fate {
		if n++; n == 20 {
			proxy.Set(faultproxy.Stall)
			time.AfterFunc(100*time.Millisecond, cancel) // while it waits for the broker
		}
		return Keep
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a client that left a frozen broker: %v", err)
	}
	proxy.Reset()
	proxy.Set(faultproxy.Pass)
	back("broker frozen", len(ids))
	again(lost)

	a.browseBound = time.Nanosecond
	if done, err = a.Browse(t.Context(), func(*DeadLetter) Fate { return Keep }); err != nil || done.Complete || done.Seen != 1 {
		t.Errorf("out of time: %+v, %v", done, err)
	}
	g.stays("after all that", ids)
}

// Fails if purging takes a letter that was not picked, moves one, or counts
// what it did not do; or if a filter picks what does not say what is asked for.
func TestPurgeTakesWhatIsPicked(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta", unreported)
	from, to, other := fl.entity("hosta"), fl.entity("hosta"), fl.entity("hosta")
	g := newGrave(t, fl)
	now := time.Now().Truncate(time.Second)
	inbox, old := fl.names().Inbox(to), now.Add(-48*time.Hour)
	kinds := []Death{
		{Queue: inbox, Reason: "expired", At: now}, {Queue: inbox, Reason: "rejected", At: old},
		{Queue: fl.names().Inbox(other), Reason: "expired", At: old}, {}, // the last says nothing at all
	}
	fill := func() (all [][]string) { // by kind
		all = make([][]string, len(kinds))
		for range 10 {
			for k, d := range kinds {
				deaths := []Death{d, {Queue: "older", Reason: "older"}}
				if d == (Death{}) {
					deaths = nil
				}
				all[k] = append(all[k], g.buryMany(1, from, to, deaths...)...)
			}
		}
		return all
	}
	for _, c := range []struct {
		name string
		q    Filter
		take []int // kinds
	}{
		{"reason", Filter{Reason: "expired"}, []int{0, 2}},
		{"queue", Filter{Queue: inbox}, []int{0, 1}},
		{"gid", Filter{Queue: other}, []int{2}},
		{"age", Filter{DiedBefore: now.Add(-time.Hour)}, []int{1, 2}},
		{"all three", Filter{Reason: "expired", Queue: inbox, DiedBefore: now.Add(-time.Hour)}, nil},
		{"no such reason", Filter{Reason: "older"}, nil},
		{"all", Filter{}, []int{0, 1, 2, 3}},
	} {
		all := fill()
		var want []string
		for i := range 10 {
			for k := range kinds {
				if !slices.Contains(c.take, k) {
					want = append(want, all[k][i])
				}
			}
		}
		purged, done, err := a.Purge(t.Context(), c.q)
		if err != nil || purged != 10*len(c.take) || !done.Complete {
			t.Errorf("%s: purged %d, %+v, %v", c.name, purged, done, err)
		}
		g.stays(c.name, want)
	}
	all := fill()
	if n, _, err := a.Purge(t.Context(), Filter{MsgID: all[2][4]}); n != 1 || err != nil {
		t.Errorf("one: %d, %v", n, err)
	}
	if left := g.ids(); len(left) != 39 || slices.Contains(left, all[2][4]) {
		t.Errorf("one: %v stay", left)
	}
}

// Fails if a letter that cannot be believed is shown as good, a good one is
// not, or whose it is is told wrongly.
func TestLettersAreShownForWhatTheyAre(t *testing.T) {
	t.Attr("threat", "T6")
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta")
	here, there := fl.entity("hosta"), fl.entity("hostb")
	g := newGrave(t, fl)
	at := time.Now().Add(-time.Minute).Truncate(time.Second)
	deaths := []Death{{Queue: "q", Reason: "rejected", Count: 1, At: at}}
	ours := fl.letter(envelope.Send, "hosta", here, there, "secret body")
	theirs := fl.letter(envelope.Reply, "hostb", there, here, "b", func(e *envelope.Envelope) { e.InReplyTo = ours.MsgID })
	forged := fl.letter(envelope.Send, "hosta", here, there, "b")
	forged.Body = []byte("other")
	claimed := fl.letter(envelope.Send, "hostb", here, there, "b")
	nobodys := newFleet(t, "").letter(envelope.Send, "hostz", here, there, "b")
	for _, e := range []*envelope.Envelope{ours, theirs, forged, claimed, nobodys} {
		g.bury(e, deaths...)
	}
	g.put(amqp.Table{"msgId": "rubbish", "kind": int64(3), "authorization": "hunter2", "x-death": "no list"}, nil, "k")

	want := []struct {
		id, problem string
		own         bool
	}{
		{ours.MsgID, "", true}, {theirs.MsgID, "", false}, {forged.MsgID, envelope.BadSignature, false},
		{claimed.MsgID, reasonForeignHome, false}, {nobodys.MsgID, envelope.UnknownSigner, false}, {"rubbish", envelope.Malformed, false},
	}
	var letters []*DeadLetter
	var headers []map[string]string
	var others [][]string
	_, err := a.Browse(t.Context(), func(l *DeadLetter) Fate {
		if (l.Envelope != nil) != (l.Problem == "") {
			t.Errorf("%s has an envelope: %v, problem %q", l.MsgID, l.Envelope != nil, l.Problem)
		}
		known, rest := l.Headers()
		letters, headers, others = append(letters, l), append(headers, known), append(others, rest)
		return Keep
	})
	if err != nil || len(letters) != len(want) {
		t.Fatalf("%d letters, %v", len(letters), err)
	}
	for i, w := range want {
		if l := letters[i]; l.MsgID != w.id || l.Problem != w.problem || l.Own != w.own || (l.Err == nil) != (w.problem == "") || l.Body != nil || l.Envelope != nil {
			t.Errorf("letter %d is %+v, want %+v", i, l, w)
		}
	}
	l := letters[0]
	if l.From != here || l.To != there || l.Kind != "SEND" || l.Bytes != len("secret body") || l.Key != there ||
		l.TraceID != ours.TraceID || l.Sent.UnixMilli() != ours.TS || l.Expires.UnixMilli() != ours.ExpiresAt || letters[1].InReplyTo != ours.MsgID {
		t.Errorf("%+v", l)
	}
	if d := l.Death(); d.Queue != "q" || d.Reason != "rejected" || d.Count != 1 || !d.At.Equal(at) {
		t.Errorf("it died %+v", d)
	}
	if headers[0]["sig"] != "" || headers[0]["signer"] != "hosta" || !slices.Equal(others[0], []string{"sig", "x-death"}) {
		t.Errorf("headers %v and %v", headers[0], others[0])
	}
	if d := letters[5].Death(); d.Queue != unknown || headers[5]["authorization"] != "" || !slices.Contains(others[5], "authorization") {
		t.Errorf("rubbish: %+v %v %v", d, headers[5], others[5])
	}
	g.ids()
}

// Fails if somebody who looks without a broker, or without the queue, is not
// told what to do.
func TestLookingWhereThereIsNothing(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.gateway("hosta")
	if _, err := a.Browse(t.Context(), func(*DeadLetter) Fate { return Keep }); !fault.Is(err, fault.BrokerDown) {
		t.Errorf("not connected: %v", err)
	}
	a.run().await(Connected)
	if done, err := a.Browse(t.Context(), func(*DeadLetter) Fate { t.Error("a letter"); return Keep }); err != nil || done != (Browsed{Complete: true}) {
		t.Errorf("an empty queue: %+v, %v", done, err)
	}
	g := newGrave(t, fl)
	if _, err := g.ch.QueueDelete(fl.names().DLQ(), false, false, false); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Browse(t.Context(), func(*DeadLetter) Fate { return Keep }); !fault.Is(err, fault.BrokerRefused) {
		t.Errorf("no queue: %v", err)
	}
}

// Fails if a login with the least rights that a gateway needs, and reading the
// dead letters besides, cannot look at them, or if one without is not told what
// it lacks.
func TestLookingNeedsOneRight(t *testing.T) {
	node := rabbit.Private(t)
	fl := newFleet(t, node.URI)
	a := fl.up("hosta", unreported) // makes what is shared
	n := fl.names()
	own := regexp.QuoteMeta(n.Prefix) + `(agent\..+|(signal|roster)\.hostb\..+|(control|dlq\.report)\.hostb)`
	shared := regexp.QuoteMeta(n.Prefix) + `bridge\.(msg|roster|control|dlx)`
	ctl := func(args ...string) {
		t.Helper()
		if out, err := node.Ctl(t.Context(), args...); err != nil {
			t.Fatal(out, err)
		}
	}
	rights := func(read string) {
		ctl("set_permissions", "hostb", "^("+own+")$", "^("+own+"|"+shared+")$", "^("+own+"|"+shared+read+")$")
	}
	ctl("add_user", "hostb", "pass")
	rights("")
	b := fl.up("hostb", unreported, func(c *Config, _ *Deps) {
		c.URI = strings.Replace(node.URI, "guest:guest", "hostb:pass", 1)
	})
	from, to := fl.entity("hosta"), fl.entity("hostb")
	box, g := b.attach(to), newGrave(t, fl)
	ids := g.buryMany(3, from, to)
	if _, err := b.Browse(t.Context(), func(*DeadLetter) Fate { return Keep }); !fault.Is(err, fault.BrokerRefused) || !strings.Contains(err.Error(), "read "+n.DLQ()) {
		t.Errorf("without the right: %v", err)
	}
	rights("|" + regexp.QuoteMeta(n.DLQ()))
	done, _, err := b.Redeliver(t.Context(), Filter{MsgID: ids[1]}, nil)
	if err != nil || len(done) != 1 || done[0].Err != nil {
		t.Fatalf("with it: %+v, %v", done, err)
	}
	box.take(t, "1")
	if purged, _, err := b.Purge(t.Context(), Filter{MsgID: ids[0]}); purged != 1 || err != nil {
		t.Errorf("purged %d, %v", purged, err)
	}
	g.stays("the rest", ids[2:])
	a.stop()
}
