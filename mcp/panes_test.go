package mcp

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	mcpgo "github.com/mark3labs/mcp-go/mcp"

	"fleetd/fault"
)

// Fails when two panes that share an identity are both served, or when a person
// who begins anew in one pane, goes back to an earlier session later, or a main
// with several clients is refused.
func TestTwoPanesAreNotOneIdentity(t *testing.T) {
	for name, c := range map[string]struct {
		who   Caller
		calls string // session; + begins a call that goes on, - ends it, . lets time pass, ! expects a refusal
	}{
		"one session":             {bob, "a a a"},
		"begun anew":              {bob, "a a b b c"},
		"begun anew while live":   {bob, "+a -a b"},
		"back after a while":      {bob, "a b . . a b"},
		"two, one call under way": {bob, "+a !b a !b -a b"},
		"two in turn":             {bob, "a b a !b a !b"},
		"the first has gone":      {bob, "a b a !b . . b b"},
		"a third beside them":     {bob, "+a !b !c"},
		"three in turn":           {bob, "a b a c !b a !c !b a"},
		"earlier than the caller": {bob, "a +b a !b -b !b"},
		"each leaves its own":     {bob, "a +b +a -b !c -a c"},
		"a main":                  {ann, "+a b a b"},
		"no session told":         {bob, "+ "},
	} {
		now := time.Unix(0, 0)
		s := &seats{now: func() time.Time { return now }, of: map[string]*seat{}}
		open, waits := map[string]func(){}, map[string]context.Context{}
		for _, word := range strings.Fields(c.calls) {
			session := strings.TrimLeft(word, "+-!")
			switch word[0] {
			case '.':
				now = now.Add(sharedFor * 2 / 3)
				continue
			case '-':
				open[session]()
				delete(waits, session)
				continue
			}
			ctx, leave, f := s.take(t.Context(), c.who, session)
			if refused := f != nil; refused != (word[0] == '!') || refused && f.Code != fault.Conflict {
				t.Errorf("%s: in %q, %s: %v", name, c.calls, word, f)
			}
			switch {
			case f != nil:
			case word[0] == '+':
				open[session], waits[session] = leave, ctx
			default:
				leave()
			}
			for other, ctx := range waits {
				switch {
				case f != nil || c.who.Kind != bob.Kind:
				case other == session && ctx.Err() != nil:
					t.Errorf("%s: at %s its own call was ended", c.calls, word)
				case other != session:
					receive(t, fmt.Sprintf("%s: at %s the end of the call of %s", c.calls, word, other), ctx.Done())
				}
			}
		}
	}
}

// Fails when what is known of workers that are gone is kept for ever.
func TestWhatIsKnownOfSessionsIsForgotten(t *testing.T) {
	now := time.Unix(0, 0)
	s := &seats{now: func() time.Time { return now }, of: map[string]*seat{}}
	for i := range 100 {
		_, leave, f := s.take(t.Context(), Caller{GID: fmt.Sprint(i), Kind: bob.Kind}, "a")
		if f != nil {
			t.Fatal(f)
		}
		leave()
		now = now.Add(sharedFor)
	}
	if n := len(s.of); n > 2 {
		t.Errorf("%d workers are remembered", n)
	}
}

// Fails when an agent's word for its session is not found where Codex puts it,
// or when anything else is taken for one.
func TestAgentSessionOf(t *testing.T) {
	for want, fields := range map[string]map[string]any{
		"session": {"x-codex-turn-metadata": map[string]any{"session_id": "session", "thread_id": "thread"}, "threadId": "other"},
		"text":    {"x-codex-turn-metadata": `{"session_id":"text"}`},
		"thread":  {"x-codex-turn-metadata": map[string]any{"thread_id": "thread", "session_id": 7}},
		"s":       {"sessionId": "s", "threadId": "t"},
		"t":       {"threadId": "t"},
		"":        {"x-codex-turn-metadata": "rubbish", "claudecode/toolUseId": "x"},
	} {
		if got := agentSessionOf(&mcpgo.Meta{AdditionalFields: fields}); got != want {
			t.Errorf("%v: %q, want %q", fields, got, want)
		}
	}
	if got := agentSessionOf(nil); got != "" {
		t.Errorf("no _meta: %q", got)
	}
	for said, want := range map[string]string{"0199-a": "0199-a", "a\r\nb": "", "a b": "", "ä": "", strings.Repeat("a", 500): strings.Repeat("a", agentSessionMost)} {
		if got := AgentSession(withAgentSession(t.Context(), said)); got != want {
			t.Errorf("%q is passed on as %q, which a header cannot hold", said, got)
		}
	}
}

// Fails when the second of two panes under one token is served, over MCP or
// through `bridged mcp`, while a call of the first waits, when the answer does
// not say what to set, or when the first is not served on.
func TestASecondPaneIsRefused(t *testing.T) {
	for era, version := range eras {
		t.Run(era, func(t *testing.T) {
			begun, release := make(chan struct{}), make(chan struct{})
			s := start(t, with(&fakeGateway{poll: func(context.Context, PollArgs) (PollResult, error) {
				close(begun)
				<-release
				return PollResult{}, nil
			}}))
			c := dial(t, s.url, "tok-bob", version)
			call := func(tool, session string) (*mcpgo.CallToolResult, error) {
				req := mcpgo.CallToolRequest{}
				req.Params.Name, req.Params.Arguments = tool, map[string]any{}
				req.Params.Meta = &mcpgo.Meta{AdditionalFields: map[string]any{"x-codex-turn-metadata": map[string]any{"session_id": session}}}
				return c.CallTool(t.Context(), req)
			}
			whoami := func(session string) string {
				t.Helper()
				r, err := call("bridge_whoami", session)
				if err != nil {
					t.Fatal(err)
				}
				return fmt.Sprint(r.IsError, r.StructuredContent)
			}
			var first sync.WaitGroup
			first.Go(func() {
				if r, err := call("bridge_poll", "one"); err != nil || r.IsError {
					t.Errorf("the first pane's call: %v, %v", r, err)
				}
			})
			receive(t, "the first pane's call", begun)
			if got := whoami("two"); !strings.Contains(got, "CONFLICT") || !strings.Contains(got, "codex --no-daemon") {
				t.Errorf("the second pane: %s", got)
			}
			for session, want := range map[string]int{"two": http.StatusConflict, "one": http.StatusOK} {
				status, body, _ := s.do(t, request{method: "POST", path: "/api/v1/whoami", body: "{}",
					header: map[string]string{"Authorization": "Bearer tok-bob", AgentSessionHeader: session}})
				if status != want {
					t.Errorf("%s through bridged mcp: %d %s", session, status, body)
				}
			}
			if got := whoami("one"); !strings.Contains(got, "gid-bob") {
				t.Errorf("the first pane: %s", got)
			}
			close(release)
			first.Wait()
		})
	}
}
