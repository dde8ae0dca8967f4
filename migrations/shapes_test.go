package migrations_test

import (
	"strings"
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

// Fails when a message of some shape stops the run, is lost, comes twice, gets
// another id than its own, or is not counted.
func TestMessagesOfEveryShapeArrive(t *testing.T) {
	w := newWorld(t, rabbit.URI(t), roomy)
	id, twice, brief := uuid.NewString(), uuid.NewString(), uuid.NewString()
	long := strings.Repeat("äöü", limit)
	w.old(
		amqp.Publishing{Body: []byte("plain")},
		amqp.Publishing{Body: []byte("plain")}, // said twice is two messages
		amqp.Publishing{MessageId: strings.ToUpper(id), CorrelationId: brief, Body: []byte("with an id")},
		amqp.Publishing{MessageId: "reply-17", CorrelationId: "x", Body: []byte("with an id of another sort")},
		amqp.Publishing{
			Headers:     amqp.Table{"from": "someone", "x-odd": amqp.Table{"a": int32(1)}, "n": []any{"b", nil}, "msgId": "rubbish"},
			ContentType: "application/octet-stream", ReplyTo: "nobody", Expiration: "86400000", Priority: 9, Type: "ASK", Body: []byte("with headers"),
		},
		amqp.Publishing{},
		amqp.Publishing{Body: []byte(long)},
		amqp.Publishing{Body: []byte("caf\xe9 \x00\xff\xfe")},
		amqp.Publishing{MessageId: twice, Body: []byte("one id")},
		amqp.Publishing{MessageId: twice, Body: []byte("one id")},
		amqp.Publishing{MessageId: twice, Body: []byte("and another content")},
		amqp.Publishing{Body: []byte("the last")},
	)
	w.must(migrations.Count{Found: 12, Moved: 11, Copies: 1, Parts: 6, Escaped: 1})
	got := w.mail()
	var texts []string
	joined := ""
	for _, e := range got {
		text := string(e.Body)
		if head, part, ok := strings.Cut(text, "\n"); ok && strings.HasPrefix(head, "[part ") {
			joined += part
			if !strings.HasPrefix(text, "[part 7 of 7") {
				continue
			}
			text = "long"
		}
		texts = append(texts, text)
	}
	want := []string{"plain", "plain", "with an id", "with an id of another sort", "with headers", "", "long", `caf\xe9 ` + "\x00" + `\xff\xfe`, "one id", "and another content", "the last"}
	if strings.Join(texts, "|") != strings.Join(want, "|") || joined != long {
		t.Errorf("the main gets %q, want %q; the long one is whole: %t", texts, want, joined == long)
	}
	if got[2].MsgID != id || got[2].InReplyTo != brief || got[3].InReplyTo != "" {
		t.Errorf("the message with an id has %s, in reply to %s", got[2].MsgID, got[2].InReplyTo)
	}
	w.must(migrations.Count{})
}
