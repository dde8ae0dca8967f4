package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"fleetd/fault"
	"fleetd/mcp"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// A broadcast to a group reaches each member on each host once, and no other;
// its sender gets no copy, a main in the group gets it as mail, and answers are
// ordinary replies. Fails when a copy is missing, doubled or one too many.
func TestABroadcastReachesEachMemberOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	defer cancel()
	a, b := twoHosts(t, ctx)
	m := addMain(t, ctx, a, "lead")
	far := addMain(t, ctx, b, "watcher")
	group := func(h *fleet.Host, name string) {
		t.Helper()
		if _, err := h.API("").Groups(ctx, mcp.GroupsArgs{Name: name, Add: []string{"crew"}}); err != nil {
			t.Fatal(err)
		}
	}
	w := map[string]*fleet.Worker{}
	for name, h := range map[string]*fleet.Host{"near": a, "off": a, "there": b} {
		w[name] = addWorker(t, ctx, h, name, "--reply-with", "read by "+name)
	}
	for name, h := range map[string]*fleet.Host{"near": a, "lead": a, "there": b, "watcher": b} {
		group(h, name)
	}
	inGroup(t, ctx, m, "crew", "near@hosta", "lead@hosta", "there@hostb", "watcher@hostb")
	seen(t, ctx, m, "there@hostb", "watcher@hostb")

	args := map[string]any{"group": "crew", "content": "freeze at noon", "wait_seconds": longest, "idempotency_key": "freeze"}
	r, err := m.Broadcast(ctx, args)
	if err != nil {
		t.Fatal(err)
	}
	wantStates(t, r, map[string]string{"near@hosta": "injected", "there@hostb": "injected", "watcher@hostb": "queued"})
	// The same call again changes nothing.
	again, err := m.Broadcast(ctx, args)
	if err != nil {
		t.Fatal(err)
	}
	wantStates(t, again, map[string]string{"near@hosta": "injected", "there@hostb": "injected", "watcher@hostb": "queued"})
	if again.MsgID != r.MsgID {
		t.Fatalf("the second call sent %s, the first %s", again.MsgID, r.MsgID)
	}
	if _, err := m.Broadcast(ctx, map[string]any{"group": "crew", "content": "other words", "idempotency_key": "freeze"}); !fault.Is(err, fault.Conflict) {
		t.Fatalf("other content under the key came to %v", err)
	}

	replies := map[string]bool{}
	for len(replies) < 2 {
		p, err := m.Poll(ctx, map[string]any{"wait_seconds": longest})
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range p.Messages {
			if one.Kind != "REPLY" || one.InReplyTo != r.MsgID || replies[one.Content] {
				t.Fatalf("the sender got %+v, want one reply of each worker and no more", one)
			}
			replies[one.Content] = true
		}
	}
	if !replies["read by near"] || !replies["read by there"] {
		t.Fatalf("the replies are %v", replies)
	}
	p, err := far.Poll(ctx, map[string]any{"wait_seconds": longest})
	if err != nil || len(p.Messages) != 1 || p.Messages[0].Kind != "BROADCAST" || p.Messages[0].Content != "freeze at noon" {
		t.Fatalf("the main in the group got %+v (%v)", p.Messages, err)
	}
	for name, want := range map[string]int{"near": 1, "there": 1, "off": 0} {
		prompts, err := w[name].Prompts()
		if err != nil || len(prompts) != want {
			t.Fatalf("%s was given %q (%v), want %d", name, prompts, err, want)
		}
	}
	// Who leaves gets nothing more, and the others do.
	if _, err := b.API("").Groups(ctx, mcp.GroupsArgs{Name: "there", Remove: []string{"crew"}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, func() error {
		ro, err := a.API("").Roster(ctx, mcp.RosterArgs{Group: "crew"})
		if err == nil && len(ro.Entities) != 3 {
			err = fmt.Errorf("the group is still %+v", ro.Entities)
		}
		return err
	})
	r, err = m.Broadcast(ctx, map[string]any{"group": "crew", "content": "thaw", "wait_seconds": longest})
	if err != nil {
		t.Fatal(err)
	}
	wantStates(t, r, map[string]string{"near@hosta": "injected", "watcher@hostb": "queued"})
}

