package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"fleetd/test/failpoint"
	"fleetd/test/fleet"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := fleet.RemoveBinaries(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// selection is what of the matrix is quick and most telling: the two commits
// that stand in a brief's way, both ends of a pull, a report, a start after a
// crash, an answer on its way to the one who asked, an agent half begun, and a
// migration between its steps.
var selection = []string{
	"inbox.injecting.after forward kill",
	"inbox.injecting.acked local kill",
	"inbox.injecting.before forward stall",
	"inbox.injecting.before local stall",
	"inbox.pull.written reply kill",
	"inbox.pull.drained mail kill",
	"outbox.publish.after reply kill",
	"outbox.final.after forward kill",
	"inbox.duplicate.before forward cut",
	"inbox.boot.reported forward kill",
	"mcp.ask.answered ask-local kill",
	"control.opened spawn kill",
	"migrate.taken upgrade kill",
	"migrate.numbered upgrade kill",
	"migrate.delivered upgrade kill",
	"migrate.acked upgrade kill",
}

// §14: gateway killed at any instruction.
//
// Fails when a fault at one of these steps loses a message, doubles it, leaves
// its sender without a word or tells him what is not so. `make crash` runs the
// whole matrix.
func TestSelection(t *testing.T) {
	var out bytes.Buffer
	only := "^(" + strings.ReplaceAll(strings.Join(selection, "|"), ".", `\.`) + ")$"
	if code := run([]string{"--lanes", "2", "--seed", "1", "--ask", "--only", only}, &out); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if want := fmt.Sprintf("crash: cases=%d lost=0 doubled=0 unreported=0 untrue=0\n", len(selection)); !strings.HasSuffix(out.String(), want) {
		t.Errorf("the last line is not %q", want)
	}
	t.Logf("%s", out.String())
}

// Fails when a point of the table, or a way to it, is left out of the matrix.
func TestMatrixHoldsEveryPoint(t *testing.T) {
	all := cases(1)
	for _, name := range records {
		if _, known := failpoint.Find(name); !known {
			t.Errorf("%s is to be recorded, and no point", name)
		}
	}
	for _, p := range failpoint.Points {
		if scripts[p.Setup] == nil {
			t.Errorf("nothing brings a message to %s (%s)", p.Name, p.Setup)
		}
		for _, path := range p.Paths {
			for _, d := range damages {
				if d == stall && !slices.Contains(records, p.Name) {
					continue
				}
				if !slices.ContainsFunc(all, func(k kase) bool { return k.point.Name == p.Name && k.damage == d && k.path == path }) {
					t.Errorf("%s on the %s path is never struck by %s", p.Name, path, d)
				}
			}
		}
	}
	for i, k := range all {
		if k.n != i+1 {
			t.Fatalf("case %d has the number %d", i+1, k.n)
		}
	}
}
