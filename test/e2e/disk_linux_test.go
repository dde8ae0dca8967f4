package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fleetd/fault"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// stream is one sender who sends one message after the other, each with a mark
// of its own and, for who fills a disk, with some weight.
type stream struct {
	name string
	from *fleet.Main
	to   string

	mu      sync.Mutex
	n       int
	taken   []string // marks of what was accepted
	refused []string // marks of what STORE_UNAVAILABLE was said of
	strange error
}

const (
	weight = 1 << 10
	pace   = 100 * time.Millisecond // between two messages: all of them are read in the end
)

func (s *stream) send(ctx context.Context) {
	s.mu.Lock()
	s.n++
	mark := fmt.Sprintf("%s-%d.", s.name, s.n)
	s.mu.Unlock()
	_, err := s.from.Send(ctx, map[string]any{"to": s.to, "content": mark + strings.Repeat("x", weight)})
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.taken = append(s.taken, mark)
	case fault.Is(err, fault.StoreUnavailable):
		s.refused = append(s.refused, mark)
	case ctx.Err() == nil:
		s.strange = errors.Join(s.strange, fmt.Errorf("%s: %w", mark, err))
	}
}

func (s *stream) counts() (taken, refused int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.taken), len(s.refused)
}

// fullDisk is a way to fill the disk of a host's store and to free it again.
type fullDisk struct {
	name        string
	mount       func(t *testing.T, data string) // before the daemon starts
	fill, empty func(t *testing.T, h *fleet.Host, data string)
}

// everyDisk: a limit on the size of files, which any user may set, fails each
// write with EFBIG; a small file system of its own, which takes root, fails
// those that need a new block with ENOSPC.
func everyDisk(t *testing.T) []fullDisk {
	try := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	all := []fullDisk{{
		name:  "no write works",
		mount: func(*testing.T, string) {},
		fill:  func(t *testing.T, h *fleet.Host, _ string) { try(t, h.LimitFiles(0)) },
		empty: func(t *testing.T, h *fleet.Host, _ string) { try(t, h.FreeFiles()) },
	}}
	probe := t.TempDir()
	if err := syscall.Mount("tmpfs", probe, "tmpfs", 0, "size=1m"); err != nil {
		t.Logf("no file system of its own for the store, so only %s is tried: %v", all[0].name, err)
		return all
	}
	try(t, syscall.Unmount(probe, 0))
	return append(all, fullDisk{
		name: "no block is free",
		mount: func(t *testing.T, data string) {
			try(t, os.MkdirAll(data, 0o700))
			try(t, syscall.Mount("tmpfs", data, "tmpfs", 0, "size=48m,mode=0700"))
			t.Cleanup(func() { // after the daemon ended, before its directory is removed
				if err := syscall.Unmount(data, syscall.MNT_DETACH); err != nil {
					t.Error(err)
				}
			})
		},
		fill: func(t *testing.T, _ *fleet.Host, data string) {
			f, err := os.Create(filepath.Join(data, "filler"))
			try(t, err)
			defer f.Close()
			for err == nil {
				_, err = f.Write(make([]byte, 64<<10))
			}
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
		},
		empty: func(t *testing.T, _ *fleet.Host, data string) { try(t, os.Remove(filepath.Join(data, "filler"))) },
	})
}

// §14: disk full. A full disk under load, freed again: what was accepted
// arrives, what was refused does not, nothing goes in twice, and work goes on
// without a restart. Fails when something is acknowledged that is not stored,
// when the daemon ends or stays ready, or when it does not recover.
func TestFullDiskUnderLoad(t *testing.T) {
	t.Parallel()
	for _, disk := range everyDisk(t) {
		t.Run(disk.name, func(t *testing.T) { fullDiskUnderLoad(t, disk) })
	}
}

