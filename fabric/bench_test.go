package fabric

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/test/rabbit"
)

// inFlight is the concurrency at which publishing is measured (design §15).
const benchInFlight = 256

// BenchmarkPublish measures confirmed publishing of 1 KiB messages: bare, with
// the library alone, and ours. The ratio is what counts.
func BenchmarkPublish(b *testing.B) {
	uri := rabbit.URI(b)
	fl := newFleet(b, uri)
	a := fl.up("hosta")
	from, to := fl.entity("hosta"), fl.entity("hosta")
	a.attach(to)
	a.Detach(to)
	e := fl.letter(envelope.Send, "hosta", from, to, string(make([]byte, 1024)))
	_, ch := stranger(b, uri)
	purge := func() {
		if _, err := ch.QueuePurge(fl.names().Inbox(to), false); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("bare", func(b *testing.B) {
		_, ch := stranger(b, uri)
		if err := ch.Confirm(false); err != nil {
			b.Fatal(err)
		}
		msg := amqp.Publishing{Headers: amqp.Table(e.Table()), Body: e.Body, DeliveryMode: amqp.Persistent, MessageId: e.MsgID}
		concurrently(b, func() bool {
			dc, err := ch.PublishWithDeferredConfirm(fl.names().Msg(), to, false, false, msg)
			return err == nil && dc.Wait()
		})
	})
	purge()
	b.Run("fabric", func(b *testing.B) {
		concurrently(b, func() bool {
			out, err := a.Publish(context.Background(), envelope.LaneMail, e, nil)
			return out == Confirmed && err == nil
		})
	})
	purge()
}

func concurrently(b *testing.B, publish func() bool) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	for range benchInFlight {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if !publish() {
					b.Error("a publish was not confirmed")
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}
