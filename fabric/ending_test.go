package fabric

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/test/rabbit"
)

// An inbox ends in the order of design §9. Fails if an unbound one still takes
// mail, also after it lost its channel, if one that holds mail is deleted, or if
// one that was removed comes back.
func TestInboxEndsInOrder(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta")
	gid := fl.entity("hosta")
	box := a.attach(gid, func(i *Inbox) { i.Worker, i.Groups = true, []string{"reviewers"} })
	send := func(body string, want Outcome) {
		t.Helper()
		a.publish(envelope.LaneMail, fl.letter(envelope.Send, "hosta", gid, gid, body), want)
	}
	send("last", Confirmed)
	d := got(t, "mail", box.mail)
	if err := a.Unbind(t.Context(), gid); err != nil {
		t.Fatal(err)
	}
	send("too late", Returned)
	if gone, err := a.Remove(t.Context(), gid); gone || err != nil {
		t.Fatalf("removed %v with mail held, %v", gone, err)
	}
	if err := d.Requeue(); err != nil {
		t.Fatal(err)
	}
	held := got(t, "handed back", box.mail)
	for _, in := range a.inboxes { // as the broker does to a delivery that waits for too long
		in.mu.Lock()
		in.cancel()
		done := in.done
		in.mu.Unlock()
		<-done
		in.start(a.sess)
	}
	again := got(t, "attached anew", box.mail)
	if held.Ack() == nil {
		t.Fatal("the old channel is there")
	}
	send("too late as well", Returned)
	if err := again.Ack(); err != nil {
		t.Fatal(err)
	}
	if gone, err := a.Remove(t.Context(), gid); !gone || err != nil {
		t.Fatalf("removed %v, %v", gone, err)
	}
	if s := a.InboxState(gid).Status; s != InboxDetached {
		t.Errorf("the inbox is %s", s)
	}
	if ok, err := a.Renew(t.Context(), gid); ok || err != nil {
		t.Errorf("still there: %v %v", ok, err)
	}
	if gone, err := a.Remove(t.Context(), gid); !gone || err != nil {
		t.Errorf("a second time: %v, %v", gone, err)
	}
}

// Mail that lies behind a full window when the inbox is to go is handed out
// first. Fails if if-empty is believed while messages are on their way to us.
func TestInboxWithABacklogIsNotRemoved(t *testing.T) {
	fl := newFleet(t, rabbit.URI(t))
	a := fl.up("hosta")
	gid := fl.entity("hosta")
	box := a.attach(gid, func(i *Inbox) { i.Prefetch = 2 })
	const mails = 50
	for range mails {
		a.publish(envelope.LaneMail, fl.letter(envelope.Reply, "hosta", gid, gid, "x"), Confirmed)
	}
	if err := a.Unbind(t.Context(), gid); err != nil {
		t.Fatal(err)
	}
	for range mails {
		if gone, err := a.Remove(t.Context(), gid); gone || err != nil {
			t.Fatalf("removed %v, %v", gone, err)
		}
		if err := got(t, "mail", box.mail).Ack(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "removed", func() bool { gone, err := a.Remove(t.Context(), gid); return gone && err == nil })
	_, ch := stranger(t, fl.uri)
	if _, err := ch.QueueDeclarePassive(a.names.Inbox(gid), true, false, false, false, nil); !isCode(err, amqp.NotFound) {
		t.Errorf("the queue is there: %v", err)
	}
}
