package inbox

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"fleetd/store"
)

// slowBroker is told of entities and takes its time over one word.
type slowBroker struct {
	begun chan struct{} // closed when the word has come
	free  func()        // lets it go

	mu       sync.Mutex
	word     string // name and state, "" once it has come
	released chan struct{}
	told     []string
}

func newSlowBroker() *slowBroker {
	s := &slowBroker{begun: make(chan struct{}), released: make(chan struct{})}
	s.free = sync.OnceFunc(func() { close(s.released) })
	return s
}

func (s *slowBroker) hold(word string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.word = word
}

func (s *slowBroker) changed(e store.Entity) {
	word := e.Name + " " + string(e.State)
	s.mu.Lock()
	slow := word == s.word
	if slow {
		s.word = ""
	}
	s.mu.Unlock()
	if slow {
		close(s.begun)
		<-s.released
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, word)
}

// heard is where each word stands among those told, -1: not told.
func (s *slowBroker) heard(words ...string) (at []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, word := range words {
		at = append(at, slices.Index(s.told, word))
	}
	return at
}

func newSlowWorld(t *testing.T) (*world, *slowBroker) {
	s, w := newSlowBroker(), newWorldOn(t, openStore(t))
	w.begin(func(c *Config) { c.Changed = s.changed })
	t.Cleanup(w.stop)
	t.Cleanup(s.free)
	w.panes.open("pane-slow")
	return w, s
}

// othersGoOn has others come, change and end while the broker is slow.
func (s *slowBroker) othersGoOn(t *testing.T, w *world) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			ctx := context.Background()
			for n := range 5 {
				name := fmt.Sprint("other", n)
				if _, _, _, err := w.in.Register(ctx, Registration{Name: name, Kind: store.Main}); err != nil {
					return err
				}
				if _, err := w.in.ChangeGroups(ctx, name, []string{"crew"}, nil); err != nil {
					return err
				}
				e, err := w.in.Unregister(ctx, name)
				if err != nil {
					return err
				}
				w.in.AwaitEnd(ctx, e.GID)
			}
			return nil
		}()
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(hang):
		t.Error("others wait")
		s.free()
		<-done
	}
}

var slowly = Registration{Name: "slow", Kind: store.Worker, Pane: "pane-slow"}

// Fails if others wait while the broker takes its time over a word about one
// entity, whatever changed it; or if the steps of an end begin before the word
// of it is taken.
func TestASlowBrokerHoldsUpNobodyElse(t *testing.T) {
	ctx := context.Background()
	unregister := func(w *world, _ store.Entity) error {
		_, err := w.in.Unregister(ctx, "slow")
		return err
	}
	for _, c := range []struct {
		name, word string
		change     func(*world, store.Entity) error
	}{
		{"registered", "slow live", func(w *world, _ store.Entity) error {
			_, _, _, err := w.in.Register(ctx, slowly)
			return err
		}},
		{"in another group", "slow live", func(w *world, _ store.Entity) error {
			_, err := w.in.ChangeGroups(ctx, "slow", []string{"crew"}, nil)
			return err
		}},
		{"found elsewhere", "slow live", func(w *world, e store.Entity) error {
			return w.in.Reseat(ctx, e.GID, paneOf(e), Pane{ID: "pane-else"})
		}},
		{"without its agent", "slow live", func(w *world, e store.Entity) error {
			return w.in.Unseat(ctx, e.GID, paneOf(e))
		}},
		{"ending", "slow stopping", unregister},
		{"gone", "slow gone", unregister},
		{"reaped", "slow stopping", func(w *world, e store.Entity) error {
			return w.in.Reap(ctx, e.GID, paneOf(e))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, s := newSlowWorld(t)
			e := w.worker("slow")
			s.hold(c.word)
			changed := make(chan error, 1)
			go func() { changed <- c.change(w, e) }()
			<-s.begun
			s.othersGoOn(t, w)
			if c.word == "slow stopping" {
				w.window.set(func(win *window) {
					same(t, "unbound already", false, slices.Contains(win.steps, "unbound "+e.GID))
				})
			}
			s.free()
			if err := <-changed; err != nil {
				t.Error(err)
			}
		})
	}
}

// Fails if the end of an entity that is told slowly is told before it and undone
// by it, or if others wait for that end.
func TestAnEndIsToldAfterWhatWasBefore(t *testing.T) {
	w, s := newSlowWorld(t)
	s.hold("slow live")
	changed := make(chan error, 2)
	go func() {
		_, _, _, err := w.in.Register(context.Background(), slowly)
		changed <- err
	}()
	<-s.begun
	go func() {
		_, err := w.in.Unregister(context.Background(), "slow")
		changed <- err
	}()
	s.othersGoOn(t, w) // long enough for an end that does not wait
	same(t, "told before", []int{-1, -1}, s.heard("slow live", "slow stopping"))
	s.free()
	for range 2 {
		if err := <-changed; err != nil {
			t.Error(err)
		}
	}
	if at := s.heard("slow live", "slow stopping"); at[0] < 0 || at[0] > at[1] {
		t.Errorf("the end was told at %d, what was before at %d", at[1], at[0])
	}
}
