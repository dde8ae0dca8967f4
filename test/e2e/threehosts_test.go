package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"fleetd/fault"
	"fleetd/mcp"
	"fleetd/test/faultproxy"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// trio is three hosts on one broker; hosta's way to it goes through a proxy. All
// have profiles. hostc lets hosta spawn and stop and hostb spawn; the others let
// nobody.
type trio struct {
	fleet *fleet.Fleet
	hosts []*fleet.Host // hosta, hostb, hostc
	proxy *faultproxy.Proxy
	lead  *fleet.Main // on hosta
	bob   *fleet.Main // on hostb
	boss  *fleet.Main // an orchestrator on hostc
	last  *fleet.Main // on hostc: what it writes lies behind all reports of hostc; nil until it is needed
}

func threeHosts(t *testing.T, ctx context.Context) *trio {
	t.Helper()
	broker := rabbit.URI(t)
	u, err := url.Parse(broker)
	if err != nil {
		t.Fatal(err)
	}
	s := &trio{}
	if s.proxy, err = faultproxy.Start(u.Host); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.proxy.Close() })
	u.Host = s.proxy.Addr()
	f := newFleet(t, broker)
	s.fleet = f
	for name, own := range map[string]string{
		"hosta": "BRIDGED_BROKER_URI=" + u.String(), "hostb": "BRIDGED_CONTROL_ALLOW={}",
		"hostc": "BRIDGED_CONTROL_ALLOW={hosta: [send, spawn, stop], hostb: [send, spawn]}",
	} {
		s.hosts = append(s.hosts, addHost(t, ctx, f, name, profiles(f), own))
	}
	slices.SortFunc(s.hosts, func(x, y *fleet.Host) int { return strings.Compare(x.Name, y.Name) })
	if err := f.TrustEachOther(); err != nil {
		t.Fatal(err)
	}
	s.ready(t, ctx)
	s.lead, s.bob = addMain(t, ctx, s.hosts[0], "lead"), addMain(t, ctx, s.hosts[1], "bob")
	if s.boss, err = s.hosts[2].AddOrchestrator(ctx, "boss"); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*fleet.Main{s.lead, s.bob, s.boss} {
		seen(t, ctx, m, "lead@hosta", "bob@hostb", "boss@hostc")
	}
	return s
}

// ready waits until every host is, and sees the others.
func (s *trio) ready(t *testing.T, ctx context.Context) {
	t.Helper()
	for _, h := range s.hosts {
		if err := h.Ready(ctx); err != nil {
			t.Fatal(err)
		}
	}
	meet(t, ctx, s.hosts...)
}

// worker adds one to a host, as a member of group.
func (s *trio) worker(t *testing.T, ctx context.Context, host int, name, group string, flags ...string) *fleet.Worker {
	t.Helper()
	w := addWorker(t, ctx, s.hosts[host], name, flags...)
	if _, err := s.hosts[host].API("").Groups(ctx, mcp.GroupsArgs{Name: name, Add: []string{group}}); err != nil {
		t.Fatal(err)
	}
	return w
}

// The whole conversation over three hosts. The parts stand on one fleet and
// leave nothing open.
func TestAConversationOverThreeHosts(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 8*bound)
	defer cancel()
	s := threeHosts(t, ctx)
	var circle func(*testing.T, context.Context, *trio)
	for _, part := range []struct {
		name string
		run  func(*testing.T, context.Context, *trio)
	}{
		{"a broadcast with one line cut", aBroadcastInParts},
		{"agents begin a circle", func(t *testing.T, ctx context.Context, s *trio) { circle = agentsInACircle(t, ctx, s) }},
		{"mains and an orchestrator", mainsTalk},
		{"one main in two clients", oneMainTwice},
		{"two questions at once", twoQuestions},
		{"a question to a third", aQuestionToAThird},
		{"any of a group", anyOverHosts},
		{"mail announced in a pane", announcedInItsPane},
		{"an echo among three", anEchoAmongThree},
		{"the circle is stopped", func(t *testing.T, ctx context.Context, s *trio) { circle(t, ctx, s) }},
		{"a trace, and a host that is gone", aTraceOfThree},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(t, ctx, s) }) {
			return
		}
	}
}

