package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fleetd/fault"
	"fleetd/mcp"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// fake is the daemon's side: it echoes what it was asked.
type fake struct {
	poll func(context.Context, mcp.PollArgs) (mcp.PollResult, error)
	send func(context.Context, mcp.SendArgs) (mcp.SendResult, error)
}

func (f *fake) Send(ctx context.Context, a mcp.SendArgs) (mcp.SendResult, error) {
	if f.send != nil {
		return f.send(ctx, a)
	}
	return mcp.SendResult{To: a.To, Note: a.Content, MsgID: a.IdempotencyKey}, nil
}

func (f *fake) Poll(ctx context.Context, a mcp.PollArgs) (mcp.PollResult, error) {
	if f.poll != nil {
		return f.poll(ctx, a)
	}
	return mcp.PollResult{Messages: []mcp.Message{{From: a.From}}}, nil
}

func (*fake) Read(_ context.Context, a mcp.ReadArgs) (mcp.ReadResult, error) {
	return mcp.ReadResult{MsgID: a.MsgID, Offset: a.Offset}, nil
}

func (*fake) Reply(_ context.Context, a mcp.ReplyArgs) (mcp.ReplyResult, error) {
	return mcp.ReplyResult{InReplyTo: a.InReplyTo}, nil
}

func (*fake) Spawn(_ context.Context, a mcp.SpawnArgs) (mcp.SpawnResult, error) {
	return mcp.SpawnResult{State: "spawned:" + a.Profile + "@" + a.Host}, nil
}

func (*fake) Stop(_ context.Context, a mcp.StopArgs) (mcp.StopResult, error) {
	return mcp.StopResult{State: "stopped:" + a.Target}, nil
}

func (*fake) Ask(_ context.Context, a mcp.AskArgs) (mcp.AskResult, error) {
	return mcp.AskResult{Answer: a.Question, From: a.To}, nil
}

func (*fake) Answer(_ context.Context, a mcp.AnswerArgs) (mcp.SendResult, error) {
	return mcp.SendResult{TurnID: a.TurnID, Note: a.Content}, nil
}

func (*fake) Broadcast(_ context.Context, a mcp.BroadcastArgs) (mcp.BroadcastResult, error) {
	return mcp.BroadcastResult{Group: a.Group, Recipients: []mcp.Recipient{}}, nil
}

func (*fake) Info(context.Context) (mcp.InfoResult, error) {
	return mcp.InfoResult{Host: "hosta", Keys: []string{"SHA256:own"}, ContentBytes: 7}, nil
}

func (*fake) Groups(_ context.Context, a mcp.GroupsArgs) (mcp.GroupsResult, error) {
	return mcp.GroupsResult{Name: a.Name, Groups: a.Add}, nil
}

func (*fake) Roster(_ context.Context, a mcp.RosterArgs) (mcp.RosterResult, error) {
	return mcp.RosterResult{Self: a.Host, Hosts: []mcp.RosterHost{}, Entities: []mcp.RosterEntity{}}, nil
}

func (*fake) Trace(_ context.Context, a mcp.TraceArgs) (mcp.TraceResult, error) {
	return mcp.TraceResult{}, fault.New(fault.Unroutable, "nothing is known of %s.", a.TraceID)
}

func (*fake) Whoami(ctx context.Context) (mcp.WhoamiResult, error) {
	c, _ := mcp.CallerFrom(ctx)
	return mcp.WhoamiResult{GID: c.GID, OpenBriefs: []mcp.OpenBrief{}, Questions: []mcp.OpenTurn{}, Drained: []mcp.Drained{}}, nil
}

func (*fake) Register(_ context.Context, a mcp.RegisterArgs) (mcp.RegisterResult, error) {
	return mcp.RegisterResult{Name: a.Name, Token: "t"}, nil
}

func (*fake) Unregister(_ context.Context, a mcp.UnregisterArgs) (mcp.UnregisterResult, error) {
	return mcp.UnregisterResult{State: "gone " + a.Name}, nil
}

type identities struct{}

func (identities) ByToken(t string) (mcp.Caller, bool) {
	return mcp.Caller{GID: "token-" + t}, t == "good"
}
func (identities) ByName(n string) (mcp.Caller, bool) { return mcp.Caller{GID: "name-" + n}, true }
func (identities) DefaultMain() (mcp.Caller, bool)    { return mcp.Caller{}, false }

func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "b.sock")
}

