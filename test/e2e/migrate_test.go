package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/mcp"
	"fleetd/migrations"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// oldWorld is a running daemon with a main and a worker, and a queue of the old
// daemon whose pane is no more.
type oldWorld struct {
	t    *testing.T
	ctx  context.Context
	host *fleet.Host
	main *fleet.Main
	old  *oldDaemon
	pane string

	prefix string
}

func newOldWorld(t *testing.T, ctx context.Context, uri string, env ...string) *oldWorld {
	t.Helper()
	f := newFleet(t, uri)
	a, err := f.AddHost(ctx, "hosta", append(env, "BRIDGED_MCP_DEFAULT_MAIN=main")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of hosta:\n%s", tail(a.Log(), 12000))
		}
	})
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := a.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	w := &oldWorld{t: t, ctx: ctx, host: a, main: addMain(t, ctx, a, "main"), pane: "w" + strings.TrimSuffix(f.Prefix, ".") + ":p7", prefix: f.Prefix}
	if _, err := a.Register(ctx, mcp.RegisterArgs{Name: "builder", Kind: "worker"}); err != nil {
		t.Fatal(err)
	}
	w.old = startOld(t, uri, w.pane)
	return w
}

// replied has the old daemon's worker say something, and waits until it lies in
// its queue.
func (w *oldWorld) replied(text string) {
	w.t.Helper()
	w.old.replied(w.pane, amqp.Publishing{Body: []byte(text)})
	w.waiting(1)
}

// waiting waits until n messages lie in the old queue.
func (w *oldWorld) waiting(n int) {
	w.t.Helper()
	eventually(w.t, w.ctx, func() error {
		q, err := w.old.ch.QueueDeclarePassive(migrations.QueueOf(w.pane), true, false, false, false, nil)
		if err == nil && q.Messages != n {
			err = errors.New("the old queue has another number of messages")
		}
		return err
	})
}

// migrate moves what lies in the old queue.
func (w *oldWorld) migrate(env ...string) (c migrations.Count, errs string, err error) {
	w.t.Helper()
	cmd := w.host.Command(w.ctx, "migrate", "--map", w.pane+"=builder", "--queue", migrations.QueueOf(w.pane), "--apply", "--json")
	var out, said strings.Builder
	cmd.Env, cmd.Stdout, cmd.Stderr = append(cmd.Env, env...), &out, &said
	if err = cmd.Run(); err != nil {
		return c, said.String(), err
	}
	var moved struct{ Queues []migrations.Count }
	if err := json.Unmarshal([]byte(out.String()), &moved); err != nil || len(moved.Queues) != 1 {
		w.t.Fatalf("it prints %s, %v", out.String(), err)
	}
	return moved.Queues[0], said.String(), nil
}

// The command is run with another environment than the daemon, as from a shell
// that lacks the service's. Fails when mail is moved that the daemon refuses,
// because of its signature or its length.
func TestMigrateGoesByTheRunningDaemon(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	defer cancel()
	w := newOldWorld(t, ctx, rabbit.URI(t), "BRIDGED_LIMITS_CONTENT_BYTES=1000")

	text := strings.Repeat("0123456789", 500)
	w.replied(text)
	c, errs, err := w.migrate("BRIDGED_LIMITS_CONTENT_BYTES=262144")
	if err != nil || c.Moved != 1 || c.Parts == 0 {
		t.Fatalf("with another limit: %+v, %v, %s", c, err, errs)
	}
	var joined strings.Builder
	for _, part := range texts(t, ctx, w.main, map[string]any{}, "builder@hosta", c.Moved+c.Parts) {
		_, rest, _ := strings.Cut(part, "\n")
		joined.WriteString(rest)
	}
	if joined.String() != text {
		t.Errorf("the main gets %d bytes, want %d", joined.Len(), len(text))
	}

	w.replied("signed otherwise")
	elsewhere := filepath.Join(t.TempDir(), "other")
	socket := ""
	for _, pair := range w.host.Environ() {
		if dir, ok := strings.CutPrefix(pair, "BRIDGED_DATA_DIR="); ok {
			socket = "BRIDGED_SOCKET=" + filepath.Join(dir, "bridged.sock")
		}
	}
	_, errs, err = w.migrate("BRIDGED_DATA_DIR="+elsewhere, socket)
	if err == nil || !strings.Contains(errs, "is not the data_dir of the daemon that runs; nothing was changed") {
		t.Errorf("with another data_dir: %v, %s", err, errs)
	}
	if _, err := os.Stat(elsewhere); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it made something in the other data_dir: %v", err)
	}
	w.waiting(1)
	if c, errs, err = w.migrate(); err != nil || c.Moved != 1 {
		t.Fatalf("with the daemon's own: %+v, %v, %s", c, err, errs)
	}
	if got := texts(t, ctx, w.main, map[string]any{}, "builder@hosta", 1); len(got) != 1 || got[0] != "signed otherwise" {
		t.Errorf("the main gets %q", got)
	}
}
