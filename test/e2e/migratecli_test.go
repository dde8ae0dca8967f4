package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"fleetd/fabric"
	"fleetd/mcp"
	"fleetd/migrations"
	"fleetd/test/fleet"
	"fleetd/test/rabbit"
)

// What a user meets around a migration, each on the command line, beside a
// running daemon and on a broker of its own. The parts say when they fail; each
// can be run without the others.
func TestMigrateOnTheCommandLine(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*bound)
	defer cancel()
	node := rabbit.Private(t, rabbit.Plugins("rabbitmq_management", "rabbitmq_shovel"))
	w := newOldWorld(t, ctx, node.URI)
	in := func(t *testing.T) *oldWorld { // a part ends itself, not the whole
		part := *w
		part.t = t
		return &part
	}
	t.Run("panes", func(t *testing.T) { in(t).panesOfHerdr() })
	t.Run("credentials", func(t *testing.T) { in(t).wrongCredentials(node.URI) })
	t.Run("management", func(t *testing.T) { in(t).managementOfBoth(node) })
	t.Run("full", func(t *testing.T) { in(t).fullInbox(node) })
	t.Run("quorum", func(t *testing.T) { in(t).quorumQueue(node) })
	t.Run("words", func(t *testing.T) { in(t).oldWords() })
	t.Run("mismatch", func(t *testing.T) { in(t).inboxOfOtherArguments() })
	t.Run("port", func(t *testing.T) { in(t).samePort() })
}

// tells runs the command, which has to succeed, and returns both outputs.
func (w *oldWorld) tells(args ...string) (out, errs string) {
	w.t.Helper()
	out, errs, err := bridged(w.ctx, w.host, args...)
	if err != nil {
		w.t.Fatalf("bridged %q: %v\n%s%s", args, err, out, errs)
	}
	return out, errs
}

// plan is what a plan says of queue.
func (w *oldWorld) plan(queue string, args ...string) (migrations.Row, bool) {
	w.t.Helper()
	out, _ := w.tells(append([]string{"migrate", "--json"}, args...)...)
	var said struct{ Plan []migrations.Row }
	if err := json.Unmarshal([]byte(out), &said); err != nil {
		w.t.Fatal(err)
	}
	at := slices.IndexFunc(said.Plan, func(r migrations.Row) bool { return r.Queue == queue })
	if at < 0 {
		return migrations.Row{}, false
	}
	return said.Plan[at], true
}

// fails runs the command, which has to end with the exit code of what was tried
// and failed, and returns what it says.
func (w *oldWorld) fails(cmd *exec.Cmd) (out, errs string) {
	w.t.Helper()
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		w.t.Fatalf("it ended with %v, want exit code 1\n%s%s", err, &stdout, &stderr)
	}
	return stdout.String(), stderr.String()
}

// panesOfHerdr fails when the queue of a pane that herdr has, and that nobody
// registered or named, is not found: without it the mail of a worker that is
// forgotten stays for ever.
func (w *oldWorld) panesOfHerdr() {
	pane, err := w.host.OpenPane("forgotten")
	if err != nil {
		w.t.Fatal(err)
	}
	w.old.declare(pane)
	w.old.replied(pane, amqp.Publishing{Body: []byte("hello")})
	queue := migrations.QueueOf(pane)
	eventually(w.t, w.ctx, func() error {
		row, found := w.plan(queue)
		if !found || row.Messages != 1 || !strings.Contains(row.Problem, "--map "+pane+"=NAME") {
			return fmt.Errorf("the plan has %+v, %t", row, found)
		}
		return nil
	})
	w.tells("migrate", "--map", pane+"=builder", "--apply", "--delete")
	if got := texts(w.t, w.ctx, w.main, map[string]any{}, "builder@hosta", 1); len(got) != 1 || got[0] != "hello" {
		w.t.Errorf("the main gets %q", got)
	}
}

