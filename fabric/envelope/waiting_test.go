package envelope_test

import (
	"fmt"
	"testing"

	"fleetd/fabric/envelope"
)

// Senders on other hosts, and people, read why a message waits. Fails when one
// of the words is another than before.
func TestReasonsAreToldAsEver(t *testing.T) {
	got := fmt.Sprint([]envelope.Reason{
		envelope.Busy, envelope.Blocked, envelope.Draft, envelope.Unsent, envelope.NotReady, envelope.Settling, envelope.PaneChanged,
		envelope.AgentGone, envelope.Unfit, envelope.NoPane, envelope.Queued, envelope.Unseen,
	})
	if want := "[BUSY BLOCKED DRAFT UNSENT NOT_READY SETTLING PANE_CHANGED AGENT_GONE HERDR_UNFIT NO_PANE QUEUED UNSEEN]"; got != want {
		t.Errorf("the reasons are %s, not %s", got, want)
	}
}
