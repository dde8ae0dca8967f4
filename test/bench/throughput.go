package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"fleetd/inbox"
	"fleetd/outbox"
	"fleetd/store"
)

const (
	mailInFlight = 256
	mailOfRound  = 4000
	mailOneByOne = 250
	mailBound    = 10 * time.Second // of one round; what is not drained then does not count
)

// throughputMail is one-way mail from the main of one host to the main of
// another: accepted by the sender's gateway, drained and acked at the other
// one. The raw path is confirmed publishing and acked consuming by as many
// callers, on a connection each for the two. A round ends when the last message
// is drained. Each has a recipient of its own, so that nothing is left over to
// the next one.
func throughputMail(ctx context.Context, h *host) error {
	p, err := newPair(ctx, h, "mail", 0)
	if err != nil {
		return err
	}
	defer p.close()
	signature, err := p.signature()
	if err != nil {
		return err
	}
	for _, c := range []struct {
		name             string
		inFlight, amount int
		bars             []bar
	}{
		{"throughput_mail", mailInFlight, mailOfRound, []bar{ratioAtLeast(0.7)}},
		{"throughput_mail_1", 1, mailOneByOne, nil},
	} {
		left := 0
		var bare, mail cpu
		base := func() (float64, error) {
			return bare.spend(h, c.amount, func() (float64, error) { return p.bareMail(ctx, c.inFlight, c.amount) })
		}
		ours := func() (float64, error) {
			return mail.spend(h, c.amount, func() (float64, error) {
				rate, undrained, err := p.mail(ctx, c.inFlight, c.amount)
				left = max(left, undrained)
				return rate, err
			})
		}
		for _, warm := range []func() (float64, error){base, ours} {
			if _, err := warm(); err != nil {
				return err
			}
		}
		left, bare, mail = 0, cpu{}, cpu{}
		o, b, err := h.sides(h.rounds, base, ours)
		if err != nil {
			return err
		}
		note := fmt.Sprintf("%d in flight; processor time of a message: ours %s, of it %d µs signing and verifying, base %s",
			c.inFlight, &mail, signature.Microseconds(), &bare)
		if left > 0 {
			note += fmt.Sprintf("; %d of %d messages were not drained after %v", left, c.amount, mailBound)
		}
		line{name: c.name, unit: "msg/s", ours: o, base: b, bars: c.bars, note: note}.print()
	}
	return nil
}

// callers has so many goroutines make n calls together, while take takes what
// they send, some at a time. It returns how many were taken per second, from
// the first call until the last was taken or the round is over.
func callers(ctx context.Context, inFlight, n int, call func(context.Context) error, take func(context.Context) (int, error)) (rate float64, left int, err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	tickets := make(chan struct{}, n)
	for range n {
		tickets <- struct{}{}
	}
	close(tickets)
	var senders sync.WaitGroup
	begin := time.Now()
	for range inFlight {
		senders.Go(func() {
			for range tickets {
				if err := call(ctx); err != nil {
					fail(err)
					return
				}
			}
		})
	}
	bounded, cancel := context.WithTimeout(ctx, mailBound)
	defer cancel()
	taken := 0
	for taken < n {
		got, err := take(bounded)
		taken += got
		if err != nil {
			if !errors.Is(err, context.DeadlineExceeded) {
				fail(err)
			}
			break
		}
	}
	took := time.Since(begin).Seconds()
	senders.Wait()
	return float64(taken) / took, n - taken, context.Cause(ctx)
}

func (p *pair) bareMail(ctx context.Context, inFlight, n int) (float64, error) {
	raw, err := newPeer(p.brokerURI, "bare."+newID(), mailInFlight)
	if err != nil {
		return 0, err
	}
	defer raw.close()
	rate, left, err := callers(ctx, inFlight, n, func(ctx context.Context) error {
		confirm, err := raw.publish(raw.queue, body)
		if err != nil {
			return err
		}
		if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
			return fmt.Errorf("a message was not confirmed: %w", err)
		}
		return nil
	}, func(ctx context.Context) (int, error) {
		_, err := raw.take(ctx)
		if err != nil {
			return 0, err
		}
		return 1, nil
	})
	if err == nil && left > 0 {
		err = fmt.Errorf("the bare path did not take %d messages in time", left)
	}
	return rate, err
}

func (p *pair) mail(ctx context.Context, inFlight, n int) (rate float64, left int, err error) {
	name := fmt.Sprintf("reader%d", time.Now().UnixNano())
	to, _, _, err := p.b.inbox.Register(ctx, inbox.Registration{Name: name, Kind: store.Main})
	if err != nil {
		return 0, 0, err
	}
	if err := errors.Join(p.a.sees(ctx, to.GID), p.b.attached(ctx, to.GID)); err != nil {
		return 0, 0, err
	}
	return callers(ctx, inFlight, n, func(ctx context.Context) error {
		_, err := p.a.outbox.Send(ctx, outbox.Request{From: p.lead, To: to.GID, Content: body})
		return err
	}, func(ctx context.Context) (int, error) { return p.poll(ctx, to.GID) })
}

// poll drains what waits for gid, a whole window at most: how much of it a
// client's result holds is no matter here.
func (p *pair) poll(ctx context.Context, gid string) (int, error) {
	w, err := p.b.inbox.Wait(gid, inbox.Filter{}, inbox.Limit{Max: mainWindow})
	if err != nil {
		return 0, err
	}
	defer w.Close()
	select {
	case batch := <-w.C():
		mails, err := batch.Messages()
		batch.Settle(err == nil)
		return len(mails), err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}
