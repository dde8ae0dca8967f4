package roster

import (
	"encoding/json"
	"fmt"
	"testing"
)

// Hosts of other versions read what is announced. Fails when a field of an
// announced entity gets another name or form, or a state another word.
func TestEntitiesAreAnnouncedAsEver(t *testing.T) {
	got, err := json.Marshal(entityBody{GID: "g", Name: "n", Kind: "worker", Groups: []string{"a"}, Pane: "p", State: Idle, Refusing: "BUSY", RefusingSince: 1})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "announced", string(got), `{"gid":"g","name":"n","kind":"worker","groups":["a"],"pane":"p","status":"idle","refusing":"BUSY","refusing_since":1}`)
	want(t, "states", fmt.Sprintf("%q", []State{Reachable, Idle, Done, Working, NoPane, PaneChanged, HerdrDown, Contested, Mismatched, Withdrawn}),
		`["online" "idle" "done" "working" "no pane" "pane changed" "herdr down" "contested" "mismatched" "gone"]`)
}
