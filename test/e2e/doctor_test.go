package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric"
	"fleetd/mcp"
	"fleetd/migrations"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// finding is a line of `bridged doctor`.
type finding struct{ Check, Level, What, Next string }

// patient is a host that the doctor is sent to.
type patient struct {
	*fleet.Host
	t       *testing.T
	secrets []string // that no output may hold
}

// examine runs `bridged doctor`; env goes over the environment of the host.
func (p *patient) examine(ctx context.Context, env ...string) (all []finding, healthy bool, err error) {
	p.t.Helper()
	cmd := p.Command(ctx, "doctor", "--json")
	cmd.Env = append(cmd.Env, env...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	code := 0
	if err := cmd.Run(); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			return nil, false, err
		}
		code = exit.ExitCode()
	}
	for _, s := range p.secrets {
		if strings.Contains(out.String()+errs.String(), s) {
			p.t.Errorf("the doctor told the secret %s: %s%s", s, out.String(), errs.String())
		}
	}
	var got struct {
		Healthy bool
		Checks  []finding
	}
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
		return nil, false, fmt.Errorf("%w: %s%s", err, out.String(), errs.String())
	}
	if want := map[bool]int{true: 0, false: 1}[got.Healthy]; code != want || errs.String() != "" {
		p.t.Errorf("healthy is %v and the exit code %d; standard error: %s", got.Healthy, code, errs.String())
	}
	return got.Checks, got.Healthy, nil
}

// says waits until there is a line for each that is wanted: of its level and
// check, with its words in What and Next.
func (p *patient) says(ctx context.Context, env string, wants ...finding) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*bound)
	defer cancel()
	eventually(p.t, ctx, func() error {
		all, healthy, err := p.examine(ctx, strings.Fields(env)...)
		if err != nil {
			return err
		}
		for _, want := range wants {
			fits := func(f finding) bool {
				return f.Level == want.Level && f.Check == want.Check && strings.Contains(f.What, want.What) && strings.Contains(f.Next, want.Next)
			}
			if !slices.ContainsFunc(all, fits) {
				return fmt.Errorf("nothing says %+v: %+v", want, all)
			}
			if want.Level == "fail" && healthy {
				return fmt.Errorf("it fails and is called healthy: %+v", all)
			}
		}
		return nil
	})
}

// well waits until nothing fails.
func (p *patient) well(ctx context.Context) {
	p.t.Helper()
	eventually(p.t, ctx, func() error {
		all, healthy, err := p.examine(ctx)
		if err == nil && !healthy {
			err = fmt.Errorf("not well: %+v", all)
		}
		return err
	})
}

