// Package mcp is the last hop to MCP clients and to everything else that asks
// the daemon something. It has two halves that meet in Gateway and Admin.
//
// The surface is the table of tools and the one adapter that serves them, the
// HTTP listener with the guards in front of it, the REST paths, the unix socket,
// the stdio bridge, and who may speak for which entity. It asks a Gateway, be it
// of this process or, in `bridged mcp`, of the daemon, and of what is behind it
// knows no more than the kinds of entities.
//
// Conversation is the Gateway of the daemon: the verbs of design §7, with their
// waits, in terms of the inbox, the outbox and the roster. It knows the records
// that these hand out, and neither brokers nor panes.
package mcp
