// Package mcp is the last hop to MCP clients and to everything else that asks
// the daemon something: the table of tools and the one adapter that serves
// them, the HTTP listener with the guards in front of it, the REST paths, the
// unix socket, the stdio bridge, and who may speak for which entity.
//
// What the verbs do is behind Gateway and Admin; this package knows nothing of
// brokers, panes or the store.
package mcp