// Every worker of every host gets a broadcast to all, from another worker too;
// mains do not. Fails when the sender gets its own copy.
func TestABroadcastToAllIsForWorkers(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	defer cancel()
	a, b := twoHosts(t, ctx)
	addMain(t, ctx, a, "lead")
	one := addWorker(t, ctx, a, "one")
	two := addWorker(t, ctx, a, "two", "--reply-with", "ok")
	three := addWorker(t, ctx, b, "three", "--reply-with", "ok")
	knows(t, ctx, a, "three")
	knows(t, ctx, b, "one")
	r, err := a.API("one").Broadcast(ctx, mcp.BroadcastArgs{Content: "who has the key?", WaitSeconds: longest})
	if err != nil {
		t.Fatal(err)
	}
	wantStates(t, r, map[string]string{"two@hosta": "injected", "three@hostb": "injected"})
	for w, want := range map[*fleet.Worker]int{one: 0, two: 1, three: 1} {
		eventually(t, ctx, func() error {
			prompts, err := w.Prompts()
			n := 0
			for _, p := range prompts {
				if strings.Contains(p, "who has the key?") {
					n++
				}
			}
			if err == nil && n != want {
				err = fmt.Errorf("%s was given %q", w.Name, prompts)
			}
			return err
		})
	}
}

// With the broker away a local brief and its reply still work and a remote send
// fails at once; members of this host get a broadcast, the answer says who did not
// and why, and the same call reaches those later and nobody twice. With the broker
// back all of it comes back by itself. Fails when local traffic touches the broker
// or a remote send waits for it, when a part of a broadcast that failed is not
// told, or the repetition goes to all.
func TestWithTheBrokerAway(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*bound)
	defer cancel()
	node := rabbit.Private(t)
	f := newFleet(t, node.URI)
	a, b := addHost(t, ctx, f, "hosta"), addHost(t, ctx, f, "hostb")
	if err := f.TrustEachOther(); err != nil {
		t.Fatal(err)
	}
	m := addMain(t, ctx, a, "lead")
	near := addWorker(t, ctx, a, "near", "--reply-with", "near answer")
	there := addWorker(t, ctx, b, "there", "--reply-with", "far answer")
	seen(t, ctx, m, "near@hosta", "there@hostb")
	node.Down()
	eventually(t, ctx, func() error {
		r, err := a.API("").Roster(ctx, mcp.RosterArgs{})
		if err == nil && r.Broker == "connected" {
			err = fmt.Errorf("the line is not noticed to be cut")
		}
		return err
	})
	local, err := m.Send(ctx, map[string]any{"to": "near", "content": "still there?", "wait_seconds": longest})
	if err != nil || local.State != "replied" || local.Reply.Content != "near answer" {
		t.Fatalf("the local brief came to %+v, %v", local, err)
	}
	began := time.Now()
	_, err = m.Send(ctx, map[string]any{"to": "there@hostb", "content": "and you?", "wait_seconds": longest})
	if !fault.Is(err, fault.BrokerDown) {
		t.Fatalf("the remote send came to %v, want BROKER_DOWN", err)
	}
	t.Logf("BROKER_DOWN after %s", time.Since(began))
	args := map[string]any{"content": "lights out", "wait_seconds": longest, "idempotency_key": "k"}
	r, err := m.Broadcast(ctx, args)
	if err != nil {
		t.Fatal(err)
	}
	wantStates(t, r, map[string]string{"near@hosta": "injected", "there@hostb": "not_sent BROKER_DOWN"})
	if r.Error == nil || r.Error.Code != fault.BrokerDown || !strings.Contains(r.Note, "idempotency_key") {
		t.Fatalf("the answer says %+v and %q, want that hosts could not be reached and what to do", r.Error, r.Note)
	}
	if err := node.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	for _, h := range []*fleet.Host{a, b} { // who is back first is chance
		if err := h.Ready(ctx); err != nil {
			t.Fatal(err)
		}
	}
	meet(t, ctx, a, b)
	eventually(t, ctx, func() error {
		r, err = m.Broadcast(ctx, args)
		if err == nil && r.Error != nil {
			err = fmt.Errorf("still %+v", r.Error)
		}
		return err
	})
	wantStates(t, r, map[string]string{"near@hosta": "injected", "there@hostb": "injected"})
	for _, w := range []*fleet.Worker{near, there} {
		prompted(t, ctx, w, "lights out")
	}
	back, err := m.Send(ctx, map[string]any{"to": "there@hostb", "content": "back?", "wait_seconds": longest})
	if err != nil || back.State != "replied" || back.Reply.Content != "far answer" {
		t.Fatalf("after the restart the remote brief came to %+v, %v", back, err)
	}
}

