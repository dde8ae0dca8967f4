//go:build !linux

package rabbit

import "syscall"

// dieWithParent has no equivalent here: a killed test binary leaves its node
// behind, an ended one does not.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
