package api

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fleetd/mcp"
)

// letters is the daemon's side: it answers with what it was asked.
type letters struct{}

func (letters) ListDeadLetters(_ context.Context, a mcp.ListDeadLettersArgs) (mcp.ListDeadLettersResult, error) {
	return mcp.ListDeadLettersResult{Letters: []mcp.DeadLetter{{Reason: a.Reason, Queue: a.Queue, Own: true}}, Total: a.Limit + a.OlderThanSeconds}, nil
}

func (letters) ShowDeadLetter(_ context.Context, a mcp.ShowDeadLetterArgs) (mcp.ShowDeadLetterResult, error) {
	d := mcp.DeadLetterDetail{Letter: mcp.DeadLetter{MsgID: a.MsgID}, Headers: map[string]string{"kind": "SEND"}, Deaths: []mcp.Death{{Count: 2}}}
	if a.Body {
		d.BodyBase64 = []byte{0xff, 0}
	}
	return mcp.ShowDeadLetterResult{Letters: []mcp.DeadLetterDetail{d}}, nil
}

func (letters) RedeliverDeadLetters(_ context.Context, a mcp.RedeliverDeadLettersArgs) (mcp.RedeliverDeadLettersResult, error) {
	return mcp.RedeliverDeadLettersResult{Letters: []mcp.Redelivery{{MsgID: a.MsgID, State: mcp.StateStays, Code: "EXPIRED"}}, Stay: 1}, nil
}

func (letters) PurgeDeadLetters(_ context.Context, a mcp.PurgeDeadLettersArgs) (mcp.PurgeDeadLettersResult, error) {
	return mcp.PurgeDeadLettersResult{Purged: a.OlderThanSeconds, Note: a.Reason + a.Queue}, nil
}

// Fails if a verb of the dead letters does not survive the way to the daemon
// and back, or is asked as an entity instead of as the host's own user.
func TestDeadLetterVerbs(t *testing.T) {
	c := &Client{Socket: socketPath(t), Token: "good"}
	serve(t, c.Socket, &fake{}, func(s *mcp.Server) { s.DeadLetters = letters{} })
	ctx := t.Context()
	check := func(got any, err error, want any) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	list, err := c.ListDeadLetters(ctx, mcp.ListDeadLettersArgs{Reason: "r", Queue: "q", OlderThanSeconds: 5, Limit: 7})
	check(list, err, mcp.ListDeadLettersResult{Letters: []mcp.DeadLetter{{Reason: "r", Queue: "q", Own: true}}, Total: 12})
	show, err := c.ShowDeadLetter(ctx, mcp.ShowDeadLetterArgs{MsgID: "m", Body: true})
	check(show, err, mcp.ShowDeadLetterResult{Letters: []mcp.DeadLetterDetail{{
		Letter: mcp.DeadLetter{MsgID: "m"}, Headers: map[string]string{"kind": "SEND"}, Deaths: []mcp.Death{{Count: 2}}, BodyBase64: []byte{0xff, 0},
	}}})
	again, err := c.RedeliverDeadLetters(ctx, mcp.RedeliverDeadLettersArgs{MsgID: "m"})
	check(again, err, mcp.RedeliverDeadLettersResult{Letters: []mcp.Redelivery{{MsgID: "m", State: mcp.StateStays, Code: "EXPIRED"}}, Stay: 1})
	purge, err := c.PurgeDeadLetters(ctx, mcp.PurgeDeadLettersArgs{Reason: "r", Queue: "q", OlderThanSeconds: 5})
	check(purge, err, mcp.PurgeDeadLettersResult{Purged: 5, Note: "rq"})
}

// Fails if the client gives up on a full queue before the daemon does, or tells
// its user to look for a message when a look at dead letters was cut short.
func TestDeadLettersMayTakeTheirTime(t *testing.T) {
	c := &Client{Socket: "unused"}
	c.once.Do(c.init)
	var left time.Duration
	c.http.Transport = tripper(func(r *http.Request) (*http.Response, error) {
		end, _ := r.Context().Deadline()
		left = time.Until(end)
		return nil, context.DeadlineExceeded
	})
	if _, err := c.ListDeadLetters(t.Context(), mcp.ListDeadLettersArgs{}); err == nil {
		t.Error("no error")
	}
	if left < (mcp.DeadLettersSeconds+10)*time.Second {
		t.Errorf("it would give up after %s", left)
	}
	socket, requests := vanishing(t, `{}`)
	_, err := (&Client{Socket: socket}).RedeliverDeadLetters(t.Context(), mcp.RedeliverDeadLettersArgs{All: true})
	if err == nil || strings.Contains(err.Error(), "bridge_poll") || requests.Load() != 1 {
		t.Errorf("%v after %d requests", err, requests.Load())
	}
}
