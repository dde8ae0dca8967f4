package migrations

import (
	"context"
	"time"

	"fleetd/fault"
	"fleetd/wait"
)

// lock waits until no other run holds mail of the queue. A queue whose mail is
// in the hands of another one looks shorter than it is, or empty.
func (r *run) lock(ctx context.Context) error {
	for until := time.Now().Add(r.Patience); ; {
		locked, err := r.Broker.Lock(ctx, r.row.Queue)
		if locked || err != nil {
			return err
		}
		r.waited = true
		if time.Now().After(until) {
			return fault.New(fault.Conflict, "another migration is at %s, from this host or another one (its connection to the broker is called bridged HOST migrate take), or was cut off and the broker has not noticed yet; run this again in a minute", r.row.Queue)
		}
		if err := again(ctx); err != nil {
			return err
		}
	}
}

// again waits until the broker can be asked again.
func again(ctx context.Context) error {
	if err := wait.Pause(ctx, lookAgain); err != nil {
		return interrupted(err)
	}
	return nil
}

// alone refuses to go on beside the old daemon or another run, and says how many
// messages lie in the queue. The lock is asked for again: somebody may have
// deleted it, and a policy lets go of queues that nobody asks for.
func (r *run) alone(ctx context.Context) (ready int, err error) {
	locked, err := r.Broker.Lock(ctx, r.row.Queue)
	if err != nil {
		return 0, err
	}
	if !locked {
		return 0, fault.New(fault.Conflict, "the lock of %s was taken away from this run, and another migration has it now; run this again when that one is over", r.row.Queue)
	}
	q, err := r.Broker.Look(ctx, r.row.Queue)
	if err != nil {
		return 0, err
	}
	if q.Consumers > 0 {
		return 0, fault.New(fault.Conflict, "the old daemon still consumes %s; stop it, then run this again", r.row.Queue)
	}
	return q.Ready, nil
}

// lookAgain is the pause between two looks for what comes back, or for the lock.
const lookAgain = 200 * time.Millisecond

func interrupted(err error) error {
	return fault.Wrap(err, fault.Unconfirmed, "the migration was interrupted; run it again, it goes on where it was")
}
