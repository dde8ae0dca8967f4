//go:build !failpoints

package failpoint_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"fleetd/test/failpoint"
)

// Fails when something of the failpoints is left in the daemon that is
// installed: a name, a table, or the code that looks one up.
func TestNothingIsLeftInTheBinary(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bridged")
	if out, err := exec.Command("go", "build", "-o", file, "fleetd/cmd/bridged").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	binary, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range failpoint.Points {
		if bytes.Contains(binary, []byte(p.Name)) {
			t.Errorf("the binary holds %q", p.Name)
		}
	}
	for _, text := range []string{"fleetd/test/failpoint.Hit", "BRIDGED_FAILPOINT"} {
		if bytes.Contains(binary, []byte(text)) {
			t.Errorf("the binary holds %q", text)
		}
	}
}

// Fails when a hit costs anything.
func TestHitAllocatesNothing(t *testing.T) {
	if n := testing.AllocsPerRun(1000, func() { failpoint.Hit("inbox.injecting.after") }); n != 0 {
		t.Errorf("a hit allocates %v times", n)
	}
}

// Fails when a failpoint that is compiled in does not do what it is told.
func TestCompiledIn(t *testing.T) {
	if out, err := exec.Command("go", "test", "-count=1", "-tags", "failpoints", "fleetd/test/failpoint").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
