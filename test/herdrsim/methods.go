package herdrsim

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// method is how one API method is decoded and run: by the connection's own
// thread, by the application loop, or holding its connection.
type method struct {
	decode func(json.RawMessage) (any, error)
	direct func(*core) any
	app    func(*core, any) (any, error)
	held   func(*held, any) (any, error)
}

func decoder[P any](raw json.RawMessage) (any, error) {
	p := new(P)
	return p, decodeObject(raw, p)
}

func direct(f func(*core) any) method { return method{decode: decoder[none], direct: f} }

func app[P any](f func(*core, *P) (any, error)) method {
	return method{decode: decoder[P], app: func(c *core, p any) (any, error) { return f(c, p.(*P)) }}
}

func holds[P any](f func(*held, *P) (any, error)) method {
	return method{decode: decoder[P], held: func(h *held, p any) (any, error) { return f(h, p.(*P)) }}
}

var methods map[string]method

func init() { // not a literal: decoding names the methods in its errors
	methods = map[string]method{
		"ping":             direct((*core).ping),
		"session.snapshot": app((*core).snapshot),
		"server.stop":      app((*core).serverStop),

		"workspace.create":          app((*core).workspaceCreate),
		"workspace.list":            app((*core).workspaceList),
		"workspace.get":             app((*core).workspaceGet),
		"workspace.focus":           app((*core).workspaceFocus),
		"workspace.rename":          app((*core).workspaceRename),
		"workspace.report_metadata": app((*core).workspaceMetadata),
		"workspace.close":           app((*core).workspaceClose),

		"tab.create": app((*core).tabCreate),
		"tab.list":   app((*core).tabList),
		"tab.get":    app((*core).tabGet),
		"tab.focus":  app((*core).tabFocus),
		"tab.rename": app((*core).tabRename),
		"tab.close":  app((*core).tabClose),

		"pane.split":                 app((*core).paneSplit),
		"pane.list":                  app((*core).paneList),
		"pane.get":                   app((*core).paneGet),
		"pane.current":               app((*core).paneCurrent),
		"pane.process_info":          app((*core).processInfo),
		"pane.layout":                app((*core).paneLayout),
		"pane.zoom":                  app((*core).paneZoom),
		"pane.move":                  app((*core).paneMove),
		"pane.focus":                 app((*core).paneFocus),
		"pane.rename":                app((*core).paneRename),
		"pane.close":                 app((*core).paneClose),
		"pane.send_text":             app((*core).sendText),
		"pane.send_keys":             app((*core).sendKeys),
		"pane.send_input":            app((*core).sendInput),
		"pane.read":                  app((*core).paneRead),
		"pane.report_agent":          app((*core).reportAgent),
		"pane.report_agent_session":  app((*core).reportSession),
		"pane.report_metadata":       app((*core).reportMetadata),
		"pane.clear_agent_authority": app((*core).clearAuthority),
		"pane.release_agent":         app((*core).releaseAgent),
		"pane.wait_for_output":       holds((*held).waitForOutput),

		"layout.apply":  app((*core).layoutApply),
		"layout.export": app((*core).layoutExport),

		"agent.list":      app((*core).agentList),
		"agent.get":       app((*core).agentGet),
		"agent.read":      app((*core).agentRead),
		"agent.explain":   app((*core).explain),
		"agent.send_keys": app((*core).agentSendKeys),
		"agent.rename":    app((*core).agentRename),
		"agent.focus":     app((*core).agentFocus),
		"agent.start":     app((*core).agentStart),
		"agent.prompt":    holds((*held).promptAndWait),
		"agent.wait":      holds((*held).agentWait),

		"events.subscribe": holds((*held).subscribe),
		"events.wait":      holds((*held).eventsWait),
	}
}

// unbuiltNames exist in herdr and are not played; they answer not_implemented.
var unbuiltNames = strings.Fields("server.live_handoff server.reload_config server.agent_manifests server.reload_agent_manifests notification.show " +
	"client.window_title.set client.window_title.clear workspace.move workspace.move_block worktree.list worktree.create worktree.open worktree.remove " +
	"tab.move agent.view.set agent.view.clear pane.swap pane.neighbor pane.edges pane.focus_direction pane.resize pane.input.set popup.close layout.set_split_ratio")

// unbuilt also covers the families whose names the reference does not list.
func unbuilt(name string) bool {
	for _, family := range []string{"pane.graphics.", "integration.", "plugin."} {
		if strings.HasPrefix(name, family) {
			return true
		}
	}
	return slices.Contains(unbuiltNames, name)
}

func notBuilt() method {
	m := app(func(*core, *none) (any, error) {
		return nil, refuse("not_implemented", "the simulator does not play this method")
	})
	return m
}

func methodNames() []string {
	return append(slices.Sorted(maps.Keys(methods)), unbuiltNames...)
}

// serverStop stops the server in good order once the answer is out.
func (c *core) serverStop(*none) (any, error) {
	c.srv.tasks.Go(func() {
		c.pause(c.opts.Timing.Poll)
		if c.srv.running() == c {
			c.srv.end(stopClean)
		}
	})
	return typed("ok"), nil
}
