package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"fleetd/test/crash/history"
	"fleetd/test/fleet"
)

// bound ends a run that hangs.
const bound = 90 * time.Minute

func main() {
	code := run(os.Args[1:], os.Stdout)
	if err := fleet.RemoveBinaries(); err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

type settings struct {
	seed  uint64
	lanes int
	only  string
	list  bool
	ask   bool
	logs  string
}

func run(args []string, out io.Writer) int {
	var s settings
	fs := flag.NewFlagSet("crash", flag.ContinueOnError)
	fs.Uint64Var(&s.seed, "seed", uint64(time.Now().UnixNano())%1_000_000, "of the order of cases and of all that is random in them")
	fs.IntVar(&s.lanes, "lanes", 4, "fleets side by side")
	fs.StringVar(&s.only, "only", "", "cases that match this expression, as in 'inbox.* forward kill'")
	fs.BoolVar(&s.list, "list", false, "list the cases and run none")
	fs.BoolVar(&s.ask, "ask", false, "every client whose call broke asks again; without it some don't, and the end is waited for two minutes")
	fs.StringVar(&s.logs, "logs", "", "keep the gateways' logs and the histories in this directory")
	if err := fs.Parse(args); err != nil {
		return 2
	}
	which, err := regexp.Compile(s.only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		return 2
	}
	chosen := slices.DeleteFunc(cases(s.seed), func(k kase) bool { return !which.MatchString(k.String()) })
	if s.list {
		for _, k := range chosen {
			fmt.Fprintln(out, k)
		}
		return 0
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // where the MCP client library tells of broken connections
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	fmt.Fprintf(out, "crash: seed=%d, %d cases on %d fleets; -seed and -only repeat a part of it\n", s.seed, len(chosen), s.lanes)
	results, found, err := runAll(ctx, s, chosen, out)
	kept := report(out, results, found)
	if err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
	}
	if !kept || err != nil || len(results) < len(chosen) {
		return 1
	}
	return 0
}

// runAll plays the cases on some fleets side by side, each of which takes the
// next one when it is done, and checks what came of it.
func runAll(ctx context.Context, s settings, cases []kase, out io.Writer) (results []result, found []history.Finding, err error) {
	next := make(chan kase, len(cases))
	for _, k := range cases {
		next <- k
	}
	close(next)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for lane := range min(s.lanes, len(cases)) {
		wg.Go(func() {
			say := func(format string, args ...any) {
				mu.Lock()
				defer mu.Unlock()
				fmt.Fprintf(out, format+"\n", args...)
			}
			rng := rand.New(rand.NewPCG(s.seed, uint64(lane)+1))
			some, of, laneErr := runLane(ctx, s, lane, rng, next, say)
			mu.Lock()
			defer mu.Unlock()
			results, found, err = append(results, some...), append(found, of...), errors.Join(err, laneErr)
		})
	}
	wg.Wait()
	return results, found, err
}

func runLane(ctx context.Context, s settings, lane int, rng *rand.Rand, next <-chan kase, say func(string, ...any)) (results []result, found []history.Finding, err error) {
	w, err := newWorld(ctx, rng, say)
	if err != nil {
		return nil, nil, err
	}
	w.ask = s.ask
	defer func() {
		err = errors.Join(err, w.keepLogs(s.logs, lane), w.close())
	}()
	for k := range next {
		r := w.play(ctx, k)
		results = append(results, r)
		say("%3d  %-55s hits=%d  %.1f s", k.n, k, r.hits, r.took.Seconds())
		if ctx.Err() != nil {
			return results, nil, ctx.Err()
		}
		if r.err != nil {
			break // the fleet is not well: others go on, and what it did so far is checked
		}
	}
	w.finish(ctx)
	h, err := w.collect(ctx)
	if err != nil {
		return results, nil, err
	}
	if err := keepHistory(s.logs, lane, h); err != nil {
		return results, nil, err
	}
	found = history.Check(h)
	for _, f := range found {
		say("%s in case %d, %s: %s", f.Verdict, f.Case, f.Token, f.Why)
		for _, line := range w.rec.story(f.Token) {
			say("    %s", line)
		}
	}
	return results, found, nil
}

// keepHistory writes what was checked into dir, if there is one: a new rule of
// the checker is tried on it without another run.
func keepHistory(dir string, lane int, h history.History) error {
	if dir == "" {
		return nil
	}
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return os.WriteFile(fmt.Sprintf("%s/lane%d.json", dir, lane), text, 0o600)
}

// keepLogs writes the gateways' logs into dir, if there is one.
func (w *world) keepLogs(dir string, lane int) error {
	if dir == "" {
		return nil
	}
	var errs []error
	for _, s := range []*site{w.a, w.b} {
		file := fmt.Sprintf("%s/lane%d-%s.log", dir, lane, s.host.Name)
		errs = append(errs, os.WriteFile(file, []byte(s.host.Log()), 0o600))
	}
	return errors.Join(errs...)
}
