package fabric

import (
	"testing"

	"fleetd/test/rabbit"
)

// Another consumer may lose its link just when this one asks why it was refused.
// Fails when that is taken for a missing right, which sends a person to mend the
// broker's logins, and hides for ten minutes that two gateways have one host id.
func TestAnotherConsumerIsNoMissingRight(t *testing.T) {
	t.Attr("threat", "B6")
	fl := newFleet(t, rabbit.URI(t))
	_, theirs := stranger(t, fl.uri)
	_, ours := stranger(t, fl.uri)
	fl.key("hosta") // so that its queue is swept
	q := fl.names().controlQueue("hosta")
	if err := q.declare(theirs); err != nil {
		t.Fatal(err)
	}
	if _, err := consumeAlone(theirs, q.name, "theirs"); err != nil {
		t.Fatal(err)
	}
	_, err := consumeAlone(ours, q.name, "ours")
	if !isRefusal(err) {
		t.Fatalf("it came to %v, want a refusal", err)
	}
	if err := theirs.Close(); err != nil {
		t.Fatal(err)
	}
	if denied(err) {
		t.Errorf("%v is taken for a missing right", err)
	}
}
