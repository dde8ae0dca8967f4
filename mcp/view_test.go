package mcp

import (
	"testing"

	"fleetd/fault"
)

// Fails when a kind that does not exist gets an empty list, which reads as if
// nobody were there.
func TestTheRosterRefusesAnUnknownKind(t *testing.T) {
	c := &Conversation{} // asked for more than it may, it panics
	if _, err := c.Roster(t.Context(), RosterArgs{Kind: "agent"}); !fault.Is(err, fault.BadRequest) {
		t.Errorf("it came to %v", err)
	}
}
