package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/mcp"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// shell is a person at a shell of one host.
type shell struct {
	t    *testing.T
	f    *fleet.Fleet
	host *fleet.Host
}

func (s shell) command(ctx context.Context, args ...string) (*exec.Cmd, *bytes.Buffer, *bytes.Buffer) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, s.f.Binary(), args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = s.host.Environ(), &out, &errs
	return cmd, &out, &errs
}

// dlq runs `bridged dlq …` and returns what it printed and its exit code.
func (s shell) dlq(ctx context.Context, args ...string) (out, errs string, code int) {
	s.t.Helper()
	cmd, o, e := s.command(ctx, append([]string{"dlq"}, args...)...)
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else if err != nil {
		s.t.Fatal(err)
	}
	return o.String(), e.String(), code
}

// letters is `bridged dlq list`, once there are n.
func (s shell) letters(ctx context.Context, n int) (list []mcp.DeadLetter) {
	s.t.Helper()
	eventually(s.t, ctx, func() error {
		out, errs, code := s.dlq(ctx, "list", "--json", "--limit", "10000")
		var r mcp.ListDeadLettersResult
		if err := json.Unmarshal([]byte(out), &r); code != 0 || err != nil {
			return fmt.Errorf("list ended with %d: %s %v", code, errs, err)
		}
		if list = r.Letters; len(list) != n {
			return fmt.Errorf("%s lists %d letters, want %d: %+v", s.host.Name, len(list), n, list)
		}
		return nil
	})
	return list
}

// done waits until a command succeeds.
func (s shell) done(ctx context.Context, args ...string) (out string) {
	s.t.Helper()
	eventually(s.t, ctx, func() error {
		o, errs, code := s.dlq(ctx, args...)
		out = o
		if code != 0 {
			return fmt.Errorf("dlq %q ended with %d: %s", args, code, errs)
		}
		return nil
	})
	return out
}

// ready waits until the hosts have their inboxes on the broker.
func ready(t *testing.T, ctx context.Context, hosts ...*fleet.Host) {
	t.Helper()
	for _, h := range hosts {
		if err := h.Ready(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// stays runs a redelivery that has to be refused with code.
func (s shell) stays(ctx context.Context, code string, args ...string) {
	s.t.Helper()
	out, errs, exit := s.dlq(ctx, append([]string{"redeliver"}, args...)...)
	if exit != 1 || !strings.Contains(errs, "bridged: "+code+": ") || !strings.Contains(out, code) {
		s.t.Errorf("redeliver %q ended with %d, want %s to stay:\n%s\n%s", args, exit, code, out, errs)
	}
}

// A brief that its recipient's host refused, because nobody there had trusted
// the sender's host yet, is delivered with its own id and signature once that
// is mended; a second copy of it is a duplicate. Fails when a redelivered brief
// is another message, is injected twice, or stays among the dead.
func TestARefusedBriefIsRedelivered(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*bound)
	defer cancel()
	f := newFleet(t, rabbit.URI(t))
	a, b := addHost(t, ctx, f, "hosta"), addHost(t, ctx, f, "hostb")
	if err := a.Trust(b); err != nil {
		t.Fatal(err)
	}
	sees(t, ctx, a, b) // or it misses the worker: hostb tells hosta nothing anew that it does not trust
	atA, atB := shell{t, f, a}, shell{t, f, b}
	w := addWorker(t, ctx, b, "reviewer")
	m := addMain(t, ctx, a, "lead")
	sights(t, ctx, m, "reviewer@hostb") // which does not believe hosta
	ready(t, ctx, a, b)
	_, err := m.Send(ctx, map[string]any{"to": "reviewer@hostb", "content": "read parser.go", "expires_in_seconds": 3600})
	if !fault.Is(err, fault.Unconfirmed) && !fault.Is(err, fault.Refused) {
		t.Fatalf("the send came to %v, want a refusal or silence", err)
	}
	l := atA.letters(ctx, 1)[0]
	if l.From != "lead@hosta" || l.To != "reviewer@hostb" || l.Reason != "rejected" || !strings.Contains(l.Queue, w.GID) || !l.Own || !l.Verified {
		t.Errorf("hosta lists %+v", l)
	}
	if there := atB.letters(ctx, 1)[0]; there.Verified || there.Problem != envelope.UnknownSigner || there.Own {
		t.Errorf("hostb lists %+v", there)
	}
	atB.stays(ctx, "REFUSED", l.MsgID)
	out, _, _ := atA.dlq(ctx, "show", l.MsgID, "--json")
	body, _, _ := atA.dlq(ctx, "show", l.MsgID, "--body")
	if strings.Contains(out, "parser.go") || !strings.Contains(out, `"own": true`) || !strings.Contains(body, "read parser.go") {
		t.Errorf("shown:\n%s\n%s", out, body)
	}

	if err := b.Trust(a); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, func() error {
		if there := atB.letters(ctx, 1)[0]; !there.Verified {
			return fmt.Errorf("hostb does not trust it yet: %+v", there)
		}
		return nil
	})
	if out := atA.done(ctx, "redeliver", l.MsgID); !strings.Contains(out, "redelivered") {
		t.Errorf("it printed %s", out)
	}
	prompted(t, ctx, w, l.MsgID)
	atA.letters(ctx, 0)
	trace, err := a.API("").Trace(ctx, mcp.TraceArgs{TraceID: l.TraceID})
	if err != nil || !slices.ContainsFunc(trace.Hops, func(h mcp.Hop) bool { return h.Step == "redelivered" && h.MsgID == l.MsgID }) {
		t.Errorf("its trace is %+v, %v", trace, err)
	}

	g := newGraves(t, f)
	key, err := a.Key()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	captured := &envelope.Envelope{
		Kind: envelope.Send, MsgID: uuid.Must(uuid.NewV7()).String(), TraceID: strings.ReplaceAll(uuid.NewString(), "-", ""),
		From: m.GID, To: w.GID, Signer: "hosta", TS: now.UnixMilli(), ExpiresAt: now.Add(time.Hour).UnixMilli(), Body: []byte("once only"),
	}
	if err := captured.Sign(key); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		g.bury(amqp.Table(captured.Table()), captured.Body, captured.To)
		atB.letters(ctx, 1)
		atB.done(ctx, "redeliver", captured.MsgID)
	}
	if _, err := m.Send(ctx, map[string]any{"to": "reviewer@hostb", "content": "and then this", "wait_seconds": longest}); err != nil {
		t.Fatal(err)
	}
	for _, mark := range []string{"and then this", "once only", "read parser.go"} { // the last one first
		prompted(t, ctx, w, mark)
	}
	atB.letters(ctx, 0)
}

