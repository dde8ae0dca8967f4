package migrations

import (
	"context"
	"fmt"
	"time"

	"fleetd/fault"
	"fleetd/wait"
)

// over reports whether a queue in which the last survey saw nothing is empty. One
// in which no survey saw any is only deleted when it stays so for a while: a
// reader that is no consumer, or another host's run that was cut off right now,
// may have had in hand all that it holds, and if-empty does not count that.
func (r *run) over(ctx context.Context) (bool, error) {
	for until := time.Now().Add(r.Return); ; {
		ready, err := r.alone(ctx)
		if err != nil || ready > 0 {
			return false, err
		}
		if !r.Delete || r.count.Found+r.count.Arrived > 0 || time.Now().After(until) {
			return true, nil
		}
		if err := again(ctx); err != nil {
			return false, err
		}
	}
}

// inHands says why the queue, which is empty, is not deleted: somebody who is no
// consumer took mail from it, which would go with it. "": nobody did. What this
// run took may be counted for a while, and what another took just now is not yet.
func (r *run) inHands(ctx context.Context) (problem string, err error) {
	if err := wait.Pause(ctx, r.Counted); err != nil {
		return "", interrupted(err)
	}
	for until := time.Now().Add(r.Counted); ; {
		held, known, err := r.Held(ctx, r.row.Queue)
		switch late := time.Now().After(until); {
		case ctx.Err() != nil:
			return "", interrupted(ctx.Err())
		case err != nil:
			return "the queue stays, because nobody can say whether mail of it is in somebody's hands: " + fault.From(err).Sentence, nil
		case known && held == 0:
			return "", nil
		case late && known:
			return fmt.Sprintf("the queue stays: somebody took %d messages of it and neither acked them nor gave them back; find who that is (rabbitmqctl list_channels connection messages_unacknowledged), stop it, then run this again", held), nil
		case late:
			return "the queue stays: the management API does not say whether mail of it is in somebody's hands; run this again in a minute", nil
		}
		if err := again(ctx); err != nil {
			return "", err
		}
	}
}
