package server

import (
	"hash/maphash"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// quotas limits what each principal may do at the same time.
type quotas struct {
	rate      rate.Limit // 0: no bound
	burst     int
	most      int
	each      int
	locks     int // how many locks a principal may have
	principal int // how many principals are remembered
	seed      maphash.Seed

	mu      sync.Mutex // guards what follows
	waiting int
	of      map[string]*quota
}

type quota struct {
	bucket  *rate.Limiter        // nil without a rate
	actions *rate.Limiter        // nil before the first
	walks   *rate.Limiter        // nil before the first
	locks   map[uint64]time.Time // by hash of the key: how long the principal has it, as far as this process knows
	swept   time.Time            // when ended locks were last removed from locks
	busy    int                  // requests under way
	waiting int                  // how many of these wait for a lock, or are streams
	used    time.Time
}

func newQuotas(cfg Config) *quotas {
	return &quotas{
		rate: rate.Limit(cfg.Rate), burst: cfg.Burst, most: cfg.MaxWaiting, each: cfg.MaxWaitingEach, locks: cfg.MaxLocksEach, principal: 10_000,
		seed: maphash.MakeSeed(),
		of:   make(map[string]*quota),
	}
}

// take counts a request. It returns how long the principal must wait before its next request, or 0.
func (q *quotas) take(id string) (after time.Duration) {
	if q.rate == 0 {
		return 0
	}
	now := time.Now()
	q.mu.Lock()
	bucket := q.quotaLocked(id, now).bucket
	q.mu.Unlock()
	r := bucket.ReserveN(now, 1)
	if after = r.DelayFrom(now); after > 0 {
		r.CancelAt(now)
	}
	return after
}

// The limits of a principal's actions, which take places in the record of actions, and of its reads that walk over much
// of the store: a rate per second, and a burst.
const (
	actionRate  = 5
	actionBurst = 1000
	walkRate    = 20
	walkBurst   = 40
)

// act counts n actions. It returns how long the principal must wait before they may begin, or 0.
func (q *quotas) act(id string, n int) (after time.Duration) {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	of := q.quotaLocked(id, now)
	if of.actions == nil {
		of.actions = rate.NewLimiter(actionRate, actionBurst)
	}
	r := of.actions.ReserveN(now, min(n, actionBurst))
	if after = r.DelayFrom(now); after > 0 {
		r.CancelAt(now)
	}
	return after
}

// walk counts a read that walks over much of the store. The caller must wait for the returned time before it reads; ok is
// false if that is more than the parameter most.
func (q *quotas) walk(id string, most time.Duration) (after time.Duration, ok bool) {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	of := q.quotaLocked(id, now)
	if of.walks == nil {
		of.walks = rate.NewLimiter(walkRate, walkBurst)
	}
	r := of.walks.ReserveN(now, 1)
	if after = r.DelayFrom(now); after > most {
		r.CancelAt(now)
		return after, false
	}
	return after, true
}

// mayHold reports whether the principal may take the lock on key: it has the lock already, or is below its limit.
func (q *quotas) mayHold(id, key string) bool {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	of := q.quotaLocked(id, now)
	if _, has := of.locks[maphash.String(q.seed, key)]; has || len(of.locks) < q.locks {
		return true
	}
	if now.Sub(of.swept) >= time.Second {
		of.sweep(now)
	}
	return len(of.locks) < q.locks
}

func (of *quota) sweep(now time.Time) {
	of.swept = now
	maps.DeleteFunc(of.locks, func(_ uint64, until time.Time) bool { return !now.Before(until) })
}

// holds records that the principal has the lock on key until the given time, unless it releases the lock earlier.
func (q *quotas) holds(id, key string, until time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	of := q.quotaLocked(id, time.Now())
	if of.locks == nil {
		of.locks = make(map[uint64]time.Time)
	}
	of.locks[maphash.String(q.seed, key)] = until
}

// gave records that the principal has released the lock on key.
func (q *quotas) gave(id, key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if of := q.of[id]; of != nil {
		delete(of.locks, maphash.String(q.seed, key))
	}
}

// besideWaits is how many requests of a principal may be under way in addition to those that wait.
const besideWaits = 256

func (q *quotas) atOnce() int { return q.each + besideWaits }

// begin counts a request that is under way, until end is called. It returns false if the principal has too many.
func (q *quotas) begin(id string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	of := q.quotaLocked(id, time.Now())
	if of.busy >= q.atOnce() {
		return false
	}
	of.busy++
	return true
}

func (q *quotas) end(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.of[id].busy--
}

// enter counts a wait until leave is called. ok is false if too many requests wait.
func (q *quotas) enter(id string) (leave func(), ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	of := q.quotaLocked(id, time.Now())
	if q.waiting >= q.most || of.waiting >= q.each {
		return nil, false
	}
	q.waiting++
	of.waiting++
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.waiting--
		of.waiting--
	}, true
}

// quotaLocked returns the quota of a principal. An Authorizer may return any number of principals, so idle ones are
// forgotten once their buckets are full again.
func (q *quotas) quotaLocked(id string, now time.Time) *quota {
	of, known := q.of[id]
	if !known {
		if len(q.of) >= q.principal {
			q.forgetLocked(now)
		}
		of = &quota{}
		if q.rate > 0 {
			of.bucket = rate.NewLimiter(q.rate, q.burst)
		}
		q.of[id] = of
	}
	of.used = now
	return of
}

func (q *quotas) forgetLocked(now time.Time) {
	full := time.Second
	if q.rate > 0 {
		full = max(full, time.Duration(float64(q.burst)/float64(q.rate)*float64(time.Second)))
	}
	for id, of := range q.of {
		of.sweep(now)
		whole := of.actions == nil || of.actions.TokensAt(now) >= actionBurst // otherwise forgetting it would refill the bucket
		if whole && len(of.locks) == 0 && of.busy == 0 && of.waiting == 0 && now.Sub(of.used) > full {
			delete(q.of, id)
		}
	}
}
