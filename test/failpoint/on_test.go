//go:build failpoints

package failpoint

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain also is the program that is struck: it hits a point three times.
func TestMain(m *testing.M) {
	name := os.Getenv("HIT")
	if name == "" {
		os.Exit(m.Run())
	}
	fmt.Println("left:", os.Getenv("BRIDGED_FAILPOINT"))
	for range 3 {
		fmt.Println("here")
		Hit(name)
	}
	if os.Getenv("COMMIT") != "" {
		committed := make(chan struct{})
		go func() {
			defer close(committed)
			Hit(commit)
		}()
		select {
		case <-committed:
			fmt.Println("committed")
		case <-time.After(time.Second):
		}
	}
	fmt.Println("through")
	os.Exit(0)
}

func struck(t *testing.T, name, order string) (out string, state *os.ProcessState) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HIT="+name, "BRIDGED_FAILPOINT="+order)
	raw, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(raw), cmd.ProcessState
}

// Fails when a kill comes at another hit than the one asked for, or is none.
func TestKillAtTheSecondHit(t *testing.T) {
	out, state := struck(t, "store.commit.before", "store.commit.before:2=kill")
	if out != "left: \nhere\nhere\n" {
		t.Errorf("it printed %q", out)
	}
	if s := state.Sys().(syscall.WaitStatus); !s.Signaled() || s.Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %s", state)
	}
}

// Fails when a point does not panic on demand.
func TestPanicAtTheFirstHit(t *testing.T) {
	out, state := struck(t, "store.commit.before", "store.commit.before=panic")
	if strings.Count(out, "here\n") != 1 || !strings.Contains(out, "panic: failpoint: store.commit.before") || state.Success() {
		t.Errorf("it printed %q and ended with %s", out, state)
	}
}

// Fails when a store is written on where it was to stand, or when more than its
// writer stands.
func TestStallHoldsTheWriterAlone(t *testing.T) {
	t.Setenv("COMMIT", "1")
	for _, c := range []struct{ name, order string }{
		{"inbox.injecting.before", "inbox.injecting.before:2=stall"},
		{"inbox.injecting.before", commit + "=stall"},
	} {
		out, state := struck(t, c.name, c.order)
		if out != "left: \nhere\nhere\nhere\nthrough\n" || !state.Success() {
			t.Errorf("%s: it printed %q and ended with %s", c.order, out, state)
		}
	}
}

// Fails when an order for one point strikes at another.
func TestOtherPointsAreLeftAlone(t *testing.T) {
	if out, state := struck(t, "store.commit.after", "store.commit.before=kill"); !state.Success() || !strings.HasSuffix(out, "through\n") {
		t.Errorf("it printed %q and ended with %s", out, state)
	}
}

// Fails when a misspelt order or point passes unnoticed.
func TestNonsenseIsLoud(t *testing.T) {
	if out, state := struck(t, "store.commit.before", "store.comit.before=kill"); state.ExitCode() != 3 {
		t.Errorf("a misspelt order: it printed %q and ended with %s", out, state)
	}
	if out, state := struck(t, "store.comit.before", ""); state.Success() || !strings.Contains(out, "is not in the table") {
		t.Errorf("a misspelt point: it printed %q and ended with %s", out, state)
	}
}
