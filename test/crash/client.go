package main

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"time"

	"fleetd/fault"
	"fleetd/mcp"
	"fleetd/test/crash/history"
	"fleetd/test/fleet"
)

// client is one main: its mail is pulled all the time, and it sends.
type client struct {
	name string // name@host
	main fleet.Main
	rec  *recorder
	deaf bool // it does not wait for mail, so that no question finds it
}

// session is one MCP session of a client, opened when it is needed.
type session struct {
	main fleet.Main
	up   bool
}

func (c *client) session() *session {
	return &session{main: c.main} // Connect gives it a client of its own
}

// againAfter is how long a client rests before it calls again.
const againAfter = 200 * time.Millisecond

func (s *session) connect(ctx context.Context) error {
	if s.up {
		return nil
	}
	if err := s.main.Connect(ctx); err != nil {
		return err
	}
	s.up = true
	return nil
}

func (s *session) drop() {
	if s.up {
		_ = s.main.Disconnect() // it failed already
	}
	s.up = false
}

// pull polls until stop is closed and no call is under way: one that is broken
// off could take mail along.
func (c *client) pull(ctx context.Context, stop <-chan struct{}) {
	s := c.session()
	defer s.drop()
	for ctx.Err() == nil {
		select {
		case <-stop:
			return
		default:
		}
		err := s.connect(ctx)
		if err == nil {
			var r mcp.PollResult
			began := time.Now()
			if r, err = s.main.Poll(ctx, map[string]any{"wait_seconds": c.patience()}); err == nil {
				for _, m := range r.Messages {
					c.rec.saw(c.name, m, false, began)
					if m.Kind == "ASK" {
						c.answer(ctx, m, wish{})
					}
				}
				if c.deaf {
					pause(ctx, againAfter)
				}
				continue
			}
		}
		s.drop()
		pause(ctx, againAfter)
	}
}

func (c *client) patience() int {
	if c.deaf {
		return 0
	}
	return 3
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// wish is what a client wants to send, and how it goes about it.
type wish struct {
	to      *worker // nil: the main named next
	main    string
	wait    int // seconds
	life    time.Duration
	retries bool          // it calls again when it does not know, or nothing was sent
	silent  bool          // its worker does not answer
	queue   bool          // it may wait in the inbox of a host that is away
	again   func()        // called once the call has returned; then the same call is made again
	by      int           // the main that sends it
	profile string        // of the agent that is spawned, where one is
	delay   time.Duration // before a question about it is answered
}

// sendFor is how long a client that calls again goes on.
const sendFor = 2 * time.Minute

// send sends one message, and returns when its last call has.
func (c *client) send(ctx context.Context, n int, token string, w wish) {
	s := &sending{
		Send: history.Send{Case: n, Token: token, From: c.name, To: w.main, Worker: w.to != nil},
		gid:  c.main.GID, target: w.to, life: w.life, began: time.Now(), running: true,
		expected: w.to != nil && !w.silent,
	}
	if w.to != nil {
		s.To = w.to.address
	}
	c.rec.add(s)
	defer c.rec.over(s)
	args := map[string]any{
		"to": s.To, "content": "please look at " + token, "wait_seconds": w.wait,
		"expires_in_seconds": int(w.life.Seconds()), "idempotency_key": token, "queue_if_offline": w.queue,
	}
	ses := c.session()
	defer ses.drop()
	for again := true; again && ctx.Err() == nil && time.Since(s.began) < sendFor; {
		if err := ses.connect(ctx); err != nil { // the gateway is down: nothing was asked
			pause(ctx, againAfter)
			continue
		}
		call := history.Call{Began: time.Now()}
		r, err := ses.main.Send(ctx, args)
		call.Ended = time.Now()
		c.told(s, &call, r, err)
		if err == nil && r.Question != nil {
			c.rec.saw(c.name, *r.Question, false, call.Began)
			c.answer(ctx, *r.Question, w)
		}
		if call.Broken() {
			ses.drop()
		}
		again = w.retries && (call.Broken() || call.Code == string(fault.BrokerDown) || call.Code == string(fault.HostOffline))
		switch {
		case again:
			pause(ctx, againAfter)
		case w.again != nil:
			w.again()
			w.again, again = nil, true
		}
	}
}

// answer answers a question, once, and waits for the reply as w does: what it
// does not hear of is not to be answered again (design §7).
func (c *client) answer(ctx context.Context, q mcp.Message, w wish) {
	pause(ctx, w.delay)
	ses := c.session()
	defer ses.drop()
	t := history.Told{By: c.name, Turn: q.TurnID, Token: "left-" + q.TurnID + " " + tokens.FindString(q.Content)}
	t.Began = time.Now()
	var next *mcp.Message // whose worker's call broke, and asked again
	err := ses.connect(ctx)
	if err == nil {
		var r mcp.SendResult
		r, err = ses.main.Answer(ctx, map[string]any{"turn_id": q.TurnID, "content": t.Token, "wait_seconds": w.wait})
		if err == nil {
			t.State, t.Text = r.State, r.Note
			if r.Reply != nil {
				c.rec.saw(c.name, *r.Reply, false, t.Began)
			}
			next = r.Question
		}
	}
	t.Ended = time.Now()
	if f, failed := errors.AsType[*fault.Error](err); failed {
		t.Code, t.Text = string(f.Code), f.Sentence
		// The end of the brief, as the wait for its reply met it: the answer
		// was given.
		if strings.HasPrefix(f.Sentence, "Your message ") {
			t.State, t.Code = "pending", ""
		}
	}
	c.rec.answered(t)
	if next != nil {
		c.rec.saw(c.name, *next, false, t.Began)
		c.answer(ctx, *next, w)
	}
}

// tokens finds the token of a message.
var tokens = regexp.MustCompile(`tok[0-9]+x[0-9]+`)

// messageID finds the id in the sentence of an error.
var messageID = regexp.MustCompile(`message ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})`)

// told writes down what a call came to.
func (c *client) told(s *sending, call *history.Call, r mcp.SendResult, err error) {
	var f *fault.Error
	switch {
	case err == nil:
		call.State, call.Text = r.State, r.Note
		c.rec.named(s, r.MsgID)
		if r.Reply != nil {
			c.rec.saw(c.name, *r.Reply, len(s.Calls) > 0, call.Began)
		}
	case errors.As(err, &f):
		call.Code, call.Text = string(f.Code), f.Sentence
		// The end of the message itself, as its sender is told it: by the mail
		// that a waiting call met, or by its key.
		call.Report = strings.HasPrefix(f.Sentence, "Your message ") || strings.Contains(f.Sentence, "under this key, and failed")
		if m := messageID.FindStringSubmatch(f.Sentence); m != nil {
			c.rec.named(s, m[1])
		}
	default:
		call.Text = err.Error()
	}
	c.rec.call(s, *call)
}
