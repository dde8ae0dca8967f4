package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"fleetd/fault"
)

// Fails if a batch that the next hop has to confirm counts as handed over
// before it did, if another entity can confirm it, or if it can be confirmed
// twice.
func TestExplicitReceipt(t *testing.T) {
	settled := make(chan bool, 1)
	g := &fakeGateway{poll: func(ctx context.Context, _ PollArgs) (PollResult, error) {
		OnWritten(ctx, func(written bool) { settled <- written })
		return PollResult{}, nil
	}}
	r := start(t, with(g), withSocket(t))
	confirm := func(id, as string, written bool) int {
		body, _ := json.Marshal(ReceiptArgs{ID: id, Written: written})
		status, _, _ := r.doSocket(t, request{method: "POST", path: "/api/v1/receipt", body: string(body), header: map[string]string{"Authorization": "Bearer " + as}})
		return status
	}
	poll := request{method: "POST", path: "/api/v1/poll", body: "{}", header: map[string]string{"Authorization": "Bearer tok-ann", ReceiptHeader: ReceiptExplicit}}
	for _, written := range []bool{true, false} {
		_, _, header := r.doSocket(t, poll)
		id := header.Get(ReceiptHeader)
		if status := confirm(id, "tok-bob", true); status != 409 {
			t.Errorf("another entity's confirmation: %d", status)
		}
		select {
		case got := <-settled:
			t.Fatalf("settled as %v before it was confirmed", got)
		default:
		}
		if status := confirm(id, "tok-ann", written); status != 200 {
			t.Errorf("the confirmation: %d", status)
		}
		if got := receive(t, "the receipt", settled); got != written {
			t.Errorf("confirmed %v, settled %v", written, got)
		}
		if status := confirm(id, "tok-ann", true); status != 409 {
			t.Errorf("a second confirmation: %d", status)
		}
	}

	_, _, _ = r.doSocket(t, poll)
	r.stop()
	if receive(t, "the receipt", settled) {
		t.Error("what nobody confirmed counts as handed over after a stop")
	}
}

// Fails if mail stays hidden after the one who fetched it has died without a
// word, or comes again although he had confirmed it.
func TestAReceiptIsTiedToItsConnection(t *testing.T) {
	t.Attr("threat", "U5")
	settled := make(chan bool, 1)
	g := &fakeGateway{poll: func(ctx context.Context, _ PollArgs) (PollResult, error) {
		OnWritten(ctx, func(written bool) { settled <- written })
		return PollResult{}, nil
	}}
	r := start(t, with(g), withSocket(t))
	for _, confirmed := range []bool{false, true} {
		conn, err := net.Dial("unix", r.Socket)
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://x/api/v1/poll", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range map[string]string{"Authorization": "Bearer tok-ann", "Content-Type": "application/json",
			"Connection": "close", ReceiptHeader: ReceiptExplicit, ReceiptTieHeader: ReceiptTied} {
			req.Header.Set(k, v)
		}
		if err := req.Write(conn); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), req)
		if err != nil {
			t.Fatal(err)
		}
		if confirmed {
			body, _ := json.Marshal(ReceiptArgs{ID: res.Header.Get(ReceiptHeader), Written: true})
			status, _, _ := r.doSocket(t, request{method: "POST", path: "/api/v1/receipt", body: string(body), header: map[string]string{"Authorization": "Bearer tok-ann"}})
			if status != 200 {
				t.Errorf("the confirmation while the connection is open: %d", status)
			}
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		if got := receive(t, "the receipt", settled); got != confirmed {
			t.Errorf("confirmed %v, settled %v", confirmed, got)
		}
	}
}

