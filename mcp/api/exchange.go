package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"time"

	"fleetd/fault"
	"fleetd/mcp"
)

func (c *Client) init() {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.server == nil {
		c.server = mcp.CheckServer
	}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			conn, err := d.DialContext(ctx, "unix", c.Socket)
			if err != nil {
				return nil, err
			}
			if err := c.server(conn); err != nil {
				return nil, errors.Join(err, conn.Close())
			}
			return conn, nil
		},
		// A kept connection would be the old daemon's after a restart, and
		// whether it had read the request could not be told.
		DisableKeepAlives: true,
	}}
}

// exchange is one request and its response. Where ctx carries a receipt, the
// daemon holds what it hands over until that receipt is settled.
func exchange[R any](ctx context.Context, c *Client, req request, waitLeft int) (R, error) {
	var out R
	receipt := mcp.ReceiptFrom(ctx)
	var conn net.Conn
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { conn = i.Conn }})
	res, err := c.post(traced, req, req.args(waitLeft), receipt != nil)
	if err != nil {
		return out, err
	}
	defer res.Body.Close()
	id := res.Header.Get(mcp.ReceiptHeader)
	untie := func() {}
	if id != "" {
		untie = tie(conn)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxResponse))
	if err != nil {
		untie()
		return out, classify(err)
	}
	readable := true
	if id != "" {
		// An error may carry mail as well: the notice that a message failed.
		mcp.OnWritten(ctx, func(written bool) {
			defer untie()
			c.confirm(ctx, id, written && readable)
		})
	}
	if res.StatusCode != http.StatusOK {
		return out, problem(res, body)
	}
	if err := json.Unmarshal(body, &out); err != nil {
		readable = false // nobody sees what it held
		return out, fault.Wrap(err, fault.Internal, "the daemon's answer cannot be read; daemon and client may be of different versions.")
	}
	return out, nil
}

// tie keeps the connection of a call open, which the transport closes once its
// answer is read: if this process ends before it has confirmed what the call
// brought, the daemon sees that and offers it again at once.
func tie(conn net.Conn) (untie func()) {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return func() {}
	}
	f, err := u.File()
	if err != nil { // cut, or no descriptor is left: the daemon takes it for gone
		return func() {}
	}
	return func() { _ = f.Close() } // it was only held
}

func (c *Client) post(ctx context.Context, req request, args any, explicit bool) (*http.Response, error) {
	body, err := json.Marshal(args)
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "the request cannot be written as JSON.")
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://bridged/api/v1/"+req.verb, bytes.NewReader(body))
	if err != nil {
		return nil, fault.From(err)
	}
	r.Header.Set("Content-Type", "application/json")
	switch {
	case req.admin:
		// Admin verbs are the host user's; a token in the environment of a pane
		// does not change who that is.
	case c.Token != "":
		r.Header.Set("Authorization", "Bearer "+c.Token)
	case c.As != "":
		r.Header.Set(mcp.AsHeader, c.As)
	}
	if session := mcp.AgentSession(ctx); session != "" {
		r.Header.Set(mcp.AgentSessionHeader, session)
	}
	if explicit {
		r.Header.Set(mcp.ReceiptHeader, mcp.ReceiptExplicit)
		r.Header.Set(mcp.ReceiptTieHeader, mcp.ReceiptTied)
	}
	res, err := c.http.Do(r)
	if err != nil {
		return nil, classify(err)
	}
	return res, nil
}

// confirm tells the daemon whether the asker got what a call brought. If it
// cannot be told, the daemon takes it for lost after a while and offers it
// again: at least once, never silently gone.
func (c *Client) confirm(ctx context.Context, id string, written bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), confirmWithin)
	defer cancel()
	req := request{verb: "receipt"}
	res, err := c.post(ctx, req, mcp.ReceiptArgs{ID: id, Written: written}, false)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxResponse)) // see above
	_ = res.Body.Close()
}

// problem is the fault that a response carries.
func problem(res *http.Response, body []byte) error {
	var p mcp.Problem
	if err := json.Unmarshal(body, &p); err != nil || p.Code == "" {
		return fault.New(fault.Internal, "the daemon answered %s without a reason; daemon and client may be of different versions.", res.Status)
	}
	return fault.New(p.Code, "%s", p.Detail)
}
