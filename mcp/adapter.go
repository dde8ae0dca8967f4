package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"fleetd/fault"

	"github.com/hashicorp/go-hclog"
	mcpgo "github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// adapter serves every verb as a tool: strict decode, call, result in
// structure and text alike, since agents show their model only one of the two
// (agent facts §9).
type adapter struct {
	log   hclog.Logger
	every time.Duration // between two signs of progress
}

func (a *adapter) handler(v verb) server.ToolHandlerFunc {
	return func(ctx context.Context, req mcpgo.CallToolRequest) (*mcpgo.CallToolResult, error) {
		// The verb gets a receipt of its own: what it handed over counts as lost
		// if it never makes it into the response. A fault may carry mail too,
		// such as the notice that a message failed.
		own, receipt := WithReceipt(ctx)
		result, f := a.call(own, v, req)
		if f != nil {
			a.log.Debug("a tool call failed", "tool", v.tool(), "code", f.Code, "cause", f.Cause)
			result = faultResult(f)
		}
		if receipt.Pending() {
			OnWritten(ctx, receipt.Settle)
		}
		return result, nil
	}
}

func (a *adapter) call(ctx context.Context, v verb, req mcpgo.CallToolRequest) (*mcpgo.CallToolResult, *fault.Error) {
	raw, err := rawArguments(req)
	if err != nil {
		return nil, fault.Wrap(err, fault.BadRequest, "%s takes its arguments as one JSON object; this is not one.", v.tool())
	}
	c, err := v.prepare(raw)
	if err != nil {
		return nil, fault.From(err)
	}
	if c.wait > 0 {
		stop := a.attend(ctx, req, c.wait)
		defer stop()
	}
	r, f := run(withAgentSession(ctx, agentSessionOf(req.Params.Meta)), a.log, v, c)
	if f != nil {
		return nil, f
	}
	text, ok, err := fitted(r, maxResultBytes)
	if err != nil {
		ReceiptFrom(ctx).Settle(false)
		return nil, fault.From(err)
	}
	if !ok {
		ReceiptFrom(ctx).Settle(false)
		return nil, fault.New(fault.Internal, "the result of %s is too large for one answer; nothing was lost. Ask for less at once, with a smaller max or a filter.", v.tool())
	}
	return mcpgo.NewToolResultStructured(r, string(text)), nil
}

// run calls the verb; ctx carries a receipt. A panic becomes INTERNAL and never
// reaches a client; what it or a cancelled call handed over counts as lost.
func run(ctx context.Context, log hclog.Logger, v verb, c call) (result any, f *fault.Error) {
	ctx, leave, f := seated(ctx, log)
	if f != nil {
		return nil, f
	}
	defer leave()
	ctx, done := untilStopped(ctx)
	defer done()
	ctx, release := untilRevoked(ctx)
	defer release()
	defer func() {
		if p := recover(); p != nil {
			ReceiptFrom(ctx).Settle(false)
			logPanic(log, v.name, p)
			result, f = nil, fault.New(fault.Internal, "the gateway met an error of its own in %s; see its log. Do not repeat a send: look with bridge_whoami and bridge_trace first.", v.tool())
		}
	}()
	r, err := c.run(ctx)
	cause := context.Cause(ctx)
	switch {
	case revoked(ctx) && (ReceiptFrom(ctx).Pending() || errors.Is(err, context.Canceled)): // what carries no mail may be told
		ReceiptFrom(ctx).Settle(false)
		return nil, noLonger()
	case cause != nil && cause != errStopping && cause != errRevoked:
		ReceiptFrom(ctx).Settle(false)
		return nil, cancelled(ctx.Err())
	case err != nil:
		return nil, answer(ctx, err)
	}
	return r, nil
}

// logPanic logs where it happened. Its value only if it is the runtime's own:
// any other might hold content.
func logPanic(log hclog.Logger, where string, p any) {
	value := fmt.Sprintf("a %T", p)
	if e, ok := p.(runtime.Error); ok {
		value = e.Error()
	}
	log.Error("panic", "in", where, "value", value, "stack", string(debug.Stack()))
}

func rawArguments(req mcpgo.CallToolRequest) (json.RawMessage, error) {
	switch raw := req.GetRawArguments().(type) {
	case nil:
		return nil, nil
	case json.RawMessage:
		return raw, nil
	default:
		return json.Marshal(raw)
	}
}

// faultResult is a failed call: the text starts with the code word, because
// two of three agents do not mark errors, and the structure carries the same.
func faultResult(f *fault.Error) *mcpgo.CallToolResult {
	r := mcpgo.NewToolResultError(string(f.Code) + ": " + f.Sentence)
	r.StructuredContent = faultBody{Error: faultDetail{Code: f.Code, Message: f.Sentence}}
	return r
}

type faultBody struct {
	Error faultDetail `json:"error"`
}

type faultDetail struct {
	Code    fault.Code `json:"code"`
	Message string     `json:"message"`
}
