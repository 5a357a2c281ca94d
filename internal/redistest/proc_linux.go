package redistest

import "syscall"

// dieWithParent makes the kernel kill the child when the thread that started it
// dies, so that a test binary that is killed leaves no server behind. Threads of
// a Go program end with it, except those that a goroutine keeps locked beyond its
// own end; no test here does that.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
