package herdr

import (
	"fmt"
	"strconv"
	"strings"
)

// guessesIdle reports whether this herdr shows a new agent as idle before it
// has looked at its screen: all before 0.8.2, and the main branch that calls
// itself 0.8.0 (herdr socket reference §8).
func guessesIdle(version string) bool {
	core, _, _ := strings.Cut(version, "-")
	parts := strings.Split(core, ".")
	var n [3]int
	for i := range n {
		if i >= len(parts) {
			return true
		}
		v, err := strconv.Atoi(parts[i])
		if err != nil {
			return true
		}
		n[i] = v
	}
	if n[0] != 0 {
		return n[0] < 0
	}
	return n[1] < 8 || n[1] == 8 && n[2] < 2
}

// Unfit says why nothing can be injected through this herdr; "" if it can.
func (p Pong) Unfit() string {
	if p.Protocol >= minProtocol {
		return ""
	}
	return fmt.Sprintf("herdr %s speaks protocol %d, %d is needed; update herdr to 0.7.5 or later", p.Version, p.Protocol, minProtocol)
}
