package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"fleetd/mcp"
	"fleetd/store"
	"fleetd/test/crash/history"
)

// recorder writes down what clients asked and what they were told.
type recorder struct {
	mu    sync.Mutex
	sends []*sending
	shown []history.Shown
	told  []history.Told
	kills []history.Kill
	broke []history.Fault

	astray []history.Astray

	spawns []*spawning
	ends   []*history.Stop
	old    []*history.Moved
}

// sending is one Send that may not be over.
type sending struct {
	history.Send
	gid      string // of the sender
	target   *worker
	life     time.Duration
	began    time.Time
	running  bool
	expected bool // an answer to it will come
	done     bool // settled: nothing more is to come
	task     bool // of a spawned agent: its call is that of the spawn
	trace    string
	trail    []string // what both gateways noted of it
}

// deadline is when the gateway has said its last word on s where no fault puts
// it off: a minute after its life is over it asks once more and waits 10 s
// (design §5).
func (s *sending) deadline() time.Time { return s.began.Add(s.life + 90*time.Second) }

func (r *recorder) add(s *sending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sends = append(r.sends, s)
}

// call notes one call of s and what it was told.
func (r *recorder) call(s *sending, c history.Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Calls = append(s.Calls, c)
}

func (r *recorder) over(s *sending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.running = false
}

func (r *recorder) named(s *sending, msgID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if msgID != "" && !slices.Contains(s.MsgIDs, msgID) {
		s.MsgIDs = append(s.MsgIDs, msgID)
	}
}

// killed notes that the gateway of host was.
func (r *recorder) killed(host string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kills = append(r.kills, history.Kill{At: time.Now(), Host: host})
}

// broken notes that something was broken that is no kill of a gateway.
func (r *recorder) broken(f history.Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.At = time.Now()
	r.broke = append(r.broke, f)
}

// strayed notes that what struck case n was on no broker and in no store.
func (r *recorder) strayed(n int, host string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.astray = append(r.astray, history.Astray{Case: n, Host: host})
}

// saw notes one message in a response that reached reader, to a call that began
// then and asked for it once more or not.
func (r *recorder) saw(reader string, m mcp.Message, asked bool, began time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shown = append(r.shown, history.Shown{
		Began: began, At: time.Now(), Reader: reader, MsgID: m.MsgID, Kind: m.Kind, From: m.From, InReplyTo: m.InReplyTo,
		Reason: m.Reason, Content: m.Content, TurnID: m.TurnID, Redelivered: m.Redelivered, Asked: asked,
	})
}

// answered notes one bridge_answer.
func (r *recorder) answered(t history.Told) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, t)
}

// settled reports whether s has its last word and its answer. Of a call that
// broke, whose caller did not ask again, nobody here knows the id: when it is
// due is left to the end.
func (r *recorder) settled(s *sending) bool {
	r.mu.Lock()
	done := s.done
	r.mu.Unlock()
	if done {
		return true
	}
	answers := s.target.answered(s.Token)
	r.mu.Lock()
	defer r.mu.Unlock()
	s.done = r.ended(s, answers)
	return s.done
}

func (r *recorder) ended(s *sending, answers answers) bool {
	for _, m := range r.shown {
		if s.Cast && m.From != s.To && m.Reader != s.To {
			continue // it is about another one's part
		}
		about := m.InReplyTo != "" && slices.Contains(s.MsgIDs, m.InReplyTo)
		switch m.Kind {
		case "REPLY":
			if about || strings.Contains(m.Content, s.Token) {
				return true
			}
		case "SEND", "BROADCAST":
			if strings.Contains(m.Content, s.Token) {
				return true
			}
		case "FAILED", "ABANDONED":
			if about {
				return true
			}
		case "INJECTED":
			if about && (!s.expected || answers.refused()) {
				return true
			}
		}
	}
	if s.running || len(s.Calls) == 0 {
		return false
	}
	last := s.Calls[len(s.Calls)-1]
	switch {
	case last.Report, last.State == "replied":
		return true
	case last.State == "injected", last.State == "ask", last.State == "pending" && s.Worker:
		return !s.expected || answers.refused()
	}
	return last.Code != "" && last.Code != "IN_DOUBT" && last.Code != "UNCONFIRMED"
}

// dark reports whether s may never have been accepted.
func (r *recorder) dark(s *sending) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !s.running && !slices.ContainsFunc(s.Calls, func(c history.Call) bool { return !c.Broken() })
}

