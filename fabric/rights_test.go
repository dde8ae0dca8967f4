package fabric

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric/envelope"
	"fleetd/test/rabbit"
)

// commands is the first block of docs/broker.md that defines the function name.
func commands(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "docs", "broker.md"))
	if err != nil {
		t.Fatal(err)
	}
	for block := range strings.SplitSeq(string(text), "```sh\n") {
		if block, _, _ = strings.Cut(block, "```"); strings.HasPrefix(block, name+"() {") {
			return block
		}
	}
	t.Fatalf("docs/broker.md does not define %s", name)
	return ""
}

// shell runs script with the tools in dir.
func shell(t *testing.T, dir, script string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-eu")
	cmd.Env, cmd.Stdin = []string{"PATH=" + dir + ":/usr/bin:/bin"}, strings.NewReader("set -- \n"+script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// rights are what a login may do, as rabbitmqctl import_definitions takes it.
type rights struct {
	Configure string            `json:"configure"`
	Write     string            `json:"write"`
	Read      string            `json:"read"`
	topics    map[string]*topic // by exchange
}

type topic struct {
	Write string `json:"write"`
	Read  string `json:"read"`
}

// documented are the rights that docs/broker.md gives the login of host, for
// names that begin with prefix.
func documented(t *testing.T, host, prefix string, first bool) *rights {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rabbitmqctl"), []byte("#!/bin/sh\nprintf '%s\\n' \"$@\" ---\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	define, _, _ := strings.Cut(commands(t, "login"), "\n}\n")
	if prefix != "" { // as the document says
		escaped := strings.ReplaceAll(prefix, ".", `\.`)
		define = strings.NewReplacer("agent", escaped+"agent", "(signal", escaped+"(signal", "(control", escaped+"(control",
			`bridge\.`, escaped+`bridge\.`, " bridge.", " "+prefix+"bridge.").Replace(define)
	}
	call := "\n}\nlogin " + host + " secret"
	if first {
		call = "\n}\nlogin " + host + " secret first"
	}
	r := &rights{topics: map[string]*topic{}}
	for one := range strings.SplitSeq(shell(t, dir, define+call), "---\n") {
		w := strings.Split(strings.TrimSuffix(one, "\n"), "\n")
		switch w[0] {
		case "set_permissions":
			r.Configure, r.Write, r.Read = w[2], w[3], w[4]
		case "set_topic_permissions":
			r.topics[w[2]] = &topic{w[3], w[4]}
		}
	}
	if r.Read == "" || len(r.topics) != 2 {
		t.Fatalf("the commands give %+v", r)
	}
	return r
}

// No LavinMQ runs here. Fails when the commands for it give a login other rights
// than those for RabbitMQ, which are tried, and that to the name of a connection.
func TestTheRightsOnLavinMQAreTheSame(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "lavinmqctl"), []byte("#!/bin/sh\nprintf '%s\\n' \"$*\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	said := shell(t, dir, commands(t, "lavin"))
	for host, first := range map[string]bool{"hosta": true, "hostb": false} {
		r := documented(t, host, "", first)
		read := r.Read + `|^[0-9a-f.:\[\]]+ -> `
		if line := fmt.Sprintf("set_permissions %s %s %s %s\n", host, r.Configure, r.Write, read); !strings.Contains(said, line) {
			t.Errorf("the commands are\n%swithout\n%s", said, line)
		}
		for name, is := range map[string]bool{"127.0.0.1:40000 -> 127.0.0.1:5672": true, "[::1]:40000 -> [::1]:5671": true, "control.other": false, "x -> y": false} {
			if match, err := regexp.MatchString(read, name); err != nil || match != is {
				t.Errorf("%s may read %q: %v, %v", host, name, match, err)
			}
		}
	}
}

// want is something of a right that is taken away, and what then names it.
type want struct {
	of      string // which pattern
	without string // what it does not match any more
	says    string // in the state, the log or an error
	first   bool   // on a broker that has no exchanges yet
}

const gidPattern = `[0-9a-f-]{36}`

var wants = []want{
	{of: "configure", without: `control\..*`, says: "queue control.HOST; see docs/broker.md"},
	{of: "write", without: `control\..*`, says: "'control.HOST'"},
	{of: "read", without: `control\..*`, says: "queue control.HOST; see docs/broker.md"},
	{of: "configure", without: `signal\..*`, says: "signal.HOST."},
	{of: "write", without: `signal\..*`, says: "signal.HOST."},
	{of: "read", without: `signal\..*`, says: "signal.HOST."},
	{of: "configure", without: `roster\..*`, says: "roster.HOST."},
	{of: "write", without: `roster\..*`, says: "roster.HOST."},
	{of: "read", without: `roster\..*`, says: "roster.HOST."},
	{of: "configure", without: `agent\..*`, says: "queue agent.GID.inbox.v2; see docs/broker.md"},
	{of: "write", without: `agent\..*`, says: "queue agent.GID.inbox.v2; see docs/broker.md"},
	{of: "read", without: `agent\..*`, says: "queue agent.GID.inbox.v2; see docs/broker.md"},
	{of: "configure", without: `dlq\..*`, says: "'dlq.report.HOST'"},
	{of: "write", without: `dlq\..*`, says: "'dlq.report.HOST'"},
	{of: "read", without: `dlq\..*`, says: "'dlq.report.HOST'"},
	{of: "write", without: `bridge\.msg`, says: "'bridge.msg'"},
	{of: "write", without: `bridge\.roster`, says: "'bridge.roster'"},
	{of: "write", without: `bridge\.control`, says: "'bridge.control'"},
	{of: "write", without: `bridge\.dlx`, says: "queue control.HOST; see docs/broker.md"},
	{of: "read", without: `bridge\.msg`, says: "'bridge.msg'"},
	{of: "read", without: `bridge\.roster`, says: "'bridge.roster'"},
	{of: "read", without: `bridge\.control`, says: "'bridge.control'"},
	{of: "read", without: `bridge\.dlx`, says: "'bridge.dlx'"},
	{of: "read", without: `bridge\.dlq`, says: "'bridge.dlq'"},
	{of: "bridge.msg write", without: gidPattern, says: "topic 'PEER'"},
	{of: "bridge.msg write", without: gidPattern + `\.signal`, says: "topic 'PEER.signal'"},
	{of: "bridge.msg write", without: `_gateway@.*`, says: "topic '_gateway@HOST.signal'"},
	{of: "bridge.msg write", without: `broadcast\..*`, says: "topic 'broadcast.all'"},
	{of: "bridge.msg read", without: gidPattern, says: "queue agent.GID.inbox.v2; see docs/broker.md"},
	{of: "bridge.msg read", without: gidPattern + `\.signal`, says: "topic 'GID.signal'"},
	{of: "bridge.msg read", without: `_gateway@.*`, says: "topic '_gateway@HOST.signal'"},
	{of: "bridge.msg read", without: `broadcast\..*`, says: "queue agent.GID.inbox.v2; see docs/broker.md"},
	{of: "bridge.roster write", without: `roster\.HOST\..*`, says: "topic 'roster.HOST._gateway'"},
	{of: "bridge.roster write", without: `.*\._solicit`, says: "topic 'roster.first._solicit'"},
	{of: "bridge.roster read", without: `.*`, says: "topic 'roster.#'"},
	{of: "configure", without: `bridge\.msg`, says: "'bridge.msg'", first: true},
	{of: "configure", without: `bridge\.roster`, says: "'bridge.roster'", first: true},
	{of: "configure", without: `bridge\.control`, says: "'bridge.control'", first: true},
	{of: "configure", without: `bridge\.dlx`, says: "'bridge.dlx'", first: true},
	{of: "configure", without: `bridge\.dlq`, says: "'bridge.dlq'", first: true},
	{of: "write", without: `bridge\.dlq`, says: "'bridge.dlq'", first: true},
}

// less is r without what w takes away.
func (r *rights) less(t *testing.T, w want, host string) {
	t.Helper()
	p := map[string]*string{
		"configure": &r.Configure, "write": &r.Write, "read": &r.Read,
		"bridge.msg write": &r.topics["bridge.msg"].Write, "bridge.msg read": &r.topics["bridge.msg"].Read,
		"bridge.roster write": &r.topics["bridge.roster"].Write, "bridge.roster read": &r.topics["bridge.roster"].Read,
	}[w.of]
	rest, ok := strings.CutPrefix(*p, "^")
	if !ok {
		t.Fatalf("the pattern %s does not begin with ^", *p)
	}
	*p = "^(?!(" + strings.ReplaceAll(w.without, "HOST", host) + ")$)" + rest
}

// visitor is a gateway with a login of its own that does all that a gateway does.
type visitor struct {
	*gateway
	gid  string
	box  *mailbox
	errs []string
}

// visit starts the gateway of host; the vhost is one of the node's.
func visit(fl *fleet, node *rabbit.Node, host, vhost string) *visitor {
	v := &visitor{gid: fl.entity(host)}
	v.gateway = fl.gateway(host, func(cfg *Config, _ *Deps) {
		cfg.URI = strings.Replace(node.URI, "guest:guest", host+":secret", 1) + vhost
	})
	v.refusedFor = time.Hour // a right that is missing is named before
	v.run()
	v.box = v.gateway.box(v.gid, func(i *Inbox) { i.Worker = true; i.Groups = []string{"crew"} })
	return v
}

// acts sends every sort of message to peer on host, and looks at dead letters.
// It goes on after what fails.
func (v *visitor) acts(peer, host string) {
	own := envelope.GatewayAddress(v.host)
	for lane, all := range map[envelope.Lane][]*envelope.Envelope{
		envelope.LaneMail: {
			v.fl.letter(envelope.Send, v.host, v.gid, peer, "mail"),
			v.fl.letter(envelope.Broadcast, v.host, v.gid, envelope.BroadcastKey("all"), "all"),
		},
		envelope.LaneSignal: {v.fl.letter(envelope.Ask, v.host, v.gid, peer, "signal")},
		envelope.LanePresence: {
			v.fl.letter(envelope.Presence, v.host, own, envelope.RosterKey(v.host, envelope.RosterGateway), "{}"),
			v.fl.letter(envelope.Presence, v.host, own, envelope.RosterKey(host, envelope.RosterSolicit), "{}"),
		},
		envelope.LaneControl: {v.fl.letter(envelope.Trace, v.host, own, host, "{}")},
	} {
		for _, e := range all {
			if out, err := v.Publish(context.Background(), lane, e, nil); out != Confirmed {
				v.errs = append(v.errs, fmt.Sprintf("%s %s: %s: %v", lane, e.Kind, out, err))
			}
		}
	}
	if _, err := v.Browse(context.Background(), func(*DeadLetter) Fate { return Keep }); err != nil {
		v.errs = append(v.errs, fmt.Sprint("dead letters: ", err))
	}
}

// listen tells the user_id of each mail to v from now on.
func listen(t *testing.T, v *visitor) (end func(), users <-chan string) {
	t.Helper()
	conn, err := amqp.DialConfig(v.cfg.URI, amqp.Config{Heartbeat: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	q := v.names.SignalQueue(v.host, "tap") // a name that its login may make
	if _, err := ch.QueueDeclare(q, false, true, true, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind(q, v.gid, v.names.Msg(), false, nil); err != nil {
		t.Fatal(err)
	}
	mail, err := ch.Consume(q, "", true, true, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	all, done := make(chan string, 16), make(chan struct{})
	go func() {
		defer close(done)
		for m := range mail {
			all <- m.UserId
		}
	}()
	return func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)); <-done }, all
}

// said is all that v let a person know.
func (v *visitor) said() string {
	return v.State().Reason + "\n" + strings.Join(v.log.lines(), "\n") + "\n" + strings.Join(v.errs, "\n")
}

// The commands of docs/broker.md are applied to a node as they stand. Fails when
// a gateway with these rights cannot do all that gateways do, when it can do what
// it must not, or when one part of them can be left out and nothing names it.
func TestTheDocumentedRightsSufficeAndAreNeeded(t *testing.T) {
	t.Attr("threat", "B3 B6")
	node := rabbit.Private(t)
	dir := t.TempDir()
	if err := node.Tool(dir); err != nil {
		t.Fatal(err)
	}
	// Its port answers a moment before rabbitmqctl does.
	if out, err := node.Ctl(t.Context(), "await_startup"); err != nil {
		t.Fatal(out, err)
	}
	script := strings.NewReplacer("login hosta PASSWORD-A", "login first secret", "login hostb PASSWORD-B", "login hostb secret").Replace(commands(t, "login"))
	shell(t, dir, script)
	fl := newFleet(t, "")
	fl.prefix = ""

	a := visit(fl, node, "first", "")
	a.await(Connected)
	b := visit(fl, node, "hostb", "")
	b.await(Connected)
	for _, v := range []*visitor{a, b} {
		eventually(t, "inbox attached", func() bool { return v.InboxState(v.gid).Status == InboxAttached })
	}
	t.Run("suffice", func(t *testing.T) {
		a.acts(b.gid, "hostb")
		b.acts(a.gid, "first")
		for _, v := range []*visitor{a, b} {
			seen := map[string]int{}
			for range 3 { // its own broadcast too
				d := got(t, "mail", v.box.mail)
				seen[string(d.Body)]++
				if err := d.Ack(); err != nil {
					t.Error(err)
				}
			}
			if seen["mail"] != 1 || seen["all"] != 2 {
				t.Errorf("%s got %v", v.host, seen)
			}
			got(t, "a signal", v.signals)
			got(t, "presence", v.presence)
			eventually(t, "control", func() bool { return v.Stats().Unsupported > 0 })
		}
		b.reporting()
		strange := fl.letter("LATER", "hostb", b.gid, a.gid, "unknown")
		b.publish(envelope.LaneMail, strange, Confirmed)
		if dead := got(t, "its dead letter", b.dead); dead.env.MsgID != strange.MsgID {
			t.Errorf("the dead letter is %s", dead.env.MsgID)
		}
		if done, err := b.Browse(t.Context(), func(*DeadLetter) Fate { return Remove }); err != nil || done.Seen != 1 {
			t.Errorf("bridge.dlq: %+v, %v", done, err)
		}
		if err := b.SetGroups(t.Context(), b.gid, []string{"other"}); err != nil {
			t.Error(err)
		}
		if err := b.Unbind(t.Context(), b.gid); err != nil {
			t.Error(err)
		}
		eventually(t, "inbox removed", func() bool {
			removed, err := b.Remove(t.Context(), b.gid)
			return err == nil && removed
		})
		for _, v := range []*visitor{a, b} {
			if len(v.errs) != 0 || strings.Contains(v.said(), "ACCESS_REFUSED") || strings.Contains(v.said(), "docs/broker.md") {
				t.Errorf("%s: %s", v.host, v.said())
			}
		}
	})
	t.Run("are few", func(t *testing.T) {
		t.Attr("threat", "B3 B6")
		conn, err := amqp.DialConfig(strings.Replace(node.URI, "guest:guest", "hostb:secret", 1), amqp.Config{Heartbeat: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }()
		n := Names{}
		own := n.ControlQueue("hostb")
		for what, try := range map[string]func(*amqp.Channel) error{
			"listen to all": func(ch *amqp.Channel) error { return ch.QueueBind(own, "#", n.Msg(), false, nil) },
			"read as another host": func(ch *amqp.Channel) error {
				_, err := ch.Consume(n.ControlQueue("first"), "", true, false, false, false, nil)
				return err
			},
			"claim another host":       n.controlQueue("hostc").declare,
			"make a queue of any name": queue{name: "mine"}.declare,
			"make an exchange": func(ch *amqp.Channel) error {
				return ch.ExchangeDeclare("bridge.x", "topic", true, false, false, false, nil)
			},
			"empty bridge.dlq for good": func(ch *amqp.Channel) error {
				_, err := ch.QueueDelete(n.DLQ(), false, false, false)
				return err
			},
			"speak in the roster as another host": func(ch *amqp.Channel) error {
				if err := ch.Confirm(false); err != nil {
					return err
				}
				closes := ch.NotifyClose(make(chan *amqp.Error, 1))
				if err := ch.PublishWithContext(t.Context(), n.Roster(), envelope.RosterKey("first", envelope.RosterGateway), false, false, amqp.Publishing{}); err != nil {
					return err
				}
				select {
				case err := <-closes:
					return err
				case <-time.After(patience):
					return nil
				}
			},
		} {
			if err := aside(conn, try); !isCode(err, amqp.AccessRefused) {
				t.Errorf("%s: %v, want 403", what, err)
			}
		}
		if reason := a.Claim().Status; reason != ClaimHeld {
			t.Errorf("the first host's claim is %v", reason)
		}
	})

	// Every right less is a host of its own; all logins are made at once.
	defs := map[string][]any{}
	grant := func(user, vhost string, r *rights) {
		defs["users"] = append(defs["users"], map[string]any{"name": user, "password": "secret", "tags": ""})
		defs["permissions"] = append(defs["permissions"], map[string]any{"user": user, "vhost": vhost, "configure": r.Configure, "write": r.Write, "read": r.Read})
		for exchange, p := range r.topics {
			defs["topic_permissions"] = append(defs["topic_permissions"], map[string]any{"user": user, "vhost": vhost, "exchange": exchange, "write": p.Write, "read": p.Read})
		}
	}
	grant("renamed", "/", documented(t, "hostb", "", false))
	grant("prefixed", "/", documented(t, "prefixed", "team.", true))
	host := func(i int) string { return fmt.Sprintf("h%d", i) }
	vhost := func(w want, i int) string {
		if w.first {
			return host(i)
		}
		return "/"
	}
	for i, w := range wants {
		h, v := host(i), vhost(w, i)
		r := documented(t, h, "", w.first)
		r.less(t, w, h)
		if w.first {
			defs["vhosts"] = append(defs["vhosts"], map[string]any{"name": v})
		}
		grant(h, v, r)
	}
	text, err := json.Marshal(defs)
	file := filepath.Join(dir, "definitions.json")
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := node.Ctl(t.Context(), "import_definitions", file); err != nil {
		t.Fatal(out, err)
	}
	t.Run("with a prefix", func(t *testing.T) {
		fl := newFleet(t, "")
		fl.prefix = "team."
		v := visit(fl, node, "prefixed", "")
		defer v.stop()
		v.await(Connected)
		eventually(t, "inbox attached", func() bool { return v.InboxState(v.gid).Status == InboxAttached })
		v.acts(v.gid, v.host)
		if len(v.errs) != 0 || strings.Contains(v.said(), "ACCESS_REFUSED") || strings.Contains(v.said(), "docs/broker.md") {
			t.Error(v.said())
		}
	})
	t.Run("login changed", func(t *testing.T) {
		tap, users := listen(t, a)
		b.publish(envelope.LaneMail, fl.letter(envelope.Send, "hostb", b.gid, a.gid, "under the old login"), Confirmed)
		b.stop()
		again := fl.gateway("hostb", func(cfg *Config, _ *Deps) { cfg.URI = strings.Replace(node.URI, "guest:guest", "renamed:secret", 1) })
		again.run()
		again.await(Connected)
		again.publish(envelope.LaneMail, fl.letter(envelope.Send, "hostb", b.gid, a.gid, "under the new login"), Confirmed)
		a.box.take(t, "under the old login")
		a.box.take(t, "under the new login")
		for _, want := range []string{"hostb", "renamed"} {
			if user := got(t, "a copy", users); user != want {
				t.Errorf("the message carries user_id %q, want %q", user, want)
			}
		}
		tap()
		again.stop()
	})
	for i, w := range wants {
		t.Run(w.of+" without "+w.without, func(t *testing.T) {
			path := ""
			if w.first {
				path = host(i)
			}
			v := visit(fl, node, host(i), path)
			defer v.stop()
			says := strings.NewReplacer("HOST", v.host, "GID", v.gid, "PEER", a.gid).Replace(w.says)
			limit, acted := time.Now().Add(patience), false
			for !strings.Contains(v.said(), says) {
				if !acted && v.State().Phase == Connected && v.InboxState(v.gid).Status == InboxAttached {
					acted = true
					v.acts(a.gid, "first")
				}
				if time.Now().After(limit) {
					t.Fatalf("nothing says %q; it said\n%s", says, v.said())
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
}
