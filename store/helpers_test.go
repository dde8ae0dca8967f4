package store

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"fleetd/migrations"

	"github.com/google/uuid"
	"go.uber.org/goleak"
)

// hang is the deadline of every wait in these tests: long, since it only says
// that something will never come.
const hang = 60 * time.Second

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		os.Exit(runChild(role, os.Getenv(childDir)))
	}
	goleak.VerifyTestMain(m)
}

// newID returns a fresh UUIDv7 as text.
func newID() string { return uuid.Must(uuid.NewV7()).String() }

// openAt opens the store in dir and, when the test ends, stops it, checks the
// whole file and closes it.
func openAt(t testing.TB, opts Options) *Store {
	t.Helper()
	if opts.Steps == nil {
		opts.Steps = migrations.Steps
	}
	s, err := Open(t.Context(), opts)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { checkAndClose(t, s) })
	return s
}

func checkAndClose(t testing.TB, s *Store) {
	t.Helper()
	if s.db.Load() == nil {
		return // closed by the test
	}
	if err := s.Check(context.Background()); err != nil {
		t.Errorf("check at the end: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// start runs the writer until the returned function is called, or the test
// ends.
func start(t testing.TB, s *Store) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

// running opens a new store and runs its writer.
func runningStore(t testing.TB, opts Options) *Store {
	t.Helper()
	if opts.Dir == "" {
		opts.Dir = privateDir(t)
	}
	s := openAt(t, opts)
	start(t, s)
	return s
}

func privateDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// write is Write that must succeed.
func write(t testing.TB, s *Store, fn func(*Tx) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	if err := s.Write(ctx, fn); err != nil {
		t.Fatalf("write: %v", err)
	}
}

// view is View that must succeed.
func view(t testing.TB, s *Store, fn func(*Tx) error) {
	t.Helper()
	if err := s.View(fn); err != nil {
		t.Fatalf("view: %v", err)
	}
}

// await polls until ok or the deadline.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(hang); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

// receive waits for a value, bounded.
func receive[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(hang):
		t.Fatalf("never came: %s", what)
		panic("unreachable")
	}
}

// gate is a beforeCommit hook that a test can hold closed and make fail.
type gate struct {
	mu      sync.Mutex
	err     error
	hold    chan struct{} // the commit waits until it is closed
	reached chan struct{} // told when a commit has come to the gate
}

func (g *gate) pass() error {
	g.mu.Lock()
	hold, reached, err := g.hold, g.reached, g.err
	g.mu.Unlock()
	if hold != nil {
		select {
		case reached <- struct{}{}:
		default:
		}
		<-hold
	}
	return err
}

func (g *gate) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
}

// shut makes commits wait and returns how to let them go on; reached tells when
// the next has come.
func (g *gate) shut() (reached <-chan struct{}, open func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hold, g.reached = make(chan struct{}), make(chan struct{}, 1)
	hold := g.hold
	return g.reached, func() {
		g.mu.Lock()
		g.hold = nil
		g.mu.Unlock()
		close(hold)
	}
}

func putEntity(gid, name string) func(*Tx) error {
	return func(tx *Tx) error { return tx.PutEntity(Entity{GID: gid, Name: name}) }
}

func entityNamed(s *Store, gid string) (name string, err error) {
	err = s.View(func(tx *Tx) error {
		e, ok, err := tx.Entity(gid)
		if err == nil && !ok {
			return fmt.Errorf("no entity %s", gid)
		}
		name = e.Name
		return err
	})
	return name, err
}
