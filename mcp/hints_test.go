package mcp

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// hinting is the newer protocol's request for notifications; level is what it
// wants of log messages, "" none.
func hinting(level string) (body string, header map[string]string) {
	header = headerOf(eras["modern"])
	header["Mcp-Method"] = "subscriptions/listen"
	delete(header, "Mcp-Name")
	meta := modernFields
	if level != "" {
		meta += `,"io.modelcontextprotocol/logLevel":"` + level + `"`
	}
	return `{"jsonrpc":"2.0","id":77,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":{` + meta + `}}}`, header
}

type hintMessage struct {
	Method string
	Params struct {
		Level  string
		Logger string
		Meta   map[string]any `json:"_meta"`
		Data   struct {
			Message, From string
			Held          int
		}
	}
}

func (s *stream) hint(t *testing.T) (h hintMessage) {
	t.Helper()
	event := s.event(t)
	_, data, _ := strings.Cut(event, "data: ")
	if err := json.Unmarshal([]byte(data), &h); err != nil {
		t.Fatalf("%v: %s", err, event)
	}
	return h
}

// streams are open for notifications, as clients of ann in both eras keep them.
func (r *running) streams(t *testing.T) map[string]*stream {
	t.Helper()
	body, header := hinting("info")
	modern := r.open(t, http.MethodPost, body, header)
	if ack := modern.event(t); !strings.Contains(ack, "acknowledged") {
		t.Fatalf("the listen stream began with %s", ack)
	}
	return map[string]*stream{"legacy": r.open(t, http.MethodGet, "", legacyHeader()), "modern": modern}
}

// Fails if a client is not told of held mail on the stream that it keeps open
// for notifications, in either era, another identity's is, or one whose stream
// has ended counts as a listener.
func TestHeldMailIsHintedAtOnOpenStreams(t *testing.T) {
	r := start(t)
	if r.Listening(ann.GID) {
		t.Error("nobody is connected")
	}
	streams := r.streams(t)
	bobs := r.open(t, http.MethodGet, "", map[string]string{"Authorization": "Bearer tok-bob", "Mcp-Session-Id": strings.Replace(oldSession, "0b5be1f2", "1b5be1f2", 1)})
	if !r.Listening(ann.GID) {
		t.Error("ann's clients are not known")
	}
	r.Hint(ann.GID, 2, "lead@hostb")
	for era, s := range streams {
		h := s.hint(t)
		if h.Method != "notifications/message" || h.Params.Level != "notice" || h.Params.Logger != "bridge" ||
			h.Params.Data.Held != 2 || h.Params.Data.From != "lead@hostb" || !strings.Contains(h.Params.Data.Message, "bridge_poll") {
			t.Errorf("%s: %+v", era, h)
		}
		if id := h.Params.Meta["io.modelcontextprotocol/subscriptionId"]; (id != nil) != (era == "modern") || id != nil && id != float64(77) {
			t.Errorf("%s: it belongs to the subscription %v", era, id)
		}
	}
	r.Hint(bob.GID, 1, "ann@hosta") // the first that comes there
	if h := bobs.hint(t); h.Params.Data.From != "ann@hosta" {
		t.Errorf("bob's client was told %+v", h)
	}
	for _, s := range streams {
		s.close()
	}
	late := time.After(patience)
	for r.Listening(ann.GID) {
		select {
		case <-late:
			t.Fatal("who went away still counts")
		case <-time.After(time.Millisecond):
		}
	}
	r.Hint(ann.GID, 1, "nobody")
}

// Fails if a client gets hints that it does not want: one of the older protocol
// that asked for graver messages only, one of the newer that asked for none.
func TestHintsGoToWhoWantsThem(t *testing.T) {
	r := start(t)
	body, header := hinting("")
	silent := r.open(t, http.MethodPost, body, header)
	silent.event(t) // the acknowledgement
	if r.Listening(ann.GID) {
		t.Error("a client that asked for no log messages counts as a listener")
	}
	r.open(t, http.MethodGet, "", legacyHeader())
	for level, wants := range map[string]bool{"error": false, "debug": true} {
		status, answer, _ := r.do(t, request{method: "POST", path: "/mcp", header: legacyHeader(),
			body: `{"jsonrpc":"2.0","id":3,"method":"logging/setLevel","params":{"level":"` + level + `"}}`})
		if status != http.StatusOK || strings.Contains(answer, "error\":") {
			t.Fatalf("setLevel: %d %s", status, answer)
		}
		if r.Listening(ann.GID) != wants {
			t.Errorf("a client that asked for %s: listening %v", level, !wants)
		}
	}
}

// Fails if a hint goes to a client whose identity was revoked.
func TestNoHintsForARevokedIdentity(t *testing.T) {
	lease, revoke := context.WithCancel(t.Context())
	defer revoke()
	r := start(t, func(s *Server) { s.Identities = leased{lease: lease} })
	r.open(t, http.MethodGet, "", legacyHeader())
	if !r.Listening(ann.GID) {
		t.Fatal("the client is not known")
	}
	revoke()
	if r.Listening(ann.GID) {
		t.Error("it is still told")
	}
}

// A client that takes hints waits in a call, where the library would hand it
// what is queued for its session. Fails if a hint comes out in the response of
// a call.
func TestAHintIsNoPartOfACall(t *testing.T) {
	begun, let := make(chan struct{}), make(chan struct{})
	r := start(t, with(&fakeGateway{poll: func(context.Context, PollArgs) (PollResult, error) {
		begun <- struct{}{}
		<-let
		return PollResult{}, nil
	}}))
	get := r.open(t, http.MethodGet, "", legacyHeader())
	answered := make(chan string, 1)
	var asking sync.WaitGroup
	asking.Go(func() {
		_, body, _ := r.do(t, request{method: "POST", path: "/mcp", header: legacyHeader(),
			body: `{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"bridge_poll","arguments":{}}}`})
		answered <- body
	})
	receive(t, "the call", begun)
	r.Hint(ann.GID, 1, "lead@hostb")
	if h := get.hint(t); h.Params.Data.Held != 1 {
		t.Errorf("on the stream came %+v", h)
	}
	close(let)
	if body := receive(t, "the answer", answered); strings.Contains(body, "notifications/") {
		t.Errorf("the answer is %s", body)
	}
	asking.Wait()
}

// Fails if a client whose request for a stream has a body, which nobody needs,
// counts as a listener after it went away: as long as a body is not read to its
// end the connection is not watched.
func TestAStreamWithABodyEndsWithItsClient(t *testing.T) {
	r := start(t)
	s := r.open(t, http.MethodGet, "{}", legacyHeader())
	if !r.Listening(ann.GID) {
		t.Fatal("the client is not known")
	}
	s.close()
	late := time.After(patience)
	for r.Listening(ann.GID) {
		select {
		case <-late:
			t.Fatal("who went away still counts")
		case <-time.After(time.Millisecond):
		}
	}
}