// serve runs a daemon's listener until stop.
func serve(t *testing.T, socket string, f *fake, change ...func(*mcp.Server)) (stop func()) {
	t.Helper()
	s := &mcp.Server{Listen: "127.0.0.1:0", Socket: socket, Gateway: f, Admin: f, Identities: identities{},
		Log: hclog.NewNullLogger(), StopGrace: 100 * time.Millisecond}
	for _, c := range change {
		c(s)
	}
	if err := s.Bind(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := receive(t, "the end of the daemon", ended); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func receive[T any](t *testing.T, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Errorf("timed out waiting for %s", what)
		panic("no use to go on")
	}
}

// Fails if a verb's arguments or result do not survive the way to the daemon
// and back.
func TestEveryVerb(t *testing.T) {
	c := &Client{Socket: socketPath(t), As: "ann"}
	serve(t, c.Socket, &fake{})
	ctx := t.Context()
	check := func(got any, err error, want any) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	send, err := c.Send(ctx, mcp.SendArgs{To: "a", Content: "b <&> ü", IdempotencyKey: "k"})
	check(send, err, mcp.SendResult{To: "a", Note: "b <&> ü", MsgID: "k"})
	poll, err := c.Poll(ctx, mcp.PollArgs{From: "zoe"})
	check(poll, err, mcp.PollResult{Messages: []mcp.Message{{From: "zoe"}}})
	read, err := c.Read(ctx, mcp.ReadArgs{MsgID: "m", Offset: 5})
	check(read, err, mcp.ReadResult{MsgID: "m", Offset: 5})
	reply, err := c.Reply(ctx, mcp.ReplyArgs{Content: "c", InReplyTo: "m"})
	check(reply, err, mcp.ReplyResult{InReplyTo: "m"})
	roster, err := c.Roster(ctx, mcp.RosterArgs{Host: "hosta"})
	check(roster, err, mcp.RosterResult{Self: "hosta", Hosts: []mcp.RosterHost{}, Entities: []mcp.RosterEntity{}})
	who, err := c.Whoami(ctx)
	check(who, err, mcp.WhoamiResult{GID: "name-ann", OpenBriefs: []mcp.OpenBrief{}, Questions: []mcp.OpenTurn{}, Drained: []mcp.Drained{}})
	reg, err := c.Register(ctx, mcp.RegisterArgs{Name: "n", Kind: "main"})
	check(reg, err, mcp.RegisterResult{Name: "n", Token: "t"})
	unreg, err := c.Unregister(ctx, mcp.UnregisterArgs{Name: "n"})
	check(unreg, err, mcp.UnregisterResult{State: "gone n"})

	_, err = c.Trace(ctx, mcp.TraceArgs{TraceID: "t1"})
	if f, ok := errors.AsType[*fault.Error](err); !ok || f.Code != fault.Unroutable || f.Sentence != "nothing is known of t1." {
		t.Errorf("the daemon's fault came back as %v", err)
	}
}

// Fails if the token is not used, a wrong one passes, or a pane's token keeps
// its user from the admin verbs.
func TestWhoAsks(t *testing.T) {
	socket := socketPath(t)
	serve(t, socket, &fake{})
	if who, err := (&Client{Socket: socket, Token: "good", As: "ann"}).Whoami(t.Context()); err != nil || who.GID != "token-good" {
		t.Errorf("%v, %v", who, err)
	}
	if _, err := (&Client{Socket: socket, Token: "bad", As: "ann"}).Whoami(t.Context()); !fault.Is(err, fault.NotAuthenticated) {
		t.Errorf("a wrong token: %v", err)
	}
	if _, err := (&Client{Socket: socket, Token: "good"}).Register(t.Context(), mcp.RegisterArgs{Name: "n", Kind: "main"}); err != nil {
		t.Errorf("register in a pane: %v", err)
	}
}

// Fails if a user is not told at once what to do when no daemon runs.
func TestNoDaemon(t *testing.T) {
	c := &Client{Socket: socketPath(t)}
	c.once.Do(c.init)
	dial, tries := c.http.Transport.(*http.Transport).DialContext, 0
	c.http.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		tries++
		return dial(ctx, network, addr)
	}
	ctx, _ := mcp.WithReceipt(t.Context())
	if _, err := c.Poll(ctx, mcp.PollArgs{}); !errors.Is(err, ErrNotRunning) || tries != 1 {
		t.Errorf("a poll with a receipt: %v after %d tries", err, tries)
	}
	_, err := c.Roster(t.Context(), mcp.RosterArgs{})
	if !errors.Is(err, ErrNotRunning) || !strings.Contains(err.Error(), "bridged is not running on this host (socket "+c.Socket+"): start it with `bridged serve`") {
		t.Errorf("%v", err)
	}
}

