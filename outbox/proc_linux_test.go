package outbox

import "syscall"

// dieWithParent makes the kernel kill a child when the thread that started it dies.
var dieWithParent = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
