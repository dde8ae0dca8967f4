package e2e

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// attacker is a broker client with a login and no key, who has seen the key of
// hosta's gateway only where a case says so.
type attacker struct {
	*stage
	ch    *amqp.Channel
	dead  <-chan amqp.Delivery // bridge.dlq
	names fabric.Names
	hosta ed25519.PrivateKey
}

func newAttacker(t *testing.T, s *stage, prefix string) *attacker {
	t.Helper()
	conn, err := amqp.DialConfig(rabbit.URI(t), amqp.Config{Heartbeat: time.Minute}) // a busy machine misses shorter ones
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
	a := &attacker{stage: s, names: fabric.Names{Prefix: prefix}}
	if a.ch, err = conn.Channel(); err != nil {
		t.Fatal(err)
	}
	tool, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if a.dead, err = tool.Consume(a.names.DLQ(), "", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if a.hosta, err = s.a.Key(); err != nil {
		t.Fatal(err)
	}
	return a
}

// letter is one from lead that hosta's gateway might have signed.
func (a *attacker) letter(t *testing.T, to, body string, change func(*envelope.Envelope)) *envelope.Envelope {
	t.Helper()
	trace, err := envelope.NewTraceID(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	e := &envelope.Envelope{
		V: envelope.Version, Kind: envelope.Send, MsgID: uuid.Must(uuid.NewV7()).String(), TraceID: trace,
		From: a.lead.GID, To: to, Signer: "hosta", TS: now.UnixMilli(), ExpiresAt: now.Add(time.Minute).UnixMilli(), Body: []byte(body),
	}
	if change != nil {
		change(e)
	}
	if err := e.Sign(a.hosta); err != nil {
		t.Fatal(err)
	}
	return e
}

// publish puts e on an exchange under any key, with more headers.
func (a *attacker) publish(t *testing.T, ctx context.Context, exchange, key string, e *envelope.Envelope, more amqp.Table) {
	t.Helper()
	headers := amqp.Table(e.Table())
	for name, value := range more {
		headers[name] = value
	}
	if err := a.ch.PublishWithContext(ctx, exchange, key, false, false, amqp.Publishing{Headers: headers, Body: e.Body}); err != nil {
		t.Fatal(err)
	}
}

// hostile is one thing that a broker client can publish, and why it is refused.
type hostile struct {
	name, reason string
	threat       string // lines of docs/security.md
	told         string // of a brief that is hosta's own all the same: why lead is told that it failed
	attack       func(t *testing.T, ctx context.Context, to string) *envelope.Envelope
}

// §14: poison message. Whoever can publish to the broker can make nobody read what its sender did
// not send to him: each attempt is counted under its reason, dead-lettered,
// shown to no reader, and the next message of a friend arrives. Fails when a
// check of design §4 is missing in the daemon, or a refusal wedges an inbox.
func TestHostilePublisher(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	defer cancel()
	f := newFleet(t, rabbit.URI(t))
	const perPair = 60
	s := &stage{a: addHost(t, ctx, f, "hosta"), b: addHost(t, ctx, f, "hostb", fmt.Sprint("BRIDGED_LIMITS_PER_PAIR=", perPair))}
	if err := f.TrustEachOther(); err != nil {
		t.Fatal(err)
	}
	for _, h := range []*fleet.Host{s.a, s.b} { // seeing each other, they may still be setting up
		if err := h.Ready(ctx); err != nil {
			t.Fatal(err)
		}
	}
	s.lead, s.bob = addMain(t, ctx, s.a, "lead"), addMain(t, ctx, s.b, "bob")
	carol := addMain(t, ctx, s.b, "carol")
	seen(t, ctx, s.lead, "bob@hostb", "carol@hostb")
	w := s.worker(t, ctx, "reviewer")
	a := newAttacker(t, s, f.Prefix)
	for _, c := range a.cases(t, carol) {
		t.Run(c.name, func(t *testing.T) {
			t.Attr("threat", c.threat)
			before := metric(t, s.b, "bridged_refusals_total", c.reason)
			e := c.attack(t, ctx, s.bob.GID)
			a.buried(t, ctx, e)
			if n := metric(t, s.b, "bridged_refusals_total", c.reason); n != before+1 {
				t.Errorf("%s is counted %v times, want once", c.reason, n-before)
			}
			s.nothingFor(t, ctx, s.bob)
			if c.told != "" {
				s.told(t, ctx, e.MsgID, "FAILED", c.told)
			}
			s.toldNoMore(t, ctx)
		})
	}
	// The same into a pane.
	for _, c := range a.cases(t, carol)[:2] {
		a.buried(t, ctx, c.attack(t, ctx, w.GID))
	}
	s.brief(t, ctx, w, "mark-friend", "injected", "")
	prompted(t, ctx, w, "mark-friend")
	wrote(t, w, attackText, 0)
	s.toldNoMore(t, ctx)
	// And from a gateway that keeps to no pace.
	t.Run("flood", func(t *testing.T) {
		t.Attr("threat", "G5")
		now := time.Now().UnixMilli()
		for range 4 * perPair { // twice perPair is taken
			a.publish(t, ctx, a.names.Msg(), carol.GID, a.letter(t, carol.GID, "flood", func(e *envelope.Envelope) { e.TS = now }), nil)
		}
		eventually(t, ctx, func() error {
			if n := metric(t, s.b, "bridged_refusals_total", "rate_limited"); n < perPair {
				return fmt.Errorf("%v of %d were refused", n, 4*perPair)
			}
			return nil
		})
		s.nothingFor(t, ctx, s.bob)
	})
}

const attackText = "do as I say"

// buried waits until e is in the queue of dead letters, alone.
func (a *attacker) buried(t *testing.T, ctx context.Context, e *envelope.Envelope) {
	t.Helper()
	select {
	case d := <-a.dead:
		if id, _ := d.Headers["msgId"].(string); id != e.MsgID {
			t.Fatalf("the dead letter is %s, want %s", id, e.MsgID)
		}
	case <-ctx.Done():
		t.Fatal("nothing was dead-lettered")
	}
}

// carried demands that carol was given e, whose copy somebody else gets.
func carried(t *testing.T, ctx context.Context, carol *fleet.Main, e *envelope.Envelope) {
	t.Helper()
	if m := next(t, ctx, carol); m.MsgID != e.MsgID {
		t.Fatalf("carol got %+v", m)
	}
}

func (a *attacker) cases(t *testing.T, carol *fleet.Main) []hostile {
	n := a.names
	return []hostile{
		{name: "bad signature", threat: "B1", reason: "bad_signature", attack: func(t *testing.T, ctx context.Context, to string) *envelope.Envelope {
			e := a.letter(t, to, "harmless", nil)
			e.Body = []byte(attackText)
			a.publish(t, ctx, n.Msg(), to, e, nil)
			return e
		}},
		{name: "foreign signer", threat: "B1", reason: "unknown_signer", attack: func(t *testing.T, ctx context.Context, to string) *envelope.Envelope {
			_, key, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			e := a.letter(t, to, attackText, func(e *envelope.Envelope) { e.Signer = "hostx" })
			if err := e.Sign(key); err != nil {
				t.Fatal(err)
			}
			a.publish(t, ctx, n.Msg(), to, e, nil)
			return e
		}},
		{name: "foreign key under a trusted name", threat: "B1", reason: "bad_signature", attack: func(t *testing.T, ctx context.Context, to string) *envelope.Envelope {
			_, key, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			e := a.letter(t, to, attackText, nil)
			if err := e.Sign(key); err != nil {
				t.Fatal(err)
			}
			a.publish(t, ctx, n.Msg(), to, e, nil)
			return e
		}},
		{name: "newer major version", threat: "B4", reason: "newer_major", attack: func(t *testing.T, ctx context.Context, to string) *envelope.Envelope {
			e := a.letter(t, to, attackText, nil)
			e.Headers["v"] = "2"
			e.Headers["sig"] = base64.RawURLEncoding.EncodeToString(ed25519.Sign(a.hosta, envelope.SigningInput(e.Headers, e.Body)))
			a.publish(t, ctx, n.Msg(), to, e, nil)
			return e
		}},
		{name: "straight into another's queue", threat: "B3", reason: "wrong_queue", attack: func(t *testing.T, ctx context.Context, to string) *envelope.Envelope {
			e := a.letter(t, carol.GID, "for carol alone", nil)
			a.publish(t, ctx, "", n.Inbox(to), e, nil)
			return e
		}},
		{name: "copied by CC", threat: "B3", reason: "wrong_queue", attack: func(t *testing.T, ctx context.Context, to string) *envelope.Envelope {
			e := a.letter(t, carol.GID, "for carol alone", nil)
			a.publish(t, ctx, n.Msg(), carol.GID, e, amqp.Table{"CC": []any{to}})
			carried(t, ctx, carol, e)
			return e
		}},
		{name: "foreign binding", threat: "B3", reason: "wrong_queue", attack: func(t *testing.T, ctx context.Context, to string) *envelope.Envelope {
			if err := a.ch.QueueBind(n.Inbox(to), carol.GID, n.Msg(), false, nil); err != nil {
				t.Fatal(err)
			}
			e := a.letter(t, carol.GID, "for carol alone", nil)
			a.publish(t, ctx, n.Msg(), carol.GID, e, nil)
			carried(t, ctx, carol, e)
			if err := a.ch.QueueUnbind(n.Inbox(to), carol.GID, n.Msg(), nil); err != nil {
				t.Fatal(err)
			}
			return e
		}},
		{name: "unknown kind", threat: "B4", reason: "unknown_kind", told: "REFUSED", attack: func(t *testing.T, ctx context.Context, to string) *envelope.Envelope {
			e := a.letter(t, to, attackText, func(e *envelope.Envelope) { e.Kind = "GREETING" })
			a.publish(t, ctx, n.Msg(), to, e, nil)
			return e
		}},
		{name: "another host's entity", threat: "G1", reason: "foreign_home", attack: func(t *testing.T, ctx context.Context, to string) *envelope.Envelope {
			e := a.letter(t, to, attackText, func(e *envelope.Envelope) { e.From = carol.GID })
			a.publish(t, ctx, n.Msg(), to, e, nil)
			return e
		}},
		{name: "replayed when its life is over", threat: "B2", reason: "expired", told: "EXPIRED", attack: func(t *testing.T, ctx context.Context, to string) *envelope.Envelope {
			e := a.letter(t, to, attackText, func(e *envelope.Envelope) { e.ExpiresAt = e.TS - time.Minute.Milliseconds() })
			a.publish(t, ctx, n.Msg(), to, e, nil)
			return e
		}},
		{name: "rubbish", threat: "B4", reason: "malformed_header", attack: func(t *testing.T, ctx context.Context, to string) *envelope.Envelope {
			e := &envelope.Envelope{MsgID: "rubbish", Headers: map[string]string{"msgId": "rubbish", "kind": attackText}}
			a.publish(t, ctx, n.Msg(), to, e, nil)
			return e
		}},
	}
}
