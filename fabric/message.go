package fabric

import (
	"cmp"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/fault"
)

// message is what goes to the broker.
type message struct {
	amqp.Publishing
	exchange, key string
	mandatory     bool
}

// The limits of the wire: longer short strings and larger header tables close
// the whole connection, from inside the client or from the broker (broker
// fact §9).
const (
	maxShort  = 255
	maxHeader = 64 << 10
	perHeader = 6 // length of the name, type and length of the value
)

// message builds the wire form of a signed envelope.
func (f *Fabric) message(lane envelope.Lane, env *envelope.Envelope) (message, error) {
	if env.Headers["sig"] == "" {
		return message{}, fault.New(fault.Internal, "a message without a signature was about to be published; it was not")
	}
	if env.Kind.Known() && !env.Kind.Travels(lane) {
		return message{}, fault.New(fault.Internal, "%s does not travel on the %s lane; it was not published", env.Kind, lane)
	}
	m := message{
		exchange: f.names.Exchange(lane), key: env.RoutingKey(lane),
		mandatory:  env.Kind != envelope.Broadcast && env.Kind != envelope.Presence,
		Publishing: publishing(lane, env, f.deps.Now()),
	}
	m.UserId = f.login()
	return m, m.fits()
}

// publishing mirrors an envelope in the properties of AMQP, for the eyes of
// tools. Nothing is ever decided by them: only headers are signed (design §4).
// Mail is persistent, all else is not.
func publishing(lane envelope.Lane, env *envelope.Envelope, now time.Time) amqp.Publishing {
	p := amqp.Publishing{
		Headers: amqp.Table(env.Table()), Body: env.Body, MessageId: env.MsgID,
		CorrelationId: cmp.Or(env.InReplyTo, env.TurnID, env.SpawnID), Type: string(env.Kind),
		ContentType: "text/plain; charset=utf-8", DeliveryMode: amqp.Transient,
		Timestamp:  env.Sent().UTC().Truncate(time.Second), // all that AMQP keeps
		Expiration: expiration(env, now),
	}
	switch lane {
	case envelope.LaneMail:
		p.DeliveryMode = amqp.Persistent
	case envelope.LanePresence, envelope.LaneControl:
		p.ContentType = "application/json"
	}
	return p
}

// expiration is the rest of the envelope's life, in milliseconds. A broker
// closes the channel for a negative number and may drop a message with 0 at
// once, hence at least 1; what is over is the receiver's to judge. More than
// MaxLife is no life.
func expiration(env *envelope.Envelope, now time.Time) string {
	if env.ExpiresAt == 0 {
		return ""
	}
	left := min(max(env.ExpiresAt-now.UnixMilli(), 1), envelope.MaxLife.Milliseconds())
	return strconv.FormatInt(left, 10)
}

func (m message) fits() error {
	for _, s := range []string{m.exchange, m.key, m.MessageId, m.CorrelationId, m.Type, m.ContentType, m.UserId} {
		if len(s) > maxShort {
			return fault.New(fault.BadRequest, "a message field of %d bytes is longer than the %d that AMQP carries; it was not sent", len(s), maxShort)
		}
	}
	total := 0
	for name, value := range m.Headers {
		text, ok := value.(string)
		if !ok || len(name) > maxShort {
			return fault.New(fault.BadRequest, "a message header is not a string or has a name over %d bytes; it was not sent", maxShort)
		}
		total += len(name) + len(text) + perHeader
	}
	if total > maxHeader {
		return fault.New(fault.TooLarge, "the message has %d bytes of headers; at most %d can be sent", total, maxHeader)
	}
	return nil
}
