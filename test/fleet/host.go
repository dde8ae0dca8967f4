package fleet

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"fleetd/cmd/bridged/audit"
	"fleetd/fabric/keys"
	"fleetd/mcp"
	"fleetd/mcp/api"
	"fleetd/test/freeport"
	"fleetd/test/herdrsim"
)

// Host is one gateway with its herdr.
type Host struct {
	Name  string
	Addr  string // of MCP, REST and health
	Herdr *herdrsim.Server

	fleet  *Fleet
	binary string // bridged
	dir    string
	env    []string // of the daemon, over the fleet's

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
	log    bytes.Buffer
}

// AddHost makes a host; Start runs its daemon. env are further BRIDGED_…
// variables of the daemon.
func (f *Fleet) AddHost(ctx context.Context, name string, env ...string) (*Host, error) {
	addr, err := freeport.Addr()
	if err != nil {
		return nil, err
	}
	h := &Host{Name: name, Addr: addr, fleet: f, binary: f.bridged, dir: filepath.Join(f.Dir, name), env: env}
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		return nil, err
	}
	h.Herdr, err = herdrsim.Start(ctx, herdrsim.Options{
		SocketPath: filepath.Join(h.dir, "herdr.sock"), Version: herdrsim.V082, Shell: []string{"/bin/sh"},
	})
	if err != nil {
		return nil, err
	}
	f.hosts = append(f.hosts, h)
	return h, nil
}

func (h *Host) data() string   { return filepath.Join(h.dir, "data") }
func (h *Host) trust() string  { return filepath.Join(h.dir, "trust") }
func (h *Host) socket() string { return filepath.Join(h.data(), "bridged.sock") }

// Environ is the environment of the daemon and of commands that ask it.
func (h *Host) Environ() []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + h.dir, "BRIDGED_HOST=" + h.Name, "BRIDGED_LISTEN=" + h.Addr,
		"BRIDGED_DATA_DIR=" + h.data(), "BRIDGED_TRUST_DIR=" + h.trust(), "BRIDGED_HERDR_SOCKET=" + h.Herdr.SocketPath(),
		"BRIDGED_LOG_LEVEL=debug",
	}
	if h.fleet.Broker != "" {
		env = append(env, "BRIDGED_BROKER_URI="+h.fleet.Broker, "BRIDGED_BROKER_PREFIX="+h.fleet.Prefix)
	}
	return append(env, h.env...)
}

// Peer is the host of that name in this one's fleet; nil where there is none.
func (h *Host) Peer(name string) *Host {
	for _, other := range h.fleet.hosts {
		if other.Name == name {
			return other
		}
	}
	return nil
}

// Command is bridged on the command line of this host's user.
func (h *Host) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, h.binary, args...)
	cmd.Env, cmd.Dir = h.Environ(), h.dir
	return cmd
}

// Start runs the daemon and returns when its local API answers.
func (h *Host) Start(ctx context.Context) error {
	h.mu.Lock()
	if h.cmd != nil {
		h.mu.Unlock()
		return errors.New(h.Name + " runs already")
	}
	cmd := exec.Command(h.binary, "serve")
	cmd.Env, cmd.Dir = h.Environ(), h.dir
	cmd.Stderr, cmd.Stdout = &lockedWriter{h: h}, &lockedWriter{h: h}
	cmd.SysProcAttr = dieWithParent()
	started, exited := make(chan error, 1), make(chan struct{})
	go h.own(cmd, started, exited)
	if err := <-started; err != nil {
		h.mu.Unlock()
		return err
	}
	h.cmd, h.exited = cmd, exited
	h.mu.Unlock()
	return h.until(ctx, exited, func() bool {
		res, err := http.Get("http://" + h.Addr + "/healthz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// own starts the daemon from a thread that lives as long as it does, and waits
// for it: the kernel sends the parent-death signal when the thread ends that
// forked it, and threads of others may.
func (h *Host) own(cmd *exec.Cmd, started chan<- error, exited chan<- struct{}) {
	runtime.LockOSThread()
	err := cmd.Start()
	started <- err
	if err != nil {
		return
	}
	_ = cmd.Wait() // what it means is for whoever stopped it
	h.mu.Lock()
	h.cmd = nil
	h.mu.Unlock()
	close(exited)
}

// Ready returns when the daemon says that it is.
func (h *Host) Ready(ctx context.Context) error {
	h.mu.Lock()
	exited := h.exited
	h.mu.Unlock()
	if exited == nil {
		return errors.New(h.Name + " was not started")
	}
	return h.until(ctx, exited, func() bool {
		res, err := http.Get("http://" + h.Addr + "/readyz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

func (h *Host) until(ctx context.Context, exited <-chan struct{}, fn func() bool) error {
	for !fn() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w\n%s", h.Name, ctx.Err(), h.Log())
		case <-exited:
			return fmt.Errorf("%s ended\n%s", h.Name, h.Log())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// Stop ends the daemon in good order.
func (h *Host) Stop() error { return h.signal(syscall.SIGTERM) }

// Kill ends the daemon as a crash does.
func (h *Host) Kill() error { return h.signal(syscall.SIGKILL) }

func (h *Host) signal(sig syscall.Signal) error {
	h.mu.Lock()
	cmd, exited := h.cmd, h.exited
	h.mu.Unlock()
	if cmd == nil {
		return nil
	}
	if err := cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-exited:
		return nil
	case <-time.After(30 * time.Second):
		return fmt.Errorf("%s did not end on %s\n%s", h.Name, sig, h.Log())
	}
}

// Close ends the daemon and the herdr of this host with all its panes. A data
// race or a panic of any run of the daemon is an error.
func (h *Host) Close() error {
	err := errors.Join(h.Stop(), h.Herdr.Close())
	for _, sign := range []string{"DATA RACE", "panic:", "goroutine 1 ["} {
		if at := strings.Index(h.Log(), sign); at >= 0 {
			text := h.Log()[at:]
			return errors.Join(err, fmt.Errorf("%s: %s", h.Name, text[:min(len(text), 4000)]))
		}
	}
	return err
}

// Log is what the daemon logged so far, over all its runs.
func (h *Host) Log() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.log.String()
}

type lockedWriter struct{ h *Host }

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.h.mu.Lock()
	defer w.h.mu.Unlock()
	return w.h.log.Write(p)
}

// Audit returns the host's audit log.
func (h *Host) Audit() (string, error) {
	text, err := os.ReadFile(audit.Path(h.data()))
	return string(text), err
}

// Trust has h trust the key of other, as `bridged keys trust` does.
func (h *Host) Trust(other *Host) error {
	key, err := other.Key()
	if err != nil {
		return err
	}
	file := filepath.Join(h.dir, other.Name+".pub")
	line := keys.PublicLine(other.Name, key.Public().(ed25519.PublicKey))
	if err := os.WriteFile(file, []byte(line), 0o600); err != nil {
		return err
	}
	_, _, err = keys.Add(h.trust(), h.Name, file, false, time.Now())
	return err
}

// API is the local API of this host, as entity as or as the host's own user.
func (h *Host) API(as string) *api.Client { return &api.Client{Socket: h.socket(), As: as} }

// Register makes or changes an entity.
func (h *Host) Register(ctx context.Context, a mcp.RegisterArgs) (mcp.RegisterResult, error) {
	r, err := h.API("").Register(ctx, a)
	if err == nil && r.Created {
		h.fleet.Remember(r.GID)
	}
	return r, err
}
