package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"

	"fleetd/cmd/bridged/config"
	"fleetd/fabric"
	"fleetd/fabric/envelope"
	"fleetd/inbox"
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

// With mcp.default_main an MCP client without a token is that main. Fails when it
// is taken for a worker of that name, whose mail it would fetch, or when a main
// or an orchestrator is not found.
func TestTheDefaultMainIsNoWorker(t *testing.T) {
	st, err := openStore(t.Context(), config.Config{DataDir: filepath.Join(t.TempDir(), "data")}, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- st.Run(context.Background()) }()
	t.Cleanup(func() {
		if err := errors.Join(st.Close(), <-ran); err != nil {
			t.Error(err)
		}
	})
	g := &gateway{inbox: inbox.New(inbox.Config{Host: "hosta", Store: st, NewID: newID, Secret: newID})}
	for kind, want := range map[store.EntityKind]bool{store.Main: true, store.Orchestrator: true, store.Worker: false} {
		name := "a-" + string(kind)
		if _, _, _, err := g.inbox.Register(t.Context(), inbox.Registration{Name: name, Kind: kind}); err != nil {
			t.Fatal(err)
		}
		g.cfg.MCP.DefaultMain = name
		if c, ok := (identities{g}).DefaultMain(); ok != want || ok && c.Name != name {
			t.Errorf("default_main: %s: taken for %q, %v", name, c.Name, ok)
		}
	}
}
