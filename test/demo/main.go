// Command demo shows what bridged does, for people who see it for the first
// time: two whole gateways on a private broker, agents in panes, a main
// session that is a real MCP client, and a tale that they act out. Each step
// is checked; what differs from the tale is an error, so a demo that ends well
// is also a test of the whole.
//
// Here live the tale and how it is told. Hosts, agents and mains are those of
// test/fleet.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// bound ends a demo that hangs; a minute and a half is usual.
const bound = 6 * time.Minute

func main() { os.Exit(run()) }

// run returns the exit code: 0, 1 for a failure, 130 for an interruption.
func run() int {
	// SIGPIPE: the reader of what we print has hung up.
	asked, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	context.AfterFunc(asked, stop) // a second Ctrl-C ends the clean-up too
	ctx, cancel := context.WithTimeout(asked, bound)
	defer cancel()

	t := &tale{out: newNarrator(os.Stdout), began: time.Now()}
	err := t.tell(ctx)
	interrupted := asked.Err() != nil
	if interrupted {
		t.out.line("")
		t.out.line("demo: interrupted; stopping what it started")
	}
	if err != nil && !interrupted {
		t.logs(os.Stderr)
	}
	clean := t.close()
	switch {
	case interrupted:
		err = clean
	case err == nil:
		err = clean
	default:
		err = errors.Join(err, clean)
	}
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo: FAILED:", err)
		return 1
	case interrupted:
		return 130
	}
	t.out.ok("demo: ok: %d briefs typed in once each, %d answers received once each, and all else as told, %.0f s",
		briefs, briefs, time.Since(t.began).Seconds())
	return 0
}

// logs prints the ends of the gateways' logs.
func (t *tale) logs(w *os.File) {
	for _, h := range []*fleet.Host{t.a, t.b} {
		if h == nil {
			continue
		}
		log := h.Log()
		log = log[max(0, len(log)-4000):]
		if _, rest, cut := strings.Cut(log, "\n"); cut {
			log = rest
		}
		fmt.Fprintf(w, "\nThe end of the log of %s:\n%s\n", h.Name, log)
	}
}

// close stops everything that was started and removes its files.
func (t *tale) close() error {
	var errs []error
	if t.mainSession != nil {
		_ = t.mainSession.Disconnect() // the session may have ended with its gateway
	}
	switch {
	case t.node == nil && t.fleet != nil: // the broker lives on: leave nothing there
		errs = append(errs, t.fleet.Close())
	case t.node != nil: // Ctrl-C may have reached it already
		for _, h := range []*fleet.Host{t.a, t.b} {
			if h != nil {
				errs = append(errs, h.Close())
			}
		}
		errs = append(errs, t.node.Stop())
	}
	errs = append(errs, fleet.RemoveBinaries())
	if t.dir != "" {
		errs = append(errs, os.RemoveAll(t.dir))
	}
	return errors.Join(errs...)
}

// broker is a private node, or the broker that the tests are told to use.
func (t *tale) broker(ctx context.Context) (string, error) {
	if uri := os.Getenv(rabbit.EnvBroker); uri != "" {
		return uri, nil
	}
	var err error
	if t.node, err = rabbit.Start(ctx); err != nil {
		return "", err
	}
	return t.node.URI, nil
}
