// Command attack runs every test that attacks a line of the threat model in
// docs/security.md, and counts which of them held.
//
// A test, a subtest or a fuzz target (its corpus) says what it attacks:
//
//	t.Attr("threat", "B1 B3")
//
// It is a case of those lines then, and also an ordinary test of its package.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, ".", os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		stop()
		os.Exit(1)
	}
}

// run runs the cases of the module at root; flags go to go test.
func run(ctx context.Context, root string, flags []string, out io.Writer) error {
	lines, err := threats(root)
	if err != nil {
		return err
	}
	all, err := marks(root)
	if err != nil {
		return err
	}
	names, dirs := map[string]bool{}, map[string]bool{}
	for _, m := range all {
		names[m.test], dirs["./"+m.dir] = true, true
	}
	args := append([]string{"test", "-json", "-count=1", "-p", "2", "-timeout", "20m"}, flags...)
	args = append(args, "-run", "^("+strings.Join(slices.Sorted(maps.Keys(names)), "|")+")$")
	cmd := exec.CommandContext(ctx, "go", append(args, slices.Sorted(maps.Keys(dirs))...)...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	t := tally{lines: lines, attacked: map[string]int{}, tests: map[string]*result{}, out: out}
	read := t.read(stdout)
	failed := cmd.Wait()
	for _, line := range lines {
		if t.attacked[line.id] == 0 {
			fmt.Fprintf(out, "no case  %-4s %s\n", line.id, line.text)
			t.bare++
		}
	}
	fmt.Fprintf(out, "attack: cases=%d held=%d\n", t.cases, t.held)
	switch {
	case read != nil:
		return fmt.Errorf("read what go test says: %w", read)
	case failed != nil:
		return fmt.Errorf("go test: %w", failed)
	case t.held != t.cases, t.bare > 0, t.cases == 0:
		return fmt.Errorf("%d of %d cases did not hold, %d lines of the threat model have no case", t.cases-t.held, t.cases, t.bare)
	}
	return nil
}

// event is a line of go test -json (go doc test2json).
type event struct{ Action, Package, Test, Key, Value, Output string }

// result is what a test has said so far.
type result struct {
	ids    []string
	output bytes.Buffer
}

// tally counts the cases in what go test says.
type tally struct {
	lines    []threat
	attacked map[string]int // held cases, by line
	tests    map[string]*result
	out      io.Writer

	cases, held, bare int
}

func (t *tally) read(r io.Reader) error {
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		var e event
		if len(line) > 0 && json.Unmarshal(line, &e) == nil {
			t.take(e)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (t *tally) take(e event) {
	name := strings.TrimPrefix(e.Package, "fleetd/") + " " + e.Test
	res := t.tests[name]
	if res == nil {
		res = &result{}
		t.tests[name] = res
	}
	switch e.Action {
	case "attr":
		if e.Key == "threat" {
			res.ids = append(res.ids, strings.Fields(e.Value)...)
		}
	case "output":
		res.output.WriteString(e.Output)
	case "pass":
		delete(t.tests, name)
		if len(res.ids) > 0 {
			t.cases++
			t.held++
			for _, id := range res.ids {
				t.attacked[id]++
			}
			fmt.Fprintf(t.out, "held     %-11s %s\n", strings.Join(res.ids, " "), name)
		}
	case "fail", "skip": // what was skipped was not tried
		delete(t.tests, name)
		if len(res.ids) > 0 {
			t.cases++
			fmt.Fprintf(t.out, "NOT HELD %-11s %s\n", strings.Join(res.ids, " "), name)
		}
		if e.Action == "fail" {
			fmt.Fprintf(t.out, "%s\n", res.output.Bytes())
		}
	}
}
