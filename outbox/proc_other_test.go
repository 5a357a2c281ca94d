//go:build !linux

package outbox

import "syscall"

var dieWithParent *syscall.SysProcAttr
