package fabric

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
)

// Fails when tools see another message than the headers tell of, mail doesn't
// survive a broker's restart, or an expiration would close the channel.
func TestPropertiesMirrorTheEnvelope(t *testing.T) {
	const sent = 1_790_000_000_000
	e := &envelope.Envelope{
		Kind: envelope.Send, MsgID: "msg-1", InReplyTo: "msg-0", TurnID: "turn-7",
		TS: sent + 1999, ExpiresAt: sent + 900_000, Body: []byte("x"),
	}
	want := amqp.Publishing{
		MessageId: "msg-1", CorrelationId: "msg-0", Type: "SEND", ContentType: "text/plain; charset=utf-8",
		Timestamp: time.UnixMilli(sent + 1000).UTC(), Expiration: "899999", DeliveryMode: 2, Headers: amqp.Table(e.Table()), Body: e.Body,
	}
	if diff := cmp.Diff(want, publishing(envelope.LaneMail, e, time.UnixMilli(sent+1))); diff != "" {
		t.Errorf("mail (-want +got):\n%s", diff)
	}
	for lane, want := range map[envelope.Lane]string{envelope.LaneSignal: "text/plain; charset=utf-8", envelope.LaneControl: "application/json", envelope.LanePresence: "application/json"} {
		if p := publishing(lane, e, time.UnixMilli(sent)); p.ContentType != want || p.DeliveryMode != 1 {
			t.Errorf("%s: %+v", lane, p)
		}
	}
	for now, want := range map[int64]string{sent + 900_000: "1", sent + 2_000_000: "1", 0: "604800000"} {
		if got := publishing(envelope.LaneMail, e, time.UnixMilli(now)).Expiration; got != want {
			t.Errorf("at %d: expiration %q, want %q", now, got, want)
		}
	}
	e.InReplyTo, e.ExpiresAt = "", 0
	if p := publishing(envelope.LaneSignal, e, time.UnixMilli(sent)); p.CorrelationId != "turn-7" || p.Expiration != "" {
		t.Errorf("without inReplyTo and expiresAt: %+v", p)
	}
}
