//go:build !linux

package redistest

import "syscall"

// dieWithParent does nothing outside Linux. If a test binary is killed there, stop its servers by hand.
func dieWithParent() *syscall.SysProcAttr { return nil }
