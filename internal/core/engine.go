package core

import (
	"container/heap"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

const (
	// renewBatch is how many renewals go into one call to the store. Ten thousand locks cost only a hundred calls in a
	// period, and no call blocks the server for long.
	renewBatch = 100

	// clockCheck is the longest sleep of the engine while locks are held, so that the engine soon notices that the machine
	// was suspended, during which the monotonic clock stood still.
	clockCheck = time.Second

	// complainEvery is the least time between two log lines about failed renewals.
	complainEvery = time.Second
)

// engine renews all leases of a Locker, and declares locks lost at their trust deadlines. One goroutine keeps the
// deadlines. Calls to the store run in other goroutines, because a loss must be signalled even if a call never returns.
// The holdings decide when something is due, and what an answer means.
//
// Lock order: engine.mu before Lock.mu, never the other way round.
type engine struct {
	l      *Locker
	ctx    context.Context // ends with stop
	cancel context.CancelFunc
	wake   chan struct{} // buffered 1: the earliest deadline has changed
	done   chan struct{} // closed when the goroutine has ended
	calls  sync.WaitGroup

	watch    sync.Once // starts the goroutine that watches for forced releases
	watching sync.WaitGroup

	mu         sync.Mutex // guards the fields below, except lastRun
	queue      lockQueue  // by Lock.next
	stopped    bool
	awake      time.Time // when the goroutine wakes up next
	complained time.Time // when a failed renewal was last logged

	lastRun time.Time // used only by the goroutine
}

func newEngine(l *Locker) *engine {
	e := &engine{l: l, wake: make(chan struct{}, 1), done: make(chan struct{})}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	go e.run()
	return e
}

// add hands k to the engine. After stop was called, add declares k lost and returns ErrClosed.
func (e *engine) add(k *Lock) error {
	e.mu.Lock()
	if e.stopped {
		e.mu.Unlock()
		k.close()
		return &Error{Code: driver.CodeClosed, Key: k.h.key}
	}
	e.placeLocked(k)
	e.wakeForLocked(k)
	e.watchForced()
	e.mu.Unlock()
	return nil
}

// reschedule moves k to its new place in the queue after its deadlines have changed.
func (e *engine) reschedule(k *Lock) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if k.index >= 0 {
		e.placeLocked(k)
		e.wakeForLocked(k)
	}
}

// placeLocked puts k where it belongs in the queue. A handle that no longer holds the lock is removed: its deadline
// never moves, and would keep the goroutine busy forever. placeLocked itself reads whether k holds the lock, because a
// Reclaim may have changed that since the caller looked.
func (e *engine) placeLocked(k *Lock) {
	var live bool
	h := k.snapshot()
	k.next, live = h.next()
	switch {
	case live && k.index < 0:
		heap.Push(&e.queue, k)
	case live:
		heap.Fix(&e.queue, k.index)
	case k.index >= 0:
		heap.Remove(&e.queue, k.index)
	}
}

// wakeForLocked wakes the goroutine if its sleep would end after k.next. Usually the sleep ends earlier, because of
// clockCheck. Waking the goroutine for every lock would cost more than everything else that a short lock costs.
func (e *engine) wakeForLocked(k *Lock) {
	if k.index < 0 || !k.next.Before(e.awake) {
		return
	}
	e.awake = k.next
	signal(e.wake)
}

// signal puts a value into c, a channel with a buffer of one, unless c is full.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// stop ends the engine. Locks still held are lost to this process. stop waits for the calls under way, as long as ctx
// lasts.
func (e *engine) stop(ctx context.Context) error {
	e.mu.Lock()
	e.stopped = true
	e.mu.Unlock()
	e.cancel()
	<-e.done
	e.mu.Lock()
	left := slices.Clone(e.queue)
	e.mu.Unlock()
	for _, k := range left {
		k.close()
	}
	return sleep.While(ctx, e.calls.Wait) // last, because the losses must be signalled even if a call never returns
}

func (e *engine) run() {
	defer close(e.done)
	for {
		wait := e.runDue()
		select {
		case <-time.After(wait):
		case <-e.wake:
		case <-e.ctx.Done():
			return
		}
	}
}

