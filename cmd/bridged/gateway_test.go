package main

import (
	"crypto/ed25519"
	"testing"

	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/store"
)

// Whoever leaves a group after the change before failed half-way has left it.
// Fails when the broker is not asked again because the groups read as they did
// before the change that failed.
func TestGroupsAreSetAgainAfterAFailure(t *testing.T) {
	f, err := fabric.New(fabric.Config{Host: "hosta", URI: "amqp://127.0.0.1:1/"}, fabric.Deps{
		Key: make(ed25519.PrivateKey, ed25519.PrivateKeySize), Trust: struct{ envelope.Trust }{},
		Homes: struct{ fabric.Homes }{}, Noted: struct{ fabric.Noted }{}, Owner: struct{ fabric.Owner }{},
	})
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{fabric: f}
	for _, was := range [][]string{{"a"}, nil} {
		e := store.Entity{GID: newID(), Kind: store.Worker, Groups: was}
		g.attached.Store(e.GID, e.Groups)
		if err := g.attach(e); err != nil {
			t.Errorf("groups that are set already: %v", err)
		}
		for _, groups := range [][]string{{"b"}, was} { // each fails: the fabric has no such inbox
			if e.Groups = groups; g.attach(e) == nil {
				t.Errorf("groups %q, after a change that failed, are not set", groups)
			}
		}
	}
}
