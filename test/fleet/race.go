//go:build race

package fleet

// A test under the race detector runs daemons under it, too.
var buildFlags = []string{"-race"}