// Mains and an orchestrator write to each other as to anybody: who gets it finds
// it in its mail, and its answer ends the wait of the other. Fails when a main
// on another host cannot be written to, or the answer goes to somebody else.
func mainsTalk(t *testing.T, ctx context.Context, s *trio) {
	for _, pair := range []struct {
		from, to          *fleet.Main
		sender, recipient string
	}{
		{s.lead, s.bob, "lead@hosta", "bob@hostb"},
		{s.bob, s.boss, "bob@hostb", "boss@hostc"},
		{s.boss, s.lead, "boss@hostc", "lead@hosta"},
	} {
		var wg sync.WaitGroup
		wg.Go(func() {
			for ctx.Err() == nil {
				p, err := pair.to.Poll(ctx, map[string]any{"wait_seconds": longest})
				if err != nil {
					t.Errorf("the poll of %s: %v", pair.recipient, err)
					return
				}
				got := slices.DeleteFunc(p.Messages, func(m mcp.Message) bool { return m.Kind == "INJECTED" }) // of a brief that had to wait
				if len(got) == 0 {
					continue
				}
				if m := got[0]; len(got) != 1 || m.From != pair.sender || m.Kind != "SEND" || m.Content != "who are you?" {
					t.Errorf("%s got %+v", pair.recipient, got)
				}
				var r mcp.ReplyResult
				if err := pair.to.Call(ctx, "bridge_reply", map[string]any{"content": "I am " + pair.recipient, "in_reply_to": got[0].MsgID}, &r); err != nil || r.To != pair.sender {
					t.Errorf("the reply of %s went to %+v, %v", pair.recipient, r, err)
				}
				return
			}
		})
		r, err := pair.from.Send(ctx, map[string]any{"to": pair.recipient, "content": "who are you?", "wait_seconds": longest})
		if err != nil || r.State != "replied" || r.Reply.Content != "I am "+pair.recipient || r.Reply.From != pair.recipient {
			t.Errorf("%s got %+v, %v", pair.sender, r, err)
		}
		wg.Wait()
	}
}

