package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"fleetd/fault"

	"github.com/mark3labs/mcp-go/client"
	mcpgo "github.com/mark3labs/mcp-go/mcp"
)

var toolNames = []string{"bridge_send", "bridge_poll", "bridge_read", "bridge_reply", "bridge_ask", "bridge_answer", "bridge_broadcast", "bridge_spawn", "bridge_stop", "bridge_whoami", "bridge_roster", "bridge_trace"}

// Fails if a tool is missing from the table, or is listed without both schemas,
// all four annotations, or a description of each argument.
func TestEveryToolIsListedWithSchemas(t *testing.T) {
	r := start(t)
	for era, version := range eras {
		t.Run(era, func(t *testing.T) {
			c := dial(t, r.url, "tok-ann", version)
			list, err := c.ListTools(t.Context(), mcpgo.ListToolsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			byName := map[string]mcpgo.Tool{}
			for _, tool := range list.Tools {
				byName[tool.Name] = tool
			}
			if len(byName) != len(toolNames) {
				t.Errorf("%d tools are listed, want %d", len(byName), len(toolNames))
			}
			for _, name := range toolNames {
				checkTool(t, name, byName[name])
			}
		})
	}
}

func checkTool(t *testing.T, name string, tool mcpgo.Tool) {
	t.Helper()
	var shape struct {
		Description  string
		InputSchema  objectSchema
		OutputSchema objectSchema
	}
	if err := json.Unmarshal(toJSON(t, tool), &shape); err != nil {
		t.Fatal(err)
	}
	if shape.Description == "" || shape.InputSchema.Type != "object" || shape.OutputSchema.Type != "object" {
		t.Errorf("%s has no description or no object schemas: %+v", name, shape)
	}
	if string(shape.InputSchema.Additional) != "false" {
		t.Errorf("%s takes unknown arguments: additionalProperties is %s", name, shape.InputSchema.Additional)
	}
	for arg, p := range shape.InputSchema.Properties {
		if p.Description == "" || p.Description == "required" {
			t.Errorf("%s: argument %s has no description", name, arg)
		}
	}
	a := tool.Annotations
	if a.ReadOnlyHint == nil || a.DestructiveHint == nil || a.IdempotentHint == nil || a.OpenWorldHint == nil {
		t.Errorf("%s: an annotation is missing: %+v", name, a)
	}
}

// Fails if an error does not fit the output schema in place of a result, or a
// result without its parts does: clients hold both to it.
func TestAnOutputSchemaAdmitsErrors(t *testing.T) {
	var schema struct {
		objectSchema
		Required []string
		AnyOf    []struct{ Required []string }
	}
	if err := json.Unmarshal(outputSchema[ReplyResult](), &schema); err != nil {
		t.Fatal(err)
	}
	if len(schema.AnyOf) != 2 || len(schema.Required) != 0 || schema.Properties["error"].Type != "object" ||
		!slices.Contains(schema.AnyOf[0].Required, "state") || !slices.Equal(schema.AnyOf[1].Required, []string{"error"}) {
		t.Errorf("the schema is %+v", schema)
	}
}

type objectSchema struct {
	Type       string
	Additional json.RawMessage `json:"additionalProperties"`
	Properties map[string]struct{ Type, Description string }
}

// Fails if a result stands only in the structure or only in the text: each
// agent shows its model just one of them.
func TestResultStandsInStructureAndText(t *testing.T) {
	r := start(t)
	for era, version := range eras {
		t.Run(era, func(t *testing.T) {
			c := dial(t, r.url, "tok-ann", version)
			structure, text, isError := mustCall(t, c, "bridge_whoami", nil)
			if isError || structure["name"] != "ann" {
				t.Errorf("whoami: isError %v, structure %v", isError, structure)
			}
			var fromText map[string]any
			if err := json.Unmarshal([]byte(text), &fromText); err != nil || fromText["gid"] != "gid-ann" {
				t.Errorf("the text does not carry the facts: %q, %v", text, err)
			}
			if _, ok := structure["open_briefs"].([]any); !ok {
				t.Errorf("an empty list is not a list: %v", structure["open_briefs"])
			}
		})
	}
}

// Fails if an error reaches the agent without its code word at the start of the
// text, or without code and message in the structure.
func TestFaultStandsInStructureAndText(t *testing.T) {
	g := &fakeGateway{send: func(context.Context, SendArgs) (SendResult, error) {
		return SendResult{}, fault.New(fault.BrokerDown, "the broker cannot be reached; try again later.")
	}}
	r := start(t, with(g))
	for era, version := range eras {
		t.Run(era, func(t *testing.T) {
			c := dial(t, r.url, "tok-ann", version)
			structure, text, isError := mustCall(t, c, "bridge_send", map[string]any{"to": "x", "content": "y"})
			code, message := errorOf(structure)
			if !isError || code != "BROKER_DOWN" || message != "the broker cannot be reached; try again later." {
				t.Errorf("isError %v, structure %v", isError, structure)
			}
			if text != "BROKER_DOWN: the broker cannot be reached; try again later." {
				t.Errorf("text %q", text)
			}
		})
	}
}

// Fails if a wrong argument is let through, or refused without a sentence that
// says what would be right.
func TestWrongArgumentsAreRefusedInWords(t *testing.T) {
	r := start(t)
	c := dial(t, r.url, "tok-ann", eras["legacy"])
	for name, tc := range map[string]struct {
		tool string
		args any
		want string
	}{
		"unknown":            {"bridge_send", map[string]any{"to": "a", "content": "b", "wait_second": 5}, `did you mean "wait_seconds"?`},
		"letter case":        {"bridge_send", map[string]any{"TO": "a", "content": "b"}, `did you mean "to"?`},
		"none known":         {"bridge_whoami", map[string]any{"x": 1}, "takes no arguments"},
		"missing":            {"bridge_send", map[string]any{"to": "a"}, `needs the argument "content"`},
		"null is missing":    {"bridge_send", map[string]any{"to": nil, "content": "b"}, `needs the argument "to"`},
		"empty":              {"bridge_send", map[string]any{"to": "", "content": "b"}, `"to" of bridge_send must not be empty`},
		"text for number":    {"bridge_poll", map[string]any{"wait_seconds": "5"}, "must be a whole number, not text"},
		"fraction":           {"bridge_poll", map[string]any{"wait_seconds": 1.5}, "must be a whole number, not the number 1.5"},
		"number for text":    {"bridge_poll", map[string]any{"from": 5}, "must be text, not the number 5"},
		"text for truth":     {"bridge_send", map[string]any{"to": "a", "content": "b", "queue_if_offline": "yes"}, "must be true or false, not text"},
		"wait too long":      {"bridge_poll", map[string]any{"wait_seconds": 241}, "must be from 0 to 240"},
		"wait below zero":    {"bridge_send", map[string]any{"to": "a", "content": "b", "wait_seconds": -1}, "must be from 0 to 240"},
		"not an object":      {"bridge_poll", []string{"x"}, "one JSON object"},
		"alias contradicted": {"bridge_send", map[string]any{"to": "a", "target": "c", "content": "b"}, "give only \"to\""},
	} {
		t.Run(name, func(t *testing.T) {
			structure, text, isError := mustCall(t, c, tc.tool, tc.args)
			code, message := errorOf(structure)
			if !isError || code != "BAD_REQUEST" || !strings.Contains(message, tc.want) || !strings.HasPrefix(text, "BAD_REQUEST: ") {
				t.Errorf("isError %v, code %s, message %q, want …%s…", isError, code, message, tc.want)
			}
		})
	}
}

// Fails if a number beyond what the schema of a tool allows, such as a wait that
// is longer than any client has patience, is taken by that tool.
func TestEveryBoundIsKept(t *testing.T) {
	r := start(t)
	c := dial(t, r.url, "tok-ann", eras["legacy"])
	list, err := c.ListTools(t.Context(), mcpgo.ListToolsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	bounded := map[string]bool{}
	for _, tool := range list.Tools {
		var schema struct {
			Required   []string
			Properties map[string]struct{ Minimum, Maximum *int64 }
		}
		if err := json.Unmarshal(toJSON(t, tool.InputSchema), &schema); err != nil {
			t.Fatal(err)
		}
		for name, p := range schema.Properties {
			if p.Minimum == nil || p.Maximum == nil {
				continue
			}
			bounded[tool.Name+" "+name] = true
			for _, beyond := range []int64{*p.Minimum - 1, *p.Maximum + 1} {
				args := map[string]any{name: beyond}
				for _, other := range schema.Required {
					args[other] = "a"
				}
				structure, _, isError := mustCall(t, c, tool.Name, args)
				code, message := errorOf(structure)
				if want := fmt.Sprintf("must be from %d to %d", *p.Minimum, *p.Maximum); !isError || code != "BAD_REQUEST" || !strings.Contains(message, want) {
					t.Errorf("%s with %s %d came to %s, %q; want %q", tool.Name, name, beyond, code, message, want)
				}
			}
		}
	}
	for _, wait := range []string{"bridge_send wait_seconds", "bridge_poll wait_seconds", "bridge_answer wait_seconds", "bridge_broadcast wait_seconds", "bridge_ask timeout_seconds", "bridge_spawn timeout_seconds"} {
		if !bounded[wait] {
			t.Errorf("%s has no bound", wait)
		}
	}
}

// Fails if the old daemon's `target` no longer names the recipient of a send or
// a question, and the filter of a poll.
func TestTargetStillWorks(t *testing.T) {
	r := start(t)
	c := dial(t, r.url, "tok-ann", eras["legacy"])
	if s, text, _ := mustCall(t, c, "bridge_send", map[string]any{"target": "wQ:p2", "content": "b"}); s["to"] != "wQ:p2" {
		t.Errorf("send: %s", text)
	}
	if s, text, _ := mustCall(t, c, "bridge_send", map[string]any{"target": "a", "to": "a", "content": "b"}); s["to"] != "a" {
		t.Errorf("both, but the same: %s", text)
	}
	if s, text, _ := mustCall(t, c, "bridge_poll", map[string]any{"target": "wQ:p2", "wait_seconds": 0.0}); s["note"] != "wQ:p2" {
		t.Errorf("poll: %s", text)
	}
	if s, text, _ := mustCall(t, c, "bridge_ask", map[string]any{"target": "wQ:p2", "question": "which?"}); s["answer"] != "which?" {
		t.Errorf("ask: %s", text)
	}
}

// Fails if a result larger than an agent can take goes out whole, or is cut so
// that the rest cannot be fetched.
func TestResultsFitTheirReaders(t *testing.T) {
	big := strings.Repeat("größer \"<&>\"\n", 1000)
	g := &fakeGateway{
		poll: func(_ context.Context, a PollArgs) (PollResult, error) {
			var r PollResult
			for i := range max(a.Max, 1) {
				r.Messages = append(r.Messages, Message{MsgID: fmt.Sprint("m", i), Content: big})
			}
			return r, nil
		},
		send: func(context.Context, SendArgs) (SendResult, error) {
			return SendResult{State: StateReplied, Reply: &Message{Content: big}}, nil
		},
		roster: func(context.Context, RosterArgs) (r RosterResult, _ error) {
			r.Entities = make([]RosterEntity, 2000)
			return r, nil
		},
	}
	r := start(t, with(g))
	c := dial(t, r.url, "tok-ann", eras["legacy"])

	s, text := fits(t, c, "bridge_poll", map[string]any{"max": 3})
	for _, m := range s["messages"].([]any) {
		m := m.(map[string]any)
		content := m["content"].(string)
		if !strings.HasPrefix(big, content) || m["next_offset"] != float64(len(content)) || m["total"] != float64(len(big)) {
			t.Errorf("a cut message does not say where it goes on: %d bytes, next %v, total %v", len(content), m["next_offset"], m["total"])
		}
	}
	if len(s["messages"].([]any)) != 3 || len(text) < maxResultBytes*9/10 {
		t.Errorf("more was cut than needed: %d bytes", len(text))
	}
	s, _ = fits(t, c, "bridge_send", map[string]any{"to": "a", "content": "b"})
	if reply := s["reply"].(map[string]any); reply["next_offset"] != float64(len(reply["content"].(string))) {
		t.Errorf("a cut reply does not say where it goes on")
	}
	s, text = fits(t, c, "bridge_roster", nil)
	if n := len(s["entities"].([]any)); n == 0 || n == 2000 || !strings.Contains(s["note"].(string), "left out") || len(text) < maxResultBytes*9/10 {
		t.Errorf("the roster was not cut sensibly: %d of 2000, %d bytes, note %v", n, len(text), s["note"])
	}
}

func fits(t *testing.T, c *client.Client, tool string, args any) (map[string]any, string) {
	t.Helper()
	s, text, isError := mustCall(t, c, tool, args)
	if isError || len(text) > maxResultBytes {
		t.Fatalf("%s: isError %v, %d bytes", tool, isError, len(text))
	}
	return s, text
}

// Fails if what cannot be made to fit goes out all the same, or counts as
// handed over.
func TestWhatCannotFitIsNotHandedOver(t *testing.T) {
	settled := make(chan bool, 1)
	g := &fakeGateway{poll: func(ctx context.Context, _ PollArgs) (PollResult, error) {
		OnWritten(ctx, func(written bool) { settled <- written })
		return PollResult{Messages: make([]Message, 500)}, nil
	}}
	r := start(t, with(g))
	c := dial(t, r.url, "tok-ann", eras["modern"])
	structure, _, isError := mustCall(t, c, "bridge_poll", nil)
	if code, message := errorOf(structure); !isError || code != "INTERNAL" || !strings.Contains(message, "smaller max") {
		t.Errorf("isError %v, %s: %s", isError, code, message)
	}
	if receive(t, "the receipt", settled) {
		t.Error("500 messages that never went out count as handed over")
	}
}

// Fails if a panic in a verb ends the connection, shows its text to the agent
// or leaves mail counted as handed over.
func TestPanicBecomesInternal(t *testing.T) {
	settled := make(chan bool, 1)
	g := &fakeGateway{poll: func(ctx context.Context, _ PollArgs) (PollResult, error) {
		OnWritten(ctx, func(written bool) { settled <- written })
		panic("secret content")
	}}
	r := start(t, with(g))
	for era, version := range eras {
		t.Run(era, func(t *testing.T) {
			c := dial(t, r.url, "tok-ann", version)
			structure, text, isError := mustCall(t, c, "bridge_poll", nil)
			if code, _ := errorOf(structure); !isError || code != "INTERNAL" || strings.Contains(text, "secret") {
				t.Errorf("isError %v, text %q", isError, text)
			}
			if receive(t, "the receipt", settled) {
				t.Error("mail lost in a panic counts as handed over")
			}
		})
	}
	status, body, _ := r.do(t, request{method: "POST", path: "/api/v1/poll", body: "{}", header: bearerAnn})
	receive(t, "the receipt", settled)
	if status != 500 || strings.Contains(body, "secret") {
		t.Errorf("REST: %d %s", status, body)
	}
}
