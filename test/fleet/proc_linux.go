package fleet

import "syscall"

// dieWithParent takes a daemon along when the test that runs it is killed.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
