package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"fleetd/cmd/bridged/config"
	"fleetd/mcp"
)

// Fault: a slip on the command line succeeds, or is told as a failure of the
// daemon.
func TestUsageErrors(t *testing.T) {
	for _, x := range []struct{ args, want string }{
		{"snd x y", `there is no command "bridged snd"; did you mean 'bridged send'?`},
		{"nonsense", `there is no command "bridged nonsense"; see 'bridged --help'`},
		{"repl x", `there is no command "bridged repl"; did you mean 'bridged reply'?`}, // read is near, too, and comes before
		{"keys shwo", `there is no command "bridged keys shwo"; did you mean 'bridged keys show'?`},
		{"keys", "bridged keys needs a command: show, trust, rotate, revoke, list"},
		{"send", "accepts between 1 and 2 arg(s), received 0; see 'bridged send --help'"},
		{"send x y --wiat 5", "unknown flag: --wiat; see 'bridged send --help'"},
		{"poll now", `unknown command "now" for "bridged poll"; see 'bridged poll --help'`},
		{"serve --listen 0.0.0.0:1", `the configuration cannot be used: --listen: listen: "0.0.0.0:1" can be reached from other machines, and MCP is served to this one only; write 127.0.0.1:1 (agents elsewhere use the gateway of their own host)`},
		{"whoami --config HOME/none", "the configuration file HOME/none (named by --config) cannot be read; correct its name or its rights (open HOME/none: no such file or directory)"},
		{"register x", "add --kind worker, --kind main or --kind orchestrator"},
		{"roster --kind agent", `--kind "agent" is not known; write worker, main, orchestrator`},
		{"register x --kind wroker", `--kind "wroker" is not known; write worker, main, orchestrator`},
	} {
		w := newWorld(t)
		args := strings.Fields(strings.ReplaceAll(x.args, "HOME", w.home))
		w.want(result{code: 2, err: "bridged: BAD_REQUEST: " + x.want + "\n"}, args...)
		if len(w.gw.asked) != 0 {
			t.Errorf("%s: the daemon was asked", x.args)
		}
	}
	newWorld(t).want(result{code: 2, err: `{"error":{"code":"BAD_REQUEST","message":"unknown flag: --nope; see 'bridged poll --help'"}}` + "\n"}, "poll", "--nope", "--json")
}

// Fault: without a command nothing is served, or with another configuration
// than was given.
func TestServe(t *testing.T) {
	for _, args := range [][]string{{}, {"serve"}} {
		w := newWorld(t).env("BRIDGED_HOST=hostx")
		w.write(".config/bridged/bridged.yaml", "broker: {uri: 'amqp://u:s3cret@broker/'}\nlog: {json: true}\n")
		var got config.Config
		w.deps.Serve = func(_ context.Context, cfg config.Config, log hclog.Logger) error {
			got = cfg
			log.Debug("not shown")
			log.Info("serving", "config", cfg)
			return nil
		}
		r := w.run(append(args, "--listen", "127.0.0.1:0", "--limits-max-ttl", "1h")...)
		if r.code != 0 || r.out != "" || got.Host != "hostx" || got.Listen != "127.0.0.1:0" || got.Limits.MaxTTL.Hours() != 1 {
			t.Errorf("%v: %+v\n%v", args, r, got)
		}
		if !strings.Contains(r.err, `"@message":"serving"`) || !strings.Contains(r.err, "in the clear") || strings.Contains(r.err, "not shown") {
			t.Errorf("%v: the log says %s", args, r.err)
		}
		if strings.Contains(r.err, "s3cret") {
			t.Errorf("%v: the log holds the password: %s", args, r.err)
		}
	}
}

// Fault: a panic prints a stack, or ends with exit code 0.
func TestNoStack(t *testing.T) {
	w := newWorld(t)
	w.deps.Dial = func(target) client { panic("a defect") }
	w.want(result{code: 1, err: "bridged: INTERNAL: bridged met an error of its own (a defect); please report it with what was done\n"}, "whoami")
}

