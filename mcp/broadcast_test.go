package mcp

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"fleetd/fabric/roster"
	"fleetd/inbox"
	"fleetd/outbox"
	"fleetd/store"
)

// oneShare is a broadcast that stands like this at its one recipient.
type oneShare struct {
	Sender
	outbox.Share
}

func (s oneShare) Shares(outbox.Spread) ([]outbox.Share, error) {
	return []outbox.Share{s.Share}, nil
}

type emptyMailbox struct{ Mailbox }

func (emptyMailbox) Held(string) int { return 0 }

func spreadOf(s outbox.Share, a BroadcastArgs, now time.Time) *spreadWait {
	return &spreadWait{
		c:    &Conversation{Sender: oneShare{Share: s}, Mailbox: emptyMailbox{}, Now: func() time.Time { return now }},
		args: a, started: time.Now(), mail: &inbox.Waiter{}, watch: &outbox.Watch{},
		spread: outbox.Spread{To: []outbox.Share{s}, ExpiresAt: time.Unix(900, 0)},
	}
}

// Fails if a broadcast does not return when it said, neither before what it
// waits for is known nor after its wait_seconds.
func TestABroadcastWaitsAsLongAsItWasTold(t *testing.T) {
	for _, c := range []struct {
		outcome    store.Outcome
		wait, took time.Duration // in seconds
	}{
		{"injected", 0, 0}, {"injected", 20, 0},
		{"waiting", 0, 0}, {"waiting", 1, 1}, {"waiting", 20, 20},
		{"", 0, 10}, {"", 1, 1}, {"", 20, 20},
		{outbox.ShareQueued, 20, 0}, {outbox.ShareNotSent, 20, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := spreadOf(outbox.Share{Outcome: c.outcome}, BroadcastArgs{WaitSeconds: int(c.wait)}, time.Unix(0, 0))
			if _, err := w.outcome(t.Context()); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(w.started); took != c.took*time.Second {
				t.Errorf("%q with wait_seconds %d returned after %s, want %d s", c.outcome, c.wait, took, c.took)
			}
		})
	}
}

// Fails if the caller is told to repeat a call that can reach nobody any more,
// or not told to repeat one that can.
func TestWhatToDoAboutAMissingRecipient(t *testing.T) {
	missing := outbox.Share{Target: roster.Target{Name: "coder", Host: "hostb"}, Outcome: outbox.ShareNotSent}
	for _, c := range []struct {
		now int64
		key string
		say string
	}{
		{1, "k", "Repeat the call with the same idempotency_key"}, {1, "", "Do not repeat"},
		{901, "k", "under a new key"}, {901, "", "under a new key"},
	} {
		r, err := spreadOf(missing, BroadcastArgs{IdempotencyKey: c.key}, time.Unix(c.now, 0)).outcome(t.Context())
		if err != nil || !strings.Contains(r.Note, c.say) {
			t.Errorf("at second %d of 900 with the key %q: %q (%v), want %q", c.now, c.key, r.Note, err, c.say)
		}
	}
}