// One main is connected twice, and both clients wait for mail that two other
// hosts send it: each message comes to one of them. Fails when a message comes
// to both, to none, or is said to have been shown before.
func oneMainTwice(t *testing.T, ctx context.Context, s *trio) {
	twin := *s.boss
	if err := twin.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	const each = 10
	var mu sync.Mutex
	got := map[string]int{}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	for _, m := range []*fleet.Main{s.boss, &twin} {
		wg.Go(func() {
			for {
				p, err := m.Poll(waiting, map[string]any{"wait_seconds": longest, "max": 1})
				if waiting.Err() != nil {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, one := range p.Messages {
					got[one.Content]++
					if one.Redelivered {
						t.Errorf("%q was shown before", one.Content)
					}
				}
				all := len(got)
				mu.Unlock()
				if all == 2*each {
					stop() // the other's poll is the last: it must have come to nothing
				}
			}
		})
	}
	for i := range each {
		for _, m := range []*fleet.Main{s.lead, s.bob} {
			if r, err := m.Send(ctx, map[string]any{"to": "boss@hostc", "content": fmt.Sprint(m.Name, " ", i)}); err != nil || r.State != "queued" {
				t.Errorf("message %d of %s came to %+v, %v", i, m.Name, r, err)
			}
		}
	}
	wg.Wait()
	if ctx.Err() != nil {
		t.Fatalf("not all came: %v", got)
	}
	for content, n := range got {
		if n != 1 {
			t.Errorf("%q came %d times", content, n)
		}
	}
	if p, err := s.boss.Poll(ctx, map[string]any{}); err != nil || len(p.Messages) > 0 {
		t.Errorf("in the end there is %+v, %v", p, err)
	}
	if err := twin.Disconnect(); err != nil {
		t.Error(err)
	}
}

// Two workers, each on a host of its own, ask at once; the answers, given in the
// other order, each meet their own. Fails when a turn takes another one's answer.
func twoQuestions(t *testing.T, ctx context.Context, s *trio) {
	names, addresses := []string{"one", "two"}, []string{"one@hostb", "two@hostc"}
	for i, name := range names {
		addWorker(t, ctx, s.hosts[i+1], name, "--ask", "what for "+name+"?", "--reply-with", "ok")
	}
	seen(t, ctx, s.lead, addresses...)
	questions := make([]mcp.SendResult, len(names))
	var wg sync.WaitGroup
	for i, to := range addresses {
		wg.Go(func() {
			r, err := s.lead.Send(ctx, map[string]any{"to": to, "content": "go", "wait_seconds": longest})
			if err != nil || r.Question == nil {
				t.Errorf("the send to %s returned %+v (%v)", to, r, err)
			}
			questions[i] = r
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for i := len(names) - 1; i >= 0; i-- {
		if want := "what for " + names[i] + "?"; questions[i].Question.Content != want {
			t.Fatalf("the send to %s got %q", names[i], questions[i].Question.Content)
		}
		r, err := s.lead.Answer(ctx, map[string]any{"turn_id": questions[i].TurnID, "content": "for " + names[i], "wait_seconds": longest})
		if err != nil || r.Reply == nil || r.Reply.Content != "ok (answer: for "+names[i]+")" {
			t.Fatalf("%s replied %+v (%v)", names[i], r, err)
		}
	}
}

// A worker asks somebody else than the one who gave it its task, on a third
// host; the task is answered all the same. Fails when the question surfaces at
// the sender of the task, or its answer does not meet the turn.
func aQuestionToAThird(t *testing.T, ctx context.Context, s *trio) {
	w := addWorker(t, ctx, s.hosts[1], "curious", "--reply-with", "built",
		"--call", `bridge_ask {"question": "which version?", "to": "boss@hostc", "timeout_seconds": 120}`)
	seen(t, ctx, s.lead, "curious@hostb")
	questions, end := polls(t, ctx, s.boss, "curious@hostb")
	defer end()
	var wg sync.WaitGroup
	wg.Go(func() {
		r, err := s.lead.Send(ctx, map[string]any{"to": "curious@hostb", "content": "build it", "wait_seconds": longest})
		if err != nil || r.State != "replied" || r.Reply.Content != "built" {
			t.Errorf("the task came to %+v, %v", r, err)
		}
	})
	select {
	case p := <-questions:
		if q := p.Messages[0]; q.Kind != "ASK" || q.Content != "which version?" || q.From != "curious@hostb" {
			t.Errorf("the orchestrator was given %+v", q)
		}
		r, err := s.boss.Answer(ctx, map[string]any{"turn_id": p.Messages[0].TurnID, "content": "the second"})
		if err != nil || r.State != "injected" {
			t.Errorf("the answer came to %+v, %v", r, err)
		}
	case <-ctx.Done():
		t.Error("no question came")
	}
	wg.Wait()
	events, err := w.Events()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Event == "call" && e.Tool == "bridge_ask" && !strings.Contains(e.Text, "the second") {
			t.Errorf("the asker got %q, %q", e.Text, e.Error)
		}
	}
}

// any:GROUP finds the idle member, whichever host it is on. Fails when the
// choice stops at the border of a host, or a busy one is taken.
func anyOverHosts(t *testing.T, ctx context.Context, s *trio) {
	pool := []*fleet.Worker{
		s.worker(t, ctx, 1, "pool-b", "pool", "--reply-with", "by pool-b"),
		s.worker(t, ctx, 2, "pool-c", "pool", "--reply-with", "by pool-c"),
	}
	addresses := []string{"pool-b@hostb", "pool-c@hostc"}
	inGroup(t, ctx, s.lead, "pool", addresses...)
	for busy, w := range pool {
		if err := w.Control("busy"); err != nil {
			t.Fatal(err)
		}
		eventually(t, ctx, func() error {
			r, err := s.lead.Roster(ctx)
			for _, e := range r.Entities {
				want := []string{"idle", "done"}
				i := slices.Index(addresses, e.Name+"@"+e.Host)
				if i == busy {
					want = []string{"working"}
				}
				if err == nil && i >= 0 && !slices.Contains(want, e.Status) {
					err = fmt.Errorf("%s is %s", e.Name, e.Status)
				}
			}
			return err
		})
		r, err := s.lead.Send(ctx, map[string]any{"to": "any:pool", "content": "a job", "wait_seconds": longest})
		if free := addresses[1-busy]; err != nil || r.State != "replied" || r.To != free {
			t.Errorf("with %s busy it came to %+v, %v, want %s", addresses[busy], r, err, free)
		}
		if err := w.Control("idle"); err != nil {
			t.Fatal(err)
		}
	}
}

// One host's line to the broker is cut: its own member gets the broadcast, of
// each of the others it is told why not, and they talk on meanwhile. The same
// call again, when the line is back, reaches exactly those, and the one who
// joined late. Fails when a part that failed is not told per recipient, or
// somebody gets it twice or never.
func aBroadcastInParts(t *testing.T, ctx context.Context, s *trio) {
	var crew []*fleet.Worker
	for i, name := range []string{"crew-a", "crew-b", "crew-c"} {
		crew = append(crew, s.worker(t, ctx, i, name, "crew", "--replies", "-1"))
	}
	inGroup(t, ctx, s.lead, "crew", "crew-a@hosta", "crew-b@hostb", "crew-c@hostc")
	s.proxy.Set(faultproxy.Down)
	s.proxy.Cut()
	eventually(t, ctx, func() error {
		r, err := s.lead.Roster(ctx)
		if err == nil && r.Broker == "connected" {
			err = fmt.Errorf("the line is not noticed to be cut")
		}
		return err
	})
	args := map[string]any{"group": "crew", "content": "all hands", "wait_seconds": longest, "idempotency_key": "crew", "expires_in_seconds": 3600}
	r, err := s.lead.Broadcast(ctx, args)
	if err != nil {
		t.Fatal(err)
	}
	wantStates(t, r, map[string]string{"crew-a@hosta": "injected", "crew-b@hostb": "not_sent BROKER_DOWN", "crew-c@hostc": "not_sent BROKER_DOWN"})
	if q, err := s.bob.Send(ctx, map[string]any{"to": "boss@hostc", "content": "do you hear from hosta?"}); err != nil || q.State != "queued" {
		t.Errorf("between the others a message came to %+v, %v", q, err)
	}
	late := addWorker(t, ctx, s.hosts[2], "late", "--replies", "-1")
	crew = append(crew, late)
	if _, err := s.hosts[2].Register(ctx, mcp.RegisterArgs{Name: "late", Kind: "worker", Pane: late.Pane, Groups: []string{"crew"}}); err != nil {
		t.Fatal(err)
	}

	s.proxy.Set(faultproxy.Pass)
	s.ready(t, ctx)
	inGroup(t, ctx, s.lead, "crew", "crew-a@hosta", "crew-b@hostb", "crew-c@hostc", "late@hostc")
	eventually(t, ctx, func() error {
		again, err := s.lead.Broadcast(ctx, args)
		if err == nil && again.Error != nil {
			err = fmt.Errorf("still %+v", again.Error)
		}
		if err == nil && again.MsgID != r.MsgID {
			t.Fatalf("the second call sent %s, the first %s", again.MsgID, r.MsgID)
		}
		r = again
		return err
	})
	wantStates(t, r, map[string]string{"crew-a@hosta": "injected", "crew-b@hostb": "injected", "crew-c@hostc": "injected", "late@hostc": "injected"})
	for _, w := range crew {
		prompts, err := w.Prompts()
		if err != nil || len(prompts) != 1 || !strings.Contains(prompts[0], "all hands") {
			t.Errorf("%s was given %q (%v), want it once", w.Name, prompts, err)
		}
	}
	if p, err := s.boss.Poll(ctx, map[string]any{"wait_seconds": longest}); err != nil || len(p.Messages) != 1 {
		t.Errorf("the orchestrator got %+v, %v", p, err)
	}
}

// Three mains on three hosts, each of which thanks the next for whatever it
// gets, are stopped, and one of them sees why; meanwhile others get through.
// Fails when an echo goes round for ever, or the stop hits somebody else.
func anEchoAmongThree(t *testing.T, ctx context.Context, s *trio) {
	var ring []*fleet.Main
	for i, name := range []string{"ann", "ben", "cid"} {
		ring = append(ring, addMain(t, ctx, s.hosts[i], name))
	}
	next := []string{"ben@hostb", "cid@hostc", "ann@hosta"}
	for i, m := range ring {
		seen(t, ctx, m, next[i])
	}
	stopped, done := make(chan error, len(ring)), make(chan struct{})
	var wg sync.WaitGroup
	thanks := 0
	var mu sync.Mutex
	for i, m := range ring {
		wg.Go(func() {
			for ctx.Err() == nil {
				select {
				case <-done:
					return
				default:
				}
				r, err := m.Poll(ctx, map[string]any{"wait_seconds": 1})
				if err != nil {
					return
				}
				for range r.Messages {
					if _, err := m.Send(ctx, map[string]any{"to": next[i], "content": "thank you"}); err != nil && !fault.Is(err, fault.Unconfirmed) { // it may be slow
						select {
						case stopped <- err:
						default:
						}
						continue
					}
					mu.Lock()
					thanks++
					mu.Unlock()
				}
			}
		})
	}
	defer wg.Wait()
	defer close(done)
	if _, err := ring[0].Send(ctx, map[string]any{"to": next[0], "content": "hello"}); err != nil {
		t.Fatal(err)
	}
	mainsTalk(t, ctx, s) // while it goes round
	select {
	case err := <-stopped:
		wantFault(t, "the echo", err, fault.Loop, "person")
	case <-ctx.Done():
		t.Fatal("it goes on")
	}
	mainsTalk(t, ctx, s) // after the stop
	mu.Lock()
	defer mu.Unlock()
	if thanks != 32 {
		t.Errorf("%d thanks went round, want 32", thanks)
	}
}

// agentsInACircle has three agents on three hosts, each of which thanks the next
// for whatever it is given, begin; what it returns demands that they were
// stopped. All that is done meanwhile is the other traffic. Fails when they go
// on for ever, when none of them sees why it was stopped, or when the stop comes
// before its time.
func agentsInACircle(t *testing.T, ctx context.Context, s *trio) (stopped func(*testing.T, context.Context, *trio)) {
	t.Helper()
	var ring []*fleet.Worker
	for i, to := range []string{"circle-b@hostb", "circle-c@hostc", "circle-a@hosta"} {
		name := []string{"circle-a", "circle-b", "circle-c"}[i]
		ring = append(ring, addWorker(t, ctx, s.hosts[i], name, "--work", "10ms", "--replies", "-1",
			"--call", fmt.Sprintf(`bridge_send {"to": %q, "content": "thank you"}`, to)))
	}
	for _, h := range s.hosts {
		for _, w := range ring {
			knows(t, ctx, h, w.Name)
		}
	}
	if _, err := s.lead.Send(ctx, map[string]any{"to": "circle-a@hosta", "content": "hello"}); err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T, ctx context.Context, s *trio) {
		eventually(t, ctx, func() error {
			sent, stopped := 0, 0
			for _, w := range ring {
				events, err := w.Events()
				if err != nil {
					return err
				}
				for _, e := range events {
					switch {
					case e.Event != "call":
					case e.Error == "" || strings.Contains(e.Error, string(fault.Unconfirmed)): // it may be slow
						sent++
					case strings.Contains(e.Error, string(fault.Loop)):
						stopped++
					default:
						t.Fatalf("the thanks of %s came to %s", w.Name, e.Error)
					}
				}
			}
			if sent > 32 || stopped > 1 {
				t.Fatalf("%d thanks went round, want 32, and %d were stopped", sent, stopped)
			}
			if sent < 32 || stopped == 0 {
				return fmt.Errorf("no end after %d thanks", sent)
			}
			return nil
		})
	}
}

// A main whose client sits in a pane and does not ask is told by a line there
// that mail waits, and fetches it: the answers of workers on two other hosts
// arrive without anybody looking. A client that takes notifications is told
// there too. Fails when held mail is announced nowhere, per message instead of
// per sender, or again after it was fetched.
func announcedInItsPane(t *testing.T, ctx context.Context, s *trio) {
	s.worker(t, ctx, 1, "far-b", "far", "--reply-with", "looks good to b")
	s.worker(t, ctx, 2, "far-c", "far", "--reply-with", "looks good to c")
	mia := addMain(t, ctx, s.hosts[0], "mia")
	seat, err := s.hosts[0].Seat(ctx, mia)
	if err != nil {
		t.Fatal(err)
	}
	notes, end, err := mia.Listen(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	seen(t, ctx, mia, "far-b@hostb", "far-c@hostc")
	var mail []string
	for _, to := range []string{"far-b@hostb", "far-c@hostc"} {
		for { // until an answer is not so quick that the send itself brings it
			sent, err := mia.Send(ctx, map[string]any{"to": to, "content": "please review"})
			if err != nil {
				t.Fatal(err)
			}
			if sent.State != mcp.StateReplied {
				mail = append(mail, "looks good to "+to[len("far-"):len("far-b")])
				break
			}
		}
	}
	eventually(t, ctx, func() error {
		events, err := seat.Events()
		got := ""
		for _, e := range events {
			if e.Event == "call" && e.Tool == "bridge_poll" {
				got += e.Text
			}
		}
		for _, one := range mail {
			if err == nil && !strings.Contains(got, one) {
				err = fmt.Errorf("%q was not fetched", one)
			}
		}
		return err
	})
	select {
	case note := <-notes:
		data, _ := note["data"].(map[string]any)
		if held, _ := data["held"].(float64); held < 1 || !slices.Contains([]any{"far-b@hostb", "far-c@hostc"}, data["from"]) || note["level"] != "notice" {
			t.Errorf("the client that listens was told %v", note)
		}
	case <-ctx.Done():
		t.Fatal("the client that listens was told nothing")
	}
	prompts, err := seat.Prompts()
	if err != nil || len(prompts) < 1 || len(prompts) > 2 {
		t.Fatalf("the pane got %q (%v), want a line for each of two senders at most", prompts, err)
	}
	for _, line := range prompts {
		if !strings.Contains(line, "bridge_poll") || strings.Contains(line, "looks good") {
			t.Errorf("the pane got %q, want a line that says to ask", line)
		}
	}
	if r, err := mia.Poll(ctx, map[string]any{}); err != nil || r.Held != 0 {
		t.Fatalf("after that %+v (%v) is held", r, err)
	}
}

// One call shows a flow as each of three hosts saw it, with the tool and on the
// command line. Once a host has crashed it is named, and the steps of the other
// two are shown. Fails when a step of a host is missing or out of order, when
// content is shown, when a host that does not answer is not named, or when it
// ends the call.
func aTraceOfThree(t *testing.T, ctx context.Context, s *trio) {
	for i, name := range []string{"scout-b", "scout-c"} {
		s.worker(t, ctx, i+1, name, "scouts", "--reply-with", "seen", "--work", "10ms")
	}
	inGroup(t, ctx, s.lead, "scouts", "scout-b@hostb", "scout-c@hostc")
	sent, err := s.lead.Broadcast(ctx, map[string]any{"group": "scouts", "content": "plum cake", "wait_seconds": longest})
	if err != nil {
		t.Fatal(err)
	}
	wantStates(t, sent, map[string]string{"scout-b@hostb": "injected", "scout-c@hostc": "injected"})
	for got := 0; got < 2; {
		p, err := s.lead.Poll(ctx, map[string]any{"wait_seconds": longest})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range p.Messages {
			if m.Kind == "REPLY" {
				got++
			}
		}
	}
	trace := func() (r mcp.TraceResult) {
		t.Helper()
		if err := s.lead.Call(ctx, "bridge_trace", map[string]any{"trace_id": sent.TraceID, "fleet": true}, &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	of := map[string][]string{
		"hosta": {"BROADCAST sent", "BROADCAST published", "BROADCAST resolved", "REPLY received", "REPLY drained"},
		"hostb": {"BROADCAST received", "BROADCAST injecting", "BROADCAST injected", "REPLY sent", "REPLY published"},
		"hostc": {"BROADCAST received", "BROADCAST injecting", "BROADCAST injected", "REPLY sent", "REPLY published"},
	}
	lacks := func(r mcp.TraceResult, hosts ...string) error {
		have := map[string]bool{}
		for _, h := range r.Hops {
			have[h.Host+" "+h.Kind+" "+h.Step] = true
		}
		for _, host := range hosts {
			for _, step := range of[host] {
				if !have[host+" "+step] {
					return fmt.Errorf("%s %s is not among %v", host, step, have)
				}
			}
		}
		return nil
	}
	answered := func(r mcp.TraceResult) string {
		var all []string
		for _, h := range r.Hosts {
			if h.Answered != (h.Reason == "") {
				t.Errorf("%+v", h)
			}
			all = append(all, fmt.Sprintf("%s %v", h.Host, h.Answered))
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	var r mcp.TraceResult
	eventually(t, ctx, func() error {
		r = trace()
		return lacks(r, "hosta", "hostb", "hostc")
	})
	if !slices.IsSortedFunc(r.Hops, func(x, y mcp.Hop) int { return strings.Compare(x.At, y.At) }) {
		t.Errorf("out of order: %+v", r.Hops)
	}
	if got := answered(r); got != "hostb true, hostc true" {
		t.Errorf("it says %s", got)
	}
	eventually(t, ctx, func() error { // who is slow to answer is left out
		out, err := s.hosts[0].Command(ctx, "trace", sent.TraceID, "--fleet", "--json").Output()
		if err != nil {
			t.Fatal(err)
		}
		var said mcp.TraceResult
		if err := json.Unmarshal(out, &said); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(out), "plum") {
			t.Errorf("it shows content: %s", out)
		}
		return lacks(said, "hostb", "hostc")
	})

	if err := s.hosts[2].Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, func() error {
		r = trace()
		return lacks(r, "hosta", "hostb")
	})
	if got := answered(r); got != "hostb true, hostc false" || !strings.Contains(r.Note, "hostc (") {
		t.Errorf("hostc is gone, and it says %s, %q", got, r.Note)
	}
}
