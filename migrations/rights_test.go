package migrations_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"fleetd/fabric"
	"fleetd/fault"
	"fleetd/migrations"
	"fleetd/test/rabbit"
)

// Fails when a wrong password or a right that is missing reads as anything
// else, shows the password, or keeps other queues from being moved.
func TestLoginsAndRights(t *testing.T) {
	node := rabbit.Private(t, rabbit.Plugins("rabbitmq_management"))
	w := newWorld(t, node.URI, roomy)
	sent := numbered(2)
	w.old(sent...)
	ctx := t.Context()
	ctl := func(args ...string) {
		t.Helper()
		if _, err := node.Ctl(ctx, args...); err != nil {
			t.Fatal(err)
		}
	}
	ctl("add_user", "gwa", "sesame")
	ctl("set_permissions", "gwa", ".*", ".*", "^nothing$")
	as := func(password string) string { return strings.Replace(node.URI, "guest:guest", "gwa:"+password, 1) }

	_, err := fabric.DialOldQueues(ctx, fabric.Config{Host: "hosta", URI: as("open-sesame"), Prefix: w.prefix}, w.key)
	if !fault.Is(err, fault.BrokerRefused) || strings.Contains(err.Error(), "sesame") {
		t.Errorf("a wrong password reads %v", err)
	}
	_, err = fabric.DialOldQueues(ctx, fabric.Config{Host: "hosta", URI: as("sesame") + "elsewhere", Prefix: w.prefix}, w.key)
	if !fault.Is(err, fault.BrokerRefused) {
		t.Errorf("a wrong vhost reads %v", err)
	}
	if c, err := w.runAt(as("sesame"), nil); !fault.Is(err, fault.NotAllowed) || !strings.Contains(err.Error(), w.queue()) || c.Left != 2 {
		t.Errorf("without the right to read it came to %+v, %v", c, err)
	}
	two := w.theirs("two") // beside it a queue for which there is no right
	sent2 := numbered(1)
	if err := w.ch.PublishWithContext(ctx, "", two, false, false, sent2[0]); err != nil {
		t.Fatal(err)
	}
	w.ready(two, 1)
	ctl("set_permissions", "gwa", ".*", ".*", strings.ReplaceAll("^"+two+"$", ".", `\.`))
	row := w.row()
	row.Queue = two
	b := w.dial(as("sesame"))
	j, err := migrations.OpenJournal(w.journal)
	if err != nil {
		t.Fatal(err)
	}
	m := migrations.Mover{Broker: b, Journal: j, Limit: limit, Now: time.Now, Patience: patience, Return: time.Second}
	counts, err := m.Move(ctx, []migrations.Row{w.row(), row})
	if !fault.Is(err, fault.NotAllowed) || len(counts) != 2 || counts[0].Left != 2 || counts[0].Problem == "" || counts[1].Moved != 1 {
		t.Errorf("with the right to read one of two it came to %+v, %v", counts, err)
	}
	b.Close()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	w.inOrder(sent2)
	ctl("set_permissions", "gwa", ".*", "^$", ".*")
	if c, err := w.runAt(as("sesame"), nil); !fault.Is(err, fault.BrokerRefused) || c.Left != 2 {
		t.Errorf("without the right to publish it came to %+v, %v", c, err)
	}
	w.ready(w.queue(), 2)
	ctl("set_permissions", "gwa", ".*", ".*", ".*")

	user := func(password string) ([]string, error) {
		return migrations.Management{Base: node.Management, VHost: "/", User: "gwa", Password: password}.Queues(ctx)
	}
	if _, err := user("wrong"); !fault.Is(err, fault.BrokerRefused) {
		t.Errorf("a wrong password for the management API reads %v", err)
	}
	if _, err := user("sesame"); !fault.Is(err, fault.BrokerRefused) || !strings.Contains(err.Error(), "tag management") {
		t.Errorf("a login without the tag reads %v", err)
	}
	ctl("set_user_tags", "gwa", "management")
	found, err := user("sesame")
	if err != nil || len(found) != 2 || !slices.Contains(found, w.queue()) { // and not the inbox of the main
		t.Errorf("the management API finds %q, %v", found, err)
	}
	if c, err := w.runAt(as("sesame"), nil); err != nil || c.Moved != 2 {
		t.Errorf("with all rights it came to %+v, %v", c, err)
	}
	w.inOrder(sent)
}
