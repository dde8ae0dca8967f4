package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"fleetd/cmd/bridged/config"
	"fleetd/mcp"
)

// world is a user at a shell, with a home of their own and a daemon that
// answers what the test tells it to.
type world struct {
	t    *testing.T
	home string
	deps deps
	in   string
	gw   *fakeDaemon
	to   target // whom the last command asked
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, home: t.TempDir(), gw: &fakeDaemon{}}
	w.deps = deps{
		Hostname: "hosta", Binary: "bridged", Version: "1.2.3", Rand: zeros{},
		Environ: []string{"HOME=" + w.home},
		Dial:    func(to target) client { w.to = to; return w.gw },
		Serve: func(context.Context, config.Config, hclog.Logger) error {
			return errors.New("this test does not serve")
		},
	}
	return w
}

func (w *world) env(pairs ...string) *world {
	w.deps.Environ = append(w.deps.Environ, pairs...)
	return w
}

// result is what a command leaves behind.
type result struct {
	out, err string
	code     int
}

func (w *world) run(args ...string) result {
	w.t.Helper()
	var out, errs bytes.Buffer
	d := w.deps
	d.In, d.Out, d.Err = strings.NewReader(w.in), &out, &errs
	code := run(context.Background(), d, args)
	clean := func(b *bytes.Buffer) string { return strings.ReplaceAll(b.String(), w.home, "HOME") }
	return result{clean(&out), clean(&errs), code}
}

// want runs args and compares everything.
func (w *world) want(want result, args ...string) {
	w.t.Helper()
	if got := w.run(args...); got != want {
		w.t.Errorf("bridged %q:\n got %d\n%s\n--\n%s\nwant %d\n%s\n--\n%s", args, got.code, got.out, got.err, want.code, want.out, want.err)
	}
}

func (w *world) write(name, content string) string {
	w.t.Helper()
	path := filepath.Join(w.home, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// zeros is a source of keys that are always the same.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

var _ io.Reader = zeros{}

// fakeDaemon is a daemon that notes what it is asked.
type fakeDaemon struct {
	fakeLetters
	asked []any
	err   error
	mail  bool // send and poll bring mail
	// settled is what became of it, call by call.
	settled []bool

	send    mcp.SendResult
	reads   []mcp.ReadResult
	poll    mcp.PollResult
	reply   mcp.ReplyResult
	ask     mcp.AskResult
	spread  mcp.BroadcastResult
	groups  mcp.GroupsResult
	roster  mcp.RosterResult
	trace   mcp.TraceResult
	whoami  mcp.WhoamiResult
	reg     mcp.RegisterResult
	unreg   mcp.UnregisterResult
	spawn   mcp.SpawnResult
	stopped mcp.StopResult
	info    mcp.InfoResult
	health  mcp.Diagnosis
}

func (g *fakeDaemon) note(a any) { g.asked = append(g.asked, a) }

// bring has the result of ctx's call bring mail.
func (g *fakeDaemon) bring(ctx context.Context) {
	if g.mail {
		mcp.OnWritten(ctx, func(written bool) { g.settled = append(g.settled, written) })
	}
}

func (g *fakeDaemon) Send(ctx context.Context, a mcp.SendArgs) (mcp.SendResult, error) {
	g.note(a)
	g.bring(ctx)
	return g.send, g.err
}

func (g *fakeDaemon) Read(_ context.Context, a mcp.ReadArgs) (mcp.ReadResult, error) {
	g.note(a)
	if g.err != nil {
		return mcp.ReadResult{}, g.err
	}
	r := g.reads[0]
	g.reads = g.reads[1:]
	return r, nil
}

func (g *fakeDaemon) Poll(ctx context.Context, a mcp.PollArgs) (mcp.PollResult, error) {
	g.note(a)
	g.bring(ctx)
	return g.poll, g.err
}

func (g *fakeDaemon) Reply(_ context.Context, a mcp.ReplyArgs) (mcp.ReplyResult, error) {
	g.note(a)
	return g.reply, g.err
}

func (g *fakeDaemon) Ask(ctx context.Context, a mcp.AskArgs) (mcp.AskResult, error) {
	g.note(a)
	g.bring(ctx)
	return g.ask, g.err
}

func (g *fakeDaemon) Answer(ctx context.Context, a mcp.AnswerArgs) (mcp.SendResult, error) {
	g.note(a)
	g.bring(ctx)
	return g.send, g.err
}

func (g *fakeDaemon) Broadcast(ctx context.Context, a mcp.BroadcastArgs) (mcp.BroadcastResult, error) {
	g.note(a)
	g.bring(ctx)
	return g.spread, g.err
}

func (g *fakeDaemon) Groups(_ context.Context, a mcp.GroupsArgs) (mcp.GroupsResult, error) {
	g.note(a)
	return g.groups, g.err
}

func (g *fakeDaemon) Info(context.Context) (mcp.InfoResult, error) { return g.info, g.err }

func (g *fakeDaemon) Spawn(_ context.Context, a mcp.SpawnArgs) (mcp.SpawnResult, error) {
	g.note(a)
	return g.spawn, g.err
}

func (g *fakeDaemon) Stop(_ context.Context, a mcp.StopArgs) (mcp.StopResult, error) {
	g.note(a)
	return g.stopped, g.err
}

func (g *fakeDaemon) Roster(_ context.Context, a mcp.RosterArgs) (mcp.RosterResult, error) {
	g.note(a)
	return g.roster, g.err
}

func (g *fakeDaemon) Trace(_ context.Context, a mcp.TraceArgs) (mcp.TraceResult, error) {
	g.note(a)
	return g.trace, g.err
}

func (g *fakeDaemon) Whoami(context.Context) (mcp.WhoamiResult, error) {
	g.note("whoami")
	return g.whoami, g.err
}

func (g *fakeDaemon) Register(_ context.Context, a mcp.RegisterArgs) (mcp.RegisterResult, error) {
	g.note(a)
	return g.reg, g.err
}

func (g *fakeDaemon) Unregister(_ context.Context, a mcp.UnregisterArgs) (mcp.UnregisterResult, error) {
	g.note(a)
	return g.unreg, g.err
}

func (g *fakeDaemon) Diagnose(context.Context) (mcp.Diagnosis, error) {
	g.note("diagnose")
	return g.health, g.err
}