// runDue renews the locks that are due, declares lost the locks past their trust deadlines, and returns how long to
// sleep.
func (e *engine) runDue() time.Duration {
	now := e.l.now()
	jumped := e.jumped(now)
	var due, batch, unrenewed []*Lock
	var reqs []driver.RenewRequest

	e.mu.Lock()
	if jumped {
		due = append(due, e.queue...)
	} else {
		for len(e.queue) > 0 && !e.queue[0].next.After(now.Add(slack(e.queue[0].h.ttl))) {
			due = append(due, heap.Pop(&e.queue).(*Lock))
		}
	}
	for _, k := range due {
		k.mu.Lock()
		req, renew := k.h.renewalDue(now)
		k.mu.Unlock()
		if renew {
			batch, reqs = append(batch, k), append(reqs, req)
		} else {
			unrenewed = append(unrenewed, k)
		}
		e.placeLocked(k)
	}
	wait := time.Hour
	switch {
	case len(e.queue) > 0:
		wait = min(max(0, e.queue[0].next.Sub(now)), clockCheck)
	case e.awake.After(now):
		// The lock that woke the goroutine has already ended, and the next lock may be as short. If the goroutine now slept
		// for an hour, that lock would have to wake it too.
		wait = min(e.awake.Sub(now), clockCheck)
	}
	e.awake = now.Add(wait)
	e.mu.Unlock()

	for _, k := range unrenewed {
		k.check() // perhaps k is due because its trust deadline has passed
	}
	for len(batch) > 0 {
		n := min(renewBatch, len(batch))
		e.calls.Add(1)
		go e.renew(batch[:n:n], reqs[:n:n])
		batch, reqs = batch[n:], reqs[n:]
	}
	return wait
}

// jumped reports whether the wall clock has run ahead of the monotonic clock since the last run: the machine was
// suspended, or the clock was set. The queue is sorted by the monotonic clock, so any lock may then be past its
// deadline.
func (e *engine) jumped(now time.Time) bool {
	last := e.lastRun
	e.lastRun = now
	if last.IsZero() {
		return false
	}
	return now.Round(0).Sub(last.Round(0))-now.Sub(last) > 10*time.Millisecond
}

// renew sends one batch of renewals. The timeout of the call leaves time for another try before the shortest lease in
// the batch ends.
func (e *engine) renew(batch []*Lock, reqs []driver.RenewRequest) {
	defer e.calls.Done()
	shortest := e.l.cfg.MaxTTL
	for _, r := range reqs {
		shortest = min(shortest, r.TTL)
	}
	ctx, cancel := context.WithTimeout(e.ctx, min(e.l.cfg.CallTimeout, max(shortest/5, time.Millisecond)))
	defer cancel()
	sent := e.l.now()
	replies, err := e.l.store.Renew(ctx, reqs)
	now := e.l.now()
	failed := 0
	for i, k := range batch {
		a := renewalAnswer{op: "renew", term: reqs[i].Term, sent: sent, now: now}
		if i < len(replies) {
			a.reply = replies[i]
		}
		if a.reply.Outcome == driver.OutcomeUnknown {
			failed++
		}
		// Add the slack, or the renewal would be due again at once: a refused connection fails immediately.
		a.again = now.Add(slack(k.h.ttl) + retryPause(k.h.ttl))
		_ = k.renewed(a, nil) // renewed reports and logs a loss
	}
	if failed > 0 && e.ctx.Err() == nil && e.complains() {
		e.l.cfg.Logger.Warn("joblock: renewal got no answer; trying again", "locks", failed, "err", err)
		e.l.Emit(event.Event{Kind: event.RenewalUnanswered, Locks: failed, Err: err})
	}
}

// complains reports whether to log a failed renewal now, at most once every complainEvery: thousands of locks may be
// retried many times a second.
func (e *engine) complains() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.l.now()
	if now.Sub(e.complained) < complainEvery {
		return false
	}
	e.complained = now
	return true
}

// retryPause returns the time until an unanswered renewal is repeated. Many tries fit before the trust deadline. The
// pause is random, to spread out locks whose renewals failed together.
func retryPause(ttl time.Duration) time.Duration {
	d := min(max(ttl/30, time.Millisecond), time.Second)
	return d/2 + jitter.N(d/2+1)
}

// lockQueue is a heap of locks, sorted by Lock.next.
type lockQueue []*Lock

func (q lockQueue) Len() int           { return len(q) }
func (q lockQueue) Less(i, j int) bool { return q[i].next.Before(q[j].next) }
func (q lockQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *lockQueue) Push(x any) {
	k := x.(*Lock)
	k.index = len(*q)
	*q = append(*q, k)
}

func (q *lockQueue) Pop() any {
	old := *q
	k := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	k.index = -1
	return k
}