// Fails if a short absence of the daemon is seen by who allowed for one, as the
// stdio bridge does.
func TestAbsenceIsBridged(t *testing.T) {
	ctx, _ := mcp.WithReceipt(t.Context())
	bridged(t, ctx, &Client{Socket: socketPath(t), As: "ann", Retry: time.Minute})
}

func bridged(t *testing.T, ctx context.Context, c *Client) {
	t.Helper()
	var tries atomic.Int32
	come := make(chan struct{})
	c.once.Do(c.init)
	dial := c.http.Transport.(*http.Transport).DialContext
	c.http.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if tries.Add(1) == 2 {
			close(come)
		}
		return dial(ctx, network, addr)
	}
	done := make(chan error, 1)
	go func() {
		_, err := c.Send(ctx, mcp.SendArgs{To: "a", Content: "b"})
		done <- err
	}()
	receive(t, "the second try", come)
	serve(t, c.Socket, &fake{})
	if err := receive(t, "the answer", done); err != nil {
		t.Error(err)
	}
}

// vanishing is a daemon that reads the first request and dies; later ones it
// answers.
func vanishing(t *testing.T, answer string) (socket string, requests *atomic.Int32) {
	t.Helper()
	socket = socketPath(t)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	requests = &atomic.Int32{}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if requests.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, answer)
	})}
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() {
		_ = srv.Close()
		serving.Wait()
	})
	return socket, requests
}

// Fails if a send that the dying daemon may have accepted is sent again, or if
// what can safely be asked again is not.
func TestBrokenCall(t *testing.T) {
	socket, requests := vanishing(t, `{}`)
	_, err := (&Client{Socket: socket, Retry: time.Minute}).Send(t.Context(), mcp.SendArgs{To: "a", Content: "b"})
	if !fault.Is(err, fault.InDoubt) || requests.Load() != 1 {
		t.Errorf("a send: %v after %d requests", err, requests.Load())
	}
	socket, requests = vanishing(t, `{"msg_id":"m"}`)
	sent, err := (&Client{Socket: socket, Retry: time.Minute}).Send(t.Context(), mcp.SendArgs{To: "a", Content: "b", IdempotencyKey: "k"})
	if err != nil || sent.MsgID != "m" || requests.Load() != 2 {
		t.Errorf("a send with a key: %v, %v after %d requests", sent, err, requests.Load())
	}
	socket, requests = vanishing(t, `{"held":3}`)
	polled, err := (&Client{Socket: socket, Retry: time.Minute}).Poll(t.Context(), mcp.PollArgs{WaitSeconds: 50})
	if err != nil || polled.Held != 3 || requests.Load() != 2 {
		t.Errorf("a poll: %v, %v after %d requests", polled, err, requests.Load())
	}
	socket, _ = vanishing(t, `{}`)
	if _, err := (&Client{Socket: socket}).Poll(t.Context(), mcp.PollArgs{}); err == nil || !strings.Contains(err.Error(), "nothing was lost") {
		t.Errorf("a poll without retry: %v", err)
	}
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Fails if the client gives up before the wait it asked for is over.
func TestClientOutlastsItsWait(t *testing.T) {
	c := &Client{Socket: "unused"}
	c.once.Do(c.init)
	var left time.Duration
	c.http.Transport = tripper(func(r *http.Request) (*http.Response, error) {
		end, ok := r.Context().Deadline()
		if !ok {
			return nil, errors.New("no bound at all")
		}
		left = time.Until(end)
		return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("{}"))}, nil
	})
	if _, err := c.Poll(t.Context(), mcp.PollArgs{WaitSeconds: 240}); err != nil {
		t.Fatal(err)
	}
	if left < 245*time.Second || left > 600*time.Second {
		t.Errorf("a wait of 240 s is given %s", left)
	}
}

// stdio runs `bridged mcp` on pipes.
func stdio(t *testing.T, c *Client) (in io.Writer, out *bufio.Reader, closeOut func()) {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	var running sync.WaitGroup
	running.Go(func() {
		if err := mcp.ServeStdio(context.Background(), c, "test", hclog.NewNullLogger(), inR, outW); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		_ = inW.Close()
		_ = outR.Close()
		running.Wait()
	})
	return inW, bufio.NewReader(outR), func() { _ = outR.Close() }
}

