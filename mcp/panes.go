package mcp

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"fleetd/fault"
	"fleetd/store"

	"github.com/hashicorp/go-hclog"
	mcpgo "github.com/mark3labs/mcp-go/mcp"
)

// Codex runs MCP in a daemon that outlives its panes and shows the token of the
// first for all of them (agent fact 2). But it says with each call for which of
// its sessions it is, so that two panes under one identity can be told.

// AgentSessionHeader carries the agent's own session from `bridged mcp` to the
// daemon, so that both paths are held to it.
const AgentSessionHeader = "Bridged-Agent-Session"

const (
	// sharedFor is how long a session counts as live after its last call. A person
	// who goes back and forth between sessions of one pane within it is taken for
	// two panes.
	sharedFor = 2 * time.Minute
	// barredMost bounds how many sessions of other panes are remembered.
	barredMost = 8
	// agentSessionMost bounds what is remembered of its name, in bytes.
	agentSessionMost = 128
)

// seats is which agent session uses the identity of each worker. Mains may have
// any number of clients (design §7).
type seats struct {
	now func() time.Time

	mu sync.Mutex
	of map[string]*seat // by gid
}

type seat struct {
	holder string
	used   time.Time
	turn   int             // how often it changed hands
	calls  int             // of the holder, under way
	before string          // who held it before: a person began anew, or another pane came
	since  time.Time       // and until when
	barred []string        // came in between while another went on
	own    context.Context // ends with the turn
	over   context.CancelFunc
}

// take notes a call of an agent session. A new one in the place of the last is
// a person who began anew; one that comes while a call of the other is under
// way, or although the other went on after it, is another pane, and refused. The
// context that it returns ends when another session has the identity: what waits
// under it would take that one's mail.
func (s *seats) take(ctx context.Context, who Caller, session string) (_ context.Context, leave func(), f *fault.Error) {
	if s == nil || session == "" || who.Kind != store.Worker {
		return ctx, func() {}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	p := s.of[who.GID]
	if p == nil {
		maps.DeleteFunc(s.of, func(_ string, p *seat) bool { return p.calls == 0 && now.Sub(p.used) > sharedFor })
		p = &seat{}
		p.give(session)
		s.of[who.GID] = p
	}
	switch live := now.Sub(p.used) <= sharedFor; {
	case session == p.holder:
	case session == p.before && now.Sub(p.since) <= sharedFor:
		p.barred = append(p.barred[max(0, len(p.barred)+1-barredMost):], p.holder)
		p.before = ""
		p.give(session)
	case p.calls > 0 || live && slices.Contains(p.barred, session):
		return nil, nil, fault.New(fault.Conflict, "another session of your agent uses the identity of %s at the same time, so that the two cannot be told apart; nothing was done. Tell your user: "+
			"two Codex panes share one MCP daemon, and with it the token of the first. Start each as `codex --no-daemon`, or with a CODEX_HOME of its own. "+
			"If you only went back to an earlier session, try again in %.0f minutes", who.Name, sharedFor.Minutes())
	default:
		if !live {
			p.barred = nil
		}
		p.before, p.since = p.holder, now
		p.give(session)
	}
	p.used = now
	p.calls++
	turn := p.turn
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(p.own, cancel)
	return ctx, func() {
		stop()
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		if p.turn == turn {
			p.calls--
			p.used = s.now()
		}
	}, nil
}

func (p *seat) give(session string) {
	if p.over != nil {
		p.over()
	}
	p.own, p.over = context.WithCancel(context.Background())
	p.holder, p.calls, p.turn = session, 0, p.turn+1
}

type (
	seatsKey        struct{}
	agentSessionKey struct{}
)

// seated notes the call of ctx; it is refused where another pane has the identity.
func seated(ctx context.Context, log hclog.Logger) (_ context.Context, leave func(), f *fault.Error) {
	s, _ := ctx.Value(seatsKey{}).(*seats)
	who, _ := CallerFrom(ctx)
	ctx, leave, f = s.take(ctx, who, AgentSession(ctx))
	if f != nil {
		log.Warn("two sessions of an agent use one identity; the second is refused", "entity", who.Name, "mend", "codex --no-daemon")
	}
	return ctx, leave, f
}

// AgentSession is the agent's own session that a call is for, "" where it does
// not say.
func AgentSession(ctx context.Context) string {
	session, _ := ctx.Value(agentSessionKey{}).(string)
	return session
}

// withAgentSession takes what can stand in a header as it is.
func withAgentSession(ctx context.Context, session string) context.Context {
	if strings.ContainsFunc(session, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return ctx
	}
	return context.WithValue(ctx, agentSessionKey{}, session[:min(len(session), agentSessionMost)])
}

// agentSessionOf reads it from the _meta of a call, as Codex writes it (agent
// facts §8, §10).
func agentSessionOf(meta *mcpgo.Meta) string {
	if meta == nil {
		return ""
	}
	turn, _ := meta.AdditionalFields["x-codex-turn-metadata"].(map[string]any)
	if text, ok := meta.AdditionalFields["x-codex-turn-metadata"].(string); ok {
		_ = json.Unmarshal([]byte(text), &turn) // what is not JSON says nothing
	}
	for _, word := range []any{turn["session_id"], turn["thread_id"], meta.AdditionalFields["sessionId"], meta.AdditionalFields["threadId"]} {
		if session, _ := word.(string); session != "" {
			return session
		}
	}
	return ""
}
