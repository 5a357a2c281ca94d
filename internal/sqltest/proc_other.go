//go:build unix && !linux

package sqltest

import "syscall"

// dieWithParent lets the server run as the given user. If a test binary is killed outside Linux, stop its servers by hand.
func dieWithParent(as *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: as}
}