// A brief that expired while its recipient's host was away is refused as it is,
// and sent anew by the host that signed it, in the name of who sent it, who
// gets the answer. Fails when an expired brief is published, is sent anew from
// elsewhere or twice, or its letter stays.
func TestAnExpiredBriefIsSentAnew(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*bound)
	defer cancel()
	f := newFleet(t, rabbit.URI(t))
	a, b := addHost(t, ctx, f, "hosta"), addHost(t, ctx, f, "hostb")
	if err := f.TrustEachOther(); err != nil {
		t.Fatal(err)
	}
	atA, atB := shell{t, f, a}, shell{t, f, b}
	w := addWorker(t, ctx, b, "reviewer", "--reply-with", "done")
	m := addMain(t, ctx, a, "lead")
	seen(t, ctx, m, "reviewer@hostb")
	ready(t, ctx, a, b)
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, func() error { // else nobody knows whether it was there to take it
		r, err := a.API("").Roster(ctx, mcp.RosterArgs{})
		for _, e := range r.Entities {
			if e.Name == "reviewer" && e.Status == "offline" {
				return nil
			}
		}
		return fmt.Errorf("reviewer is not seen offline: %+v, %v", r.Entities, err)
	})
	sent, err := m.Send(ctx, map[string]any{"to": "reviewer@hostb", "content": "read lexer.go", "expires_in_seconds": 5, "queue_if_offline": true})
	if err != nil {
		t.Fatal(err)
	}
	l := atA.letters(ctx, 1)[0]
	if l.MsgID != sent.MsgID || l.Reason != "expired" || !l.Own {
		t.Errorf("listed as %+v", l)
	}
	atA.stays(ctx, "EXPIRED", l.MsgID)
	eventually(t, ctx, func() error { // once its fate is known
		if out, errs, _ := atA.dlq(ctx, "redeliver", l.MsgID, "--anew"); !strings.Contains(errs, "HOST_OFFLINE") {
			return fmt.Errorf("sent anew to a host that is away: %s %s", out, errs)
		}
		return nil
	})
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	seen(t, ctx, m, "reviewer@hostb")
	eventually(t, ctx, func() error {
		if out, errs, _ := atB.dlq(ctx, "redeliver", l.MsgID, "--anew"); !strings.Contains(errs, "NOT_ALLOWED") {
			return fmt.Errorf("at hostb: %s %s", out, errs)
		}
		return nil
	})
	if out := atA.done(ctx, "redeliver", l.MsgID, "--anew"); !strings.Contains(out, "sent_anew") {
		t.Errorf("it printed %s", out)
	}
	prompted(t, ctx, w, "read lexer.go")
	atA.letters(ctx, 0)
	for {
		r, err := m.Poll(ctx, map[string]any{"wait_seconds": longest})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(r.Messages, func(m mcp.Message) bool { return m.Kind == "REPLY" })
		if i < 0 {
			continue
		}
		if reply := r.Messages[i]; reply.InReplyTo == sent.MsgID || reply.Content != "done" {
			t.Errorf("the reply is %+v", reply)
		}
		return
	}
}

