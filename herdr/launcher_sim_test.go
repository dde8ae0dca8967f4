package herdr

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/test/herdrsim"
)

// launchpad is a launcher on a simulated herdr that has nothing yet.
type launchpad struct {
	*Launcher
	t   *testing.T
	srv *herdrsim.Server
}

func newLaunchpad(t *testing.T, v herdrsim.Version) *launchpad {
	t.Helper()
	srv, err := herdrsim.Start(t.Context(), herdrsim.Options{Version: v, Shell: []string{"/bin/sh"}, Timing: herdrsim.Fast(), Cols: 120, Rows: 40})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	})
	client := &Client{Socket: srv.SocketPath()}
	in := NewInjector(client, nil, nil)
	in.Timing = quick()
	return &launchpad{&Launcher{Client: client, Injector: in}, t, srv}
}

// launch starts an agent, or what argv is, and waits until it is ready.
func (l *launchpad) launch(gid string, wait time.Duration, argv ...string) (Pane, error) {
	l.t.Helper()
	p, err := l.Open(l.t.Context(), Launch{
		GID: gid, Name: "aide", Cwd: l.t.TempDir(), Argv: argv, Env: map[string]string{"AGENT_TEST_MAIN": "1", "BRIDGED_TOKEN": "tok-" + gid},
	})
	if err != nil {
		return p, err
	}
	ctx, cancel := context.WithTimeout(l.t.Context(), wait)
	defer cancel()
	return l.Ready(ctx, p)
}

func (l *launchpad) panes() []PaneInfo {
	l.t.Helper()
	all, err := l.Client.PaneList(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	return all
}

const (
	one = "0198c2aa-1111-7222-8333-444455556661"
	two = "0198c2aa-1111-7222-8333-444455556662"
)

// Fault: agents are launched with a shell beside them, without the label from
// which they are found again, or called ready before a text can go in.
func TestSimLaunch(t *testing.T) {
	for _, v := range []herdrsim.Version{herdrsim.V080, herdrsim.V082} {
		t.Run(string(v), func(t *testing.T) {
			l := newLaunchpad(t, v)
			agent := []string{os.Args[0], "--kind", "claude", "--slow-start", "300ms"}
			for _, gid := range []string{one, two} {
				p, err := l.launch(gid, patience, agent...)
				if err != nil || p.Kind != "claude" {
					t.Fatalf("%+v, %v", p, err)
				}
				if out := l.Injector.Inject(t.Context(), p, brief("at once "+gid), Hooks{}); out.Result != Injected {
					t.Errorf("the first text came to %+v", out)
				}
			}
			all := l.panes()
			if len(all) != 2 || all[0].WorkspaceID != all[1].WorkspaceID || !labelled(all[0].Label, one) || labelled(all[0].Label, two) {
				t.Errorf("the panes are %+v", all)
			}
			if err := l.srv.Restart(); err != nil { // labels stay, terminals do not
				t.Fatal(err)
			}
			if err := l.Client.CloseLabelled(t.Context(), one); err != nil {
				t.Fatal(err)
			}
			if all := l.panes(); len(all) != 1 || !labelled(all[0].Label, two) {
				t.Errorf("left are %+v", all)
			}
		})
	}
}

// Fault: one way to fail is told for another, or a workspace is left behind.
func TestSimLaunchFails(t *testing.T) {
	l := newLaunchpad(t, herdrsim.V082)
	for _, c := range []struct {
		why    string
		reason envelope.Reason
		argv   []string
	}{
		{NotInstalled, "", []string{"no-such-agent"}},
		{Exited, "", []string{"/bin/sh", "-c", "exit 0"}},
		{Exited, "", []string{"/bin/sh", "-c", "sleep 0.2; exit 1"}},
		{NeverReady, envelope.NotReady, []string{"/bin/sleep", "60"}},
		{NeverReady, envelope.Blocked, []string{os.Args[0], "--kind", "claude", "--trust"}},
		{NeverReady, envelope.Draft, []string{os.Args[0], "--kind", "claude", "--draft", "half a thought"}},
	} {
		for bound := 3 * time.Second; ; bound *= 2 {
			_, err := l.launch(one, bound, c.argv...)
			if err := l.Client.CloseLabelled(t.Context(), one); err != nil {
				t.Fatal(err)
			}
			if all := l.panes(); len(all) != 0 {
				t.Fatalf("%q leaves %+v", c.argv, all)
			}
			f, ok := errors.AsType[*LaunchError](err)
			if ok && f.Why == c.why && f.Reason == c.reason {
				break
			}
			// On a busy machine the agent may not have drawn anything by then.
			if !ok || f.Why != NeverReady || bound > patience {
				t.Errorf("%q came to %v, want %s %s", c.argv, err, c.why, c.reason)
				break
			}
		}
	}
}

// Fault: a pane cannot be found whose launch was answered to nobody.
func TestSimLaunchWithoutAnAnswer(t *testing.T) {
	l := newLaunchpad(t, herdrsim.V082)
	l.srv.DropAnswer("layout.apply", 1)
	if _, err := l.launch(one, patience, "/bin/sleep", "60"); !fault.Is(err, fault.HerdrDown) {
		t.Fatalf("it came to %v", err)
	}
	if all := l.panes(); len(all) != 1 || !strings.HasSuffix(all[0].Label, one) {
		t.Fatalf("the panes are %+v", all)
	}
	if err := l.Client.CloseLabelled(t.Context(), one); err != nil || len(l.panes()) != 0 {
		t.Fatalf("left are %+v, %v", l.panes(), err)
	}
}
