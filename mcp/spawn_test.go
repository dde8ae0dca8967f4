package mcp

import (
	"encoding/json"
	"testing"

	"fleetd/fault"
)

// Fails when a task that was given and says nothing starts an agent without
// one, or when one of another type is refused in other words than the rest.
func TestATaskThatSaysNothing(t *testing.T) {
	c := &Conversation{Control: others{}} // asked to spawn, it panics
	ctx := WithCaller(t.Context(), Caller{GID: "g", Name: "lead"})
	for raw, code := range map[string]fault.Code{
		`{"profile": "aide", "task": ""}`:    fault.BadContent,
		`{"profile": "aide", "task": " \n"}`: fault.BadContent,
		`{"profile": "aide", "task": 5}`:     fault.BadRequest,
	} {
		a, err := decode[SpawnArgs](spawnVerb, json.RawMessage(raw))
		if err == nil {
			_, err = c.Spawn(ctx, a)
		}
		if !fault.Is(err, code) {
			t.Errorf("%s came to %v", raw, err)
		}
		if code == fault.BadRequest && err.Error() != `BAD_REQUEST: "task" of bridge_spawn must be text, not the number 5.` {
			t.Error(err)
		}
	}
	if a, err := decode[SpawnArgs](spawnVerb, json.RawMessage(`{"profile": "aide", "task": null}`)); err != nil || a.Task != nil {
		t.Errorf("without a task: %+v, %v", a, err)
	}
}
