//go:build !failpoints

package failpoint

// Enabled reports whether the failpoints are compiled in.
const Enabled = false

// Hit does nothing in this build.
func Hit(string) {}