// Fails if a batch whose next hop is silent is never offered again.
func TestSilentReceiptCountsAsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r receipts
		settled := make(chan bool, 1)
		ctx, receipt := WithReceipt(t.Context())
		OnWritten(ctx, func(written bool) { settled <- written })
		id := r.hold("gid-ann", receipt)
		time.Sleep(receiptTimeout - time.Second)
		synctest.Wait()
		if len(settled) != 0 {
			t.Fatal("settled too early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(settled) != 1 || <-settled {
			t.Error("a silent hop's batch does not count as lost in time")
		}
		if err := r.confirm("gid-ann", id, true); !fault.Is(err, fault.Conflict) {
			t.Errorf("a late confirmation: %v", err)
		}
	})
}

// Fails if a session stays bound for ever, so that memory grows with every
// client there ever was, or is forgotten while it is used.
func TestSessionsAreForgotten(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	s := sessions{now: func() time.Time { return now }, bound: map[string]*boundSession{}, of: map[string]int{}, pruned: now}
	admit := func(id, gid string) bool {
		ok := s.enter(id, gid)
		if ok {
			s.leave(id)
		}
		return ok
	}
	admit("used", "ann")
	admit("left", "ann")
	for range 30 {
		now = now.Add(time.Hour)
		if admit("used", "bob") || !admit("used", "ann") {
			t.Fatal("a session in use changed hands")
		}
	}
	if _, ok := s.bound["left"]; ok || len(s.bound) != 1 {
		t.Errorf("%d sessions are remembered", len(s.bound))
	}
}

// Fails if mail counts as handed over although the client was gone, or as lost
// although it was written.
func TestReceiptSaysWhetherTheAnswerWasWritten(t *testing.T) {
	begun, settled := make(chan struct{}, 1), make(chan bool, 1)
	block := make(chan struct{}) // closed: no more blocking
	g := &fakeGateway{poll: func(ctx context.Context, _ PollArgs) (PollResult, error) {
		OnWritten(ctx, func(written bool) { settled <- written })
		begun <- struct{}{}
		select {
		case <-ctx.Done():
		case <-block:
		}
		return PollResult{Messages: []Message{{Content: "mail"}}}, nil // although the client may be gone
	}}
	r := start(t, with(g))
	for era, version := range eras {
		for _, wait := range []int{0, 100} { // 100: as an event stream that has begun
			t.Run(fmt.Sprint("hung up/", era, wait), func(t *testing.T) {
				_, cancel := blockingPoll(t, dial(t, r.url, "tok-ann", version), map[string]any{"wait_seconds": wait})
				receive(t, "the call", begun)
				cancel()
				if receive(t, "the receipt", settled) {
					t.Error("the client had hung up and its mail counts as handed over")
				}
			})
		}
	}
	close(block)
	for era, version := range eras {
		for _, wait := range []int{0, 100} {
			t.Run(fmt.Sprint("written/", era, wait), func(t *testing.T) {
				done, _ := blockingPoll(t, dial(t, r.url, "tok-ann", version), map[string]any{"wait_seconds": wait})
				receive(t, "the call", begun)
				if text := receive(t, "the poll", done); !strings.Contains(text, "mail") {
					t.Error(text)
				}
				if !receive(t, "the receipt", settled) {
					t.Error("the client got its mail and it counts as lost")
				}
			})
		}
	}
}

// brokenWriter is a connection that takes nothing although it looks alive.
type brokenWriter struct{ header http.Header }

func (w brokenWriter) Header() http.Header              { return w.header }
func (w brokenWriter) WriteHeader(int)                  {}
func (w brokenWriter) Write([]byte) (int, error)        { return 0, errors.New("connection reset") }
func (w brokenWriter) FlushError() error                { return errors.New("connection reset") }
func (w brokenWriter) SetReadDeadline(time.Time) error  { return nil }
func (w brokenWriter) SetWriteDeadline(time.Time) error { return nil }

