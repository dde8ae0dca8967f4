package envelope

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// Fails when a report made twice gets two ids, two reports share one, or an
// upgrade changes the ids (the literal was computed with Python's uuid5).
func TestReportID(t *testing.T) {
	const want = "f44561fc-780b-5ee9-a7bb-08ee131a9f35"
	if got := ReportID(msg1, gidB, Failed); got != want {
		t.Errorf("ReportID = %s, want %s", got, want)
	}
	seen := map[string]bool{}
	for _, original := range []string{msg1, gidA} {
		for _, recipient := range []string{gidA, gidB} {
			for _, kind := range []Kind{Failed, Abandoned} {
				id := ReportID(original, recipient, kind)
				if seen[id] || !ValidGID(id) || uuid.MustParse(id).Version() != 5 {
					t.Errorf("ReportID(%s, %s, %s) = %s", original, recipient, kind, id)
				}
				seen[id] = true
			}
		}
	}
}

// Fails when a trace id isn't what a receiver accepts, or a broken random
// source goes unnoticed.
func TestNewTraceID(t *testing.T) {
	id, err := NewTraceID(bytes.NewReader([]byte("0123456789abcdef")))
	if err != nil || id != "30313233343536373839616263646566" || !validTraceID(id) {
		t.Errorf("NewTraceID = %q, %v", id, err)
	}
	for _, source := range []string{"", "short", strings.Repeat("\x00", 16)} {
		if id, err := NewTraceID(strings.NewReader(source)); err == nil {
			t.Errorf("NewTraceID of %q = %q without an error", source, id)
		}
	}
}

// Fails when a name that can't be told from an address, or that breaks out of
// a routing key or a file name, is accepted.
func TestNames(t *testing.T) {
	l63, l64 := strings.Repeat("a", 63), strings.Repeat("a", 64)
	for s, want := range map[string][2]bool{ // host, name
		"a": {true, true}, "hosta": {true, true}, "web-1": {true, true}, "a-": {true, true}, l63: {true, true},
		"1": {true, false}, "9lives": {true, false}, "all": {true, false},
		"": {}, l64: {}, "-a": {}, "A": {}, "a.b": {}, "a/b": {}, "..": {}, "a b": {}, "a\n": {}, "ä": {}, "a_b": {}, "*": {},
	} {
		if got := [2]bool{ValidHost(s), ValidName(s)}; got != want {
			t.Errorf("%q is (host, name) %v, want %v", s, got, want)
		}
	}
}

// Fails when a message is taken for expired too early or too late, also where
// its end lies at the edge of what a number holds.
func TestExpired(t *testing.T) {
	now := time.UnixMilli(sent)
	for _, tc := range []struct {
		expiresAt int64
		grace     time.Duration
		want      bool
	}{
		{0, 0, false}, {sent, 0, false}, {sent - 1, 0, true}, {sent - 30_000, 30 * time.Second, false},
		{sent - 30_001, 30 * time.Second, true}, {math.MaxInt64, 30 * time.Second, false}, {1, 30 * time.Second, true},
	} {
		e := &Envelope{ExpiresAt: tc.expiresAt}
		if got := e.Expired(now, tc.grace); got != tc.want {
			t.Errorf("expiresAt %d, grace %s: expired %v", tc.expiresAt, tc.grace, got)
		}
	}
}

// Fails when a kind lives longer or shorter than design §4 says.
func TestLife(t *testing.T) {
	const week = 168 * time.Hour
	for _, tc := range []struct {
		kinds string
		asked time.Duration
		want  time.Duration
	}{
		{"SEND BROADCAST", 0, 15 * time.Minute}, {"SEND BROADCAST", time.Hour, time.Hour}, {"SEND", 2 * week, week}, {"SEND", -1, 15 * time.Minute},
		{"SEND", 1, time.Millisecond}, {"SEND", math.MaxInt64, week},
		{"REPLY FAILED ABANDONED", 0, week}, {"REPLY FAILED ABANDONED", time.Minute, week},
		{"ASK ANSWER", time.Second, time.Second}, {"ASK", 0, 2 * time.Minute},
		{"NO_WAITER TOO_LATE INJECTED DEFERRED QUERY SPAWNED STOPPED TRACED", time.Second, 10 * time.Minute},
		{"SPAWN STOP TRACE", 5 * time.Second, 5 * time.Second}, {"SPAWN", 0, 90 * time.Second}, {"PRESENCE", time.Hour, time.Minute},
	} {
		for _, kind := range strings.Fields(tc.kinds) {
			if got := Life(Kind(kind), tc.asked); got != tc.want {
				t.Errorf("%s, asked %s: %s, want %s", kind, tc.asked, got, tc.want)
			}
		}
	}
}
