package outbox

import (
	"context"
	"fmt"
	"testing"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// Fault: two that only write to each other are never stopped, or those who
// write to others are stopped with them, or for longer than needed.
func TestAPairIsHeldToItsPace(t *testing.T) {
	t.Attr("threat", "G5")
	w := newWorld(t)
	w.out.pace.perMinute = 3
	for _, to := range []string{"coder", "aide"} { // there and here
		for range 3 {
			w.sent(Request{To: to})
		}
		_, err := w.send(Request{To: to, Key: "k" + to})
		wantCode(t, err, fault.RateLimited)
	}
	w.sent(Request{To: "critic"})
	w.sent(Request{To: "coder", From: aide})
	_, err := w.reply("")
	must(t, err)
	if n := len(w.broker.mail()); n != 6 {
		t.Errorf("%d messages left, want 6", n)
	}
	w.clock.add(20 * time.Second)
	w.sent(Request{To: "coder", Key: "kcoder"}) // the refused call can be made again
	_, err = w.send(Request{To: "coder"})
	wantCode(t, err, fault.RateLimited)
	w.sent(Request{To: "aide"})

	_, err = w.out.Broadcast(context.Background(), Broadcast{From: boss, Group: "all", Content: []byte("x")})
	must(t, err)
	for range 2 {
		_, err = w.out.Broadcast(context.Background(), Broadcast{From: boss, Group: "all", Content: []byte("x")})
		must(t, err)
	}
	_, err = w.out.Broadcast(context.Background(), Broadcast{From: boss, Group: "all", Content: []byte("x")})
	wantCode(t, err, fault.RateLimited)
	for range 3 {
		turn, err := w.asks()
		must(t, err)
		turn.Close()
	}
	_, err = w.asks()
	wantCode(t, err, fault.RateLimited)
}

// Fault: pairs that are idle are remembered for ever, or one that is not is
// forgotten and may begin anew.
func TestIdlePairsAreForgotten(t *testing.T) {
	p := pace{perMinute: 1}
	now := time.Now()
	for i := range pairsMost {
		must(t, p.allow(now, "a", fmt.Sprint(i), ""))
	}
	now = now.Add(30 * time.Second)
	must(t, p.allow(now, "b", "c", "")) // none is idle yet
	if len(p.pairs) != pairsMost+1 {
		t.Errorf("%d pairs are left", len(p.pairs))
	}
	now = now.Add(31 * time.Second)
	must(t, p.allow(now, "d", "e", ""))
	if len(p.pairs) != 2 {
		t.Errorf("%d pairs are left, want the two latest", len(p.pairs))
	}
	wantCode(t, p.allow(now, "b", "c", ""), fault.RateLimited)
}

// Fault: a brief sent because of 32 others goes out.
func TestALongChainIsStopped(t *testing.T) {
	w := newWorld(t)
	w.sent(Request{Hops: 32})
	_, err := w.send(Request{Hops: 33})
	wantCode(t, err, fault.Loop)
	if e := w.broker.mail()[0]; e.Hops != 32 || e.Kind != envelope.Send {
		t.Errorf("sent: %+v", e)
	}
}
