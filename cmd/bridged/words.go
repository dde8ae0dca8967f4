package main

import "strings"

// The daemon speaks to agents, in the names of the tools and their arguments.
// Who reads the same sentence at a shell has verbs and flags instead.
var shellWords = strings.NewReplacer(
	"call bridge_answer with turn_id ", "run bridged answer ", "bridge_read from offset 0", "bridged read",
	"call bridge_", "run bridged ", "Call bridge_", "Run bridged ", "bridge_", "bridged ",
	`"to"`, "--to",
	`"wait_seconds"`, "--wait", "wait_seconds", "--wait",
	`"timeout_seconds"`, "--timeout", "timeout_seconds", "--timeout",
	`"expires_in_seconds"`, "--expires", "expires_in_seconds", "--expires",
	`"idempotency_key"`, "--key", "idempotency_key", "--key",
	`"queue_if_offline"`, "--queue-if-offline", "queue_if_offline", "--queue-if-offline",
	`"in_reply_to"`, "--to-msg", "in_reply_to", "--to-msg",
	`"max"`, "--max", `"task"`, "--task", "turn_id", "turn id",
	"repeat the call", "repeat the command", "Repeat the call", "Repeat the command",
)

// forShell is a sentence of the daemon for whoever asked it by a command.
func forShell(sentence string) string { return shellWords.Replace(sentence) }
