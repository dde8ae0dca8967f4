package envelope

import (
	"bytes"
	"maps"
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
