package control

import (
	"context"
	"encoding/json"
	"testing"
	"time"
	"unicode/utf8"

	"fleetd/fabric/envelope"
	"fleetd/fault"
	"fleetd/store"
)

// noStore holds nothing.
type noStore struct{}

func (noStore) Write(context.Context, func(*store.Tx) error) error { return nil }
func (noStore) View(func(*store.Tx) error) error                   { return nil }
func (noStore) Trace(store.Event)                                  {}

// Fails when a body of control makes its reader panic, opens a profile that is
// closed, or has a text of another host longer than one may be.
func FuzzBodies(f *testing.F) {
	f.Attr("threat", "G4 G6")
	for _, body := range []any{
		spawnBody{Profile: "aide", Name: "x", Groups: []string{"a"}}, spawnBody{Profile: "private"}, traceBody{Bytes: -1}, traceBody{Bytes: 1 << 40},
		tracedBody{Events: []tracedEvent{{At: -1, Step: "s"}}, Cut: -5},
	} {
		text, err := json.Marshal(body)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"profile":"aide","argv":["sh"],"profile":"private"}`))
	f.Add([]byte("null"))
	c := New(Config{
		Host: "hostb", Store: noStore{}, Entities: &host{reserved: map[string]string{}}, Allows: func(string, string) bool { return true },
		Profiles: map[string]Profile{"aide": {Remote: true, Argv: []string{"agent"}}, "private": {Argv: []string{"agent"}}},
	})
	f.Fuzz(func(t *testing.T, body []byte) {
		env := &envelope.Envelope{
			Kind: envelope.Spawn, SpawnID: lead, From: lead, Signer: "hosta", To: "hostb", TraceID: flow, Body: body,
			ExpiresAt: time.Now().Add(time.Minute).UnixMilli(),
		}
		rec, p, failure := c.permitted(env)
		switch {
		case failure == nil && (rec.Profile != "aide" || len(p.Argv) != 1 || p.Argv[0] != "agent"):
			t.Errorf("%q launches %q of profile %q", body, p.Argv, rec.Profile)
		case failure != nil && failure.Code != fault.BadRequest && failure.Code != fault.ProfileUnknown:
			t.Errorf("%q is refused with %v", body, failure)
		}
		if text, err := c.traced(env); err == nil && (!json.Valid(text) || len(text) > tracedBytes) {
			t.Errorf("the answer to %q is %q", body, text)
		}
		told := Traced{Host: "hosta"}
		told.hear(word{host: "hosta", env: env})
		if told.Cut < 0 || told.Host != "hosta" {
			t.Errorf("%q is heard as %+v", body, told)
		}
		for _, e := range told.Events {
			for _, s := range []string{e.Step, e.MsgID, e.Kind, e.Entity, e.Peer, e.Outcome, e.Reason} {
				if len(s) > tracedText || !utf8.ValidString(s) || e.Host != "hosta" || e.TraceID != flow {
					t.Errorf("%q tells %+v", body, e)
				}
			}
		}
	})
}
