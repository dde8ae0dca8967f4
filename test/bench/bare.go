package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// peer is one side of the raw path: a connection that publishes with confirms
// and one that consumes.
type peer struct {
	in, out   *amqp.Connection
	pub, con  *amqp.Channel
	queue     string
	delivered <-chan amqp.Delivery
}

// newPeer declares a durable classic queue of its own and consumes it.
func newPeer(uri, queue string, prefetch int) (p *peer, err error) {
	p = &peer{queue: queue}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.in, err = amqp.DialConfig(uri, amqp.Config{Heartbeat: 5 * time.Second}); err != nil {
		return p, err
	}
	if p.out, err = amqp.DialConfig(uri, amqp.Config{Heartbeat: 5 * time.Second}); err != nil {
		return p, err
	}
	if p.pub, err = p.out.Channel(); err != nil {
		return p, err
	}
	if err = p.pub.Confirm(false); err != nil {
		return p, err
	}
	if p.con, err = p.in.Channel(); err != nil {
		return p, err
	}
	if _, err = p.con.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "classic"}); err != nil {
		return p, err
	}
	if err = p.con.Qos(prefetch, 0, false); err != nil {
		return p, err
	}
	p.delivered, err = p.con.Consume(queue, "", false, true, false, false, nil)
	return p, err
}

func (p *peer) close() {
	if p.con != nil {
		_, _ = p.con.QueueDelete(p.queue, false, false, false) // the node goes with the run
	}
	for _, c := range []*amqp.Connection{p.in, p.out} {
		if c != nil {
			_ = c.Close()
		}
	}
}

// publish sends a persistent message and returns its confirm.
func (p *peer) publish(to string, body []byte) (*amqp.DeferredConfirmation, error) {
	return p.pub.PublishWithDeferredConfirm("", to, false, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body})
}

var errBroken = errors.New("the bare connection broke")

// take waits for one message and acks it.
func (p *peer) take(ctx context.Context) (amqp.Delivery, error) {
	select {
	case d, ok := <-p.delivered:
		if !ok {
			return d, errBroken
		}
		return d, d.Ack(false)
	case <-ctx.Done():
		return amqp.Delivery{}, ctx.Err()
	}
}

// pingPong is the raw round trip of two peers, which do something in between.
type pingPong struct {
	a, b   *peer
	cancel context.CancelFunc
	echo   sync.WaitGroup
	err    error // of the echo, after its end
}

// newPingPong has b answer each message once between has returned.
func newPingPong(ctx context.Context, uri, name string, between func(context.Context) error) (*pingPong, error) {
	a, err := newPeer(uri, "bare."+name+".a", 64)
	if err != nil {
		return nil, err
	}
	b, err := newPeer(uri, "bare."+name+".b", 64)
	if err != nil {
		a.close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &pingPong{a: a, b: b, cancel: cancel}
	p.echo.Go(func() {
		for p.err == nil {
			p.err = p.answer(ctx, between)
		}
	})
	return p, nil
}

func (p *pingPong) answer(ctx context.Context, between func(context.Context) error) error {
	d, err := p.b.take(ctx)
	if err != nil {
		return err
	}
	if err := between(ctx); err != nil {
		return err
	}
	confirm, err := p.b.publish(p.a.queue, d.Body[:min(len(d.Body), 200)])
	if err != nil {
		return err
	}
	if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
		return fmt.Errorf("the answer was not confirmed: %w", err)
	}
	return nil
}

// trip is one round trip, both publishes confirmed.
func (p *pingPong) trip(ctx context.Context, body []byte) error {
	confirm, err := p.a.publish(p.b.queue, body)
	if err != nil {
		return err
	}
	if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
		return fmt.Errorf("the message was not confirmed: %w", err)
	}
	_, err = p.a.take(ctx)
	return err
}

// close ends both peers; an error that ended the echo early is returned.
func (p *pingPong) close() error {
	p.cancel()
	p.echo.Wait()
	p.a.close()
	p.b.close()
	if errors.Is(p.err, context.Canceled) {
		return nil
	}
	return p.err
}
