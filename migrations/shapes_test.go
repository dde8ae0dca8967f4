package migrations_test

import (
	"testing"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/migrations"
	"fleetd/test/rabbit"
)

// Fails when a message whose headers the AMQP library cannot read stops the run,
// and with it all that is behind it.
func TestHeadersThatTheLibraryCannotRead(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	deep := amqp.Table{"a": "b"}
	for range 34 {
		deep = amqp.Table{"a": deep}
	}
	list := make([]any, 8200)
	for i := range list {
		list[i] = int8(1)
	}
	id := uuid.NewString()
	w.old(
		amqp.Publishing{Headers: deep, MessageId: id, CorrelationId: id, ContentType: "text/plain", Body: []byte("deep")},
		amqp.Publishing{Headers: amqp.Table{"list": list}, Body: []byte("long")},
		amqp.Publishing{Body: []byte("behind")},
	)
	w.must(migrations.Count{Found: 3, Moved: 3})
	got := w.mail()
	if len(got) != 3 || string(got[0].Body) != "deep" || got[0].MsgID != id || got[0].InReplyTo != id || string(got[1].Body) != "long" || string(got[2].Body) != "behind" {
		t.Errorf("the main gets %d messages: %+v", len(got), got)
	}
}