// open lists the sendings that are not settled.
func (r *recorder) open(which func(*sending) bool) []*sending {
	r.mu.Lock()
	all := slices.Clone(r.sends)
	r.mu.Unlock()
	return slices.DeleteFunc(all, func(s *sending) bool { return !which(s) || r.settled(s) })
}

// story is all that is known of the message with this token, for people.
func (r *recorder) story(token string) (lines []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sends {
		if token == "" || s.Token != token {
			continue
		}
		lines = append(lines, fmt.Sprintf("%s %s called: to %s, ids %v", s.began.Format(clock), s.From, s.To, s.MsgIDs))
		for _, c := range s.Calls {
			lines = append(lines, fmt.Sprintf("%s %s was told %s (%s)", c.Ended.Format(clock), s.From, cmp.Or(c.State, c.Code, "nothing"), c.Text))
		}
		for _, m := range r.shown {
			if slices.Contains(s.MsgIDs, m.InReplyTo) || slices.Contains(s.MsgIDs, m.MsgID) {
				lines = append(lines, fmt.Sprintf("%s %s was shown %s %s %s redelivered=%v", m.At.Format(clock), m.Reader, m.Kind, m.MsgID, m.Reason, m.Redelivered))
			}
		}
		for _, t := range r.told {
			if strings.Contains(t.Token, s.Token) {
				lines = append(lines, fmt.Sprintf("%s %s answered turn %s and was told %s (%s)", t.Ended.Format(clock), t.By, t.Turn, cmp.Or(t.State, t.Code, "nothing"), t.Text))
			}
		}
		lines = append(lines, s.trail...)
	}
	slices.Sort(lines)
	return lines
}

const clock = "15:04:05.000"

// calls is what s was told, for people.
func (r *recorder) calls(s *sending) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, c := range s.Calls {
		all = append(all, cmp.Or(c.State, c.Code, "broken"))
	}
	if s.running {
		all = append(all, "…")
	}
	return strings.Join(all, ", ")
}

// wants notes that an agent is asked for.
func (r *recorder) wants(s *spawning) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spawns = append(r.spawns, s)
}

// spawned notes one call of s, and what it says of its task.
func (r *recorder) spawned(s *spawning, c history.SpawnCall, taskID string) {
	about := history.Call{Began: c.Began, Ended: c.Ended, Code: c.Code}
	if c.State == mcp.StateSpawned { // its task is sent, and may be waiting
		r.named(s.task, taskID)
		about.State = mcp.StateDeferred
	}
	r.call(s.task, about)
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Calls = append(s.Calls, c)
	s.identified(c.GID)
}

func (s *spawning) identified(gid string) {
	if gid != "" && !slices.Contains(s.GIDs, gid) {
		s.GIDs = append(s.GIDs, gid)
	}
}

// gid is the id of s, as its caller was told.
func (r *recorder) gid(s *spawning) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(s.GIDs) == 0 {
		return ""
	}
	return s.GIDs[0]
}

func (r *recorder) stops(s *history.Stop) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ends = append(r.ends, s)
}

// stopped notes one call of s.
func (r *recorder) stopped(s *history.Stop, c history.Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Before = s.Before || len(s.Calls) == 0 && strings.HasPrefix(c.Text, "It had ended before")
	s.Calls = append(s.Calls, c)
}

// living lists the agents of case n that were said to live and that nobody has
// stopped.
func (r *recorder) living(n int) (gids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spawns {
		if s.Case != n {
			continue
		}
		for _, c := range s.Calls {
			stopped := slices.ContainsFunc(r.ends, func(e *history.Stop) bool { return e.GID == c.GID })
			if c.State == mcp.StateSpawned && !stopped && !slices.Contains(gids, c.GID) {
				gids = append(gids, c.GID)
			}
		}
	}
	return gids
}

// recorded notes what a store has of a spawn.
func (r *recorder) recorded(rec store.Spawn) {
	r.mu.Lock()
	var of *spawning
	for _, s := range r.spawns {
		if s.Token == rec.Key {
			of = s
			s.identified(rec.SpawnID)
			s.Owes = s.Owes || rec.Task != ""
		}
	}
	r.mu.Unlock()
	if of != nil && rec.TaskID != "" {
		of.task.Stored = true
		r.named(of.task, rec.TaskID)
	}
}
