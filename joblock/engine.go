package joblock

import (
	"container/heap"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/dice"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

const (
	// renewBatch is how many renewals go into one call to the store: large enough
	// that ten thousand locks cost a hundred calls a period, small enough not to
	// block the server for long.
	renewBatch = 100

	// clockCheck is the longest that the engine sleeps while locks are held. So it
	// soon notices that the machine was suspended and the monotonic clock stood still.
	clockCheck = time.Second

	// complainEvery is the least time between two log lines about failed renewals.
	complainEvery = time.Second
)

// engine renews all leases of a Locker and declares locks lost at their trust
// deadlines. One goroutine keeps the deadlines. Calls to the store run beside it,
// because a loss must be told even if a call never returns. The holdings decide what is
// due when, and what an answer means.
//
// Lock order: engine.mu before Lock.mu, never the other way round.
type engine struct {
	l      *Locker
	ctx    context.Context // ends when the engine is stopped
	cancel context.CancelFunc
	wake   chan struct{} // buffered 1: the earliest deadline has changed
	done   chan struct{} // closed when the goroutine has ended
	calls  sync.WaitGroup

	mu      sync.Mutex
	queue   lockQueue // by Lock.next
	stopped bool
	awake   time.Time // when the goroutine wakes up next

	complained time.Time // guarded by mu: when a failed renewal was last logged

	lastRun time.Time // confined to the goroutine
}

func newEngine(l *Locker) *engine {
	e := &engine{l: l, wake: make(chan struct{}, 1), done: make(chan struct{})}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	go e.run()
	return e
}

// add puts a held lock under the engine's care. After stop it returns ErrClosed.
func (e *engine) add(k *Lock) error {
	e.mu.Lock()
	if e.stopped {
		e.mu.Unlock()
		k.close()
		return &Error{Code: codeClosed, Key: k.h.key}
	}
	e.placeLocked(k)
	e.wakeForLocked(k)
	e.l.forced.begin()
	e.mu.Unlock()
	return nil
}

// reschedule updates k's place in the queue after its deadlines have changed.
func (e *engine) reschedule(k *Lock) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if k.index >= 0 {
		e.placeLocked(k)
		e.wakeForLocked(k)
	}
}

// placeLocked puts k where it belongs in the queue. It removes k when the handle is
// over, because an entry whose deadline never moves would keep the goroutine busy for
// ever. It asks the holding whether it is over: the caller's knowledge may be older
// than a Reclaim.
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

// wakeForLocked wakes the goroutine if it would sleep past k's time. Mostly it would
// not, because it wakes up every clockCheck anyway. To wake it for every lock would
// cost more than everything else about a short one.
func (e *engine) wakeForLocked(k *Lock) {
	if k.index < 0 || !k.next.Before(e.awake) {
		return
	}
	e.awake = k.next
	signal(e.wake)
}

// signal leaves a signal in c, a channel with room for one, unless there is one already.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// stop ends the engine. Locks still held are lost to this process. It waits for the
// calls under way, as long as ctx lasts.
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
	return await(ctx, e.calls.Wait) // last: the losses are told whether or not a call returns
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

// runDue deals with every lock that is due and returns how long to sleep.
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
	if len(e.queue) > 0 {
		wait = min(max(0, e.queue[0].next.Sub(now)), clockCheck)
	}
	e.awake = now.Add(wait)
	e.mu.Unlock()

	for _, k := range unrenewed {
		k.check() // its trust deadline may be why it was due
	}
	for len(batch) > 0 {
		n := min(renewBatch, len(batch))
		e.calls.Add(1)
		go e.renew(batch[:n:n], reqs[:n:n])
		batch, reqs = batch[n:], reqs[n:]
	}
	return wait
}

// jumped reports whether the wall clock has run ahead of the monotonic clock since the
// last run: the machine was suspended, or the clock was set. Then trust deadlines by
// the wall clock may have passed in any order.
func (e *engine) jumped(now time.Time) bool {
	last := e.lastRun
	e.lastRun = now
	if last.IsZero() {
		return false
	}
	return now.Round(0).Sub(last.Round(0))-now.Sub(last) > 10*time.Millisecond
}

// renew sends one batch. It bounds the call so that there is time for another before
// the shortest lease in the batch ends.
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
		// Beyond the slack, or it would be due again at once: a refused connection
		// takes no time.
		a.again = now.Add(slack(k.h.ttl) + retryPause(k.h.ttl))
		_ = k.renewed(a, nil) // it tells and logs a loss itself
	}
	if failed > 0 && e.ctx.Err() == nil && e.complains() {
		e.l.cfg.Logger.Warn("joblock: renewal had no answer, trying again", "locks", failed, "err", err)
		e.l.tell(event.Event{Kind: event.RenewalUnanswered, Locks: failed, Err: err})
	}
}

// complains reports whether to log a failed renewal. It says so once every
// complainEvery: thousands of locks may be tried again many times a second.
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

// retryPause is the time until an unanswered renewal is repeated. Many tries fit before
// the trust deadline. It is random, to spread locks that failed together.
func retryPause(ttl time.Duration) time.Duration {
	d := min(max(ttl/30, time.Millisecond), time.Second)
	return d/2 + dice.N(d/2+1)
}

// lockQueue is a heap of locks by next.
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
