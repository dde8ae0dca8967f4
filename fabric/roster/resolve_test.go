package roster

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// Fails when an address means somebody else than design §1 says.
func TestResolve(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a := f.join("hosta",
			worker(1, "builder"), worker(2, "reviewer"), worker(3, "retired"), worker(4, "twice"), worker(5, "back"))
		b := f.join("hostb",
			worker(11, "tester"), worker(12, "reviewer"), worker(13, "twice"), worker(14, "left"), worker(16, "left"))
		c := f.join("hostc", worker(21, "asleep"), worker(22, "tester"), worker(23, "tester"))
		a.RemoveLocal(gid(3))
		pass(time.Second)
		a.RemoveLocal(gid(5))
		a.mustSet(worker(6, "back"))
		b.RemoveLocal(gid(13))
		b.RemoveLocal(gid(14))
		pass(time.Second)
		b.RemoveLocal(gid(16))
		pass(0)
		c.stop()

		for _, x := range []struct {
			address string
			gid     int    // 0: an error
			says    string // state of the target, or parts of the sentence split by |
		}{
			{"builder", 1, "local online"},
			{" builder ", 1, "local online"},
			{"builder@hosta", 1, "local online"},
			{gid(1), 1, "local online"},
			{strings.ToUpper(gid(1)), 1, "local online"},
			{"wQ:p1", 1, "local online"},
			{"wQ:p11", 0, "UNKNOWN_RECIPIENT"}, // a pane of another host
			{"reviewer@hostb", 12, "online"},
			{"reviewer", 0, "AMBIGUOUS_RECIPIENT|reviewer@hosta|reviewer@hostb"},
			{gid(12), 12, "online"},
			{"asleep", 21, "offline"},
			{"asleep@hostc", 21, "offline"},
			{gid(21), 21, "offline"},
			{"tester", 0, "AMBIGUOUS_RECIPIENT|tester@hostb|" + gid(22) + " (tester@hostc)|" + gid(23)},
			{"retired", 3, "local gone online"},
			{"wQ:p3", 0, "UNKNOWN_RECIPIENT"}, // its pane may be another's by now
			{"twice", 4, "local online"},      // the other one is gone
			{"twice@hostb", 13, "gone online"},
			{"left", 16, "gone online"}, // the latest
			{"back", 6, "local online"},
			{"revewer", 0, "UNKNOWN_RECIPIENT|reviewer@hosta or reviewer@hostb"},
			{"reviewer@hostd", 0, "UNKNOWN_RECIPIENT|reviewer@hosta|No host \"hostd\""},
			{"tester@hosta", 0, "UNKNOWN_RECIPIENT|tester@hostb"},
			{"zebra", 0, "UNKNOWN_RECIPIENT|bridge_roster lists everyone"},
			{"any:reviewers", 0, "UNKNOWN_RECIPIENT|name one member"},
			{gid(99), 0, "UNKNOWN_RECIPIENT"},
			{"", 0, "UNKNOWN_RECIPIENT"},
			{"all", 0, "UNKNOWN_RECIPIENT"},
			{strings.Repeat("x", 100_000), 0, "UNKNOWN_RECIPIENT"},
		} {
			got, err := a.Resolve(x.address)
			if x.gid == 0 {
				for part := range strings.SplitSeq(x.says, "|") {
					if err == nil || !strings.Contains(err.Error(), part) || len(err.Error()) > 1000 {
						t.Errorf("%.40q: got %+v, %v; want an error that says %q", x.address, got, err, part)
					}
				}
				continue
			}
			state := got.HostState
			if got.Gone {
				state = "gone " + state
			}
			if got.Local {
				state = "local " + state
			}
			if err != nil || got.GID != gid(x.gid) || state != x.says {
				t.Errorf("%.40q: got %s %s, %v; want %s %s", x.address, got.GID, state, err, gid(x.gid), x.says)
			}
		}
	})
}

// Fails when a name is only found while its host's presence is in memory.
func TestResolveByNameAfterOurOwnRestart(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		f.quick = true
		a, b := f.join("hosta"), f.join("hostb", worker(1, "builder"))
		pass(time.Minute)
		b.crash()
		a.stop()
		a = f.start("hosta", func(c *Config) { c.Interval = maxInterval })
		a.connect()
		got, err := a.Resolve("builder@hostb")
		if err != nil || got.GID != gid(1) || got.HostState != Unknown {
			t.Errorf("got %+v, %v", got, err)
		}
		want(t, "listed", a.sees("hostb"), "builder:unknown")
		pass(8*24*time.Hour + time.Hour)
		_, err = a.Resolve("builder@hostb")
		want(t, "after 8 days", fault.CodeOf(err), fault.UnknownRecipient)
	})
}

