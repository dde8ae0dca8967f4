package api

import (
	"context"

	"fleetd/mcp"
)

var _ mcp.Doctor = (*Client)(nil)

// Diagnose implements mcp.Doctor; it is asked as the host's own user.
func (c *Client) Diagnose(ctx context.Context) (mcp.Diagnosis, error) {
	return call[mcp.Diagnosis](ctx, c, request{
		verb: "diagnose", wait: mcp.DiagnoseSeconds, repeatable: true, admin: true, args: func(int) any { return struct{}{} },
	})
}
