package migrations

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"fleetd/fault"
	"fleetd/test/failpoint"
)

// survey looks through the queue and puts it back as it was, but for a mark at
// its end, if there is mail that has none behind it. What a run that was cut off
// held belongs before all else: it is waited for until all of it is back, or is
// out of the queue, as what was acked may be.
func (r *run) survey(ctx context.Context) error {
	ready, err := r.alone(ctx)
	if err != nil {
		return err
	}
	held, err := r.Journal.hand(r.row.Queue)
	if err != nil {
		return err
	}
	now := hand{held.Keys, max(1, ready, held.All)} // something may come in before it is looked through
	if err := r.Journal.holding(r.row.Queue, now); err != nil {
		return err
	}
	var places []place
	var last uint64
	for until := (time.Time{}); ; {
		if places, last, err = r.lookThrough(ctx, nil); err != nil {
			return err
		}
		if until.IsZero() { // looking through a long queue may take as long
			until = time.Now().Add(r.Return)
		}
		if places, err = r.number(places); err != nil {
			return err
		}
		back := len(held.Keys) == 0 && !r.waited || slices.ContainsFunc(places, func(p place) bool { return slices.Contains(held.Keys, p.key) })
		if back && len(places) >= held.All || r.looks > 0 || time.Now().After(until) {
			break
		}
		if err := r.giveBack(ctx, last); err != nil {
			return err
		}
		if err := r.comesBack(ctx, max(len(places)+1, held.All), until); err != nil {
			return err
		}
	}
	if mail := slices.ContainsFunc(places, func(p place) bool { return p.mark == nil }); mail && (r.row.FromID == "" || r.row.ToID == "") {
		// It was empty when the plan was made.
		return fault.New(fault.Conflict, "mail came into %s after the plan was made, and nobody knows whose it is or for whom; run this again, the plan says what to do", r.row.Queue)
	}
	if r.looks++; r.looks == 1 {
		marks := map[string]bool{}
		for _, p := range places {
			marks[p.under] = true
		}
		if err := r.Journal.keep(r.row.Queue, marks); err != nil {
			return err
		}
	}
	if n := len(places); n > 0 && places[n-1].mark == nil {
		if places, last, err = r.mark(ctx, places, now.All); err != nil {
			return err
		}
	}
	if places, err = r.number(places); err != nil {
		return err
	}
	if err := r.giveBack(ctx, last); err != nil {
		return err
	}
	r.reckon(places)
	if err := r.Journal.holding(r.row.Queue, ahead(r.line)); err != nil {
		return err
	}
	failpoint.Hit("migrate.marked")
	return r.settleTimes()
}

// comesBack waits until as many lie in the queue, but not after until. It takes
// none to see that: where a policy limits how often a message is handed out, the
// broker would drop what lies there.
func (r *run) comesBack(ctx context.Context, many int, until time.Time) error {
	for {
		if err := again(ctx); err != nil {
			return err
		}
		if ready, err := r.alone(ctx); err != nil || ready >= many || time.Now().After(until) {
			return err
		}
	}
}

// number gives places their keys. Where a message that lies there has the key of
// one that is out, its equals are numbered anew, for later runs too: those have
// no other way to tell that it is another.
func (r *run) number(places []place) ([]place, error) {
	places = line(places, r.order)
	lie, anew := map[equals]int{}, map[equals]order{}
	for _, p := range places {
		if p.mark == nil && p.under != "" {
			lie[p.equals()]++
			if r.out[p.key] {
				anew[p.equals()] = order{}
			}
		}
	}
	if len(anew) == 0 {
		return places, nil
	}
	for e := range anew {
		anew[e] = r.order[e].anew(lie[e], func(number int) bool { return r.out[e.key(number)] })
	}
	if err := r.Journal.reorder(r.row.Queue, anew); err != nil {
		return nil, err
	}
	maps.Copy(r.order, anew)
	return line(places, r.order), nil
}

// ahead is what the next take gets first. Of a take that was cut off only that
// proves that all of it is back: the broker holds a head of the line or nothing.
func ahead(rest []place) hand {
	if len(rest) == 0 {
		return hand{}
	}
	return hand{Keys: []string{rest[0].key}}
}

// lookThrough takes all that lies in the queue, behind places that are in hand.
// last is the tag of the last, 0 if there was none. It keeps no content: that may be a lot.
func (r *run) lookThrough(ctx context.Context, places []place) (all []place, last uint64, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, 0, interrupted(err)
		}
		o, ok, err := r.Broker.Take(ctx, r.row.Queue)
		if err != nil {
			return nil, 0, err
		}
		if !ok {
			return places, last, nil
		}
		p := place{hash: o.hash()}
		if m, ok := o.mark(); ok {
			p.mark = &m
		}
		places, last = append(places, p), o.Tag
	}
}

// mark puts a mark behind places, which are in hand, and takes it and what came
// in between.
func (r *run) mark(ctx context.Context, places []place, all int) ([]place, uint64, error) {
	m := mark{uuid.NewString(), r.Now().UnixMilli()}
	marked := line(append(slices.Clone(places), place{mark: &m}), r.order)
	if err := r.Journal.marking(r.row.Queue, m.name, hand{ahead(marked).Keys, all}); err != nil {
		return nil, 0, err
	}
	if err := r.Broker.Mark(ctx, r.row.Queue, m.messageID(), markText); err != nil {
		if fault.Is(err, fault.BrokerRefused) { // it is not there
			err = errors.Join(err, r.Journal.holding(r.row.Queue, hand{All: all}))
		}
		return nil, 0, err
	}
	r.ts[m.name] = m.ts
	places, last, err := r.lookThrough(ctx, places)
	if err != nil {
		return nil, 0, err
	}
	for i, p := range places {
		if p.mark != nil && p.mark.name == m.name {
			return places[:i+1], last, nil // what is behind it has its turn later
		}
	}
	return nil, 0, fault.Wrap(errOtherwise, fault.Conflict, "somebody else takes mail from %s; stop that, then run this again", r.row.Queue)
}

// settleTimes says from when letters are that stand before each mark and were
// never sent. Where the journal does not know them but an earlier run put the
// mark, it may have been lost: they are then as that run had them.
func (r *run) settleTimes() error {
	now := r.Now().UnixMilli()
	for _, p := range r.line {
		if p.mark == nil || r.ts[p.key] != 0 {
			continue
		}
		known, err := r.Journal.knows(r.row.Queue, p.key)
		if err != nil {
			return err
		}
		r.ts[p.key] = now
		if !known && fresh(p.mark.ts, now) {
			r.ts[p.key] = p.mark.ts
		}
	}
	return nil
}

func (r *run) giveBack(ctx context.Context, last uint64) error {
	if last == 0 {
		return nil
	}
	return r.Broker.GiveBack(ctx, last)
}
