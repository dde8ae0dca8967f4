package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/mcp"
	"fleetd/test/agent"
	"fleetd/test/faultproxy"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// Agents that begin and end over three hosts. The parts stand on one fleet and
// leave no worker.
func TestSpawnAndStopOverThreeHosts(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 12*bound)
	defer cancel()
	s := threeHosts(t, ctx)
	for _, part := range []struct {
		name string
		run  func(*testing.T, context.Context, *trio)
	}{
		{"works and is stopped", worksAndIsStopped},
		{"ways to fail", waysToFail},
		{"it takes long", takesLong},
		{"the answer is lost", theAnswerIsLost},
		{"an end is told to all who wait", anEndIsTold},
		{"a crash meets the launch", aCrashMeetsTheLaunch},
	} {
		if !t.Run(part.name, func(t *testing.T) {
			t.Attr("threat", "G4 G8")
			part.run(t, ctx, s)
			for _, h := range s.hosts {
				if all := panes(t, ctx, h); len(all) != 0 {
					t.Errorf("panes of %s are left: %q", h.Name, all)
				}
			}
		}) {
			return
		}
	}
}

// An agent is started where it was asked for, does its task as the one whose
// identity it was given, and ends without a trace. Fails when any of it is not
// so, on this host or on another one.
func worksAndIsStopped(t *testing.T, ctx context.Context, s *trio) {
	for _, h := range []*fleet.Host{s.hosts[0], s.hosts[2]} {
		t.Run(h.Name, func(t *testing.T) {
			args := map[string]any{"profile": "aide", "host": h.Name, "groups": []string{"night"}, "task": "please do it", "idempotency_key": "one " + h.Name, "timeout_seconds": 200}
			got, err := s.lead.Spawn(ctx, args)
			if err != nil {
				t.Fatal(err)
			}
			if got.State != "spawned" || got.Address != "aide@"+h.Name || !slices.Equal(got.Groups, []string{"aides", "night"}) || got.MsgID == "" {
				t.Fatalf("spawned %+v", got)
			}
			if !anywhere(t, ctx, h, got.GID) {
				t.Errorf("no pane carries %s: %q", got.GID, panes(t, ctx, h))
			}
			again, err := s.lead.Spawn(ctx, args)
			if err != nil || again.GID != got.GID || again.MsgID != got.MsgID {
				t.Errorf("once more under the same key: %+v, %v", again, err)
			}
			if n := len(panes(t, ctx, h)); n != 1 {
				t.Errorf("%d panes: %q", n, panes(t, ctx, h))
			}
			other := map[string]any{"profile": "aide", "host": h.Name, "groups": []string{"night"}, "task": "something else", "idempotency_key": args["idempotency_key"]}
			if _, err := s.lead.Spawn(ctx, other); !fault.Is(err, fault.Conflict) {
				t.Errorf("another task under the same key: %v", err)
			}
			// Its reply is signed with the token of its pane, not with the profile's.
			reply := polled(t, ctx, s.lead, "REPLY")
			if reply.FromID != got.GID || reply.InReplyTo != got.MsgID || reply.Content != "done as asked" {
				t.Fatalf("the task was answered with %+v", reply)
			}
			// Its groups are known to all hosts.
			inGroup(t, ctx, s.bob, "night", got.Address)
			if r, err := s.bob.Send(ctx, map[string]any{"to": "any:night", "content": "for the night", "wait_seconds": longest}); err != nil || r.State != "replied" || r.Reply.FromID != got.GID {
				t.Errorf("who wrote to its group got %+v, %v", r, err)
			}
			end, err := s.lead.Stop(ctx, got.Address)
			if err != nil || end.State != "stopped" || end.GID != got.GID {
				t.Fatalf("stopped: %+v, %v", end, err)
			}
			s.goneForGood(t, ctx, h, got.GID, "night")
			if end, err := s.lead.Stop(ctx, got.GID); err != nil || end.State != "stopped" {
				t.Errorf("stopped again: %+v, %v", end, err)
			}
			if again, err := s.lead.Spawn(ctx, args); err != nil || again.GID != got.GID || !strings.Contains(again.Note, "ended") {
				t.Errorf("its key brings %+v, %v", again, err)
			}
			if all := panes(t, ctx, h); len(all) != 0 {
				t.Errorf("its key started %q", all)
			}
		})
	}
}