func fullDiskUnderLoad(t *testing.T, disk fullDisk) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*bound)
	defer cancel()
	f := newFleet(t, rabbit.URI(t))
	data := filepath.Join(f.Dir, "hosta", "data")
	disk.mount(t, data)
	t.Cleanup(func() {
		if err := f.Stop(); err != nil {
			t.Error(err)
		}
	})
	const unbounded = "BRIDGED_LIMITS_PER_PAIR=0" // however long it takes, who sends on is not stopped for that
	a, b := addHost(t, ctx, f, "hosta", unbounded), addHost(t, ctx, f, "hostb", unbounded)
	if err := f.TrustEachOther(); err != nil {
		t.Fatal(err)
	}
	lead, carol, bob := addMain(t, ctx, a, "lead"), addMain(t, ctx, a, "carol"), addMain(t, ctx, b, "bob")
	near := addWorker(t, ctx, a, "near")
	ready(t, ctx, a, b)
	seen(t, ctx, carol, "bob@hostb")
	seen(t, ctx, bob, "lead@hosta", "near@hosta")

	within := &stream{name: "within", from: carol, to: "lead@hosta"}
	out := &stream{name: "out", from: carol, to: "bob@hostb"}
	in := &stream{name: "in", from: bob, to: "lead@hosta"}
	briefs := &stream{name: "brief", from: bob, to: "near@hosta"}
	streams := []*stream{within, out, in, briefs}
	var load sync.WaitGroup
	stop := make(chan struct{})
	for _, s := range streams {
		for range 2 {
			load.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(pace):
						s.send(ctx)
					}
				}
			})
		}
	}
	defer load.Wait()
	defer func() {
		select {
		case <-stop:
		default:
			close(stop)
		}
	}()
	more := func(what string, which []*stream, count func(*stream) int, n int) {
		t.Helper()
		before := map[*stream]int{}
		for _, s := range which {
			before[s] = count(s)
		}
		eventually(t, ctx, func() error {
			for _, s := range which {
				if have := count(s) - before[s]; have < n {
					return fmt.Errorf("%s: %d %s, want %d more", s.name, have, what, n)
				}
			}
			return nil
		})
	}
	taken := func(s *stream) int { n, _ := s.counts(); return n }
	refused := func(s *stream) int { _, n := s.counts(); return n }

	more("taken", streams[:3], taken, 5)
	more("taken", streams[3:], taken, 2) // each takes an agent's turn
	disk.fill(t, a, data)
	more("refused", []*stream{within, out}, refused, 5)
	eventually(t, ctx, func() error { // a write that needs no new block works, and the next does not
		status, text, err := readyz(a)
		if err == nil && (status != http.StatusServiceUnavailable || !strings.Contains(text, "store cannot be written")) {
			err = fmt.Errorf("readyz: %d %s", status, text)
		}
		return err
	})
	eventually(t, ctx, func() error {
		if n := metric(t, a, "bridged_store_healthy", ""); n != 0 {
			return fmt.Errorf("bridged_store_healthy is %v", n)
		}
		return nil
	})
	disk.empty(t, a, data)
	if err := a.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	more("taken", streams[:3], taken, 5)
	more("taken", streams[3:], taken, 2) // each takes an agent's turn
	close(stop)
	load.Wait()
	for _, s := range streams {
		if s.strange != nil {
			t.Errorf("%s was told: %v", s.name, s.strange)
		}
		t.Logf("%s: %d sent, %d taken, %d refused", s.name, s.n, len(s.taken), len(s.refused))
	}

	arrived(t, ctx, lead, within, in)
	arrived(t, ctx, bob, out)
	for _, mark := range briefs.taken {
		prompted(t, ctx, near, mark)
	}
	for i := range briefs.n {
		mark := fmt.Sprintf("%s-%d.", briefs.name, i+1)
		if n := count(t, near, mark); n > 1 {
			t.Errorf("%s went in %d times", mark, n)
		}
	}
	if err := a.Stop(); err != nil {
		t.Fatal(err)
	}
	if text, err := a.Command(ctx, "store", "check").CombinedOutput(); err != nil {
		t.Errorf("store check: %v\n%s", err, text)
	}
}

// count is how often the model of w was given mark.
func count(t *testing.T, w *fleet.Worker, mark string) (n int) {
	t.Helper()
	prompts, err := w.Prompts()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range prompts {
		n += strings.Count(p, mark)
	}
	return n
}

// arrived pulls all mail of m and demands what was accepted, each once, and
// nothing that was refused.
func arrived(t *testing.T, ctx context.Context, m *fleet.Main, streams ...*stream) {
	t.Helper()
	got := map[string]int{}
	eventually(t, ctx, func() error {
		r, err := m.Poll(ctx, map[string]any{"wait_seconds": 1})
		if err != nil {
			return err
		}
		for _, msg := range r.Messages {
			mark, _, ok := strings.Cut(msg.Content, ".")
			if ok && !msg.Redelivered {
				got[mark+"."]++
			}
		}
		if r.Remaining > 0 || len(r.Messages) > 0 {
			return fmt.Errorf("%d remain", r.Remaining)
		}
		for _, s := range streams {
			for _, mark := range s.taken {
				if got[mark] == 0 {
					return fmt.Errorf("%s was accepted and is not there", mark)
				}
			}
		}
		return nil
	})
	for _, s := range streams {
		for _, mark := range s.refused {
			if got[mark] > 0 {
				t.Errorf("%s was refused and is there", mark)
			}
		}
	}
	for mark, n := range got {
		if n > 1 {
			t.Errorf("%s was read %d times", mark, n)
		}
	}
}
