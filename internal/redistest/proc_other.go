//go:build !linux

package redistest

import "syscall"

// dieWithParent has no equivalent outside Linux: there, servers of a test binary
// that is killed outright have to be stopped by hand.
func dieWithParent() *syscall.SysProcAttr { return nil }
