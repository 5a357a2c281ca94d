// Package keeper is the keeper of package worker, whose package comment has the rules. A Keeper waits for a permit to
// work (permit.go), tells people its figures (tell.go), claims due locks from package jobs (keeper.go), looks up the
// task of each lock in asynq (inspect.go, and listing.go for many tasks of one queue), decides what to do about each
// lock (verdict.go), and acts (reconcile.go).
//
// Keepers that work do not know of each other. The claims of package jobs give each due lock to one of them.
//
// A mark is the lock that a process holds while the process snoozes a task by way of asynq's archive. When that process
// dies, the mark is how the keeper finds the task.
package keeper

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/nextjob"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
)

const (
	// batch is how many locks a Keeper claims, reads and handles together.
	batch = 500

	// claim is how long the locks of a batch belong to a Keeper. When a Keeper dies, other Keepers get its batch after
	// this time.
	claim = 20 * time.Second

	// A Keeper asks a part of the index which locks are due: after each Config.Every/wakeups, and at least once per
	// longestNap. Each question costs one command. longestNap is for locks with a short reservation: such a lock is due
	// after half of the reservation.
	wakeups    = 10
	longestNap = time.Second

	// pollOfParts is the fraction of Config.Every after which a Keeper asks a part again if the part told of no due
	// lock, where the index has more than one part. A question per nap and part would be many commands.
	pollOfParts = 3
)

// Config configures a Keeper. All fields but DryRun are required. worker.Config explains the fields that have the same
// names there.
type Config struct {
	Locks          *joblock.Locker
	Ring           *seal.Ring // of the field Locks
	Inspectors     []*asynq.Inspector
	Every, Reserve time.Duration
	Share          float64
	Keepers        int
	Snoozed        func(*asynq.TaskInfo) bool // whether a task is in asynq's archive only for the pause of a snooze
	Next           *nextjob.Starter           // starts the tasks of jobs whose turn in line has come
	DryRun         bool
	Logger         *slog.Logger
}

// Keeper checks locks while the method Run is running. Make a Keeper with New.
type Keeper struct {
	cfg Config

	neverResumed atomic.Int64 // the locks that logNeverResumed has counted

	// Only the goroutine of Run uses these fields.
	began      time.Time         // when the Keeper began to work
	callFrom   time.Time         // when calls to asynq's Redis are allowed again
	behind     bool              // more locks were due than the last question has claimed
	late       time.Time         // until then, some locks are checked later than Config.Every
	demand     map[string]*queue // by name
	lists      map[string]*queue // of demand: those whose lists are read
	fetching   bool              // pages of lists are under way
	fetched    chan batchOfPages // gets the pages
	known      *memory
	complained map[string]time.Time // when the method complain logged a text

	mu        sync.Mutex           // guards the fields below
	queues    map[string]bool      // the queues that were found in one of Config.Inspectors
	strangers map[string]time.Time // by queue that was never found: when a lookup last met a job of the queue
	latest    time.Duration        // how late the latest check was since the last figures
	stats     Stats
}

// New returns a Keeper that does nothing until Run is called.
func New(cfg Config) *Keeper {
	return &Keeper{
		cfg: cfg, queues: make(map[string]bool), strangers: make(map[string]time.Time), complained: make(map[string]time.Time), stats: Stats{Freed: make(map[string]int64)},
	}
}

// turn says when Run asks a part of the index.
type turn struct {
	at    time.Time
	pause time.Duration // after the next failure; grows in an outage
}

// The method work checks due locks until ctx ends, the Locker is closed, or nobody has answered for patience.
func (k *Keeper) work(ctx context.Context) {
	turns := make([]turn, max(1, jobs.Parts(k.cfg.Locks)))
	nap, poll := k.nap(), k.poll(len(turns))
	for i := range turns {
		turns[i] = turn{at: time.Now(), pause: nap}
		if len(turns) > 1 {
			turns[i].at = turns[i].at.Add(rand.N(nap)) // the order of the parts is random
		}
	}
	k.demand, k.lists = make(map[string]*queue), make(map[string]*queue)
	k.fetching, k.fetched = false, make(chan batchOfPages, 1)
	k.known, k.began = newMemory(), time.Now()
	defer func() { k.demand, k.lists, k.known = nil, nil, nil }() // a Keeper that stands by needs no listing
	defer k.listen(ctx)()
	var unanswered silence
	for {
		part := 0
		for i := range turns {
			if turns[i].at.Before(turns[part].at) {
				part = i
			}
		}
		wake := turns[part].at
		q, at := k.due()
		if q != nil && at.Before(wake) {
			wake = at
		}
		got, arrived, err := k.sleep(ctx, wake)
		switch {
		case err != nil:
			return
		case arrived:
			k.arrived(got)
			continue
		case q != nil && wake == at:
			k.readOn(ctx, q)
			continue
		}
		t, asked := &turns[part], time.Now()
		k.lag(asked.Sub(t.at))
		n, next, err := k.ask(ctx, part)
		k.lag(time.Since(asked)) // some locks may have become due meanwhile
		if n > 0 && err == nil {
			unanswered = silence{} // where no lock is due, asynq is not asked, and has not answered
		}
		switch {
		case ctx.Err() != nil, errors.Is(err, joblock.ErrClosed):
			return
		case err != nil && unanswered.failed(asked, patience*k.cfg.Every):
			k.cfg.Logger.Warn("worker: the keeper got no answer for long and lets another process try", "err", err)
			return
		case err != nil:
			t.pause = min(2*t.pause, k.cfg.Every)
			t.at = time.Now().Add(t.pause)
			k.cfg.Logger.Warn("worker: the keeper got no answer and leaves some locks for a later check", "err", err, "pause", t.pause)
			continue
		case next > 0:
			next = min(max(next, nap), poll)
			next -= rand.N(nap/10 + 1) // keepers that began together do not stay together
		}
		*t = turn{at: time.Now().Add(next), pause: nap}
	}
}

