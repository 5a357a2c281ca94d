package sqltest

import "syscall"

// dieWithParent lets the server run as the given user, and makes the kernel end it when the thread that started it dies,
// so that a test binary that is killed leaves no server behind.
func dieWithParent(as *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: as, Pdeathsig: syscall.SIGQUIT}
}
