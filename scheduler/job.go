package scheduler

import (
	"cmp"
	"context"
	"runtime/debug"
	"time"

	"github.com/joblock/toolkit/scheduler/internal/codec"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// job is a registered job, with the state of the job on this node.
type job struct {
	options
	name string
	key  string // the key of the job's lock
	fn   func(context.Context, Tick) error

	ordered chan struct{} // has an element if an order for the job has come while the job was busy; see book.keep

	// The mutex of the table guards the fields below.
	at      time.Time // when to read the ledger, by the store's clock
	index   int       // the index of the job in the heap; -1: the job is not in the heap
	busy    bool      // a goroutine claims or executes the job, or waits for its lock; or the job waits for its predecessor
	gone    bool      // the job was removed or replaced
	next    *job      // becomes due when this job is no longer busy; only if gone
	giveUp  func()    // ends the wait for the job's lock; nil: it does not wait
	floor   time.Time // Moment.Floor
	again   bool      // becomes due at once when it is no longer busy
	order   int64     // Fence of the latest order with which this node has updated the ledger
	trouble error     // the reason why this node cannot execute the job; nil if this node can
	behind  int64     // Ledger.Last at the latest report of a clock that was set back
	registration
}

// delayOf returns a delay from 0 to jitter, in whole milliseconds, that depends on the job's name.
func delayOf(name string, jitter time.Duration) time.Duration {
	return time.Duration(codec.Hash(name) % uint64(jitter/time.Millisecond+1) * uint64(time.Millisecond))
}

// program returns the path of this program's main module, or "" if the build did not record it. Programs of one module
// have the same path, so they may share jobs.
func program() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return ledger.ShortenProgram(cmp.Or(info.Main.Path, info.Path))
}

// maxBuildBytes is the largest length of what build returns.
const maxBuildBytes = 64

// build returns the version of this program's main module, or the revision if the build did not record a version, or ""
// if it recorded neither.
func build() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	version := info.Main.Version
	if version == "(devel)" {
		version = ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			version = cmp.Or(version, s.Value)
		}
	}
	return version[:min(len(version), maxBuildBytes)]
}
