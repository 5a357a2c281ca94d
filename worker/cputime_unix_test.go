//go:build unix

package worker_test

import (
	"syscall"
	"time"
)

// cpuTime is what this process has had of the processors so far.
func cpuTime() time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		return 0
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
