package fabric

import (
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
)

// The exchanges of design §3.
const (
	exchangeMsg     = "bridge.msg"
	exchangeRoster  = "bridge.roster"
	exchangeControl = "bridge.control"
	exchangeDLX     = "bridge.dlx"
)

// InboxCap is how many ready messages an inbox takes (design §3). It and all
// other queue arguments are part of the .v2 contract: a broker refuses to
// declare a queue again with others, so none of them is configurable.
const InboxCap = 100_000

// The arguments of design §3; times in milliseconds.
const (
	inboxTTL     = 7 * day
	inboxExpires = 14 * day

	signalCap = 10_000
	signalTTL = 60_000

	controlCap = 1_000
	controlTTL = 10 * 60_000

	rosterCap = 10_000

	dlqCap        = 10_000
	dlqTTL        = 14 * day
	reportExpires = 21 * day

	day int64 = 24 * 60 * 60 * 1000
)

const (
	argType     = "x-queue-type"
	argDLX      = "x-dead-letter-exchange"
	argLength   = "x-max-length"
	argOverflow = "x-overflow"
	argTTL      = "x-message-ttl"
	argExpires  = "x-expires"

	dropHead      = "drop-head"
	rejectPublish = "reject-publish"
)

// The prefetch of the queues that are read and acked in batches (design §3).
const lanePrefetch = 1000

// Names makes the names of exchanges and queues. Prefix is empty in
// production; several fleets can share a broker under different ones. Routing
// keys never carry it, so that a signed `to` means the same everywhere.
type Names struct{ Prefix string }

// Msg is the exchange of mail and signals.
func (n Names) Msg() string { return n.Prefix + exchangeMsg }

// Roster is the exchange of presence.
func (n Names) Roster() string { return n.Prefix + exchangeRoster }

// Control is the exchange of spawn, stop and trace.
func (n Names) Control() string { return n.Prefix + exchangeControl }

// DLX is the exchange of dead letters.
func (n Names) DLX() string { return n.Prefix + exchangeDLX }

// Inbox is the queue of an entity.
func (n Names) Inbox(gid string) string { return n.Prefix + "agent." + gid + ".inbox.v2" }

// SignalQueue is the signal queue of one connection of a host.
func (n Names) SignalQueue(host, conn string) string { return n.Prefix + "signal." + host + "." + conn }

// ControlQueue is the queue whose exclusive consumer holds the host id.
func (n Names) ControlQueue(host string) string { return n.Prefix + "control." + host }

// RosterQueue is the roster queue of one connection of a host.
func (n Names) RosterQueue(host, conn string) string { return n.Prefix + "roster." + host + "." + conn }

// DLQ is the queue of dead letters for people and tools.
func (n Names) DLQ() string { return n.Prefix + "bridge.dlq" }

// ReportQueue is the queue of dead letters that a gateway reads.
func (n Names) ReportQueue(host string) string { return n.Prefix + "dlq.report." + host }

// Exchange is where messages of lane are published.
func (n Names) Exchange(lane envelope.Lane) string {
	switch lane {
	case envelope.LaneControl:
		return n.Control()
	case envelope.LanePresence:
		return n.Roster()
	default:
		return n.Msg()
	}
}

// Exchanges lists every exchange a gateway declares.
func (n Names) Exchanges() []string { return []string{n.Msg(), n.Roster(), n.Control(), n.DLX()} }

// A queue is what a declaration says.
type queue struct {
	name      string
	transient bool // exclusive and auto-delete, else durable
	args      amqp.Table
}

func (q queue) declare(ch *amqp.Channel) error {
	_, err := ch.QueueDeclare(q.name, !q.transient, q.transient, q.transient, false, q.args)
	return err
}

func (n Names) inboxQueue(gid string, limit int64) queue {
	return queue{name: n.Inbox(gid), args: amqp.Table{
		argType: "classic", argDLX: n.DLX(), argLength: limit, argOverflow: rejectPublish,
		argTTL: inboxTTL, argExpires: inboxExpires,
	}}
}

func (n Names) signalQueue(host, conn string) queue {
	return queue{name: n.SignalQueue(host, conn), transient: true, args: amqp.Table{
		argLength: int64(signalCap), argTTL: int64(signalTTL),
	}}
}

// controlQueue rejects what is over its cap, so that the requester learns it.
func (n Names) controlQueue(host string) queue {
	return queue{name: n.ControlQueue(host), args: amqp.Table{
		argDLX: n.DLX(), argLength: int64(controlCap), argOverflow: rejectPublish, argTTL: int64(controlTTL),
	}}
}

func (n Names) rosterQueue(host, conn string) queue {
	return queue{name: n.RosterQueue(host, conn), transient: true, args: amqp.Table{argLength: int64(rosterCap)}}
}

// dlq drops its oldest when full: a dead-letter queue that rejects loses the
// newest without a word (broker fact §5).
func (n Names) dlq() queue {
	return queue{name: n.DLQ(), args: amqp.Table{argLength: int64(dlqCap), argOverflow: dropHead, argTTL: dlqTTL}}
}

func (n Names) reportQueue(host string) queue {
	return queue{name: n.ReportQueue(host), args: amqp.Table{
		argLength: int64(dlqCap), argOverflow: dropHead, argTTL: dlqTTL, argExpires: reportExpires,
	}}
}

// opener opens channels; the throw-away ones of this file.
type opener interface{ Channel() (*amqp.Channel, error) }

// aside runs do on a channel of its own: a refusal closes that one and
// nothing else.
func aside(conn opener, do func(*amqp.Channel) error) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	defer ch.Close() // a refused one is closed already
	return do(ch)
}

// declareShared makes sure of the exchanges and the dead-letter queue that all
// gateways share. Each is looked for first: a gateway's login may be allowed
// to use them and not to make them (design §3).
func declareShared(conn opener, n Names) error {
	for name, kind := range map[string]string{
		n.Msg(): amqp.ExchangeTopic, n.Roster(): amqp.ExchangeTopic,
		n.Control(): amqp.ExchangeDirect, n.DLX(): amqp.ExchangeFanout,
	} {
		err := aside(conn, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(name, kind, true, false, false, false, nil)
		})
		if isCode(err, amqp.NotFound) {
			err = aside(conn, func(ch *amqp.Channel) error {
				return ch.ExchangeDeclare(name, kind, true, false, false, false, nil)
			})
		}
		if err != nil {
			return fmt.Errorf("declare exchange %s: %w", name, err)
		}
	}
	return declareDLQ(conn, n)
}

func declareDLQ(conn opener, n Names) error {
	err := aside(conn, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(n.DLQ(), true, false, false, false, nil)
		return err
	})
	exists := err == nil
	if isCode(err, amqp.NotFound) {
		err = aside(conn, n.dlq().declare)
	}
	if err == nil {
		err = aside(conn, func(ch *amqp.Channel) error { return ch.QueueBind(n.DLQ(), "", n.DLX(), false, nil) })
	}
	if exists && isCode(err, amqp.AccessRefused) {
		return nil // whoever made the queue has bound it
	}
	if err != nil {
		return fmt.Errorf("declare queue %s: %w", n.DLQ(), err)
	}
	return nil
}

// isCode matches the code of a refusal; texts differ per broker and version.
func isCode(err error, codes ...int) bool {
	e, ok := errors.AsType[*amqp.Error](err)
	if !ok {
		return false
	}
	for _, c := range codes {
		if e.Code == c {
			return true
		}
	}
	return false
}
