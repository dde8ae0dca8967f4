package fabric

import (
	"fmt"
	"slices"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
)

// grave is the dead-letter queue as a person's own tool sees it.
type grave struct {
	t  testing.TB
	fl *fleet
	ch *amqp.Channel
}

func newGrave(t testing.TB, fl *fleet) *grave {
	_, ch := stranger(t, fl.uri)
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	return &grave{t: t, fl: fl, ch: ch}
}

// bury puts e into the queue as if it had died so, and returns its id.
func (g *grave) bury(e *envelope.Envelope, deaths ...Death) string {
	g.t.Helper()
	g.put(amqp.Table(e.Table()), e.Body, e.To, deaths...)
	return e.MsgID
}

func (g *grave) put(headers amqp.Table, body []byte, key string, deaths ...Death) {
	g.t.Helper()
	var list []any
	for _, d := range deaths {
		list = append(list, amqp.Table{"queue": d.Queue, "reason": d.Reason, "count": int64(1), "time": d.At})
	}
	if list != nil {
		headers["x-death"] = list
	}
	// By way of the exchange every host gets its copy, as of a real one; the
	// queue's own name is out of the question, since the key has to stay.
	c, err := g.ch.PublishWithDeferredConfirm(g.fl.names().DLX(), key, true, false, amqp.Publishing{Headers: headers, Body: body})
	if err != nil {
		g.t.Fatal(err)
	}
	if ok, err := c.WaitContext(g.t.Context()); !ok || err != nil {
		g.t.Fatal("not buried:", ok, err)
	}
}

// buryMany fills the queue with n letters to to.
func (g *grave) buryMany(n int, from, to string, deaths ...Death) (ids []string) {
	for i := range n {
		ids = append(ids, g.bury(g.fl.letter(envelope.Send, "hosta", from, to, fmt.Sprint(i)), deaths...))
	}
	return ids
}

// ids takes everything out of the queue and names it in order.
func (g *grave) ids() (ids []string) {
	g.t.Helper()
	for {
		d, ok, err := g.ch.Get(g.fl.names().DLQ(), true)
		if err != nil {
			g.t.Fatal(err)
		}
		if !ok {
			return ids
		}
		id, _ := d.Headers["msgId"].(string)
		ids = append(ids, id)
	}
}

func (g *grave) ready() int {
	g.t.Helper()
	q, err := g.ch.QueueDeclarePassive(g.fl.names().DLQ(), true, false, false, false, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	return q.Messages
}

// stays fails unless the queue holds exactly want, in that order, at once.
func (g *grave) stays(what string, want []string) {
	g.t.Helper()
	if got := g.ids(); !slices.Equal(got, want) {
		g.t.Errorf("%s: the queue holds %d letters, want %d in their order:\n%v\nwant\n%v", what, len(got), len(want), got, want)
	}
}
