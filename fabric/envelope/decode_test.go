package envelope

import (
	"fmt"
	"strings"
	"testing"

	"fleetd/fault"
)

// Fails when a malformed header reaches the code behind the envelope, or a
// well-formed one of a later minor version doesn't.
func TestDecodeShapes(t *testing.T) {
	long, upper := strings.Repeat("a", 256), strings.ToUpper(gidA)
	for _, tc := range []struct {
		name, value string
		want        string
	}{
		{"v", "1", ""}, {"v", "1.0", ""}, {"v", "1.27", ""},
		{"v", "", Malformed}, {"v", "01", Malformed}, {"v", "1.", Malformed}, {"v", ".1", Malformed}, {"v", "1.2.3", Malformed},
		{"v", "0", Malformed}, {"v", "-1", Malformed}, {"v", "one", Malformed}, {"v", " 1", Malformed}, {"v", "1\n", Malformed},
		{"v", "2", NewerMajor}, {"v", "10.1", NewerMajor}, {"v", "99999999999999999999", NewerMajor},
		{"kind", "REMIND", ""}, {"kind", "", Malformed}, {"kind", "SEND ", Malformed}, {"kind", "SE\x00ND", Malformed}, {"kind", long, HeaderTooLarge},
		{"msgId", "", Malformed}, {"msgId", upper, Malformed}, {"msgId", "{" + gidA + "}", Malformed}, {"msgId", strings.ReplaceAll(gidA, "-", ""), Malformed},
		{"msgId", "00000000-0000-0000-0000-000000000000", Malformed}, {"msgId", strings.Replace(gidA, "-", "0", 1), Malformed}, {"msgId", "D" + gidA, Malformed},
		{"traceId", "", Malformed}, {"traceId", strings.Repeat("0", 32), Malformed}, {"traceId", strings.ToUpper(trace), Malformed}, {"traceId", trace[1:], Malformed},
		{"from", "_gateway@hostb", ""}, {"from", "_gateway@", Malformed}, {"from", "_gateway@Host", Malformed}, {"from", "worker", Malformed},
		{"from", upper, Malformed}, {"from", "broadcast.all", Malformed}, {"from", "", Malformed},
		{"to", "_gateway@hostb", ""}, {"to", "broadcast.all", Malformed}, {"to", "hostb", Malformed}, {"to", "roster.hosta._gateway", Malformed}, {"to", "#", Malformed},
		{"signer", "0", ""}, {"signer", strings.Repeat("h", 63), ""}, {"signer", strings.Repeat("h", 64), Malformed}, {"signer", "-a", Malformed},
		{"signer", "hostA", Malformed}, {"signer", "host.a", Malformed}, {"signer", "../hosta", Malformed}, {"signer", "", Malformed},
		{"inReplyTo", "", ""}, {"inReplyTo", gidB, ""}, {"inReplyTo", "7", Malformed},
		{"turnId", "", ""}, {"turnId", "turn-7", ""}, {"turnId", "turn 7", Malformed}, {"turnId", "t\u00fcrn", Malformed}, {"turnId", long, HeaderTooLarge},
		{"spawnId", "", ""}, {"spawnId", gidB, ""}, {"spawnId", upper, Malformed},
		{"ts", "1", ""}, {"ts", "9223372036854775807", ""}, {"ts", "9223372036854775808", Malformed}, {"ts", "0", Malformed}, {"ts", "-1", Malformed},
		{"ts", "+1", Malformed}, {"ts", "01", Malformed}, {"ts", "1e3", Malformed}, {"ts", "0x1", Malformed}, {"ts", "1_0", Malformed}, {"ts", "", Malformed},
		{"expiresAt", "0", Malformed}, {"expiresAt", "", Malformed},
		{"hops", "", ""}, {"hops", "0", ""}, {"hops", "33", ""}, {"hops", "2147483647", ""}, {"hops", "2147483648", Malformed}, {"hops", "-1", Malformed}, {"hops", "00", Malformed},
		{"reason", "", ""}, {"reason", "INBOX_FULL", ""}, {"reason", strings.Repeat("A", 64), ""}, {"reason", strings.Repeat("A", 65), Malformed},
		{"reason", "full", Malformed}, {"reason", "_A", Malformed}, {"reason", "A B", Malformed},
		{"zz-future", long, ""}, {"sig", long, HeaderTooLarge}, {long, "", HeaderTooLarge}, {"zz", strings.Repeat("a", 64<<10), HeaderTooLarge},
	} {
		table := signedBrief(t).Table()
		table[tc.name] = tc.value
		_, err := Decode(table, nil, Limits{})
		if got := reason(t, err); got != tc.want {
			t.Errorf("%.20s = %.60q: %q, want %q (%v)", tc.name, tc.value, got, tc.want, err)
		}
	}
}