// goneForGood demands that nothing is left of a worker of h: no pane, no queue,
// no route to it or to its group, which it was the last of; and that all hosts
// know that it has ended.
func (s *trio) goneForGood(t *testing.T, ctx context.Context, h *fleet.Host, gid, group string) {
	t.Helper()
	if anywhere(t, ctx, h, gid) {
		t.Errorf("its pane is there: %q", panes(t, ctx, h))
	}
	names := fabric.Names{Prefix: s.fleet.Prefix}
	conn, err := amqp.Dial(rabbit.URI(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	back := ch.NotifyReturn(make(chan amqp.Return, 4))
	for _, key := range []string{gid, envelope.BroadcastKey(group)} {
		if err := ch.PublishWithContext(ctx, names.Msg(), key, true, false, amqp.Publishing{}); err != nil {
			t.Fatal(err)
		}
		select {
		case r := <-back:
			if r.RoutingKey != key {
				t.Errorf("%s came back, not %s", r.RoutingKey, key)
			}
		case <-ctx.Done():
			t.Errorf("what is sent to %s goes somewhere", key)
		}
	}
	eventually(t, ctx, func() error { // who waited has been told before
		if q, err := ch.QueueDeclarePassive(names.Inbox(gid), true, false, false, false, nil); !notFound(err) {
			return fmt.Errorf("its inbox is there: %+v, %w", q, err)
		}
		return nil
	})
	for _, m := range []*fleet.Main{s.lead, s.bob, s.boss} {
		eventually(t, ctx, func() error {
			if r, err := m.Send(ctx, map[string]any{"to": gid, "content": "still there?"}); !fault.Is(err, fault.PaneGone) {
				return fmt.Errorf("a brief of %s to it came to %+v, %w", m.Name, r, err)
			}
			return nil
		})
		r, err := m.Roster(ctx)
		if err != nil || slices.ContainsFunc(r.Entities, func(e mcp.RosterEntity) bool { return e.GID == gid && e.Status != "gone" }) {
			t.Errorf("%s sees %+v, %v", m.Name, r.Entities, err)
		}
	}
}

func notFound(err error) bool {
	e, ok := errors.AsType[*amqp.Error](err)
	return ok && e.Code == amqp.NotFound
}

// Each way to fail has its true answer, from here and from afar, and leaves
// nothing; a host that lets nobody starts and stops nothing, and one that lets a
// host spawn does not let it stop. Fails when one is told for another, or a
// pane, a name or an entity stays.
func waysToFail(t *testing.T, ctx context.Context, s *trio) {
	type way struct {
		by      *fleet.Main
		host    string
		profile string
		code    fault.Code
		says    string
	}
	ways := []way{
		{s.lead, "hostc", "private", fault.ProfileUnknown, "no profile private"},
		{s.lead, "hostb", "aide", fault.NotAllowed, "control.allow"},
		{s.bob, "hosta", "aide", fault.NotAllowed, "control.allow"},
		{s.boss, "hostb", "aide", fault.NotAllowed, "control.allow"},
		{s.lead, "hostd", "aide", fault.UnknownRecipient, "hostd"},
	}
	for _, c := range []way{
		{nil, "", "nothing", fault.ProfileUnknown, "no profile nothing"},
		{nil, "", "missing", fault.SpawnFailed, "not installed"},
		{nil, "", "ends", fault.SpawnFailed, "ended before it was ready"},
		{nil, "", "fails", fault.SpawnFailed, "ended before it was ready"},
		{nil, "", "idle", fault.SpawnFailed, "did not come to take input"},
		{nil, "", "login", fault.SpawnFailed, "did not come to take input"},
		{nil, "", "lost", fault.SpawnFailed, "working directory"},
	} {
		ways = append(ways, way{s.lead, "hosta", c.profile, c.code, c.says}, way{s.lead, "hostc", c.profile, c.code, c.says})
	}
	ways = append(ways, way{s.bob, "hostc", "fails", fault.SpawnFailed, "ended before it was ready"})
	// At once: each takes as long as its agent is waited for.
	var wg sync.WaitGroup
	for _, c := range ways {
		wg.Go(func() {
			what := c.profile + " for " + c.by.Name
			got, err := c.by.Spawn(ctx, map[string]any{"profile": c.profile, "host": c.host, "name": "doomed-" + c.profile + "-" + c.by.Name, "timeout_seconds": 200})
			if !fault.Is(err, c.code) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s on %s: %+v, %v; want %s that says %q", what, c.host, got, err, c.code, c.says)
			}
		})
	}
	wg.Wait()
	for _, h := range s.hosts {
		if all := panes(t, ctx, h); len(all) != 0 {
			t.Errorf("panes of %s are left: %q", h.Name, all)
		}
	}
	r, err := s.lead.Roster(ctx)
	if err != nil || slices.ContainsFunc(r.Entities, func(e mcp.RosterEntity) bool { return strings.HasPrefix(e.Name, "doomed") }) {
		t.Errorf("the roster has %+v, %v", r.Entities, err)
	}
	// The no of hosta to hostb is on record at both.
	for _, h := range s.hosts[:2] {
		eventually(t, ctx, func() error {
			log, err := h.Audit()
			for line := range strings.Lines(log) {
				if strings.Contains(line, `"verb":"spawn","who":"`+s.bob.GID+`","from":"hostb","host":"hosta"`) && strings.Contains(line, `"outcome":"refused","code":"NOT_ALLOWED"`) {
					return nil
				}
			}
			return fmt.Errorf("the audit log of %s has %s (%v)", h.Name, log, err)
		})
	}
	// The name is free, and then it is not.
	doomed := map[string]any{"profile": "aide", "host": "hostc", "name": "doomed-fails-lead", "timeout_seconds": 200}
	got, err := s.lead.Spawn(ctx, doomed)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*fleet.Main{s.lead, s.bob} {
		if _, err := m.Spawn(ctx, doomed); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "in use") {
			t.Errorf("a name in use, asked for by %s: %v", m.Name, err)
		}
	}
	if _, err := s.hosts[0].Register(ctx, mcp.RegisterArgs{Name: "near", Kind: "worker"}); err != nil {
		t.Fatal(err)
	}
	seen(t, ctx, s.bob, got.Address)
	eventually(t, ctx, func() error {
		_, err := s.bob.Stop(ctx, "near@hosta")
		if fault.Is(err, fault.UnknownRecipient) {
			return err // not heard of yet
		}
		wantFault(t, "a stop on a host that lets nobody", err, fault.NotAllowed, "control.allow")
		return nil
	})
	for target, code := range map[string]fault.Code{got.Address: fault.NotAllowed, "lead@hosta": fault.NotAllowed, "boss@hostc": fault.NotAllowed, "nobody": fault.UnknownRecipient} {
		_, err := s.bob.Stop(ctx, target)
		wantFault(t, "bob's stop of "+target, err, code, "")
	}
	for _, target := range []string{"bob@hostb", "lead"} {
		_, err := s.lead.Stop(ctx, target)
		wantFault(t, "lead's stop of "+target, err, fault.NotAllowed, "only workers")
	}
	for _, target := range []string{got.Address, "near@hosta"} {
		if end, err := s.lead.Stop(ctx, target); err != nil || end.State != "stopped" {
			t.Errorf("%s: %+v, %v", target, end, err)
		}
	}
}