// Fault: the command speaks for another entity than was meant, or asks another
// daemon.
func TestWhoIsAskedAndAsWhom(t *testing.T) {
	for _, x := range []struct {
		env, args string
		want      target
	}{
		{"", "", target{}},
		{"BRIDGED_TOKEN=tok", "", target{Token: "tok"}},
		{"BRIDGED_AS=main", "", target{As: "main"}},
		{"BRIDGED_TOKEN=tok BRIDGED_AS=main", "", target{Token: "tok"}},
		{"BRIDGED_TOKEN=tok BRIDGED_AS=main", "--as other", target{As: "other"}},
		{"BRIDGED_SOCKET=/env.sock", "", target{Socket: "/env.sock"}},
		{"BRIDGED_SOCKET=/env.sock", "--socket /flag.sock", target{Socket: "/flag.sock"}},
		{"", "--data-dir /d", target{Socket: "/d/bridged.sock"}},
	} {
		w := newWorld(t).env(strings.Fields(x.env)...)
		if x.want.Socket == "" {
			x.want.Socket = w.home + "/.local/state/bridged/bridged.sock"
		}
		if r := w.run(append([]string{"whoami"}, strings.Fields(x.args)...)...); r.code != 0 {
			t.Errorf("%s %s: %+v", x.env, x.args, r)
		}
		if d := cmp.Diff(x.want, w.to); d != "" {
			t.Errorf("%s %s: %s", x.env, x.args, d)
		}
	}
}

// Fault: `bridged mcp` writes something but the protocol to standard output, or
// serves another gateway than it was given.
func TestStdio(t *testing.T) {
	w := newWorld(t).env("BRIDGED_TOKEN=tok", "BRIDGED_LOG_LEVEL=debug")
	w.in = "protocol in"
	w.deps.Stdio = func(ctx context.Context, g mcp.Gateway, log hclog.Logger, in io.Reader, out io.Writer) error {
		log.Debug("a log line")
		if _, err := g.Whoami(ctx); err != nil {
			return err
		}
		buf := make([]byte, 64)
		n, err := in.Read(buf)
		if err != nil {
			return err
		}
		_, err = out.Write(buf[:n])
		return err
	}
	r := w.run("mcp")
	if r.code != 0 || r.out != "protocol in" || !strings.Contains(r.err, "a log line") || w.to.Token != "tok" || len(w.gw.asked) != 1 {
		t.Errorf("%+v %+v", r, w.to)
	}
}

// Fault: signals are caught while standard input is read, so that Ctrl-C does
// not end the command.
func TestSignalsAreCaughtAfterTheInput(t *testing.T) {
	w := newWorld(t)
	w.in = "content"
	caught, released := false, false
	w.deps.Signals = func(ctx context.Context) (context.Context, context.CancelFunc) {
		caught = true
		return ctx, func() { released = true }
	}
	w.run("send", "x", "") // fails at its empty content
	if caught {
		t.Error("caught before the content was read")
	}
	w.run("send", "x", "-")
	if !caught || !released {
		t.Errorf("caught %v, released %v", caught, released)
	}
}

// Fault: version, --version and --json disagree, or completion is gone.
func TestVersionAndCompletion(t *testing.T) {
	w := newWorld(t)
	if r := w.run("version"); r.code != 0 || !strings.HasPrefix(r.out, "bridged 1.2.3 (go1.") {
		t.Errorf("%+v", r)
	}
	w.want(result{out: "bridged version 1.2.3\n"}, "--version")
	if r := w.run("version", "--json"); !strings.Contains(r.out, `"version": "1.2.3"`) {
		t.Errorf("%+v", r)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if r := w.run("completion", shell); r.code != 0 || !strings.Contains(r.out, "bridged") {
			t.Errorf("%s: %+v", shell, r)
		}
	}
	if r := w.run("__complete", "register", "x", "--kind", ""); !strings.Contains(r.out, "orchestrator\n") {
		t.Errorf("%+v", r)
	}
}

// Fault: a command is missing from the help or has no words of its own.
func TestHelpListsEveryCommand(t *testing.T) {
	w := newWorld(t)
	w.deps.Stdio = func(context.Context, mcp.Gateway, hclog.Logger, io.Reader, io.Writer) error {
		return nil
	}
	w.deps.OpenStore = func(context.Context, config.Config, hclog.Logger) (maintained, error) { return nil, nil }
	help := w.run("--help")
	for _, name := range strings.Fields("serve mcp register unregister send poll read reply roster trace whoami dlq keys store version completion") {
		if !strings.Contains(help.out, "\n  "+name+" ") {
			t.Errorf("the help does not list %s:\n%s", name, help.out)
		}
		if r := w.run(name, "--help"); r.code != 0 || !strings.Contains(r.out, "Usage:") {
			t.Errorf("%s --help: %+v", name, r)
		}
	}
}
