package herdrsim

import "testing"

// Fails if a title is drawn on the screen, or is cut at a byte 0x9c, wherever
// a read cuts the output.
func TestTitlesAreTakenOut(t *testing.T) {
	const out = "a\x1b]0;✳ topic\x07b\x1b[1mc\x1b]7501;state=idle\x1b\\d"
	for cut := range len(out) {
		var f oscFilter
		got := string(f.filter([]byte(out[:cut]))) + string(f.filter([]byte(out[cut:])))
		if got != "ab\x1b[1mcd" || f.title != "✳ topic" {
			t.Errorf("cut at %d: %q, title %q", cut, got, f.title)
		}
	}
}