// Fails when a host that is not connected says that somebody doesn't exist as
// if it knew.
func TestUnknownSaysWhenTheViewIsNotCurrent(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		a := f.start("hosta")
		pass(time.Minute)
		_, err := a.Resolve("builder")
		if !fault.Is(err, fault.UnknownRecipient) || !strings.Contains(err.Error(), "was not connected") {
			t.Error(err)
		}
		want(t, "current", a.Current(), false)
	})
}

// Fails when the likeliest of several near names is not named first.
func TestNearest(t *testing.T) {
	var all []Target
	for _, a := range []string{"tester@hosta", "testers@hostb", "taster@hostc", "toaster@hosta", "builder@hosta"} {
		name, host, _ := strings.Cut(a, "@")
		all = append(all, Target{Name: name, Host: host})
	}
	for address, names := range map[string]string{
		"testes":       "tester@hosta testers@hostb taster@hostc",
		"tstr@hostz":   "taster@hostc tester@hosta",
		"tester@hostb": "tester@hosta testers@hostb taster@hostc",
		"x":            "",
	} {
		want(t, address, strings.Join(nearest(address, all), " "), names)
	}
}

// A host that does not answer is told of as one that does not trust this one.
// Fails when that is said while the last solicitation may still be answered, of
// solicitations that the broker did not take, or of the life before a restart.
func TestAHostIsSilentOnlyAfterItWasAskedInVain(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		f.join("hostb", worker(1, "builder"))
		deaf := func(to string, e *envelope.Envelope) bool { return to == "hostb" && e.Signer == "hosta" }
		f.setLose(deaf)
		var broken atomic.Bool
		var asks atomic.Int64
		a := f.start("hosta", func(c *Config) {
			publish := c.Publish
			c.Publish = func(ctx context.Context, e *envelope.Envelope) error {
				if strings.Contains(string(e.Body), `"targets"`) { // not the one of Sync
					if broken.Load() {
						return errors.New("not taken")
					}
					asks.Add(1)
				}
				return publish(ctx, e)
			}
		})
		broken.Store(true)
		a.connect()
		silent := func() bool { return a.Hosts()[1].Silent }
		pass(10 * time.Minute)
		if n := a.Stats().Solicited; n < silentAfter+2 || silent() {
			t.Errorf("solicited %d times, and the broker took none: silent is %v", n, silent())
		}
		broken.Store(false)
		for n := range silentAfter + 1 {
			for from := asks.Load(); asks.Load() == from; {
				if silent() {
					t.Errorf("silent after %d solicitations, of which the last may be answered yet", n)
				}
				pass(100 * time.Millisecond)
			}
		}
		if !silent() {
			t.Errorf("not silent after %d solicitations that were not answered", silentAfter)
		}
		f.members["hostb"].crash()
		b := f.start("hostb")
		b.mustSet(worker(1, "builder"))
		f.setLose(func(to string, e *envelope.Envelope) bool { // and its full announcement is lost
			return deaf(to, e) || to == "hosta" && e.Signer == "hostb" && strings.Contains(string(e.Body), `"parts"`)
		})
		b.connect()
		if v := a.Hosts()[1]; v.Complete || v.Silent {
			t.Errorf("started anew: %+v", v)
		}
	})
}

// Fails when a full announcement that somebody waits for is not asked for any
// more because the broker did not take the first solicitation.
func TestAFailedSolicitationIsRepeated(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		f.join("hosta", worker(1, "builder"))
		b := f.join("hostb")
		pass(time.Minute)
		before := b.FullCount("hosta")
		b.setCut(true)
		b.Solicit("hosta")
		pass(time.Second)
		b.setCut(false)
		pass(DefaultInterval + time.Second)
		want(t, "full announcements", b.FullCount("hosta"), before+1)
	})
}

// A host that does not trust ours is heard, and refuses what we ask. Fails when
// that is told as something that passes in some seconds, or when it is still said
// once the host has answered.
func TestUnknownSaysThatAHostDoesNotAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, f *fleet) {
		f.join("hostb", worker(1, "builder"))
		f.mu.Lock()
		f.lose = func(to string, e *envelope.Envelope) bool { return to == "hostb" && e.Signer == "hosta" }
		f.mu.Unlock()
		a := f.start("hosta")
		a.connect()
		says := func(part string) {
			t.Helper()
			if _, err := a.Resolve("builder"); err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("it came to %v, want %q", err, part)
			}
		}
		pass(6 * time.Second) // one heartbeat
		says("Who lives on hostb is not fully known yet; try again")
		pass(time.Minute)
		says("This host is not told who lives on hostb: it is not trusted there, it seems; `bridged doctor`")
		if v := a.Hosts(); len(v) != 2 || !v[1].Silent || v[0].Silent {
			t.Errorf("the hosts are %+v", v)
		}
		f.mu.Lock()
		f.lose = nil
		f.mu.Unlock()
		pass(maxPause + time.Minute)
		if got, err := a.Resolve("builder"); err != nil || got.GID != gid(1) || a.Hosts()[1].Silent {
			t.Errorf("after it answered: %+v, %v", got, err)
		}
	})
}
