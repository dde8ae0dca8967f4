//go:build !linux

package fleet

import "syscall"

// dieWithParent has no counterpart here: a killed test leaves its daemons.
func dieWithParent() *syscall.SysProcAttr { return nil }
