package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Tools calls the gateway's tools; it waits and tries again while the gateway
// is down. The error is the tool's own, or ctx's.
type Tools interface {
	Call(ctx context.Context, tool string, args map[string]any) (map[string]any, error)
}

// Script is the default brain: it works for a while and answers every message
// that wants an answer over MCP.
type Script struct {
	Tools     Tools         // nil: it answers nobody
	Work      time.Duration // before the first answer
	ReplyWith string        // the answer; empty: "done"
	Echo      bool          // the answer is the message's content
	Replies   int           // answers per message; 0 means 1, negative none
	ReplyGap  time.Duration // between two answers
	Keyed     bool          // answers have an idempotency key
	Ask       string        // asked with bridge_ask before the answer, which then ends with what came back; {content} is the message's
	AskFor    time.Duration // how long it waits for what it asked; 0: the gateway's default
	AskSender bool          // it names whom it asks: the sender of the message
	Extra     []string      // "tool {json}" calls made before the answer; none for what wants no answer
}

var (
	uuid     = regexp.MustCompile(`[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}`)
	named    = regexp.MustCompile(`(?:message|msg_id) (` + uuid.String() + `)`)
	sender   = regexp.MustCompile(`^\[bridge SEND from ([a-z0-9-]+)＠([a-z0-9-]+),`) // as a frame names it
	lastLine = regexp.MustCompile(`(?s)\n[^\n]*$`)
)

// message reads a prompt as a message of the gateway: its id (the one called
// so in the first line, else the first UUID there), its content without frame,
// and whether it is only announced.
func message(prompt string) (id, content string, announced bool) {
	first, rest, _ := strings.Cut(prompt, "\n")
	if m := named.FindStringSubmatch(first); m != nil {
		id = m[1]
	} else {
		id = uuid.FindString(first)
	}
	announced = id != "" && strings.Contains(first, "bridge_read")
	content = rest
	if strings.Contains(lastLine.FindString("\n"+rest), "bridge") { // the frame's last line
		content = lastLine.ReplaceAllString("\n"+rest, "")
		content = strings.TrimPrefix(content, "\n")
	}
	return id, content, announced
}

// OnPrompt works, fetches what was only announced, asks if told so, answers.
func (s *Script) OnPrompt(ctx context.Context, text string, log *EventLog) string {
	if !sleep(ctx, s.Work) || s.Tools == nil {
		return ""
	}
	id, content, announced := message(text)
	if id == "" {
		if strings.Contains(text, "bridge_poll") { // mail waits
			s.call(ctx, log, "bridge_poll", map[string]any{})
		}
		return "No message in that."
	}
	if announced {
		var err error
		if content, err = s.read(ctx, id); err != nil {
			log.Add(Event{Event: "read", ID: id, Error: err.Error()})
			return "I could not read it: " + err.Error()
		}
		log.Add(Event{Event: "read", ID: id, Text: content})
	}
	if strings.Contains(text, "No reply is expected") || announced && !strings.Contains(text, "bridge_reply") {
		return "Noted."
	}
	for _, line := range s.Extra {
		tool, raw, _ := strings.Cut(line, " ")
		args := map[string]any{}
		if err := json.Unmarshal([]byte(raw), &args); raw != "" && err != nil {
			log.Add(Event{Event: "call", Tool: tool, Error: err.Error()})
			continue
		}
		s.call(ctx, log, tool, args)
	}
	return s.answer(ctx, log, id, s.words(ctx, log, text, id, content))
}

// words is the answer's text.
func (s *Script) words(ctx context.Context, log *EventLog, text, id, content string) string {
	out := s.ReplyWith
	switch {
	case s.Echo:
		out = content
	case out == "":
		out = "done"
	}
	if s.Ask == "" {
		return out
	}
	args := map[string]any{"question": strings.ReplaceAll(s.Ask, "{content}", content)}
	if s.AskFor > 0 {
		args["timeout_seconds"] = int(s.AskFor.Seconds())
	}
	if m := sender.FindStringSubmatch(text); s.AskSender && m != nil {
		args["to"] = m[1] + "@" + m[2]
	}
	log.Add(Event{Event: "ask", ID: id})
	res, err := s.Tools.Call(ctx, "bridge_ask", args)
	e := Event{Event: "asked", ID: id}
	if err != nil {
		e.Error = err.Error()
	} else {
		e.Text = fmt.Sprint(res["answer"])
	}
	log.Add(e)
	if err != nil {
		return out + " (no answer: " + err.Error() + ")"
	}
	return fmt.Sprintf("%s (answer: %v)", out, res["answer"])
}

// answer sends the replies.
func (s *Script) answer(ctx context.Context, log *EventLog, id, words string) string {
	count := cmp.Or(s.Replies, 1)
	for i := range count {
		content := words
		if i > 0 {
			if !sleep(ctx, s.ReplyGap) {
				return "Interrupted."
			}
			content = fmt.Sprintf("%s (%d)", words, i+1)
		}
		e := Event{Event: "reply", ID: id, Text: content}
		args := map[string]any{"content": content, "in_reply_to": id}
		if s.Keyed {
			args["idempotency_key"] = fmt.Sprintf("%s %d", id, i+1)
		}
		_, err := s.Tools.Call(ctx, "bridge_reply", args)
		if err != nil {
			e.Error = err.Error()
		}
		log.Add(e)
	}
	return "Answered."
}

// read fetches an announced message part by part until next_offset is absent.
func (s *Script) read(ctx context.Context, id string) (string, error) {
	var b strings.Builder
	offset := 0
	for {
		res, err := s.Tools.Call(ctx, "bridge_read", map[string]any{"msg_id": id, "offset": offset})
		if err != nil {
			return "", err
		}
		part, _ := res["content"].(string)
		b.WriteString(part)
		next, more := res["next_offset"].(float64)
		if !more || int(next) <= offset {
			return b.String(), nil
		}
		offset = int(next)
	}
}

func (s *Script) call(ctx context.Context, log *EventLog, tool string, args map[string]any) (map[string]any, error) {
	res, err := s.Tools.Call(ctx, tool, args)
	e := Event{Event: "call", Tool: tool}
	if err != nil {
		e.Error = err.Error()
	} else if raw, jsonErr := json.Marshal(res); jsonErr == nil {
		e.Text = string(raw)
	}
	log.Add(e)
	return res, err
}
