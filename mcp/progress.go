package mcp

import (
	"context"
	"fmt"
	"sync"
	"time"

	mcpgo "github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// progressEvery is the longest silence of a waiting call (design §11).
const progressEvery = 10 * time.Second

// attend keeps the client of a waiting call patient: the response begins at
// once, and where the request carries a progress token, progress follows, one
// at the start and one every a.every. stop returns when no more can come.
//
// Over HTTP the progress goes straight into the response of the call: handed to
// the library it may go out on the session's GET stream instead, which does not
// begin the response, and the client gives up (agent facts §1.4).
func (a *adapter) attend(ctx context.Context, req mcpgo.CallToolRequest, wait time.Duration) (stop func()) {
	res := responseFrom(ctx)
	if res != nil {
		res.begin()
	}
	if req.Params.Meta == nil || req.Params.Meta.ProgressToken == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		begun := time.Now()
		tick := time.NewTicker(a.every)
		defer tick.Stop()
		for {
			elapsed := time.Since(begun)
			if err := sendProgress(ctx, res, progressParams(req.Params.Meta.ProgressToken, elapsed, wait)); err != nil {
				a.log.Debug("no progress could be sent", "error", err)
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

func progressParams(token mcpgo.ProgressToken, elapsed, wait time.Duration) map[string]any {
	return map[string]any{
		"progressToken": token,
		"progress":      elapsed.Seconds(),
		"total":         wait.Seconds(),
		"message":       fmt.Sprintf("waiting, %d of %d s; nothing is lost when the time is up", int(elapsed.Seconds()), int(wait.Seconds())),
	}
}

func sendProgress(ctx context.Context, res *response, params map[string]any) error {
	const method = "notifications/progress"
	if res != nil && res.streams() {
		return res.event(mcpgo.JSONRPCNotification{
			JSONRPC: mcpgo.JSONRPC_VERSION,
			Notification: mcpgo.Notification{
				Method: method,
				Params: mcpgo.NotificationParams{AdditionalFields: params},
			},
		})
	}
	if s := server.ServerFromContext(ctx); s != nil {
		return s.SendNotificationToClient(ctx, method, params)
	}
	return nil
}