// A person whose host does not work runs `bridged doctor`, and reads what is
// wrong and what to do. Each part breaks one thing. Fails when the doctor does
// not see it, names another cure, calls a host well that is not or one sick that
// is well, changes something, or prints a password or a token.
func TestDoctorSaysWhatDoesNotWork(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 6*bound)
	defer cancel()
	node := rabbit.Private(t)
	const password = "s3cret-w0rd"
	for _, args := range [][]string{
		{"add_user", "fleet", password}, {"set_permissions", "fleet", ".*", ".*", ".*"},
		{"add_user", "weak", password}, {"set_permissions", "weak", "^$", "^$", "^$"},
	} {
		if out, err := node.Ctl(ctx, args...); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	as := func(login string) string { return strings.Replace(node.URI, "guest:guest", login, 1) }
	f := newFleet(t, as("fleet:"+password))
	host := func(name string, env ...string) *patient {
		h, err := f.AddHost(ctx, name, env...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("log of %s:\n%s", name, tail(h.Log(), 6000))
			}
		})
		return &patient{h, t, []string{password}}
	}
	start := func(p *patient) {
		t.Helper()
		if err := p.Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	a, b := host("hosta"), host("hostb")
	home := filepath.Join(f.Dir, "hosta")

	// Before the daemon runs.
	a.says(ctx, "",
		finding{"daemon", "fail", "no daemon runs", "start it: bridged"},
		finding{"port", "ok", a.Addr + " is free", ""},
		finding{"broker", "ok", "takes the login of broker.uri (RabbitMQ ", ""},
		finding{"files", "ok", "no key yet", "first start"})
	if _, err := os.Stat(filepath.Join(home, "data")); !os.IsNotExist(err) {
		t.Errorf("the doctor made something: %v", err)
	}
	a.says(ctx, "BRIDGED_BROKER_URI="+as("fleet:wrong-"+password),
		finding{"broker", "fail", "username or password not allowed", "correct the login"})
	a.says(ctx, "BRIDGED_BROKER_URI="+strings.Replace(as("fleet:"+password), "amqp:", "amqps:", 1),
		finding{"broker", "fail", "tls: ", "names the TLS port"})
	a.says(ctx, "BRIDGED_HOTS=x", finding{"config", "fail", "no such variable; the nearest is BRIDGED_HOST", "correct it"})
	taken, err := net.Listen("tcp", a.Addr)
	must(err)
	a.says(ctx, "", finding{"port", "fail", "another program, or the old daemon, has " + a.Addr, "set another listen"})
	must(taken.Close())

	// Two daemons, no trust, then on one side, then on both.
	start(a)
	start(b)
	a.says(ctx, "",
		finding{"daemon", "ok", "the daemon runs", ""},
		finding{"agents", "warn", "nobody is registered", "bridged register main"},
		finding{"trust", "warn", "what comes as from hostb is refused: no key of it is trusted", "`bridged keys trust hostb.pub` here"})
	must(a.Trust(b.Host))
	// What was refused before is no sign of another key.
	eventually(t, ctx, func() error {
		all, _, err := a.examine(ctx)
		if err != nil {
			return err
		}
		has := func(words string) bool {
			return slices.ContainsFunc(all, func(f finding) bool { return strings.Contains(f.What, words) })
		}
		if has("fits no key") {
			t.Errorf("a host that is trusted since just now: %+v", all)
		}
		if !has("hostb is online and does not answer") {
			return fmt.Errorf("the key is not taken up yet: %+v", all)
		}
		return nil
	})
	a.says(ctx, "", finding{"trust", "fail", "hostb is online and does not answer", "`bridged keys trust hosta.pub` there"})
	must(b.Trust(a.Host))
	lead := addMain(t, ctx, a.Host, "lead")
	a.secrets = append(a.secrets, lead.Token)
	a.well(ctx)
	b.well(ctx)
	a.says(ctx, "BRIDGED_TOKEN="+lead.Token,
		finding{"trust", "ok", "hostb is online, and each believes the other", ""},
		finding{"broker", "ok", "connected to RabbitMQ ", ""},
		finding{"mcp", "ok", "answered at http://" + a.Addr + "/mcp", "bridged register"},
		finding{"mcp", "ok", "is that of lead@hosta", ""})
	a.says(ctx, "BRIDGED_TOKEN=br_nonsense", finding{"mcp", "fail", "BRIDGED_TOKEN of this environment is not known", "--new-token"})
	out, errs, err := bridged(ctx, a.Host, "doctor")
	if line := regexp.MustCompile(`^(?:(?:ok|warn|fail) +[a-z]+: [^\n]+\n){8,}$`); err != nil || errs != "" || !line.MatchString(out) || !strings.Contains(out, "ok    mcp: MCP clients are answered at http://"+a.Addr+"/mcp — `bridged register") {
		t.Errorf("as text: %v: %s%s", err, out, errs)
	}
	a.says(ctx, "BRIDGED_SOCKET="+filepath.Join(home, "other.sock"),
		finding{"daemon", "fail", "no daemon answers", "give this command its --config"},
		finding{"daemon", "fail", "in use by process", "stop it"},
		finding{"port", "fail", "a bridged with another socket has " + a.Addr, "stop that one"})
	a.says(ctx, "BRIDGED_HOST=hostx", finding{"daemon", "warn", "serves host hosta", "set host: hosta"})

	// Files that others reach, or that trust nobody.
	data, trust := filepath.Join(home, "data"), filepath.Join(home, "trust")
	must(os.Chmod(filepath.Join(data, "gateway.key"), 0o640))
	must(os.Chmod(filepath.Join(data, "bridged.sock"), 0o666))
	must(os.Chmod(filepath.Join(data, "bridged.db"), 0o644))
	must(os.Chmod(trust, 0o777))
	a.says(ctx, "",
		finding{"files", "fail", "gateway.key has mode 0640", "chmod 0600 " + data},
		finding{"files", "fail", "other users can use the unix socket", "chmod 0600 " + data},
		finding{"files", "fail", "bridged.db is open to other users", "chmod 0600 " + data},
		finding{"files", "fail", "others may add trusted keys", "chmod 0755 " + trust})
	for _, name := range []string{"gateway.key", "bridged.sock", "bridged.db"} {
		must(os.Chmod(filepath.Join(data, name), 0o600))
	}
	must(os.Chmod(trust, 0o700))
	must(os.WriteFile(filepath.Join(trust, "hostz.pub"), []byte("nonsense\n"), 0o600))
	must(a.Herdr.RefuseConnections())
	a.says(ctx, "",
		finding{"trust", "fail", "hostz.pub", ""},
		finding{"herdr", "warn", "herdr is not running", "only workers need it"})
	must(os.Remove(filepath.Join(trust, "hostz.pub")))
	must(a.Herdr.TakeConnections())

	// herdr, the panes of workers, and what lies on the broker for a person.
	w := addWorker(t, ctx, a.Host, "near")
	if _, err := a.Register(ctx, mcp.RegisterArgs{Name: "far", Kind: "worker"}); err != nil {
		t.Fatal(err)
	}
	conn, err := amqp.DialConfig(node.URI, amqp.Config{Heartbeat: time.Minute})
	must(err)
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }) // the node goes as well
	ch, err := conn.Channel()
	must(err)
	old := migrations.QueueOf(w.Pane)
	_, err = ch.QueueDeclare(old, true, false, false, false, nil)
	must(err)
	must(ch.PublishWithContext(ctx, "", old, false, false, amqp.Publishing{Body: []byte("an old reply")}))
	names := fabric.Names{Prefix: f.Prefix}
	must(ch.PublishWithContext(ctx, names.Msg(), lead.GID, true, false, amqp.Publishing{Body: []byte("not signed")}))
	a.says(ctx, "",
		finding{"herdr", "ok", "answers at " + a.Herdr.SocketPath(), ""},
		finding{"agents", "warn", "mail for far would wait: no pane", "bridged register far --kind worker --pane PANE"},
		finding{"mail", "warn", "the queue " + old + " of the old daemon holds 1 message", "bridged migrate"},
		finding{"mail", "warn", "of all hosts: 1 dead letter", "bridged dlq list"})
	a.well(ctx)
	must(a.Herdr.RefuseConnections())
	a.says(ctx, "", finding{"herdr", "fail", "herdr is not running", "start herdr"})
	must(a.Herdr.TakeConnections())

	// A host that was stopped, and one with a new key that nobody was told of.
	must(b.Stop())
	a.says(ctx, "", finding{"trust", "warn", "hostb is trusted and was stopped", "start bridged there"})
	must(os.Remove(filepath.Join(f.Dir, "hostb", "data", "gateway.key")))
	start(b)
	a.says(ctx, "", finding{"trust", "fail", "what comes as from hostb is refused: its signature fits no key", "`bridged keys trust --beside hostb.pub` here"})

	// A login that may nothing, a host id that is in use, and no broker.
	weak := host("hostc", "BRIDGED_BROKER_URI="+as("weak:"+password))
	start(weak)
	weak.says(ctx, "", finding{"broker", "fail", "too few rights for queue ", "give the login the rights of docs/broker.md"})
	clone := host("clone", "BRIDGED_HOST=hosta")
	start(clone)
	clone.says(ctx, "", finding{"broker", "fail", "in use by another gateway", "set another host on one of them"})
	node.Down()
	a.says(ctx, "", finding{"broker", "fail", "refused", "start the broker"})
	must(a.Stop())
	a.says(ctx, "", finding{"broker", "fail", "refused", "start the broker"})
	f.Broker = "" // it is gone, with all that is to be swept from it
}
