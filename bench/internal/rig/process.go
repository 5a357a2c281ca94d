package rig

import (
	"runtime"
	"syscall"
	"time"
)

// CPU returns the processor time, user and system, that this process has used.
func CPU() (time.Duration, error) {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		return 0, err
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano()), nil
}

// Memory returns the bytes that are in use by this process, stacks of goroutines
// included, after a garbage collection.
func Memory() int64 {
	runtime.GC()
	runtime.GC() // what the first has only moved to the victims of sync.Pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// Mallocs returns how many objects this process has allocated so far.
func Mallocs() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Mallocs)
}

// InUse is Memory without a garbage collection: what was left by the last one counts too.
func InUse() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
