package fabric

import (
	"cmp"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// RabbitMQ closes a channel on which a delivery stays unacked for long, and
// requeues all that it held. The limit, 30 min where nobody changed it, cannot
// be asked for (broker fact §6). So what is held is handed back and taken again
// before that; it comes back in its order, and its reader does not notice.
const (
	refreshAfter = 20 * time.Minute // in time also for what is in hand meanwhile
	refreshLeast = 500 * time.Millisecond
	// pacePart of a pace is how late a message may be handed back.
	pacePart = 8
)

// pace is how long a delivery is held before it is handed back, as learned from
// a broker that closed a channel for it.
type pace struct {
	mu      sync.Mutex
	learned time.Duration // 0: it never did
}

// after is how long a delivery may be held; 0: for ever. LavinMQ has no limit
// where none is set, and handing back into a full queue of it costs the oldest
// message there (broker fact §5).
func (p *pace) after(lavin bool) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.learned > 0:
		return p.learned
	case lavin:
		return 0
	}
	return refreshAfter
}

// shorten takes a lesson from a delivery that was held for too long: half of
// that is the new pace, since a broker that looks once a minute may have a
// limit far below. Holds that end together teach the same.
func (p *pace) shorten(held time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.learned = cmp.Or(p.learned, refreshAfter)
	p.learned = min(p.learned, max(held/2, refreshLeast))
}

// lookIn is when to look at what is held again.
func (w *window) lookIn() time.Duration {
	in := w.in.f.lookEvery
	if after := w.in.f.pace.after(w.lavin); after > 0 {
		in = min(in, after/pacePart)
	}
	if w.now.prefetch < w.spec.Prefetch {
		in = min(in, lookNarrow)
	}
	return in
}

// look hands back what is held for too long, takes another window in place of
// one that stands, and widens a narrow one once there is room.
func (w *window) look() error {
	again, err := w.handBack(), error(nil)
	switch {
	case again > 0:
		err = w.turn(max(w.usual(), again))
	case w.stands() && w.places():
		err = w.turn(w.careful())
	case w.now.prefetch < w.spec.Prefetch && w.room() && w.in.f.load.bytes.Load() < w.in.f.loadBytes/2:
		err = w.turn(w.spec.Prefetch)
	}
	return err
}

// handBack hands back what is held for too long, the oldest first, but for what
// is in hand. It comes again at once; to whoever has it in memory that is a
// duplicate, which brings the new hold, and is acked if he is done with it. Of
// it again messages came under an earlier consumer, so that the present one may
// have no room for them.
func (w *window) handBack() (again int) {
	after := w.in.f.pace.after(w.lavin)
	if after == 0 {
		return 0
	}
	w.dropSettled()
	now, n := w.in.f.uptime(), 0
	for _, h := range w.holds {
		if now-h.since < after {
			break
		}
		if w.spec.InHand != nil && w.spec.InHand(h.msgID) {
			continue
		}
		if h.Requeue() != nil {
			continue // settled just now, or the channel is gone
		}
		n++
		if h.from != w.now {
			again++
		}
	}
	if n > 0 {
		w.in.f.stats.handedBack.Add(uint64(n))
		w.in.f.log.Debug("held mail handed back to be taken again", "gid", w.spec.GID, "messages", n, "after", after)
	}
	return again
}

// end lets go of the channel, and learns from it if the broker closed it.
func (w *window) end(err error) {
	defer w.r.forget()
	w.in.turn(nil)
	w.dropSettled()
	if !isCode(err, amqp.PreconditionFailed) || len(w.holds) == 0 {
		return
	}
	held := w.in.f.uptime() - w.holds[0].since
	before := w.in.f.pace.after(w.lavin)
	w.in.f.pace.shorten(held)
	if after := w.in.f.pace.after(w.lavin); after != before {
		w.in.f.log.Warn("the broker does not let mail be held for so long; it is handed back and taken again sooner from now on",
			"gid", w.spec.GID, "held", held, "after", after)
	}
}
