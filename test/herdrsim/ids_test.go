package herdrsim

import "testing"

// Fails if ids are not written in herdr's bijective base 32.
func TestNumbers(t *testing.T) {
	for n, want := range map[int]string{1: "1", 9: "9", 10: "A", 23: "Q", 31: "Z", 32: "0", 33: "11", 75: "2B", 32*32 + 32: "00", 32*32 + 33: "111"} {
		if got := number(n); got != want {
			t.Errorf("number(%d) = %s, want %s", n, got, want)
		}
	}
}
