package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleetd/fault"
	"fleetd/mcp"
)

// Fault: a flag of spawn does not reach the daemon, or what came of it is not
// told.
func TestSpawn(t *testing.T) {
	w := newWorld(t)
	w.gw.spawn = mcp.SpawnResult{State: "spawned", Address: "rev-2@hostb", GID: "g", Groups: []string{"a", "b"}, MsgID: "m", TraceID: "t", Note: "It takes input."}
	w.want(result{out: "state\tspawned\naddress\trev-2@hostb\ngid\tg\ngroups\ta,b\ntask\tm\ntrace\tt\nnote\tIt takes input.\n"},
		"spawn", "reviewer", "--host", "hostb", "--name", "rev-2", "--group", "a", "--group", "b", "--task", "look", "--timeout", "2m", "--key", "k")
	task := "look"
	want := mcp.SpawnArgs{
		Profile: "reviewer", Host: "hostb", Name: "rev-2", Groups: []string{"a", "b"}, Task: &task, TimeoutSeconds: 120, IdempotencyKey: "k",
	}
	if d := cmp.Diff([]any{want}, w.gw.asked); d != "" {
		t.Error(d)
	}
	w.want(result{code: 2, err: "bridged: BAD_REQUEST: the content is empty; there is nothing to send\n"}, "spawn", "reviewer", "--task", "")
	w.want(result{code: 1, err: "bridged: BAD_CONTENT: the content is not valid UTF-8; send text, and binary data as a file path\n"},
		"spawn", "reviewer", "--task", "\xff")
	w.gw.err = fault.New(fault.SpawnFailed, "it is not installed")
	w.want(result{code: 1, err: "bridged: SPAWN_FAILED: it is not installed\n"}, "spawn", "reviewer")
}

// Fault: stop ends another entity.
func TestStop(t *testing.T) {
	w := newWorld(t)
	w.gw.stopped = mcp.StopResult{State: "stopping", GID: "g", Target: "rev@hostb", Note: "It goes on."}
	w.want(result{out: "state\tstopping\ntarget\trev@hostb\ngid\tg\nnote\tIt goes on.\n"}, "stop", "rev@hostb")
	if d := cmp.Diff([]any{mcp.StopArgs{Target: "rev@hostb"}}, w.gw.asked); d != "" {
		t.Error(d)
	}
}
