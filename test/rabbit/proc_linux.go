package rabbit

import "syscall"

// dieWithParent makes the kernel kill the child when we are killed.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
