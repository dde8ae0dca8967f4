// Command bench measures what bridged adds to the raw path under it: a bare
// client of the same broker, bare calls of the same herdr, one transaction a
// write, an empty start. Raw path and ours take turns in one run, since only
// ratios hold from one machine to another (design §15).
//
// A line is one measurement with its bar; nothing here fails by being slow. It
// ends with code 1 only if something could not be measured.
//
// What is measured is the gateway's own packages, put together as
// cmd/bridged does it, or its binary where the process counts (start, memory).
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime/pprof"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"fleetd/test/agent"
)

// bound is the longest that a run may take.
const bound = 5 * time.Minute

// asAgent in the environment makes this binary the agent in a pane.
const asAgent = "BENCH_AGENT"

// bench measures one or more lines.
type bench struct {
	name string
	run  func(ctx context.Context, h *host) error
}

// Those that take longest come last: on a machine that is too busy for the
// bound they are what is missing.
var benches = []bench{
	{"roundtrip", roundtrip},
	{"local_inject", localInject},
	{"throughput_mail", throughputMail},
	{"store_commit", storeCommit},
	{"presence_bytes", presenceBytes},
	{"boot_million_seen", bootMillionSeen},
	{"send_broker_down", sendBrokerDown},
	{"held_100k_rss", heldRSS},
	{"store_month", storeMonth},
}

func main() {
	if os.Getenv(asAgent) != "" {
		os.Exit(agent.Main(os.Args))
	}
	if err := run(); err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	fs := pflag.NewFlagSet("bench", pflag.ContinueOnError)
	only := fs.String("only", "", "measure the lines whose name matches this `REGEXP`")
	rounds := fs.Int("rounds", 5, "of each side")
	steps := fs.Bool("steps", false, "say where the time of a trip goes")
	profile := fs.String("cpuprofile", "", "write a CPU profile of this process to `FILE`")
	oursOnly := fs.Bool("ours", false, "leave the raw path out, for a profile")
	if err := fs.Parse(os.Args[1:]); err != nil {
		return err
	}
	match, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	h, err := newHost(*rounds, *steps, *oursOnly)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	if *profile != "" {
		end, perr := startProfile(*profile)
		if perr != nil {
			return perr
		}
		defer func() { err = errors.Join(err, end()) }()
	}
	return measure(ctx, h, match)
}

// measure goes on after a line that failed: the others are worth having.
func measure(ctx context.Context, h *host, match *regexp.Regexp) error {
	var errs []error
	for _, b := range benches {
		if !match.MatchString(b.name) {
			continue
		}
		if err := b.run(ctx, h); err != nil {
			fmt.Printf("bench %s FAILED: %v\n", b.name, err)
			errs = append(errs, fmt.Errorf("%s: %w", b.name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

func startProfile(path string) (end func() error, err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}