// Fails if mail counts as handed over although the connection took none of it.
func TestFailedWriteIsNoReceipt(t *testing.T) {
	settled := make(chan bool, 1)
	r := start(t, with(&fakeGateway{poll: func(ctx context.Context, _ PollArgs) (PollResult, error) {
		OnWritten(ctx, func(written bool) { settled <- written })
		return PollResult{}, nil
	}}))
	r.do(t, request{method: "GET", path: "/healthz"}) // it is up
	for path, body := range map[string]string{"/mcp": pollCall(eras["legacy"], ""), "/api/v1/poll": `{}`} {
		req := httptest.NewRequest(http.MethodPost, r.url+path, strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		for k, v := range legacyHeader() {
			req.Header.Set(k, v)
		}
		r.outermost(r.tcpHandler()).ServeHTTP(brokenWriter{http.Header{}}, req)
		if receive(t, "the receipt", settled) {
			t.Errorf("%s: settled as written", path)
		}
	}
}

// Fails if the notice that comes as an error, such as that a message failed,
// counts as lost although the client got it, and so comes again and again.
func TestAnErrorCarriesAReceiptToo(t *testing.T) {
	settled := make(chan bool, 1)
	g := &fakeGateway{send: func(ctx context.Context, _ SendArgs) (SendResult, error) {
		OnWritten(ctx, func(written bool) { settled <- written })
		return SendResult{}, fmt.Errorf("its pane is gone")
	}}
	r := start(t, with(g))
	c := dial(t, r.url, "tok-ann", eras["legacy"])
	if _, text, isError := mustCall(t, c, "bridge_send", map[string]any{"to": "a", "content": "b"}); !isError {
		t.Error(text)
	}
	if !receive(t, "the receipt", settled) {
		t.Error("MCP: a written error counts as lost")
	}
	r.do(t, request{method: "POST", path: "/api/v1/send", body: `{"to":"a","content":"b"}`, header: bearerAnn})
	if !receive(t, "the receipt", settled) {
		t.Error("REST: a written error counts as lost")
	}
}

// Fails if a daemon that dies while it settles the mail leaves a client with
// half an answer: mail is gone that nobody could read.
func TestTheAnswerIsWholeBeforeItsMailIsSettled(t *testing.T) {
	settling, release := make(chan bool, 1), make(chan struct{})
	g := &fakeGateway{poll: func(ctx context.Context, _ PollArgs) (PollResult, error) {
		OnWritten(ctx, func(written bool) {
			settling <- written
			<-release
		})
		return PollResult{Messages: []Message{{Content: strings.Repeat("mail ", 20_000)}}}, nil // more than any buffer on the way
	}}
	r := start(t, with(g), withSocket(t))
	t.Cleanup(func() { close(release) }) // before the server has to stop
	for _, x := range []struct{ network, addr, path, body, version string }{
		{"tcp", r.Addr().String(), "/mcp", strings.Replace(pollCall(eras["legacy"], ""), `"wait_seconds":100`, "", 1), eras["legacy"]},
		{"tcp", r.Addr().String(), "/mcp", strings.Replace(pollCall(eras["modern"], ""), `"wait_seconds":100`, "", 1), eras["modern"]},
		{"tcp", r.Addr().String(), "/api/v1/poll", "{}", ""},
		{"unix", r.Socket, "/api/v1/poll", "{}", ""},
	} {
		t.Run(x.network+x.path+x.version, func(t *testing.T) {
			req := httptest.NewRequest(http.MethodPost, "http://127.0.0.1"+x.path, strings.NewReader(x.body))
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Authorization", "Bearer tok-ann")
			if x.version != "" {
				for k, v := range headerOf(x.version) {
					req.Header.Set(k, v)
				}
			}
			conn, err := net.Dial(x.network, x.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(patience))
			if err := req.Write(conn); err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(bufio.NewReader(conn), req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			if err != nil || res.ContentLength != int64(len(body)) || !json.Valid(body) || !bytes.Contains(body, []byte("mail mail")) {
				t.Errorf("%v, %d of %d bytes, %v", err, len(body), res.ContentLength, res.Header)
			}
			if !receive(t, "the receipt", settling) {
				t.Error("the client has its mail and it counts as lost")
			}
			release <- struct{}{}
		})
	}
}
