package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"runtime/debug"
	"time"

	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// job is a registered job, with what this node knows about it.
type job struct {
	options
	name string
	key  string // of its lock
	fn   func(context.Context, Tick) error

	// Guarded by Scheduler.mu.
	at      time.Time // when to read the ledger, by the store's clock
	index   int       // in the heap; -1 if it is not there
	busy    bool      // a claim or standby is under way, and decides when to read next
	floor   time.Time // with a new spec or without a ledger, ticks count from here
	order   int64     // Fence of the latest order that this node has taken into account
	trouble error     // what keeps this node from executing it; nil if nothing does
	behind  int64     // Ledger.Last at the latest report of a clock that was set back
}

// fingerprint returns a hash of how a job was registered. The ID of RunAtStart is left out,
// because it changes with every release.
func (o *options) fingerprint() string {
	h := fnv.New64a()
	fmt.Fprint(h, o.Program, "\n", o.SpecText, "\n", o.task, o.CatchUp, o.overlap, o.AtMostOnce, o.timeout, o.retries, o.retryFirst, o.retryMost, o.jitter, o.AtStart)
	return fmt.Sprintf("%016x", h.Sum64())
}

// delayOf returns the job's part of jitter, in whole milliseconds.
func delayOf(name string, jitter time.Duration) time.Duration {
	h := fnv.New64a()
	h.Write([]byte(name))
	// FNV leaves the high bits of short texts alike; mix them.
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return time.Duration(x % uint64(jitter/time.Millisecond+1) * uint64(time.Millisecond))
}

// program returns the path of this program's main module, or "" if the build did not record
// it. Programs of one module have the same path, so they may share jobs.
func program() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return ledger.ShortenProgram(cmp.Or(info.Main.Path, info.Path))
}

func (s *Scheduler) momentOf(j *job, l *ledger.Ledger) ledger.Moment {
	now := s.clock.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.floor.IsZero() {
		j.floor = now
	}
	if last := l.LastTick(); last.After(j.floor) && last.Before(now) {
		j.floor = last // in case the ledger gets lost
	}
	order := s.orders.Jobs[j.name]
	j.order = order.Fence
	return ledger.Moment{Now: now, Floor: j.floor, Order: order, Node: s.cfg.Node}
}

// reportUnreadable records and logs that this node cannot use the value at the job's key.
func (s *Scheduler) reportUnreadable(j *job, err error) {
	s.setTrouble(j, err)
	s.cfg.Logger.Error("scheduler: this node does not execute the job", "job", j.name, "key", j.key, "err", err)
}

// reportTrouble records that the store refused or did not answer a step. It logs the trouble
// once, until the step succeeds or fails in another way. The caller tries again.
func (s *Scheduler) reportTrouble(j *job, step string, err error) {
	err = fmt.Errorf("%s: %w", step, err)
	if s.setTrouble(j, err) {
		s.cfg.Logger.Warn("scheduler: the job is held up on this node", "job", j.name, "key", j.key, "err", err)
	}
}

// setTrouble records what keeps this node from executing the job, for Entry.Problem. It
// reports whether that is new.
func (s *Scheduler) setTrouble(j *job, err error) (isNew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	isNew = j.trouble == nil || j.trouble.Error() != err.Error()
	j.trouble = err
	return isNew
}

func (s *Scheduler) clearTrouble(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j.trouble = nil
}
