package fleet

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	mcpgo "github.com/mark3labs/mcp-go/mcp"

	"fleetd/fault"
	"fleetd/mcp"
	"fleetd/store"
)

// Main is a main session: a real MCP client over HTTP with a token.
type Main struct {
	Name  string
	GID   string
	Token string
	URL   string
	Host  *Host // nil for a client that nobody registered

	client *client.Client
}

// AddMain registers a main and connects its client.
func (h *Host) AddMain(ctx context.Context, name string) (*Main, error) {
	return h.addClient(ctx, name, store.Main)
}

// AddOrchestrator does the same for an orchestrator.
func (h *Host) AddOrchestrator(ctx context.Context, name string) (*Main, error) {
	return h.addClient(ctx, name, store.Orchestrator)
}

func (h *Host) addClient(ctx context.Context, name string, kind store.EntityKind) (*Main, error) {
	r, err := h.Register(ctx, mcp.RegisterArgs{Name: name, Kind: kind})
	if err != nil {
		return nil, err
	}
	m := &Main{Name: name, GID: r.GID, Token: r.Token, URL: r.URL, Host: h}
	return m, m.Connect(ctx)
}

// Connect begins a session; after a Disconnect it is a new one. Without a token
// it shows none.
func (m *Main) Connect(ctx context.Context) error {
	headers := map[string]string{}
	if m.Token != "" {
		headers["Authorization"] = "Bearer " + m.Token
	}
	c, err := client.NewStreamableHttpClient(m.URL, transport.WithHTTPHeaders(headers))
	if err != nil {
		return err
	}
	if err := c.Start(ctx); err != nil {
		return err
	}
	init := mcpgo.InitializeRequest{}
	init.Params.ProtocolVersion = mcpgo.LATEST_PROTOCOL_VERSION
	init.Params.ClientInfo = mcpgo.Implementation{Name: "fleet-main", Version: "1"}
	if _, err := c.Initialize(ctx, init); err != nil {
		return fmt.Errorf("initialize %s: %w", m.Name, err)
	}
	m.client = c
	return nil
}

// Listen connects one more client, which only takes notifications, and passes
// on the parameters of each; end disconnects it.
func (m *Main) Listen(ctx context.Context) (notes <-chan map[string]any, end func() error, err error) {
	//lint:ignore SA1019 today's clients listen on the stream of the older protocol
	c, err := client.NewStreamableHttpClient(m.URL, transport.WithContinuousListening(),
		transport.WithHTTPHeaders(map[string]string{"Authorization": "Bearer " + m.Token}))
	if err != nil {
		return nil, nil, err
	}
	all := make(chan map[string]any, 100)
	c.OnNotification(func(n mcpgo.JSONRPCNotification) { all <- n.Params.AdditionalFields })
	if err := c.Start(ctx); err != nil {
		return nil, nil, err
	}
	init := mcpgo.InitializeRequest{}
	init.Params.ProtocolVersion = mcpgo.ProtocolVersion20251125
	init.Params.ClientInfo = mcpgo.Implementation{Name: "fleet-listener", Version: "1"}
	_, err = c.Initialize(ctx, init)
	return all, c.Close, err
}

// Disconnect ends the session.
func (m *Main) Disconnect() error { return m.client.Close() }

// Call calls a tool and decodes its structured result. A tool error comes back
// as the fault that it carries.
func (m *Main) Call(ctx context.Context, tool string, args map[string]any, out any) error {
	req := mcpgo.CallToolRequest{}
	req.Params.Name, req.Params.Arguments = tool, args
	res, err := m.client.CallTool(ctx, req)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(res.StructuredContent)
	if err != nil {
		return err
	}
	if res.IsError {
		var body struct {
			Error struct{ Code, Message string }
		}
		if err := json.Unmarshal(raw, &body); err != nil {
			return err
		}
		return fault.New(fault.Code(body.Error.Code), "%s", body.Error.Message)
	}
	return json.Unmarshal(raw, out)
}

// Send calls bridge_send.
func (m *Main) Send(ctx context.Context, args map[string]any) (r mcp.SendResult, err error) {
	err = m.Call(ctx, "bridge_send", args, &r)
	return r, err
}

// Poll calls bridge_poll.
func (m *Main) Poll(ctx context.Context, args map[string]any) (r mcp.PollResult, err error) {
	err = m.Call(ctx, "bridge_poll", args, &r)
	return r, err
}

// Answer calls bridge_answer.
func (m *Main) Answer(ctx context.Context, args map[string]any) (r mcp.SendResult, err error) {
	err = m.Call(ctx, "bridge_answer", args, &r)
	return r, err
}

// Broadcast calls bridge_broadcast.
func (m *Main) Broadcast(ctx context.Context, args map[string]any) (r mcp.BroadcastResult, err error) {
	err = m.Call(ctx, "bridge_broadcast", args, &r)
	return r, err
}

// Roster calls bridge_roster.
func (m *Main) Roster(ctx context.Context) (r mcp.RosterResult, err error) {
	err = m.Call(ctx, "bridge_roster", map[string]any{}, &r)
	return r, err
}

// Spawn calls bridge_spawn.
func (m *Main) Spawn(ctx context.Context, args map[string]any) (r mcp.SpawnResult, err error) {
	if err = m.Call(ctx, "bridge_spawn", args, &r); err == nil {
		m.Host.fleet.Remember(r.GID)
	}
	return r, err
}

// Stop calls bridge_stop.
func (m *Main) Stop(ctx context.Context, target string) (r mcp.StopResult, err error) {
	err = m.Call(ctx, "bridge_stop", map[string]any{"target": target}, &r)
	return r, err
}
