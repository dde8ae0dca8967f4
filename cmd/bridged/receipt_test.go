package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleetd/fault"
	"fleetd/mcp"
	"fleetd/mcp/api"
)

// output is a standard output that says what its user did with it.
type output struct {
	buf          bytes.Buffer
	write, close error
	gw           *fakeDaemon
	early        bool // settled before the write or the close was over
}

func (o *output) Write(p []byte) (int, error) {
	o.early = o.early || len(o.gw.settled) > 0
	if o.write != nil {
		return 0, o.write
	}
	return o.buf.Write(p)
}

func (o *output) String() string { return o.buf.String() }

func (o *output) Close() error {
	o.early = o.early || len(o.gw.settled) > 0
	return o.close
}

// Fault: mail counts as read although it was not printed, or comes again
// although it was.
func TestMailIsReadWhenItIsPrinted(t *testing.T) {
	full, failed := errors.New("no space left on device"), fault.New(fault.PaneGone, "the pane is gone")
	for _, x := range []struct {
		name         string
		write, close error // of standard output
		stderr       error
		call         error // what the call ends with
		nowhere      bool
		want         bool
		code         int
	}{
		{name: "printed", want: true},
		{name: "write fails", write: full, code: 1},
		{name: "close fails", close: full, code: 1},
		{name: "closed before", nowhere: true, code: 1},
		{name: "as an error", call: failed, want: true, code: 1},
		{name: "as an error, unseen", call: failed, stderr: full, code: 1},
		{name: "as an error, closed before", call: failed, nowhere: true, code: 1},
	} {
		for _, args := range []string{"poll", "poll --json", "send rev x --wait 5", "send rev x --wait 5 --json", "send rev x"} {
			w := newWorld(t)
			w.gw.mail, w.gw.err = true, x.call
			out := &output{write: x.write, close: x.close, gw: w.gw}
			errs := &output{write: x.stderr, gw: w.gw}
			kept := false
			d := w.deps
			d.In, d.Out, d.Err = strings.NewReader(""), out, errs
			d.KeepPipe = func() { kept = len(w.gw.asked) == 0 }
			d.Nowhere = func(io.Writer) bool { return x.nowhere }
			code := run(context.Background(), d, strings.Fields(args))
			early := out.early || x.call != nil && errs.early
			if !slices.Equal(w.gw.settled, []bool{x.want}) || code != x.code || early || !kept {
				t.Errorf("%s: %s: settled %v, exit code %d, early %v, pipe kept %v\n%s", x.name, args, w.gw.settled, code, early, kept, errs)
			}
			if x.nowhere && x.call == nil && !strings.Contains(errs.String(), "standard output is closed") {
				t.Errorf("%s: %s: nobody is told: %s", x.name, args, errs)
			}
		}
	}
}

// Fault: a panic while mail is printed lets it count as read.
func TestMailIsKeptAfterAPanic(t *testing.T) {
	w := newWorld(t)
	w.gw.mail = true
	first := true
	w.deps.Nowhere = func(io.Writer) bool {
		if first {
			first = false
			panic("broken")
		}
		return false
	}
	if r := w.run("poll"); r.code != 1 || !slices.Equal(w.gw.settled, []bool{false}) {
		t.Errorf("%+v, settled %v", r, w.gw.settled)
	}
}

// Fault: an output that was closed is taken for one that can be seen, or one
// that the user sends away or to a file for a closed one.
func TestNowhere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	for _, x := range []struct {
		name string
		flag int
		want bool
	}{
		{os.DevNull, os.O_RDWR, true}, {os.DevNull, os.O_WRONLY, false}, {file, os.O_RDWR | os.O_CREATE, false},
	} {
		f, err := os.OpenFile(x.name, x.flag, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if got := nowhere(f); got != x.want {
			t.Errorf("%s, %x: %v", x.name, x.flag, got)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if nowhere(&bytes.Buffer{}) {
		t.Error("a buffer is nowhere")
	}
}

// Fault: a command waits for a daemon that does not run, or the stdio bridge
// does not.
func TestOnlyTheBridgeWaitsForTheDaemon(t *testing.T) {
	w := newWorld(t)
	var retry []time.Duration
	w.deps.Dial = func(to target) client {
		retry = append(retry, to.Retry)
		return &api.Client{Socket: to.Socket, As: to.As, Retry: to.Retry}
	}
	for _, args := range []string{"poll", "send rev x --wait 5"} {
		if r := w.run(strings.Fields(args)...); r.code != 1 || r.out != "" || !strings.Contains(r.err, "bridged is not running on this host (socket HOME/.local/state/bridged/bridged.sock): start it with `bridged serve`") {
			t.Errorf("%s: %+v", args, r)
		}
	}
	w.deps.Stdio = func(context.Context, mcp.Gateway, hclog.Logger, io.Reader, io.Writer) error { return nil }
	w.want(result{}, "mcp")
	if want := []time.Duration{0, 0, 5 * time.Second}; !slices.Equal(retry, want) {
		t.Errorf("they retry for %v", retry)
	}
}
