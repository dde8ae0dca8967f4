package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleetd/cmd/bridged/config"
	"fleetd/mcp"
	"fleetd/mcp/api"
)

// Fault: a store is taken to another host id while entities live under its own,
// or the person who changed it is not told what to do.
func TestHostOf(t *testing.T) {
	for name, c := range map[string]struct {
		host     string
		given    bool
		stored   string
		entities int
		want     string // "": refused
		warned   bool
	}{
		"new store":                     {"hosta", false, "", 0, "hosta", false},
		"new store, given":              {"hosta", true, "", 0, "hosta", false},
		"the same":                      {"hosta", false, "hosta", 3, "hosta", false},
		"the same, given":               {"hosta", true, "hosta", 3, "hosta", false},
		"another hostname":              {"hostb", false, "hosta", 3, "hosta", true},
		"another hostname, nobody here": {"hostb", false, "hosta", 0, "hosta", true},
		"another id given":              {"hostb", true, "hosta", 1, "", false},
		"another id given, nobody here": {"hostb", true, "hosta", 0, "hostb", false},
		"before ids were kept":          {"hostb", true, "", 1, "hostb", false},
	} {
		got, warning, err := hostOf(config.Config{Host: c.host, HostGiven: c.given, DataDir: "/data"}, c.stored, c.entities)
		if got != c.want || (warning != "") != c.warned || (err != nil) != (c.want == "") {
			t.Errorf("%s: %q, %q, %v", name, got, warning, err)
		}
		if err != nil && !strings.Contains(err.Error(), "/data belongs to host hosta") {
			t.Errorf("%s: %v", name, err)
		}
		if c.warned && !strings.Contains(warning, "hostname is now hostb; this data_dir belongs to host hosta, which is kept; set host: hosta ") {
			t.Errorf("%s: %s", name, warning)
		}
	}
}

// liveDaemon is this program's serve on a home of its own.
type liveDaemon struct {
	t    *testing.T
	home string
	logs lockedBuffer
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// load is the configuration on a machine of that hostname.
func (d *liveDaemon) load(hostname string, flags map[string]string) config.Config {
	d.t.Helper()
	all := map[string]string{"listen": "127.0.0.1:0", "herdr.socket": filepath.Join(d.home, "no-herdr.sock")}
	for k, v := range flags {
		all[k] = v
	}
	cfg, err := config.Load(config.Source{Environ: []string{"HOME=" + d.home}, Hostname: hostname, Dir: d.home, Flags: all})
	if err != nil {
		d.t.Fatal(err)
	}
	return cfg
}

// during serves while body runs; as speaks for a local entity.
func (d *liveDaemon) during(cfg config.Config, body func(ctx context.Context, as func(string) *api.Client)) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	serving, stop := context.WithCancel(ctx)
	defer stop()
	go func() { ended <- serve(serving, "test", cfg, hclog.New(&hclog.LoggerOptions{Output: &d.logs})) }()
	for {
		if info, err := os.Stat(cfg.Socket); err == nil && info.Mode()&os.ModeSocket != 0 {
			break
		}
		select {
		case err := <-ended:
			d.t.Fatalf("serve ended: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	body(ctx, func(name string) *api.Client { return &api.Client{Socket: cfg.Socket, As: name} })
	stop()
	if err := <-ended; err != nil {
		d.t.Error(err)
	}
}

// Fault: a machine that got another hostname takes its own entities for those
// of a host that is gone, so that nobody on it can reach anybody.
func TestRestartUnderAnotherHostname(t *testing.T) {
	home, err := os.MkdirTemp("", "host") // short: a socket goes below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	d := &liveDaemon{t: t, home: home}
	d.during(d.load("hosta", nil), func(ctx context.Context, as func(string) *api.Client) {
		for _, name := range []string{"boss", "rev"} {
			if _, err := as("").Register(ctx, mcp.RegisterArgs{Name: name, Kind: "main"}); err != nil {
				t.Fatal(err)
			}
		}
	})
	d.during(d.load("hostb", nil), func(ctx context.Context, as func(string) *api.Client) {
		for _, to := range []string{"rev", "rev@hosta"} {
			if _, err := as("boss").Send(ctx, mcp.SendArgs{To: to, Content: "to " + to}); err != nil {
				t.Errorf("to %s: %v", to, err)
				continue
			}
			got, err := as("rev").Poll(ctx, mcp.PollArgs{WaitSeconds: 20})
			if err != nil || len(got.Messages) != 1 || got.Messages[0].Content != "to "+to {
				t.Errorf("%+v, %v", got, err)
			}
		}
	})
	if n := strings.Count(d.logs.String(), "hostname is now hostb"); n != 1 {
		t.Errorf("warned %d times:\n%s", n, d.logs.String())
	}
	bound, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = serve(bound, "test", d.load("hostb", map[string]string{"host": "hostb"}), hclog.New(&hclog.LoggerOptions{Output: io.Discard}))
	if err == nil || !strings.Contains(err.Error(), "belongs to host hosta") {
		t.Errorf("with a configured host: %v", err)
	}
	d.during(d.load("hostb", map[string]string{"host": "hosta"}), func(context.Context, func(string) *api.Client) {})
}