// wrongCredentials fails when a password that the broker does not take reads as
// anything else, is shown, or something is changed all the same.
func (w *oldWorld) wrongCredentials(uri string) {
	w.replied("still here")
	defer func() { // the other parts begin with an empty queue
		if _, err := w.old.ch.QueuePurge(migrations.QueueOf(w.pane), false); err != nil {
			w.t.Error(err)
		}
	}()
	cmd := w.host.Command(w.ctx, "migrate", "--map", w.pane+"=builder", "--apply", "--delete")
	cmd.Env = append(cmd.Env, "BRIDGED_BROKER_URI="+strings.Replace(uri, "guest:guest", "guest:open-sesame", 1))
	out, errs := w.fails(cmd)
	if !strings.Contains(errs, "BROKER_REFUSED") || !strings.Contains(errs, "nothing was changed. Correct broker.uri") || strings.Contains(out+errs, "sesame") {
		w.t.Errorf("it says %s%s", out, errs)
	}
	w.waiting(1)
	row, found := w.plan(migrations.QueueOf(w.pane), "--map", w.pane+"=builder")
	if !found || row.Messages != 1 || row.Consumers != 0 || row.Problem != "" {
		w.t.Errorf("afterwards the plan says %+v, %t", row, found)
	}
}

// managementOfBoth fails when the queue of a pane that nobody remembers is not
// found by the broker's management API, RabbitMQ's own or LavinMQ's in its form,
// when a login that it does not take reads otherwise, or when a queue is deleted
// of which it cannot say that nobody holds its mail.
func (w *oldWorld) managementOfBoth(node *rabbit.Node) {
	w.replied("still here")
	queue := migrations.QueueOf(w.pane)
	if row, found := w.plan(queue); found {
		w.t.Fatalf("without the API it is known: %+v", row)
	}
	lavin := httptest.NewServer(http.HandlerFunc(func(a http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "guest" || password != "guest" {
			a.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.URL.EscapedPath() == "/api/queues/%2F/"+queue { // of the one it cannot say who holds its mail
			a.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if r.URL.EscapedPath() != "/api/queues/%2F" {
			a.WriteHeader(http.StatusNotFound)
			return
		}
		fmt.Fprintf(a, `[{"name":%q,"durable":true,"exclusive":false,"auto_delete":false,"arguments":{},"consumers":0,"vhost":"/",
			"messages":1,"messages_persistent":1,"total_bytes":30,"ready":1,"ready_bytes":30,"unacked":0,"state":"running","policy":null,
			"operator_policy":null,"exclusive_consumer_tag":null,"single_active_consumer_tag":null,"effective_policy_definition":{},"effective_arguments":[]}]`, queue)
	}))
	defer lavin.Close()
	for brand, base := range map[string]string{"RabbitMQ": node.Management, "LavinMQ": lavin.URL} {
		row, found := w.plan(queue, "--management", base)
		if !found || row.Messages != 1 || !row.Foreign || !strings.Contains(row.Problem, "--map "+w.pane+"=NAME") {
			w.t.Errorf("%s: the plan has %+v, %t", brand, row, found)
		}
		at, err := url.Parse(base)
		if err != nil {
			w.t.Fatal(err)
		}
		at.User = url.User("guest")
		cmd := w.host.Command(w.ctx, "migrate", "--management", at.String())
		cmd.Env = append(cmd.Env, "BRIDGED_MANAGEMENT_PASSWORD=open-sesame")
		if _, errs := w.fails(cmd); !strings.Contains(errs, "BROKER_REFUSED") || !strings.Contains(errs, "does not take the login guest") || strings.Contains(errs, "sesame") {
			w.t.Errorf("%s: with a wrong password it says %s", brand, errs)
		}
	}
	if out, _ := w.tells("migrate", "--map", w.pane+"=builder", "--apply", "--delete", "--management", lavin.URL); !strings.Contains(out, "the queue stays") {
		w.t.Errorf("of a queue of which it cannot say who holds its mail the table is\n%s", out)
	}
	w.waiting(0) // and it is there
	if got := texts(w.t, w.ctx, w.main, map[string]any{}, "builder@hosta", 1); len(got) != 1 || got[0] != "still here" {
		w.t.Errorf("the main gets %q", got)
	}
}

// fullInbox fails when an inbox that fills up while its daemon runs costs a
// reply or its place, when the user is not told how far it came and what to do,
// or when what is printed by the way gets into the JSON.
func (w *oldWorld) fullInbox(node *rabbit.Node) {
	const many, room = 300, 5
	inbox := fabric.Names{Prefix: w.prefix}.Inbox(w.main.GID)
	ctl := func(args ...string) {
		w.t.Helper()
		if _, err := node.Ctl(w.ctx, args...); err != nil {
			w.t.Fatal(err)
		}
	}
	ctl("set_policy", "little", "^"+regexp.QuoteMeta(inbox)+"$", fmt.Sprintf(`{"max-length": %d}`, room), "--apply-to", "queues")
	var want, got []string
	roomy := false
	for n := range many {
		want = append(want, fmt.Sprint("reply ", n))
		w.old.replied(w.pane, amqp.Publishing{Body: []byte(want[n])})
	}
	w.waiting(many)
	args := []string{"migrate", "--map", w.pane + "=builder", "--apply"}
	out, errs := w.fails(w.host.Command(w.ctx, args...))
	if !strings.Contains(errs, "INBOX_FULL") || !strings.Contains(errs, "Have the main fetch some, then run this again") {
		w.t.Fatalf("it says %s%s", out, errs)
	}
	if !regexp.MustCompile(regexp.QuoteMeta(migrations.QueueOf(w.pane)) + `\t` + fmt.Sprint(many) + `\t0\t[1-9]`).MatchString(out) {
		w.t.Errorf("the table does not say what was moved:\n%s", out)
	}
	for len(got) < many { // the main fetches what there is, and the run is made again
		r, err := w.main.Poll(w.ctx, map[string]any{"wait_seconds": 20, "max": 100})
		if err != nil {
			w.t.Fatal(err)
		}
		for _, m := range r.Messages {
			if m.From != "builder@hosta" || m.Redelivered {
				w.t.Errorf("a reply is from %s, redelivered %t", m.From, m.Redelivered)
			}
			got = append(got, m.Content)
		}
		if r.Remaining > 0 {
			continue
		}
		if len(got) > many/2 && !roomy {
			roomy = true
			ctl("clear_policy", "little")
		}
		out, errs, err = bridged(w.ctx, w.host, args...)
		if err != nil && !strings.Contains(errs, "INBOX_FULL") {
			w.t.Fatalf("run again it came to %v\n%s%s", err, out, errs)
		}
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("the main gets %q", got)
	}
	if rest, err := w.main.Poll(w.ctx, map[string]any{}); err != nil || len(rest.Messages) != 0 || rest.Remaining != 0 {
		w.t.Errorf("more came: %+v, %v", rest, err)
	}
	w.waiting(0)
	for n := range many {
		w.old.replied(w.pane, amqp.Publishing{Body: []byte(want[n])})
	}
	w.waiting(many)
	progress := regexp.MustCompile(regexp.QuoteMeta(migrations.QueueOf(w.pane)) + `: [1-9][0-9]* of 300\n`)
	if out, errs = w.tells(args...); !progress.MatchString(errs) || progress.MatchString(out) {
		w.t.Errorf("a person who waits is told %q; the table is\n%s", errs, out)
	}
	if got := texts(w.t, w.ctx, w.main, map[string]any{"max": 100}, "builder@hosta", many); !slices.Equal(got, want) {
		w.t.Errorf("the second time the main gets %q", got)
	}
}

// quorumQueue fails when the way that docs/upgrade.md tells for the mail of a
// quorum queue loses a reply or its place.
func (w *oldWorld) quorumQueue(node *rabbit.Node) {
	pane := strings.TrimSuffix(w.pane, ":p7") + ":p2"
	queue, classic := migrations.QueueOf(pane), migrations.QueueOf(pane+"c")
	if _, err := w.old.ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		w.t.Fatal(err)
	}
	var want []string
	for n := range 50 {
		want = append(want, fmt.Sprint("reply ", n))
		w.old.replied(pane, amqp.Publishing{Body: []byte(want[n])})
	}
	eventually(w.t, w.ctx, func() error { // it counts with a delay
		row, found := w.plan(queue, "--map", pane+"=builder")
		if !found || row.Messages != len(want) || !strings.Contains(row.Problem, "docs/upgrade.md") {
			return fmt.Errorf("the plan has %+v, %t", row, found)
		}
		return nil
	})
	line := regexp.MustCompile(`(?m)^rabbitmqctl (set_parameter shovel \S+) '(.*)'$`).FindStringSubmatch(guide(w.t))
	if line == nil {
		w.t.Fatal("docs/upgrade.md tells no shovel")
	}
	told := strings.ReplaceAll(line[2], "wQ:p2", pane)
	if _, err := node.Ctl(w.ctx, append(strings.Fields(line[1]), told)...); err != nil {
		w.t.Fatal(err)
	}
	eventually(w.t, w.ctx, func() error {
		row, found := w.plan(classic, "--map", pane+"c=builder", "--skip", queue)
		if !found || row.Messages != len(want) || row.Problem != "" {
			return fmt.Errorf("the plan has %+v, %t", row, found)
		}
		return nil
	})
	w.tells("migrate", "--map", pane+"c=builder", "--map", pane+"=builder", "--apply", "--delete")
	if got := texts(w.t, w.ctx, w.main, map[string]any{"max": 100}, "builder@hosta", len(want)); !slices.Equal(got, want) {
		w.t.Errorf("the main gets %q", got)
	}
}

// oldWords fails when the one primary without a token cannot answer a brief or
// ask about it in the words that it knew.
func (w *oldWorld) oldWords() {
	primary := &fleet.Main{Name: "main", URL: "http://" + w.host.Addr + "/mcp"}
	if err := primary.Connect(w.ctx); err != nil {
		w.t.Fatal(err)
	}
	boss := addMain(w.t, w.ctx, w.host, "boss")
	type outcome struct {
		mcp.SendResult
		error
	}
	waits := make(chan outcome, 1)
	go func() {
		r, err := boss.Send(w.ctx, map[string]any{"to": "main", "content": "format it", "wait_seconds": 200})
		waits <- outcome{r, err}
	}()
	brief := next(w.t, w.ctx, primary)
	asked := make(chan error, 1)
	var answer mcp.AskResult
	go func() {
		asked <- primary.Call(w.ctx, "bridge_ask", map[string]any{"target": "boss", "question": "tabs or blanks?"}, &answer)
	}()
	q := <-waits
	if q.error != nil || q.State != "ask" || q.Question.Content != "tabs or blanks?" {
		w.t.Fatalf("the brief came to %+v, %v", q.SendResult, q.error)
	}
	go func() {
		r, err := boss.Answer(w.ctx, map[string]any{"turn_id": q.TurnID, "content": "blanks", "wait_seconds": 200})
		waits <- outcome{r, err}
	}()
	if err := <-asked; err != nil || answer.Answer != "blanks" || answer.From != "boss@hosta" {
		w.t.Fatalf("the question came to %+v, %v", answer, err)
	}
	var reply mcp.ReplyResult
	if err := primary.Call(w.ctx, "bridge_reply", map[string]any{"content": "formatted"}, &reply); err != nil || reply.InReplyTo != brief.MsgID {
		w.t.Fatalf("the reply came to %+v, %v", reply, err)
	}
	if r := <-waits; r.error != nil || r.State != "replied" || r.Reply.Content != "formatted" || r.Reply.From != "main@hosta" {
		w.t.Errorf("the boss got %+v, %v", r.SendResult, r.error)
	}
	if err := primary.Disconnect(); err != nil {
		w.t.Error(err)
	}
}

// inboxOfOtherArguments fails when a `.v2` queue that exists with other
// arguments ends the daemon or stops its other inboxes, is named more than once
// or without a remedy, is taken for one that mail can be moved into, or when the
// remedy does not help.
func (w *oldWorld) inboxOfOtherArguments() {
	queue := fabric.Names{Prefix: w.prefix}.Inbox(w.main.GID)
	w.replied("kept")
	if err := w.host.Stop(); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.old.ch.QueueDelete(queue, false, false, false); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.old.ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-max-length": int64(7)}); err != nil {
		w.t.Fatal(err)
	}
	before := len(w.host.Log())
	if err := w.host.Start(w.ctx); err != nil {
		w.t.Fatal(err)
	}
	said := func() (n int) {
		for line := range strings.Lines(w.host.Log()[before:]) {
			if strings.Contains(line, "[ERROR]") && strings.Contains(line, "queue "+queue+" exists with another x-") && strings.Contains(line, "delete it once it is empty") {
				n++
			}
		}
		return n
	}
	eventually(w.t, w.ctx, func() error {
		if said() == 0 {
			return errors.New("the daemon says nothing")
		}
		return nil
	})
	ann, bob := addMain(w.t, w.ctx, w.host, "ann"), addMain(w.t, w.ctx, w.host, "bob")
	if _, err := ann.Send(w.ctx, map[string]any{"to": "bob", "content": "hello"}); err != nil {
		w.t.Errorf("beside it: %v", err)
	}
	if got := next(w.t, w.ctx, bob); got.Content != "hello" {
		w.t.Errorf("beside it bob got %+v", got)
	}
	row, found := w.plan(migrations.QueueOf(w.pane), "--map", w.pane+"=builder")
	if !found || !strings.Contains(row.Problem, "exists with another x-") || !strings.Contains(row.Problem, "delete it when it is empty") {
		w.t.Errorf("the plan has %+v, %t", row, found)
	}
	if _, errs := w.fails(w.host.Command(w.ctx, "migrate", "--map", w.pane+"=builder", "--apply")); !strings.Contains(errs, "nothing was moved") {
		w.t.Errorf("moved all the same it says %s", errs)
	}
	if _, err := w.old.ch.QueueDelete(queue, false, true, false); err != nil {
		w.t.Fatal(err)
	}
	eventually(w.t, w.ctx, func() error {
		row, found := w.plan(migrations.QueueOf(w.pane), "--map", w.pane+"=builder")
		if !found || row.Problem != "" {
			return fmt.Errorf("the plan has %+v, %t", row, found)
		}
		return nil
	})
	w.tells("migrate", "--map", w.pane+"=builder", "--apply")
	reconnect(w.t, w.ctx, w.main)
	if got := texts(w.t, w.ctx, w.main, map[string]any{}, "builder@hosta", 1); len(got) != 1 || got[0] != "kept" {
		w.t.Errorf("the main gets %q", got)
	}
	if n := said(); n != 1 {
		w.t.Errorf("%d lines name it, want 1", n)
	}
}

// samePort fails when a daemon that is started while the old one still has the
// port does not say so, or does not start once that is gone.
func (w *oldWorld) samePort() {
	if err := w.host.Stop(); err != nil {
		w.t.Fatal(err)
	}
	old, err := net.Listen("tcp", w.host.Addr)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, errs := w.fails(w.host.Command(w.ctx, "serve")); !strings.Contains(errs, "cannot listen on "+w.host.Addr+"; another program, or the old daemon,") {
		w.t.Errorf("beside it: %s", errs)
	}
	if err := old.Close(); err != nil {
		w.t.Fatal(err)
	}
	if err := w.host.Start(w.ctx); err != nil {
		w.t.Fatal(err)
	}
	primary := &fleet.Main{Name: "main", URL: "http://" + w.host.Addr + "/mcp"}
	if err := primary.Connect(w.ctx); err != nil {
		w.t.Fatal(err)
	}
	var who mcp.WhoamiResult
	if err := primary.Call(w.ctx, "bridge_whoami", map[string]any{}, &who); err != nil || who.Name != "main" {
		w.t.Errorf("the primary is %+v, %v", who, err)
	}
	if err := primary.Disconnect(); err != nil {
		w.t.Error(err)
	}
}
