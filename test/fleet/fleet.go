// Package fleet runs whole gateways as their users do: the real binary, one
// process a host, with a herdr simulator, scripted agents in panes and real
// MCP clients, all on one machine. End-to-end tests and the demo are written
// with it. What they look at and expect is theirs.
package fleet

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"fleetd/fabric"
	"fleetd/fabric/keys"
	"fleetd/test/rabbit"
)

// Fleet is some hosts on one broker.
type Fleet struct {
	Dir    string // everything is below it
	Broker string // URI; "": no broker
	Prefix string // of every exchange and queue

	bridged, agent string // binaries
	mu             sync.Mutex
	hosts          []*Host
	gids           []string
}

// Build builds the binaries, which New does otherwise: before the time of a test
// begins to run.
func Build(ctx context.Context, tags ...string) error {
	_, _, err := binaries(ctx, strings.Join(tags, ","))
	return err
}

// New builds the binaries once per process, with the build tags given; dir must
// exist. Unix socket paths end at 107 bytes, so dir should be short.
func New(ctx context.Context, dir, broker, prefix string, tags ...string) (*Fleet, error) {
	bridged, agent, err := binaries(ctx, strings.Join(tags, ","))
	if err != nil {
		return nil, err
	}
	return &Fleet{Dir: dir, Broker: broker, Prefix: prefix, bridged: bridged, agent: agent}, nil
}

var built struct {
	sync.Mutex
	dir   string
	tags  string
	newer string // the binary of a later version
	err   error
}

// binaries builds the programs once per process.
func binaries(ctx context.Context, tags string) (bridged, agent string, err error) {
	built.Lock()
	defer built.Unlock()
	if built.dir == "" && built.err == nil {
		built.dir, built.err = build(ctx, tags)
		built.tags = tags
	}
	if built.tags != tags {
		return "", "", fmt.Errorf("the programs of this process were built with the tags %q and cannot have %q too", built.tags, tags)
	}
	return filepath.Join(built.dir, "bridged"), filepath.Join(built.dir, "agent"), built.err
}

func build(ctx context.Context, tags string) (string, error) {
	dir, err := os.MkdirTemp("", "fleet-bin")
	if err != nil {
		return "", err
	}
	args := append([]string{"build"}, buildFlags...)
	args = append(args, "-tags", tags, "-o", dir+string(filepath.Separator), "fleetd/cmd/bridged", "fleetd/test/agent/cmd/agent")
	cmd := exec.CommandContext(ctx, "go", args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return dir, nil
}

// RemoveBinaries removes what New built; call it once at the end of a process.
func RemoveBinaries() error {
	built.Lock()
	defer built.Unlock()
	if built.dir == "" {
		return nil
	}
	return os.RemoveAll(built.dir)
}

// Binary is the path of bridged.
func (f *Fleet) Binary() string { return f.bridged }

// Agent is the path of the scripted agent, for profiles.
func (f *Fleet) Agent() string { return f.agent }

// TrustEachOther has every host trust every other one's key.
func (f *Fleet) TrustEachOther() error {
	for _, a := range f.hosts {
		for _, b := range f.hosts {
			if a == b {
				continue
			}
			if err := a.Trust(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// Stop ends the daemons of all hosts in good order.
func (f *Fleet) Stop() error {
	var errs []error
	for _, h := range f.hosts {
		errs = append(errs, h.Stop())
	}
	return errors.Join(errs...)
}

// Close stops all hosts and removes what they left on the broker.
func (f *Fleet) Close() error {
	var errs []error
	for _, h := range f.hosts {
		errs = append(errs, h.Close())
	}
	if f.Broker != "" {
		errs = append(errs, f.Sweep())
	}
	return errors.Join(errs...)
}

// Sweep deletes the fleet's queues and exchanges from the broker.
func (f *Fleet) Sweep() error {
	names := fabric.Names{Prefix: f.Prefix}
	queues := []string{names.DLQ()}
	for _, h := range f.hosts {
		queues = append(queues, names.ControlQueue(h.Name), names.ReportQueue(h.Name))
	}
	f.mu.Lock()
	for _, gid := range f.gids {
		queues = append(queues, names.Inbox(gid))
	}
	f.mu.Unlock()
	return rabbit.Sweep(f.Broker, queues, names.Exchanges())
}

// Remember has what is on the broker for gid removed in the end; a host of this
// fleet that registers an entity does so by itself.
func (f *Fleet) Remember(gid string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gids = append(f.gids, gid)
}

// Key is the private key of h, for those who play an attacker or a peer.
func (h *Host) Key() (ed25519.PrivateKey, error) {
	key, _, err := keys.LoadOrCreate(filepath.Join(h.data(), "gateway.key"), nil)
	return key, err
}
