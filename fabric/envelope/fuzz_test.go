package envelope

import (
	"bytes"
	"encoding/base64"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// pack writes a table as the fuzzer sees it: name, NUL, value, NUL and so on.
func pack(table map[string]any) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(table)) {
		parts = append(parts, name, table[name].(string))
	}
	return strings.Join(parts, "\x00")
}

func unpack(packed string) map[string]any {
	parts, table := strings.Split(packed, "\x00"), map[string]any{}
	for i := 0; i+1 < len(parts); i += 2 {
		table[parts[i]] = parts[i+1]
	}
	return table
}

// respelled is sig with the group's order added to its second half: the same
// signature to who does not insist on the smallest.
func respelled(f *testing.F, sig string) string {
	raw, err := base64.RawURLEncoding.DecodeString(sig)
	if err != nil || len(raw) != 64 {
		f.Fatalf("%q: %v", sig, err)
	}
	order, _ := new(big.Int).SetString("7237005577332262213973186563042994240857116359379907606001950938285454250989", 10)
	slices.Reverse(raw[32:])
	order.Add(order, new(big.Int).SetBytes(raw[32:])).FillBytes(raw[32:])
	slices.Reverse(raw[32:])
	return base64.RawURLEncoding.EncodeToString(raw)
}

// Fails when some table crashes the consumer, gets past a limit, or is read as
// something that we'd not write ourselves.
func FuzzDecode(f *testing.F) {
	f.Attr("threat", "B4")
	for _, v := range vectors(f) {
		if body := v.body(f); len(body) < 1024 {
			f.Add(pack(v.table()), body)
		}
	}
	full := brief() // no vector has all headers
	full.InReplyTo, full.TurnID, full.SpawnID, full.Reason, full.Hops = gidA, "turn-7", gidB, "UNSEEN", 3
	if err := full.Sign(key); err != nil {
		f.Fatal(err)
	}
	f.Add(pack(full.Table()), full.Body)
	f.Add("", []byte(nil))
	for name, values := range map[string][]string{
		"expiresAt": {"9223372036854775807", "9223372036854775808", "-1", "+1", "01", " 1", "1e3", "0x1", "١", ""},
		"msgId":     {strings.ToUpper(gidA), "{" + gidA + "}", gidA + "\n", strings.ReplaceAll(gidA, "-", "")},
		"from":      {"_gateway@hosta", "_gateway@", "broadcast.all", gidA + "\u200b", "*"},
		"hops":      {"-1", "18446744073709551616", "0"},
		"reason":    {strings.Repeat("a", 2048), "\xff\xfe", "\x1b[2J"},
		"MsgId":     {gidB}, // one that only looks like ours
		"":          {"v"},
		"x-death":   {strings.Repeat("a", 4096)},
	} {
		for _, value := range values {
			table := full.Table()
			table[name] = value
			f.Add(pack(table), full.Body)
		}
	}
	for _, n := range []int{512, 513} { // at the limit and over it
		f.Add(pack(full.Table()), make([]byte, n))
	}
	f.Fuzz(func(t *testing.T, packed string, body []byte) {
		table := unpack(packed)
		limits := Limits{HeaderBytes: 2048, BodyBytes: 512}
		e, err := Decode(table, body, limits)
		if err != nil {
			if e != nil || reason(t, err) == "" {
				t.Fatalf("refused with %v and %v", e, err)
			}
			return
		}
		if len(body) > limits.BodyBytes || within(e.Headers, limits.HeaderBytes) != nil {
			t.Fatalf("over the limits: %d bytes of body, headers %v", len(body), e.Headers)
		}
		again := *e
		if err := again.Sign(key); err != nil {
			t.Fatalf("can't write what was read: %v", err)
		}
		back, err := receive(again.Table(), body, trusting{e.Signer: {public(key)}})
		if err != nil {
			t.Fatalf("can't read what was written: %v", err)
		}
		e.Headers, back.Headers = nil, nil
		if diff := cmp.Diff(e, back); diff != "" {
			t.Fatalf("read, written and read again:\n%s", diff)
		}
	})
}

// Fails when a table or body other than a signed one verifies, or the signed
// one doesn't.
func FuzzVerify(f *testing.F) {
	f.Attr("threat", "B1 B4")
	signed := map[string]vector{}
	trust := trusting{}
	for _, v := range vectors(f) {
		if body := v.body(f); v.Valid && len(body) < 1024 {
			signed[v.Sig] = v
			trust[v.Headers["signer"]] = append(trust[v.Headers["signer"]], unhex(f, v.Public))
		}
		if body := v.body(f); len(body) < 1024 {
			f.Add(pack(v.table()), body)
		}
	}
	for sig, v := range signed { // each as it is but for one thing
		body := v.body(f)
		f.Add(pack(v.table()), append(slices.Clone(body), 0))
		f.Add(pack(v.table()), body[:max(len(body)-1, 0)])
		for name := range v.table() {
			table := v.table()
			table[name] = table[name].(string) + " "
			f.Add(pack(table), body)
			delete(table, name)
			f.Add(pack(table), body)
		}
		table := v.table()
		for other := range signed {
			if other != sig {
				table["sig"] = other
				f.Add(pack(table), body)
			}
		}
		table["sig"] = respelled(f, sig)
		f.Add(pack(table), body)
	}
	f.Fuzz(func(t *testing.T, packed string, body []byte) {
		table := unpack(packed)
		sig, _ := table["sig"].(string)
		v, known := signed[sig]
		maps.DeleteFunc(table, func(name string, _ any) bool { return !ours(name) })
		want := v.table()
		maps.DeleteFunc(want, func(name string, _ any) bool { return !ours(name) })
		same := known && bytes.Equal(body, v.body(t)) && cmp.Equal(table, want)
		if _, err := receive(table, body, trust); (err == nil) != same {
			t.Fatalf("as signed: %v; received with: %v", same, err)
		}
		headers := map[string]string{}
		for name, value := range table {
			headers[name] = value.(string)
		}
		if err := (&Envelope{Headers: headers, Body: body}).Verify(trust); err == nil && !same {
			t.Fatalf("verified without decoding: %v", table)
		}
	})
}
