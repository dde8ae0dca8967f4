// Package herdrsim is a stand-in for the herdr server: the same JSON socket,
// real pseudo-terminals with real programs in them, a terminal emulator behind
// each, agent detection from the process and the screen, and every fault that
// happened to people, on demand. A client cannot tell it from the real server
// in what the reference (herdr-socket-api) describes; that reference is the
// source of every rule here, cited by section.
//
// Here lives what herdr does. What an agent program does in its pane lives in
// fleetd/test/agent. Not built: worktrees, plugins, integrations, graphics,
// popups, resizing, views; those methods answer not_implemented.
package herdrsim
