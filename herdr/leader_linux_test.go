package herdr

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
)

// living names a process that leads a session on a terminal until the test
// ends.
func living(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("cat")
	tty, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = tty.Close()
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait() // killed
	})
	name := leader(cmd.Process.Pid)
	if name == "" {
		t.Fatal("it has no name")
	}
	return name
}

// Fails if a leader that lives, or that cannot be seen from here, counts as
// ended, or if one that has ended does not.
func TestALeaderHasEndedForSureOnly(t *testing.T) {
	f := strings.Fields(living(t))
	pid, start, boot, space := f[0], f[1], f[2], f[3]
	child := exec.Command("true")
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	gone := strconv.Itoa(child.Process.Pid)
	for name, c := range map[string]struct {
		fields       []string
		ended, known bool
	}{
		"it lives":                          {[]string{pid, start, boot, space}, false, true},
		"its number is another's":           {[]string{pid, start + "0", boot, space}, true, true},
		"no such process":                   {[]string{gone, start, boot, space}, true, true},
		"no such process, before a boot":    {[]string{gone, start, "b" + boot, space}, true, false},
		"numbered elsewhere":                {[]string{gone, start, boot, "pid:[1]"}, false, false},
		"numbered elsewhere, before a boot": {[]string{gone, start, "b" + boot, "pid:[1]"}, true, false},
		"named by an earlier version":       {[]string{gone, start, boot}, false, false},
		"no name":                           {nil, false, false},
	} {
		is := strings.Join(c.fields, " ")
		if got := leaderEnded(is); got != c.ended {
			t.Errorf("%s: ended %v", name, got)
		}
		if got := leaderKnown(is); got != c.known {
			t.Errorf("%s: known %v", name, got)
		}
	}
}
