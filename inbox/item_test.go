package inbox

import (
	"encoding/json"
	"testing"
)

// Fails if a message is reckoned with another length than it has in a result,
// so that a result outgrows what its reader takes.
func TestCostIsTheLengthInAResult(t *testing.T) {
	for _, body := range []string{
		"", "plain", "üñí 漢字 🙂", "a\nb\tc\rd\be\ff", `"quoted" \ and <tag> & more`, "\x00\x1f\x7f", "\u2028\u2029\u2027\u202a",
	} {
		quoted, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		if got := cost([]byte(body)) - 400; got != len(quoted) {
			t.Errorf("%q costs %d bytes, it has %d", body, got, len(quoted))
		}
	}
}