// The caller's patience ends and the launch goes on. Fails when SPAWN_TIMEOUT
// does not lead to the agent that came, or its task is lost or done twice.
func takesLong(t *testing.T, ctx context.Context, s *trio) {
	c := s.hosts[2]
	release := make(chan struct{})
	remove, err := c.TapHerdr(func(m string) bool {
		if m == "agent.explain" {
			<-release
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.lead.Spawn(ctx, map[string]any{"profile": "aide", "host": "hostc", "task": "do it", "timeout_seconds": 2})
	if !fault.Is(err, fault.SpawnTimeout) {
		t.Fatalf("it came to %v", err)
	}
	_, key, found := strings.Cut(err.Error(), `idempotency_key "`)
	key, _, _ = strings.Cut(key, `"`)
	if !found {
		t.Fatalf("no key is named: %v", err)
	}
	close(release)
	got, err := s.lead.Spawn(ctx, map[string]any{"profile": "aide", "host": "hostc", "task": "do it", "timeout_seconds": 200, "idempotency_key": key})
	if err != nil || got.GID != key {
		t.Fatalf("asked again with %q: %+v, %v", key, got, err)
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	reply := polled(t, ctx, s.lead, "REPLY")
	if reply.FromID != got.GID || reply.InReplyTo != got.MsgID {
		t.Errorf("the task was answered with %+v", reply)
	}
	if n := len(panes(t, ctx, c)); n != 1 {
		t.Errorf("%d panes: %q", n, panes(t, ctx, c))
	}
	if end, err := s.lead.Stop(ctx, got.GID); err != nil || end.State != "stopped" {
		t.Errorf("stopped: %+v, %v", end, err)
	}
}

// The line of the host that asked is cut during the launch, so that the answer
// reaches nobody. Fails when who asked is not told in the end, or when the
// request, put again under its spawnId, starts anything again.
func theAnswerIsLost(t *testing.T, ctx context.Context, s *trio) {
	c := s.hosts[2]
	for profile, code := range map[string]fault.Code{"fails": fault.SpawnFailed, "aide": ""} {
		t.Run(profile, func(t *testing.T) {
			launched := func() (n int) {
				log, err := c.Audit()
				if err != nil {
					t.Fatal(err)
				}
				for line := range strings.Lines(log) {
					if strings.Contains(line, `"verb":"spawn"`) && strings.Contains(line, `"profile":"`+profile+`"`) && (strings.Contains(line, `"outcome":"failed"`) || strings.Contains(line, `"outcome":"spawned"`)) {
						n++
					}
				}
				return n
			}
			before := launched()
			begun, release := make(chan struct{}), make(chan struct{})
			var mu sync.Mutex
			launches := 0
			remove, err := c.TapHerdr(func(m string) bool {
				if m != "layout.apply" {
					return true
				}
				mu.Lock()
				launches++
				first := launches == 1
				mu.Unlock()
				if first {
					close(begun)
					<-release
				}
				return true
			})
			if err != nil {
				t.Fatal(err)
			}
			args := map[string]any{"profile": profile, "host": "hostc", "idempotency_key": "lost " + profile, "timeout_seconds": 240}
			type answer struct {
				mcp.SpawnResult
				error
			}
			first := make(chan answer, 1)
			go func() {
				r, err := s.lead.Spawn(ctx, args)
				first <- answer{r, err}
			}()
			<-begun
			s.proxy.Set(faultproxy.Down)
			s.proxy.Cut()
			eventually(t, ctx, func() error {
				r, err := s.lead.Roster(ctx)
				if err == nil && r.Broker == "connected" {
					err = fmt.Errorf("the line is not noticed to be cut")
				}
				return err
			})
			close(release)
			eventually(t, ctx, func() error { // the launch is over
				if n := launched(); n == before {
					return errors.New("hostc has not launched it")
				}
				return nil
			})
			s.proxy.Set(faultproxy.Pass)
			s.ready(t, ctx)
			again, err := s.lead.Spawn(ctx, args)
			for _, got := range []answer{<-first, {again, err}} {
				if code != "" && !fault.Is(got.error, code) || code == "" && (got.error != nil || got.GID != again.GID) {
					t.Errorf("it came to %+v, %v; want %q", got.SpawnResult, got.error, code)
				}
			}
			if err := remove(); err != nil {
				t.Fatal(err)
			}
			if mu.Lock(); launches != 1 {
				t.Errorf("%d launches", launches)
			}
			mu.Unlock()
			if code != "" {
				return
			}
			if n := len(panes(t, ctx, c)); n != 1 || !anywhere(t, ctx, c, again.GID) {
				t.Errorf("the panes are %q", panes(t, ctx, c))
			}
			if end, err := s.lead.Stop(ctx, again.GID); err != nil || end.State != "stopped" {
				t.Errorf("stopped: %+v, %v", end, err)
			}
		})
	}
}

// A worker is stopped from afar, or ends by itself, with briefs of three hosts
// open, one that waits and a question asked: each sender is told once, whether
// it waits in its call or finds it in its mail. Afterwards nothing of it is
// left, and no restart brings it back. Fails when somebody waits on, is told
// twice or of the wrong end, or something stays.
func anEndIsTold(t *testing.T, ctx context.Context, s *trio) {
	c := s.hosts[2]
	var ended []string
	for _, how := range []string{"stop", "exit"} {
		if !t.Run(how, func(t *testing.T) {
			group := "crew-" + how
			args := map[string]any{"profile": "mute", "host": "hostc", "groups": []string{group}, "timeout_seconds": 200}
			got, err := s.lead.Spawn(ctx, args)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range []*fleet.Main{s.bob, s.boss} {
				seen(t, ctx, m, got.Address)
			}
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() { // waits in its call
				r, err := s.lead.Send(ctx, map[string]any{"to": got.GID, "content": "of lead", "wait_seconds": longest})
				if !fault.Is(err, fault.Abandoned) {
					t.Errorf("who waited got %+v, %v", r, err)
				}
			})
			eventually(t, ctx, func() error { return hasOpen(ctx, c, got.Address, 1) })
			open := map[*fleet.Main]mcp.SendResult{}
			for i, m := range []*fleet.Main{s.bob, s.boss} {
				if open[m], err = m.Send(ctx, map[string]any{"to": got.GID, "content": "of " + m.Name}); err != nil {
					t.Fatal(err)
				}
				eventually(t, ctx, func() error { return hasOpen(ctx, c, got.Address, 2+i) })
			}
			if _, err := agent.Control(muteControl(s.fleet), "busy", time.Minute); err != nil {
				t.Fatal(err)
			}
			working(t, ctx, s.bob, got.GID)
			waits := forOneThatWorks(t, ctx, s.bob, got.GID, "one more of bob")

			if how == "stop" {
				if end, err := s.lead.Stop(ctx, got.Address); err != nil || end.State != "stopped" {
					t.Fatalf("%+v, %v", end, err)
				}
			} else if _, err := agent.Control(muteControl(s.fleet), "exit", time.Minute); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			s.toldInAll(t, ctx, s.lead)
			s.toldInAll(t, ctx, s.bob, "ABANDONED PANE_GONE "+open[s.bob].MsgID, "FAILED PANE_GONE "+waits)
			s.toldInAll(t, ctx, s.boss, "ABANDONED PANE_GONE "+open[s.boss].MsgID)
			s.goneForGood(t, ctx, c, got.GID, group)
			ended = append(ended, got.GID)
		}) {
			return
		}
	}
	t.Run("asked", func(t *testing.T) {
		got := spawned(t, ctx, s.lead, c, "asker", "")
		seen(t, ctx, s.bob, got.Address)
		q, err := s.bob.Send(ctx, map[string]any{"to": got.Address, "content": "go", "wait_seconds": longest})
		if err != nil || q.Question == nil || q.Question.Content != "may I?" {
			t.Fatalf("it did not ask: %+v, %v", q, err)
		}
		if end, err := s.lead.Stop(ctx, got.Address); err != nil || end.State != "stopped" {
			t.Fatalf("%+v, %v", end, err)
		}
		s.toldInAll(t, ctx, s.bob, "ABANDONED PANE_GONE "+q.MsgID)
		_, err = s.bob.Answer(ctx, map[string]any{"turn_id": q.TurnID, "content": "yes"})
		wantFault(t, "an answer to one that was stopped", err, fault.TooLate, "")
		ended = append(ended, got.GID)
	})
	t.Run("over restarts", func(t *testing.T) {
		for _, h := range []*fleet.Host{c, s.hosts[0]} {
			restart(t, ctx, h)
		}
		reconnect(t, ctx, s.boss)
		reconnect(t, ctx, s.lead)
		s.ready(t, ctx)
		for _, gid := range ended {
			s.goneForGood(t, ctx, c, gid, "crew-stop")
		}
	})
}

// forOneThatWorks sends a brief to a worker that is working and returns its id.
// On a slow machine its sender may hear something else first, or nothing in time.
func forOneThatWorks(t *testing.T, ctx context.Context, m *fleet.Main, to, content string) (msgID string) {
	t.Helper()
	r, err := m.Send(ctx, map[string]any{"to": to, "content": content})
	if fault.Is(err, fault.Unconfirmed) {
		return msgIDs.FindString(err.Error())
	}
	if err != nil || r.State != "deferred" || !slices.Contains([]string{"BUSY", "SETTLING", "HERDR_DOWN"}, r.Reason) {
		t.Fatalf("a brief for one that works came to %+v, %v", r, err)
	}
	return r.MsgID
}

// working waits until m sees that a worker works.
func working(t *testing.T, ctx context.Context, m *fleet.Main, gid string) {
	t.Helper()
	eventually(t, ctx, func() error {
		r, err := m.Roster(ctx)
		for _, e := range r.Entities {
			if e.GID == gid && e.Status == "working" {
				return nil
			}
		}
		return fmt.Errorf("it does not work: %+v, %v", r.Entities, err)
	})
}

// toldInAll demands that m is told exactly this of its briefs, in any order: what
// comes from hostc then lies behind all reports.
func (s *trio) toldInAll(t *testing.T, ctx context.Context, m *fleet.Main, want ...string) {
	t.Helper()
	var got []string
	take := func() mcp.Message {
		for {
			if msg := next(t, ctx, m); msg.Kind != "INJECTED" { // of a brief that had to wait
				return msg
			}
		}
	}
	for range want {
		msg := take()
		got = append(got, msg.Kind+" "+msg.Reason+" "+msg.InReplyTo)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s was told %q, want %q", m.Name, got, want)
	}
	content := fmt.Sprintf("that is all (%d)", barriers.Add(1))
	if s.last == nil {
		s.last = addMain(t, ctx, s.hosts[2], "last")
	}
	eventually(t, ctx, func() error {
		_, err := s.last.Send(ctx, map[string]any{"to": m.GID, "content": content})
		return err
	})
	if msg := take(); msg.Content != content {
		t.Errorf("%s was told too much: %+v", m.Name, msg)
	}
}

// A gateway that is killed in a launch undoes it at its next start. Fails when
// the pane stays, when the outcome is another one, or when the same key starts
// it again.
func aCrashMeetsTheLaunch(t *testing.T, ctx context.Context, s *trio) {
	a := s.hosts[0]
	for _, doomed := range []*fleet.Host{a, s.hosts[2]} {
		for _, method := range []string{"layout.apply", "agent.explain"} {
			t.Run(doomed.Name+" "+method, func(t *testing.T) {
				struck, killed := make(chan struct{}), make(chan struct{})
				var met atomic.Bool
				remove, err := doomed.TapHerdr(func(m string) bool {
					if m == method && met.CompareAndSwap(false, true) {
						close(struck)
						return true
					}
					if met.Load() { // or the launch could be over before its gateway is
						<-killed
						return false
					}
					return true
				})
				if err != nil {
					t.Fatal(err)
				}
				args := map[string]any{"profile": "aide", "host": doomed.Name, "idempotency_key": "crash " + doomed.Name + method, "timeout_seconds": 200}
				answered := make(chan error, 1)
				go func() {
					_, err := s.lead.Spawn(ctx, args)
					answered <- err
				}()
				<-struck
				err = doomed.Kill()
				close(killed)
				if err != nil {
					t.Fatal(err)
				}
				if err := remove(); err != nil {
					t.Fatal(err)
				}
				revive(t, ctx, doomed)
				if doomed == a {
					<-answered // its connection broke
					reconnect(t, ctx, s.lead)
				}
				s.ready(t, ctx)
				if _, err = s.lead.Spawn(ctx, args); doomed != a {
					err = errors.Join(err, <-answered)
				}
				if !fault.Is(err, fault.SpawnFailed) || !strings.Contains(err.Error(), "ended during the launch") {
					t.Errorf("the launch came to %v", err)
				}
				eventually(t, ctx, func() error {
					if all := panes(t, ctx, doomed); len(all) != 0 {
						return fmt.Errorf("panes are left: %q", all)
					}
					return nil
				})
			})
		}
	}
}