// graves is the dead-letter queue as another program sees it.
type graves struct {
	t     *testing.T
	ch    *amqp.Channel
	names fabric.Names
}

func newGraves(t *testing.T, f *fleet.Fleet) *graves {
	conn, err := amqp.DialConfig(f.Broker, amqp.Config{Heartbeat: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // it may be gone already
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	return &graves{t, ch, fabric.Names{Prefix: f.Prefix}}
}

func (g *graves) bury(headers amqp.Table, body []byte, key string) {
	g.t.Helper()
	c, err := g.ch.PublishWithDeferredConfirm(g.names.DLX(), key, true, false, amqp.Publishing{Headers: headers, Body: body})
	if err != nil {
		g.t.Fatal(err)
	}
	if ok, err := c.WaitContext(g.t.Context()); !ok || err != nil {
		g.t.Fatal(ok, err)
	}
}

// fill buries n letters, every third of which expired, and returns all ids.
func (g *graves) fill(n int) (ids []string) {
	for i := range n {
		id, reason := uuid.NewString(), "rejected"
		if i%3 == 0 {
			reason = "expired"
		}
		g.bury(amqp.Table{"msgId": id, "x-death": []any{amqp.Table{"queue": "q", "reason": reason}}}, []byte("x"), "k")
		ids = append(ids, id)
	}
	return ids
}

func (g *graves) ready() int {
	g.t.Helper()
	q, err := g.ch.QueueDeclarePassive(g.names.DLQ(), true, false, false, false, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	return q.Messages
}

// Letters stay, all of them and in their order, when the command or the daemon
// is killed in the middle of a look, and while others die; and purging some
// leaves the rest as it was. Fails when a letter hangs on the life of a process
// that looks at it.
func TestDeadLettersSurviveWhoLooksAtThem(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*bound)
	defer cancel()
	f := newFleet(t, rabbit.URI(t))
	a := addHost(t, ctx, f, "hosta")
	ready(t, ctx, a)
	at, g := shell{t, f, a}, newGraves(t, f)
	ids := g.fill(3000)
	for _, victim := range []string{"the command", "the daemon"} {
		caught := false
		for !caught { // it may be over before it is seen
			look, cancelLook := context.WithCancel(ctx)
			cmd, out, _ := at.command(look, "dlq", "list", "--limit", "10000")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			for over := false; !over && !caught; {
				select {
				case <-ended:
					over = true
				default:
					n := g.ready()
					caught = n > 100 && n < len(ids)-100
				}
			}
			if caught && victim == "the daemon" {
				if err := a.Kill(); err != nil {
					t.Fatal(err)
				}
				<-ended
			}
			cancelLook() // kills the command
			if caught && victim == "the command" {
				<-ended
			}
			if caught && out.Len() > 0 { // it had looked at all of them
				if caught = false; victim == "the daemon" {
					if err := a.Start(ctx); err != nil {
						t.Fatal(err)
					}
					ready(t, ctx, a)
				}
			}
		}
		ids = append(ids, g.fill(10)...)
		eventually(t, ctx, func() error {
			if n := g.ready(); n != len(ids) {
				return fmt.Errorf("%d letters of %d are there after %s was killed", n, len(ids), victim)
			}
			return nil
		})
	}
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	ready(t, ctx, a)
	if out := at.done(ctx, "purge", "--reason", "expired"); out != fmt.Sprintf("purged\t%d\nstay\t%d\n", 1000+4+4, 2000+6+6) {
		t.Errorf("purge printed %q", out)
	}
	var want, got []string
	for i, id := range ids {
		if n := i; n >= 3000 {
			i = (n - 3000) % 10
		}
		if i%3 != 0 {
			want = append(want, id)
		}
	}
	for _, l := range at.letters(ctx, len(want)) {
		got = append(got, l.MsgID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("what stays is out of order or not what died")
	}
	if out := at.done(ctx, "purge", "--all"); !strings.Contains(out, fmt.Sprintf("purged\t%d\n", len(want))) {
		t.Errorf("purge printed %q", out)
	}
	if n := g.ready(); n != 0 {
		t.Errorf("%d letters are left", n)
	}
}
