package redistest

import "syscall"

// dieWithParent makes the kernel kill the child when the thread that started it dies, so a test binary that is killed
// leaves no server behind. A thread of a Go program dies before the program only if a goroutine ends while locked to
// the thread, and no goroutine here does.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
