package fabric

import (
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
	p := env.Properties(lane, f.deps.Now())
	m := message{
		exchange: f.names.Exchange(lane), key: env.RoutingKey(lane),
		mandatory: env.Kind != envelope.Broadcast && env.Kind != envelope.Presence,
		Publishing: amqp.Publishing{
			Headers: amqp.Table(env.Table()), Body: env.Body, UserId: f.login(),
			MessageId: p.MessageID, CorrelationId: p.CorrelationID, Type: p.Type, ContentType: p.ContentType,
			Timestamp: p.Timestamp, Expiration: p.Expiration, DeliveryMode: p.DeliveryMode,
		},
	}
	return m, m.fits()
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
