package fabric

import (
	"testing"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/test/rabbit"
)

// Mail and signals are not refused because the clocks of two hosts differ by up
// to 30 s. Fails if a message is refused within that, or taken beyond it. The
// clocks stand still, so the limit is exact.
func TestExpiryAllowsForTheSkewOfClocks(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	const life = 10 * time.Minute
	now := time.Now().Truncate(time.Millisecond)
	at := func(ahead time.Duration) func(*Config, *Deps) {
		return func(_ *Config, d *Deps) { d.Now = func() time.Time { return now.Add(ahead) } }
	}
	a := fl.up("hosta", at(0))
	within, beyond := fl.up("hostb", at(life+envelope.Skew)), fl.up("hostc", at(life+envelope.Skew+time.Millisecond))
	from := fl.entity("hosta")
	letter := func(kind envelope.Kind, to, body string) *envelope.Envelope {
		return fl.letter(kind, "hosta", from, to, body, func(e *envelope.Envelope) {
			e.TS, e.ExpiresAt = now.UnixMilli(), now.Add(life).UnixMilli()
			if kind != envelope.Send {
				e.TurnID = e.MsgID
			}
		})
	}
	for _, c := range []struct {
		g     *gateway
		taken bool
	}{{within, true}, {beyond, false}} {
		to := fl.entity(c.g.host)
		box := c.g.attach(to)
		a.publish(envelope.LaneMail, letter(envelope.Send, to, "a task"), Confirmed)
		if c.taken {
			box.take(t, "a task")
		} else if code := got(t, "the report of an expired brief", c.g.reported); code != fault.Expired {
			t.Errorf("the brief was refused as %s", code)
		}
		for _, kind := range []envelope.Kind{envelope.Ask, envelope.Answer} {
			before := c.g.Refusals()[reasonExpired]
			a.publish(envelope.LaneSignal, letter(kind, to, "now"), Confirmed)
			if c.taken {
				if e := got(t, string(kind), c.g.signals); e.Kind != kind {
					t.Errorf("a %s came, not %s", e.Kind, kind)
				}
				continue
			}
			eventually(t, string(kind)+" refused", func() bool { return c.g.Refusals()[reasonExpired] > before })
		}
		if len(c.g.signals)+len(box.mail) > 0 {
			t.Errorf("%s took something that had expired", c.g.host)
		}
	}
}
