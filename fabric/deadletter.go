package fabric

import (
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/wait"
)

// keepReports reads our dead-letter reports for as long as the session lives.
func (s *session) keepReports() {
	f := s.f
	b := newBackoff(retryMax)
	said := ""
	for s.ctx.Err() == nil {
		began := time.Now()
		err := s.readReports()
		if s.ctx.Err() != nil {
			return
		}
		if time.Since(began) > settledAfter {
			b.Reset()
		}
		if text := err.Error(); text != said {
			said = text
			f.log.Warn("dead letters are not read at present; trying again", "queue", f.names.ReportQueue(f.cfg.Host), "error", err)
		}
		if wait.Pause(s.ctx, b.NextBackOff()) != nil {
			return
		}
	}
}

var errReportsEnded = errors.New("the consumer ended")

// readReports takes the dead letters that we signed ourselves, earlier keys
// included, and acks all others unseen (design §6).
func (s *session) readReports() error {
	f := s.f
	q := f.names.reportQueue(f.cfg.Host)
	ch, err := s.con.Channel()
	if err != nil {
		return err
	}
	defer ch.Close() // it may be closed already
	if err := q.declare(ch); err != nil {
		return err
	}
	if err := ch.QueueBind(q.name, "", f.names.DLX(), false, nil); err != nil {
		return err
	}
	if err := ch.Qos(lanePrefetch, 0, false); err != nil {
		return err
	}
	deliveries, err := consumeAlone(ch, q.name, "report-"+s.word)
	if err != nil {
		return err
	}
	acks := &batch{ch: ch}
	for {
		select {
		case <-s.ctx.Done():
			return s.ctx.Err()
		case <-acks.due():
			acks.flush(true)
		case d, ok := <-deliveries:
			if !ok {
				return errReportsEnded
			}
			if err := s.report(&d); err != nil {
				return err // the channel closes, and what is unacked comes again in order
			}
			acks.add(&hold{ch: ch, tag: d.DeliveryTag})
		}
		if len(acks.tags) >= batchMost {
			acks.flush(true)
		}
	}
}

// report hands one dead letter on if it is ours.
func (s *session) report(d *amqp.Delivery) error {
	f := s.f
	env := s.ours(d)
	if env == nil {
		f.stats.foreigns.Add(1)
		return nil
	}
	queue, reason := deathOf(d.Headers)
	f.stats.died(queue, reason)
	if f.deps.OnDeadLetter == nil {
		return nil
	}
	return f.deps.OnDeadLetter(env, queue, reason)
}

// ours returns the envelope if we signed it. Time and home are not asked:
// what is dead is late by nature.
func (s *session) ours(d *amqp.Delivery) *envelope.Envelope {
	if signer, _ := d.Headers["signer"].(string); signer != s.f.cfg.Host {
		return nil
	}
	env, err := envelope.Decode(d.Headers, d.Body, s.f.cfg.Limits)
	if err != nil || env.Verify(s.f.verifier.trust) != nil {
		return nil
	}
	return env
}

// deathOf reads the newest x-death entry. It is the broker's or a forger's
// word: good for a metric, never for a decision (broker fact §5).
func deathOf(h amqp.Table) (queue, reason string) {
	l := DeadLetter{Deaths: deathsOf(h)}
	return l.Death().Queue, l.Death().Reason
}
