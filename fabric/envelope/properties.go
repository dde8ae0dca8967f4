package envelope

import (
	"strconv"
	"time"
)

// The AMQP delivery modes.
const (
	transient  uint8 = 1
	persistent uint8 = 2
)

// Properties are the AMQP properties that mirror an envelope for the eyes of
// tools. Nothing is ever decided by them: only headers are signed (design §4).
type Properties struct {
	MessageID     string
	CorrelationID string
	Type          string
	ContentType   string
	Timestamp     time.Time // whole seconds, all that AMQP keeps
	Expiration    string    // milliseconds from now; "" for none
	DeliveryMode  uint8
}

// Properties returns what a publisher sets for the envelope on lane at now,
// besides user_id, which is the login's. Mail is persistent, all else is not.
func (e *Envelope) Properties(lane Lane, now time.Time) Properties {
	p := Properties{
		MessageID:     e.MsgID,
		CorrelationID: firstOf(e.InReplyTo, e.TurnID, e.SpawnID),
		Type:          string(e.Kind),
		ContentType:   "text/plain; charset=utf-8",
		Timestamp:     time.UnixMilli(e.TS).UTC().Truncate(time.Second),
		Expiration:    e.expiration(now),
		DeliveryMode:  transient,
	}
	switch lane {
	case LaneMail:
		p.DeliveryMode = persistent
	case LanePresence, LaneControl:
		p.ContentType = "application/json"
	}
	return p
}

// expiration is the rest of the envelope's life. A broker closes the channel
// for a negative number and may drop a message with 0 at once, hence at least
// 1; what is over is the receiver's to judge. More than MaxLife is no life.
func (e *Envelope) expiration(now time.Time) string {
	if e.ExpiresAt == 0 {
		return ""
	}
	left := min(max(e.ExpiresAt-now.UnixMilli(), 1), MaxLife.Milliseconds())
	return strconv.FormatInt(left, 10)
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
