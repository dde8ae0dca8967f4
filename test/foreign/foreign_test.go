//go:build foreign

// Package foreign has an MCP client that is not ours use a whole gateway: the
// official TypeScript SDK (client.mjs). `make foreign` fetches it and runs this;
// it is no part of `make test`, which needs no Node.
package foreign

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"fleetd/mcp"
	"fleetd/test/fleet"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := fleet.RemoveBinaries(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// Fails when a client that others wrote cannot do with the tools what they say,
// over either transport: list them with valid schemas, call each well and badly,
// hold a conversation, wait with progress, cancel.
func TestTheOfficialSDKIsServed(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "fgn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	f, err := fleet.New(ctx, dir, "", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	h, err := f.AddHost(ctx, "hosta", fmt.Sprintf("BRIDGED_PROFILES={aide: {argv: [%s, --reply-with, done]}}", f.Agent()))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(ctx); err != nil {
		t.Fatal(err)
	}
	lead, err := h.Register(ctx, mcp.RegisterArgs{Name: "lead", Kind: "main"})
	if err != nil {
		t.Fatal(err)
	}
	peer, err := h.Register(ctx, mcp.RegisterArgs{Name: "peer", Kind: "main", Groups: []string{"foreigners"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, transport := range []string{"http", "stdio"} {
		t.Run(transport, func(t *testing.T) {
			cmd := exec.CommandContext(ctx, "node", "client.mjs", transport)
			cmd.Env = append(h.Environ(), "BRIDGED="+f.Binary(), "BRIDGED_URL="+lead.URL, "LEAD_TOKEN="+lead.Token, "PEER_TOKEN="+peer.Token)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			err := cmd.Run()
			t.Log(out.String())
			if err != nil {
				t.Errorf("the client: %v\nlog of the gateway:\n%s", err, h.Log())
			}
		})
	}
}
