package inbox

import (
	"fmt"
	"testing"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// Fails if joining or leaving a group is not durable, touches other groups, or
// what can come to nothing is not refused.
func TestAnEntityJoinsAndLeavesGroups(t *testing.T) {
	w := newWorld(t)
	e := w.main("m")
	change := func(join, leave []string) ([]string, fault.Code) {
		got, err := w.in.ChangeGroups(t.Context(), "m", join, leave)
		return got.Groups, fault.CodeOf(err)
	}
	for _, c := range []struct {
		join, leave, want []string
		code              fault.Code
	}{
		{[]string{"b", "a"}, nil, []string{"a", "b"}, ""},
		{[]string{"a", "c"}, []string{"b"}, []string{"a", "c"}, ""},
		{nil, []string{"b"}, nil, fault.BadRequest},
		{[]string{"all"}, nil, nil, fault.BadRequest},
		{nil, nil, []string{"a", "c"}, ""},
	} {
		got, code := change(c.join, c.leave)
		if code != c.code || code == "" && fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("join %v, leave %v: %v %s, want %v %s", c.join, c.leave, got, code, c.want, c.code)
		}
	}
	var many []string
	for i := range envelope.MaxGroups {
		many = append(many, fmt.Sprintf("g%d", i))
	}
	if _, code := change(many, nil); code != fault.TooLarge {
		t.Errorf("%d groups: %s", envelope.MaxGroups+2, code)
	}
	if !w.in.Member(e.GID, "c") || w.in.Member(e.GID, "b") || w.in.Member(e.GID, "all") {
		t.Error("membership is not what it was changed to")
	}
	w.restart()
	same(t, "after a restart", []string{"a", "c"}, w.in.Entities()[0].Groups)
	_, err := w.in.ChangeGroups(t.Context(), "nobody", nil, nil)
	wantCode(t, "nobody", err, fault.UnknownRecipient)
}

// broadcast is a broadcast of from as the broker brings it.
func (w *world) spread(from, signer string) *envelope.Envelope {
	e := w.mail(envelope.Broadcast, envelope.BroadcastKey("crew"), "freeze")
	e.From, e.Signer = from, signer
	return e
}

// Fails if the sender of a broadcast gets its own copy, or any trace of it.
func TestTheSendersOwnCopyIsDropped(t *testing.T) {
	w := newWorld(t)
	e := w.worker("w")
	own := w.spread(e.GID, here)
	m := w.broker.publish(e.GID, own)
	w.awaitAcked(m, "acked")
	same(t, "held", 0, len(w.held(e.GID)))
	same(t, "outcome", "", w.outcome(e.GID, own.MsgID))
}

// Fails if the broker's copy of a broadcast goes in beside the local one, in
// whatever order they come, or its sender here is told twice.
func TestTheTwoCopiesOfABroadcastMeet(t *testing.T) {
	for _, order := range []string{"local copy held", "local copy injected", "broker's copy first"} {
		t.Run(order, func(t *testing.T) {
			w := newWorld(t)
			from, e := w.worker("from"), w.worker("w")
			env := w.spread(from.GID, here)
			local := *env
			local.To = e.GID
			var m *message
			switch order {
			case "local copy held":
				w.panes.gate("pane-w", "WORKING")
				w.deliver(&local)
				m = w.broker.publish(e.GID, env)
				w.awaitAcked(m, "acked")
				w.panes.gate("pane-w", "")
			case "local copy injected":
				w.deliver(&local)
				w.awaitScreen("pane-w", &local)
				await(t, "the record of it", func() bool { w.disk.flush(); return w.outcome(e.GID, env.MsgID) == "injected" })
				m = w.broker.publish(e.GID, env)
			default:
				m = w.broker.publish(e.GID, env)
				w.awaitScreen("pane-w", &local)
				w.deliver(&local)
			}
			w.awaitAcked(m, "acked")
			w.awaitScreen("pane-w", &local)
			await(t, "the outcome injected", func() bool { return w.outcome(e.GID, env.MsgID) == "injected" })
			if told := w.reports.told(env.MsgID); len(told) == 0 || told[len(told)-1] != "INJECTED" {
				t.Errorf("told %v", told)
			} else if n := count(told, "INJECTED"); n != 1 {
				t.Errorf("told %v", told)
			}
		})
	}
}

func count(all []string, one string) (n int) {
	for _, s := range all {
		if s == one {
			n++
		}
	}
	return n
}
