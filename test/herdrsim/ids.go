package herdrsim

import (
	"fmt"
)

// digits is the alphabet of ids: bijective base 32, "1" is one and "0" is
// thirty-two (reference §2).
const digits = "123456789ABCDEFGHJKMNPQRSTVWXYZ0"

// number writes n ≥ 1 in bijective base 32.
func number(n int) string {
	var out []byte
	for n > 0 {
		n--
		out = append([]byte{digits[n%32]}, out...)
		n /= 32
	}
	return string(out)
}

func workspaceID(n int) string              { return "w" + number(n) }
func tabID(workspace string, n int) string  { return workspace + ":t" + number(n) }
func paneID(workspace string, n int) string { return workspace + ":p" + number(n) }

// terminalID gives an id that never repeats, not even over restarts.
func (s *Server) terminalID() string {
	return fmt.Sprintf("term_%x%05x", s.epoch, s.terminals.Add(1))
}
