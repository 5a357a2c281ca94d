// Package keeper is the keeper of package worker, whose package comment has the rules. A Keeper waits for a permit to
// work (permit.go), writes its figures (publish.go), claims due locks from package jobs (work.go), looks up the task of
// each lock in asynq (inspect.go with databases.go, and lists.go for many tasks of one queue), decides what to do
// about each lock (verdict.go), and acts (reconcile.go).
//
// Working keepers do not coordinate: the claims of package jobs give each due lock to one of them.
//
// A mark is the lock that a process holds while it snoozes a task by way of asynq's archive. When that process dies,
// the mark is how the keeper finds the task.
package keeper

import (
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock"
)

// batch is how many locks a Keeper claims, reads and handles together.
const batch = 500

// claim is how long the locks of a batch belong to a Keeper. When a Keeper dies, other Keepers get its batch after this
// time.
const claim = 20 * time.Second

// Config configures a Keeper. All fields but DryRun are required. worker.Config and worker.KeeperConfig explain the
// fields that have the same names there.
type Config struct {
	Locks             *joblock.Locker
	Ring              *seal.Ring // of Locks
	Inspectors        []*asynq.Inspector
	Interval, Reserve time.Duration
	MaxLoad           float64
	MaxKeepers        int
	Snoozed           func(*asynq.TaskInfo) bool // whether a task is in asynq's archive only for the pause of a snooze
	Next              *jobline.Starter           // starts the tasks of jobs whose turn in line has come
	DryRun            bool
	Logger            *slog.Logger
}

// Keeper checks locks while Run is running. Make a Keeper with New.
type Keeper struct {
	cfg Config
	*pacer
	databases *databases

	neverResumed atomic.Int64 // the locks that logNeverResumed has counted

	// Only the goroutine of Run uses these fields.
	lists      *lists
	known      *memory
	complained map[string]time.Time // when complain logged a text

	mu     sync.Mutex    // guards the fields below
	latest time.Duration // the largest delay of a check since the last figures
	stats  Stats
}

// New returns a Keeper that does nothing until Run is called.
func New(cfg Config) *Keeper {
	k := &Keeper{
		cfg: cfg, complained: make(map[string]time.Time), stats: Stats{Freed: make(map[string]int64)},
		databases: &databases{cfg: cfg, queues: make(map[string]bool), strangers: make(map[string]time.Time)},
	}
	k.pacer = &pacer{cfg: cfg, report: func(late time.Duration) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.latest = max(k.latest, late)
	}}
	return k
}

// Stats returns a copy of the counts.
func (k *Keeper) Stats() Stats {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := k.stats
	out.Freed = maps.Clone(out.Freed)
	return out
}

func (k *Keeper) working(yes bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stats.Working = yes
}

func (k *Keeper) add(n *Stats) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stats.Checked += n.Checked
	k.stats.Held += n.Held
	k.stats.Kept += n.Kept
	k.stats.Listed += n.Listed
	k.stats.Extended += n.Extended
	k.stats.Over += n.Over
	k.stats.Foreign += n.Foreign
	k.stats.Unanswered += n.Unanswered
	for reason, freed := range n.Freed {
		k.stats.Freed[reason] += freed
	}
}