// listen starts the tasks of jobs whose turn has come by a call of somebody who starts no tasks. The check of a lock
// finds the tasks that listen misses.
func (k *Keeper) listen(ctx context.Context) (stop func()) {
	if k.cfg.DryRun {
		return func() {}
	}
	stop, err := jobs.Listen(ctx, k.cfg.Locks, func(g jobs.Granted) { k.cfg.Next.Told(g.Key, g.Job) })
	if err != nil && ctx.Err() != nil {
		return func() {} // Run is about to return
	}
	if err != nil {
		k.cfg.Logger.Warn("worker: the keeper cannot listen for jobs whose turn in line has come; it finds them when it checks their locks", "err", err)
		return func() {}
	}
	return stop
}

// The method sleep sleeps until the time wake, or until pages arrive. If ctx ends first, sleep returns the cause of ctx.
func (k *Keeper) sleep(ctx context.Context, wake time.Time) (got batchOfPages, arrived bool, err error) {
	select {
	case got = <-k.fetched: // even if the time has come
		return got, true, nil
	default:
	}
	timer := time.NewTimer(time.Until(wake))
	defer timer.Stop()
	select {
	case got = <-k.fetched:
		return got, true, nil
	case <-timer.C:
		return got, false, context.Cause(ctx)
	case <-ctx.Done():
		return got, false, context.Cause(ctx)
	}
}

// The method nap returns the shortest time between two questions to one part, unless more locks are due.
func (k *Keeper) nap() time.Duration { return min(k.cfg.Every/wakeups, longestNap) }

// The method poll returns the longest time between two questions to one part.
func (k *Keeper) poll(parts int) time.Duration {
	if parts == 1 {
		return k.nap()
	}
	return k.cfg.Every / pollOfParts
}

// The method again returns the time from the check of a lock until the lock is due again. The lock may be due for one nap
// before a Keeper asks.
func (k *Keeper) again() time.Duration { return k.cfg.Every - k.nap() }

// The method wait returns for how long, from now on, a lock waits for its next check if the last check was at the time
// began.
func (k *Keeper) wait(began, now time.Time) time.Duration {
	return max(driver.MinPeriod, k.again()-now.Sub(began))
}

// The method lag notes that a check may be late by this time.
func (k *Keeper) lag(by time.Duration) {
	if by > k.cfg.Every/wakeups {
		k.late = latest(k.late, time.Now().Add(k.cfg.Every))
		k.mu.Lock()
		k.latest = max(k.latest, by)
		k.mu.Unlock()
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// The method ask claims a batch of due locks and checks them. The result n is the number of claimed locks. The result
// next is the time until the first other lock of the part is due. After an error, the locks without an answer are due
// again when their claim ends, or earlier.
func (k *Keeper) ask(ctx context.Context, part int) (n int, next time.Duration, err error) {
	began, hold := time.Now(), claim
	if k.cfg.DryRun {
		hold = k.again() // and reconcile settles nothing
	}
	due, err := jobs.Due(ctx, k.cfg.Locks, jobs.DueRequest{Part: part, Limit: batch, Claim: hold})
	if err != nil {
		return 0, 0, err
	}
	k.behind = due.Next == 0
	k.mu.Lock()
	k.stats.Asked, k.stats.Behind = began, k.behind || began.Before(k.late)
	k.mu.Unlock()
	return len(due.Entries), due.Next, k.reconcile(ctx, began, due.Entries)
}

// Stats has the fields of worker.KeeperStats, which are explained there.
type Stats struct {
	Working    bool
	Asked      time.Time
	Behind     bool
	Checked    int64
	Held       int64
	Kept       int64
	Listed     int64
	Extended   int64
	Over       int64
	Foreign    int64
	Unanswered int64
	Freed      map[string]int64
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