// Fails when a kind can be addressed to what its lane doesn't carry: a SEND to
// a whole group, or a broadcast into one inbox.
func TestDecodeAddressesByKind(t *testing.T) {
	addresses := map[string]string{
		"gid": gidB, "gateway": "_gateway@hostb", "all": "broadcast.all", "group": "broadcast.reviewers", "host": "hostb",
		"entity": "roster.hosta." + gidA, "heartbeat": "roster.hosta._gateway", "solicit": "roster.hosta._solicit",
		"bad group": "broadcast.All", "bad subject": "roster.hosta.x", "bad roster host": "roster.._gateway", "bare": "roster.hosta", "wild": "roster.#",
	}
	takes := map[Kind]string{
		Send: "gid gateway", Reply: "gid gateway", Ask: "gid gateway", Failed: "gid gateway", Spawned: "gid gateway",
		Broadcast: "all group",
		Spawn:     "host gid", Stop: "host gid", Trace: "host gid", // a UUID is a host id too Presence: "entity heartbeat solicit",
		"REMIND": "gid gateway all group host entity heartbeat solicit",
	}
	for kind, good := range takes {
		for name, to := range addresses {
			table := signedBrief(t).Table()
			table["kind"], table["to"] = string(kind), to
			want := Malformed
			for _, g := range strings.Fields(good) {
				if g == name {
					want = ""
				}
			}
			if _, err := Decode(table, nil, Limits{}); reason(t, err) != want {
				t.Errorf("%s to %s: %v, want %q", kind, to, err, want)
			}
		}
	}
}

// Fails when a header that is missing altogether passes for an empty one.
func TestDecodeMissesNothing(t *testing.T) {
	for _, f := range fields {
		table := signedBrief(t).Table()
		delete(table, f.name)
		if _, err := Decode(table, nil, Limits{}); (err != nil) != f.required {
			t.Errorf("without %s: %v", f.name, err)
		}
	}
	for _, table := range []map[string]any{nil, {}, {"v": 1}} {
		if _, err := Decode(table, nil, Limits{}); reason(t, err) != Malformed {
			t.Errorf("table %v: %v", table, err)
		}
	}
}

// Fails when what the broker adds to a message makes it unreadable, or is
// believed because it bears one of our names.
func TestDecodeIgnoresWhatIsNotOurs(t *testing.T) {
	e := signedBrief(t)
	table := e.Table()
	table["x-first-death-reason"] = "expired"
	table["x-long"] = strings.Repeat("a", 100<<10)
	table["x-"+strings.Repeat("a", 300)] = ""
	table["x-death"] = []any{map[string]any{"count": int64(3)}}
	table["reason"], table["hops"], table["CC"] = []byte("FORGED"), int64(9), []any{"other"}
	got, err := receive(table, e.Body, trustA)
	if err != nil {
		t.Fatal(err)
	}
	if got.Reason != "" || got.Hops != 0 || len(got.Headers) != len(e.Headers) {
		t.Errorf("read %+v", got)
	}
}

// Fails when a limit is off by one, is not checked at all, or is told as
// something else than a size.
func TestDecodeLimits(t *testing.T) {
	t.Attr("threat", "B4")
	e := signedBrief(t)
	size := 0
	for name, value := range e.Headers {
		size += 1 + len(name) + 1 + 4 + len(value)
	}
	body := make([]byte, DefaultBodyBytes+1)
	for _, tc := range []struct {
		body   []byte
		limits Limits
		want   string
	}{
		{body[:DefaultBodyBytes], Limits{}, ""},
		{body, Limits{}, BodyTooLarge},
		{body, Limits{BodyBytes: len(body)}, ""},
		{body[:11], Limits{BodyBytes: 10}, BodyTooLarge},
		{nil, Limits{HeaderBytes: size}, ""},
		{nil, Limits{HeaderBytes: size - 1}, HeaderTooLarge},
	} {
		_, err := Decode(e.Table(), tc.body, tc.limits)
		if reason(t, err) != tc.want {
			t.Errorf("body of %d, %+v: %v, want %q", len(tc.body), tc.limits, err, tc.want)
		}
		if tc.want != "" && !fault.Is(err, fault.TooLarge) {
			t.Errorf("code of %v", err)
		}
	}
}

// Fails when a table of many headers is copied before it is counted: refusing
// it must cost nothing that grows with it.
func TestDecodeCountsBeforeItAllocates(t *testing.T) {
	t.Attr("threat", "B4")
	table := signedBrief(t).Table()
	for i := range 50_000 {
		table[fmt.Sprint("header-", i)] = ""
	}
	allocs := testing.AllocsPerRun(5, func() {
		if _, err := Decode(table, nil, Limits{}); reason(t, err) != HeaderTooLarge {
			t.Errorf("Decode: %v", err)
		}
	})
	if allocs > 20 {
		t.Errorf("refusing %d headers took %.0f allocations", len(table), allocs)
	}
}

// Fails when a signature has a second spelling, or its absence is taken for
// anything but a bad signature.
func TestSignatureText(t *testing.T) {
	t.Attr("threat", "B1")
	e := signedBrief(t)
	good := e.Headers["sig"]
	last := map[byte]string{'A': "B", 'Q': "R", 'g': "h", 'w': "x"}[good[85]]
	for name, sig := range map[string]string{
		"absent": "", "padded": good + "==", "spare bits": good[:85] + last, "line break": good[:40] + "\n" + good[40:],
		"line break for a digit": good[:40] + "\n" + good[41:], "standard alphabet": strings.NewReplacer("-", "+", "_", "/").Replace(good) + "=",
	} {
		table := e.Table()
		table["sig"] = sig
		if _, err := receive(table, e.Body, trustA); reason(t, err) != BadSignature {
			t.Errorf("%s: %v", name, err)
		}
	}
}