// any:GROUP means one free member. Fails when two get it, a busy one is
// preferred to an idle one, or the same call again means another.
func TestAnyOfAGroup(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	defer cancel()
	f := newFleet(t, "")
	a := addHost(t, ctx, f, "hosta")
	m := addMain(t, ctx, a, "lead")
	if _, err := m.Send(ctx, map[string]any{"to": "any:crew", "content": "x"}); !fault.Is(err, fault.UnknownRecipient) || !strings.Contains(err.Error(), "crew") {
		t.Fatalf("a send to nobody came to %v", err)
	}
	for _, name := range []string{"one", "two"} {
		addWorker(t, ctx, a, name, "--reply-with", "by "+name)
		if _, err := a.API("").Groups(ctx, mcp.GroupsArgs{Name: name, Add: []string{"crew"}}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, ctx, func() error {
		r, err := m.Roster(ctx)
		for _, e := range r.Entities {
			if err == nil && e.Kind == "worker" && e.Status != "idle" {
				err = fmt.Errorf("%s is %s", e.Name, e.Status)
			}
		}
		return err
	})
	by := map[string]int{}
	for i := range 2 {
		args := map[string]any{"to": "any:crew", "content": fmt.Sprint("job ", i), "wait_seconds": longest, "idempotency_key": fmt.Sprint(i)}
		r, err := m.Send(ctx, args)
		if err != nil || r.State != "replied" {
			t.Fatalf("job %d came to %+v (%v)", i, r, err)
		}
		by[r.To]++
		again, err := m.Send(ctx, args)
		if err != nil || again.MsgID != r.MsgID || again.To != r.To {
			t.Fatalf("the same call again came to %+v (%v), want %s of %s", again, err, r.MsgID, r.To)
		}
	}
	if by["one@hosta"] != 1 || by["two@hosta"] != 1 {
		t.Fatalf("two jobs went to %v, want one each", by)
	}
}

// Fails when a broadcast that is for nobody, or wrong, seems to work.
func TestBadBroadcasts(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	f := newFleet(t, "")
	a := addHost(t, ctx, f, "hosta")
	m := addMain(t, ctx, a, "lead")
	if _, err := a.API("").Groups(ctx, mcp.GroupsArgs{Name: "lead", Add: []string{"lonely"}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args map[string]any
		code fault.Code
		word string
	}{
		{map[string]any{"content": "x", "group": "nosuch"}, fault.UnknownRecipient, "nosuch"},
		{map[string]any{"content": "x", "group": "lonely"}, fault.UnknownRecipient, "nobody else"},
		{map[string]any{"content": "x"}, fault.UnknownRecipient, "no worker"},
		{map[string]any{"content": "x", "group": "No Such"}, fault.BadRequest, "no group"},
		{map[string]any{"content": "", "group": "lonely"}, fault.BadRequest, "content"},
		{map[string]any{"content": "x", "wait_seconds": 241}, fault.BadRequest, "240"},
	} {
		_, err := m.Broadcast(ctx, c.args)
		wantFault(t, fmt.Sprint(c.args), err, c.code, c.word)
	}
	_, err := a.API("").Groups(ctx, mcp.GroupsArgs{Name: "lead", Remove: []string{"nosuch"}})
	wantFault(t, "leaving a group that it is not in", err, fault.BadRequest, "not in the group")
	_, err = a.API("").Groups(ctx, mcp.GroupsArgs{Name: "lead", Add: []string{"all"}})
	wantFault(t, "joining all", err, fault.BadRequest, "all is taken")
	_, err = a.API("").Groups(ctx, mcp.GroupsArgs{Name: "nobody", Add: []string{"crew"}})
	wantFault(t, "a group for nobody", err, fault.UnknownRecipient, "nobody")
}

// wantStates fails unless the recipients are exactly these, each in that state
// and with that reason.
func wantStates(t *testing.T, r mcp.BroadcastResult, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	for _, one := range r.Recipients {
		got[one.To] = strings.TrimSpace(one.State + " " + one.Reason)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("the recipients are %v, want %v (%s; %s)", got, want, r.Summary, r.Note)
	}
}

// inGroup waits until m sees exactly these in a group.
func inGroup(t *testing.T, ctx context.Context, m *fleet.Main, group string, addresses ...string) {
	t.Helper()
	eventually(t, ctx, func() error {
		r, err := m.Roster(ctx)
		have := map[string]bool{}
		for _, e := range r.Entities {
			for _, g := range e.Groups {
				have[e.Name+"@"+e.Host] = have[e.Name+"@"+e.Host] || g == group
			}
		}
		for _, address := range addresses {
			if err == nil && !have[address] {
				err = fmt.Errorf("%s is not seen in %s: %v", address, group, have)
			}
		}
		return err
	})
}

// knows waits until h lists an entity of that name.
func knows(t *testing.T, ctx context.Context, h *fleet.Host, name string) {
	t.Helper()
	eventually(t, ctx, func() error {
		r, err := h.API("").Roster(ctx, mcp.RosterArgs{})
		for _, e := range r.Entities {
			if e.Name == name && e.Status != "unknown" && e.Status != "offline" {
				return nil
			}
		}
		return fmt.Errorf("%s does not know %s (%v)", h.Name, name, err)
	})
}