func pollLine(id int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"bridge_poll","arguments":{}}}`+"\n", id)
}

// Fails if mail fetched by the stdio bridge counts as handed over before the
// agent has its line, never does, or does although the agent is gone.
func TestStdioMailIsDrainedWhenTheAgentHasIt(t *testing.T) {
	settled := make(chan bool, 1)
	offered := make(chan struct{}, 1)
	c := &Client{Socket: socketPath(t), As: "ann"}
	serve(t, c.Socket, &fake{poll: func(ctx context.Context, _ mcp.PollArgs) (mcp.PollResult, error) {
		mcp.OnWritten(ctx, func(written bool) { settled <- written })
		offered <- struct{}{}
		return mcp.PollResult{Messages: []mcp.Message{{Content: "mail"}}}, nil
	}})
	in, out, closeOut := stdio(t, c)
	_, _ = io.WriteString(in, pollLine(1))
	receive(t, "the poll", offered)
	select {
	case got := <-settled:
		t.Fatalf("settled as %v before the agent read its line", got)
	default:
	}
	if line, err := out.ReadString('\n'); err != nil || !strings.Contains(line, "mail") {
		t.Errorf("%s, %v", line, err)
	}
	if !receive(t, "the receipt", settled) {
		t.Error("the agent has its mail and it counts as lost")
	}
	_, _ = io.WriteString(in, pollLine(2))
	receive(t, "the poll", offered)
	closeOut()
	if receive(t, "the receipt", settled) {
		t.Error("the agent is gone and its mail counts as handed over")
	}
}

// Fails if the restart of the daemon ends the stdio bridge or shows in it, or
// if the agent is not told in words while there is no daemon.
func TestStdioSurvivesARestart(t *testing.T) {
	c := &Client{Socket: socketPath(t), As: "ann", Retry: time.Millisecond}
	stop := serve(t, c.Socket, &fake{})
	in, out, _ := stdio(t, c)
	ask := func(id int, want string) {
		t.Helper()
		_, _ = io.WriteString(in, pollLine(id))
		if line, err := out.ReadString('\n'); err != nil || !strings.Contains(line, want) {
			t.Errorf("call %d: %s, %v", id, line, err)
		}
	}
	ask(1, `"messages":[{`)
	stop()
	ask(2, "INTERNAL: bridged is not running on this host")
	serve(t, c.Socket, &fake{})
	ask(3, `"messages":[{`)
}

// Fails if a token is told to a socket that another user serves.
func TestAStrangersSocketIsToldNothing(t *testing.T) {
	t.Attr("threat", "U3")
	path := filepath.Join(t.TempDir(), "b.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	heard := make(chan []byte, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			heard <- []byte(err.Error())
			return
		}
		defer conn.Close()
		all, _ := io.ReadAll(conn) // cut is nothing heard, too
		heard <- all
	}()
	c := &Client{Socket: path, Token: "br_secret", server: func(net.Conn) error {
		return fault.New(fault.NotAuthenticated, "it is served by user 4242.")
	}}
	if _, err := c.Whoami(t.Context()); !fault.Is(err, fault.NotAuthenticated) || !strings.Contains(err.Error(), "user 4242") {
		t.Errorf("%v", err)
	}
	select {
	case all := <-heard:
		if len(all) != 0 {
			t.Errorf("it heard %q", all)
		}
	case <-time.After(patience):
		t.Error("the connection stayed open")
	}
}

// Fails if `bridged mcp` keeps from the daemon for which session of its agent a
// call is, by which two panes under one identity are told.
func TestTheAgentsSessionIsPassedOn(t *testing.T) {
	c := &Client{Socket: "unused", Token: "good"}
	c.once.Do(c.init)
	var sessions []string
	c.http.Transport = tripper(func(r *http.Request) (*http.Response, error) {
		sessions = append(sessions, r.Header.Get(mcp.AgentSessionHeader))
		return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("{}"))}, nil
	})
	calls, in := io.Pipe()
	out, answers := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- mcp.ServeStdio(t.Context(), c, "test", hclog.NewNullLogger(), calls, answers)
		_ = answers.Close()
	}()
	lines := bufio.NewReader(out)
	for _, meta := range []string{`{"x-codex-turn-metadata":{"session_id":"one"}}`, `{}`} {
		if _, err := io.WriteString(in, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bridge_whoami","arguments":{},"_meta":`+meta+"}}\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	_ = in.Close()
	if err := receive(t, "the end of the bridge", ended); err != nil {
		t.Error(err)
	}
	if !slices.Equal(sessions, []string{"one", ""}) {
		t.Errorf("the daemon is told %q", sessions)
	}
}
