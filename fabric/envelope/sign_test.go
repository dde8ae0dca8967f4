package envelope

import (
	"crypto/ed25519"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"fleetd/fault"
)

// drawEnvelope draws a well-formed envelope of hosta with some headers of a
// later minor version.
func drawEnvelope(t *rapid.T) *Envelope {
	uuid := rapid.StringMatching(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`)
	host := rapid.StringMatching(`[a-z0-9][a-z0-9-]{0,62}`)
	to := map[Lane]*rapid.Generator[string]{
		LaneMail: uuid, LaneSignal: rapid.OneOf(uuid, rapid.Map(host, GatewayAddress)), LaneControl: host,
		LanePresence: rapid.Custom(func(t *rapid.T) string {
			return RosterKey(host.Draw(t, "key host"), rapid.OneOf(uuid, rapid.SampledFrom([]string{RosterGateway, RosterSolicit})).Draw(t, "subject"))
		}),
	}
	kind := rapid.SampledFrom(slices.Sorted(maps.Keys(lanes))).Draw(t, "kind")
	e := &Envelope{
		Kind: kind, MsgID: uuid.Draw(t, "msgId"), Signer: "hosta",
		TraceID: rapid.StringMatching(`[0-9a-f]{31}[1-9a-f]`).Draw(t, "traceId"),
		From:    rapid.OneOf(uuid, rapid.Map(host, GatewayAddress)).Draw(t, "from"),
		To:      to[lanes[kind][0]].Draw(t, "to"),
		TS:      rapid.Int64Min(1).Draw(t, "ts"), ExpiresAt: rapid.Int64Min(1).Draw(t, "expiresAt"),
		Hops:   int(rapid.Int32Min(0).Draw(t, "hops")),
		TurnID: rapid.StringMatching(`[!-~]{0,255}`).Draw(t, "turnId"),
		Reason: rapid.StringMatching(`([A-Z][A-Z0-9_]{0,63})?`).Draw(t, "reason"),
		Body:   rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(t, "body"),
	}
	if kind == Broadcast {
		e.To = BroadcastKey(rapid.StringMatching(`all|[a-z][a-z0-9-]{0,62}`).Draw(t, "group"))
	}
	if rapid.Bool().Draw(t, "correlated") {
		e.InReplyTo, e.SpawnID = uuid.Draw(t, "inReplyTo"), uuid.Draw(t, "spawnId")
	}
	extra := rapid.MapOfN(rapid.StringMatching(`[A-Za-wyz][ -~]{0,40}`), rapid.String(), 0, 4)
	e.Headers = extra.Filter(func(m map[string]string) bool {
		for name := range m {
			if typed[name] || name == headerSig {
				return false
			}
		}
		return true
	}).Draw(t, "extra")
	return e
}

// Fails when anything that one gateway says is lost, changed or refused on its
// way through headers to another.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEnvelope(t)
		extra := maps.Clone(e.Headers)
		if err := e.Sign(key); err != nil {
			t.Fatalf("Sign: %v", err)
		}
		got, err := receive(e.Table(), e.Body, trustA)
		if err != nil {
			t.Fatalf("receive: %v", err)
		}
		if diff := cmp.Diff(e, got); diff != "" {
			t.Errorf("sent (-) and received (+):\n%s", diff)
		}
		for name, value := range extra {
			if got.Headers[name] != value {
				t.Errorf("extra header %q came as %q, want %q", name, got.Headers[name], value)
			}
		}
	})
}

// Fails when one change on the way, of whatever sort, leaves the signature good.
func TestAnySingleChangeIsRefused(t *testing.T) {
	t.Attr("threat", "B1")
	changes := map[string]func(t *rapid.T, table map[string]any, names []string, body *[]byte){
		"value": func(t *rapid.T, table map[string]any, names []string, _ *[]byte) {
			name := rapid.SampledFrom(names).Draw(t, "name")
			table[name] = rapid.String().Filter(func(s string) bool { return s != table[name] }).Draw(t, "value")
		},
		"bit of a value": func(t *rapid.T, table map[string]any, names []string, _ *[]byte) {
			name := rapid.SampledFrom(names).Filter(func(n string) bool { return table[n] != "" }).Draw(t, "name")
			value := []byte(table[name].(string))
			flip(t, value)
			table[name] = string(value)
		},
		"name": func(t *rapid.T, table map[string]any, names []string, _ *[]byte) {
			name := rapid.SampledFrom(names).Draw(t, "name")
			value := table[name]
			delete(table, name)
			table[newName(table, name).Draw(t, "new name")] = value
		},
		"add": func(t *rapid.T, table map[string]any, _ []string, _ *[]byte) {
			table[newName(table, "").Draw(t, "new name")] = rapid.String().Draw(t, "value")
		},
		"drop": func(t *rapid.T, table map[string]any, names []string, _ *[]byte) {
			delete(table, rapid.SampledFrom(names).Draw(t, "name"))
		},
		"type": func(t *rapid.T, table map[string]any, names []string, _ *[]byte) {
			name := rapid.SampledFrom(names).Draw(t, "name")
			table[name] = []byte(table[name].(string))
		},
		"swap": func(t *rapid.T, table map[string]any, names []string, _ *[]byte) {
			a := rapid.SampledFrom(names).Draw(t, "a")
			b := rapid.SampledFrom(names).Filter(func(n string) bool { return table[n] != table[a] }).Draw(t, "b")
			table[a], table[b] = table[b], table[a]
		},
		"boundary": func(t *rapid.T, table map[string]any, names []string, _ *[]byte) {
			i := rapid.IntRange(0, len(names)-2).Filter(func(i int) bool { return table[names[i]] != "" }).Draw(t, "at")
			left, right := table[names[i]].(string), table[names[i+1]].(string)
			table[names[i]], table[names[i+1]] = left[:len(left)-1], left[len(left)-1:]+right
		},
		"body": func(t *rapid.T, _ map[string]any, _ []string, body *[]byte) {
			if len(*body) == 0 || rapid.Bool().Draw(t, "longer") {
				*body = append(*body, rapid.Byte().Draw(t, "byte"))
				return
			}
			flip(t, *body)
		},
		"body cut": func(t *rapid.T, _ map[string]any, _ []string, body *[]byte) {
			if len(*body) == 0 {
				*body = []byte{0} // nothing to cut: the other way round
				return
			}
			*body = (*body)[:len(*body)-1]
		},
	}
	for what, change := range changes {
		t.Run(what, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				e := drawEnvelope(t)
				if err := e.Sign(key); err != nil {
					t.Fatalf("Sign: %v", err)
				}
				table, body := e.Table(), slices.Clone(e.Body)
				change(t, table, slices.Sorted(maps.Keys(table)), &body)
				if _, err := receive(table, body, trustA); err == nil {
					t.Errorf("accepted %v, body %x", table, body)
				}
			})
		})
	}
}

func flip(t *rapid.T, b []byte) {
	b[rapid.IntRange(0, len(b)-1).Draw(t, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
}

// newName draws a header name of ours that table doesn't have.
func newName(table map[string]any, not string) *rapid.Generator[string] {
	return rapid.StringN(0, 20, -1).Filter(func(name string) bool {
		_, there := table[name]
		return !there && name != not && ours(name)
	})
}

// Fails when Sign lets out a message that every receiver would refuse, or
// changes an envelope that it refused.
func TestSignRefuses(t *testing.T) {
	long := strings.Repeat("a", 256)
	for name, tc := range map[string]struct {
		edit func(*Envelope)
		want fault.Code
	}{
		"no id":              {func(e *Envelope) { e.MsgID = "" }, fault.BadRequest},
		"no signer":          {func(e *Envelope) { e.Signer = "" }, fault.BadRequest},
		"no end of life":     {func(e *Envelope) { e.ExpiresAt = 0 }, fault.BadRequest},
		"time before 1970":   {func(e *Envelope) { e.TS = -1 }, fault.BadRequest},
		"negative hops":      {func(e *Envelope) { e.Hops = -1 }, fault.BadRequest},
		"id in capitals":     {func(e *Envelope) { e.MsgID = strings.ToUpper(gidA) }, fault.BadRequest},
		"line break in turn": {func(e *Envelope) { e.TurnID = "a\nb" }, fault.BadRequest},
		"long kind":          {func(e *Envelope) { e.Kind = Kind(long) }, fault.TooLarge},
		"long id":            {func(e *Envelope) { e.MsgID = long }, fault.TooLarge},
		"long header name":   {func(e *Envelope) { e.Headers = map[string]string{long: ""} }, fault.TooLarge},
		"64 KiB of headers":  {func(e *Envelope) { e.Headers = map[string]string{"n": strings.Repeat("a", 64<<10)} }, fault.TooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			e := brief()
			tc.edit(e)
			before := *e
			if err := e.Sign(key); fault.CodeOf(err) != tc.want {
				t.Errorf("Sign: %v, want code %s", err, tc.want)
			}
			if diff := cmp.Diff(before, *e); diff != "" {
				t.Errorf("Sign changed what it refused:\n%s", diff)
			}
		})
	}
	if err := brief().Sign(nil); !fault.Is(err, fault.Internal) {
		t.Errorf("Sign without a key: %v", err)
	}
}

// Fails when sender and receiver count header bytes differently, so that a
// message at the very limit is sent but never received.
func TestHeaderLimitIsTheSameOnBothSides(t *testing.T) {
	fits := 0
	for n := 64<<10 - 1000; n <= 64<<10; n++ {
		e := brief()
		e.Headers = map[string]string{"filler": strings.Repeat("a", n)}
		if err := e.Sign(key); err != nil {
			if !fault.Is(err, fault.TooLarge) {
				t.Fatal(err)
			}
			break
		}
		fits = n
		if _, err := receive(e.Table(), e.Body, trustA); err != nil {
			t.Fatalf("signed with %d bytes of filler, but: %v", n, err)
		}
	}
	if fits == 0 {
		t.Fatal("nothing near the limit was signed")
	}
	e := brief()
	e.Headers = map[string]string{"filler": strings.Repeat("a", fits)}
	if err := e.Sign(key); err != nil {
		t.Fatal(err)
	}
	table := e.Table()
	table["filler"] = strings.Repeat("a", fits+1)
	if _, err := Decode(table, nil, Limits{}); reason(t, err) != HeaderTooLarge {
		t.Errorf("one byte over the limit: %v", err)
	}
}

// Fails when Sign keeps a stale value of a typed header, drops a header of a
// later minor version, or republishes the broker's own headers.
func TestSignWritesTheTypedFields(t *testing.T) {
	e := brief()
	e.Headers = map[string]string{
		"to": gidA, "hops": "7", "sig": "stale", "x-first-death-reason": "expired", "Priority": "high",
	}
	if err := e.Sign(key); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"v": "1", "kind": "SEND", "msgId": msg1, "traceId": trace, "from": gidA, "to": gidB, "signer": "hosta",
		"ts": fmt.Sprint(sent), "expiresAt": fmt.Sprint(sent + 900_000), "Priority": "high", "sig": e.Headers["sig"],
	}
	if diff := cmp.Diff(want, e.Table()); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if len(e.Headers) != len(want) {
		t.Errorf("kept a header of the broker: %v", e.Headers)
	}
	if e.Headers["sig"] == "stale" || e.V != Version {
		t.Errorf("sig %q, version %q", e.Headers["sig"], e.V)
	}
}

// Fails when lengths that don't fit their prefix are cut instead of refused:
// then two messages would share one signing input.
func TestSigningInputNeverCutsLengths(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a name of 65536 bytes was signed")
		}
	}()
	SigningInput(map[string]string{strings.Repeat("n", 1<<16): ""}, nil)
}

// Fails when a host that changes its key is cut off while both are trusted, or
// when one of several keys hides another.
func TestVerifyTriesEveryKeyOfTheSigner(t *testing.T) {
	t.Attr("threat", "B1")
	other := public(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	e := signedBrief(t)
	for name, tc := range map[string]struct {
		trust trusting
		want  string
	}{
		"old and new":       {trusting{"hosta": {other, public(key)}}, ""},
		"a key of no size":  {trusting{"hosta": {nil, public(key)}}, ""},
		"another key only":  {trusting{"hosta": {other}}, BadSignature},
		"another host only": {trusting{"hostb": {public(key)}}, UnknownSigner},
		"nobody":            {nil, UnknownSigner},
	} {
		if got := reason(t, e.Verify(tc.trust)); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
