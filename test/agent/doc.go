// Package agent is a scripted coding agent: a terminal program that behaves in
// its pane as the real ones do (composer, paste markers, queueing, dialogs,
// logins) and answers messages over MCP as a script says. Every behaviour can
// be set at start and changed while it runs, through its control socket; an
// event log says what the model behind it would have received. The facts it
// follows are those of agent-facts §1–§7, cited by section.
//
// What the multiplexer does to input lives in fleetd/test/herdrsim.
package agent
