package handoff

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/enqueue"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
)

const (
	defaultMaxRetryAfter = time.Hour
	defaultMaxWaiting    = 1000
)

// Guard runs requests of any protocol under their locks: calls of gRPC, requests of fiber, messages of a queue and,
// with Guard.Middleware, requests of net/http. Only Locks is required; the zero value of each other field means its
// default. Set the fields before the first call, and then share the Guard freely. Do not copy a Guard.
type Guard struct {
	// Locks takes the locks. If Locks is nil, every request is refused.
	Locks *joblock.Locker

	// OnRefusal answers a request that gets no lock, for Guard.Middleware, Guard.Refuse and the package's Refuse in
	// handlers behind the Guard. Do does not call OnRefusal: the caller of Do answers. The text of Refusal.Err must not
	// reach the client. Default Refusal.ServeHTTP.
	OnRefusal func(w http.ResponseWriter, r *http.Request, f Refusal)

	// MaxRetryAfter bounds the Retry-After of refusals. Default one hour; less than one second counts as one second.
	//
	// Retry-After is the rest of the lease or of the reservation, if that is a minute or less. Otherwise it is a sixtieth
	// of that rest, and at least a minute: a lock that is reserved for an hour can become free in a second. But the lock
	// of a job whose next attempt is due in two days is reserved for two days and an hour, and Retry-After is then 49
	// minutes.
	MaxRetryAfter time.Duration

	// MaxWaiting bounds how many requests wait for their locks at a time (Claim.MaxWait), over all calls and routes of the
	// Guard. Default 1,000. A waiting request costs this process about 13 KB, and the store a place in a queue. A request
	// beyond the bound does not wait: it is served if its locks are free, and otherwise refused with 429. With a negative
	// MaxWaiting no request waits.
	MaxWaiting int

	// Logger logs what operators must know. Log lines contain no owner tokens. Default slog.Default().
	//
	//	ERROR   the error behind a 500
	//	WARN    the error behind a 503; the first 400 of a Guard, where the route may be wrong and not the client; a release
	//	        that failed; a request that has held its locks for Claim.MaxHold
	//	DEBUG   the other 400s; a 503 whose client has disconnected
	Logger *slog.Logger

	waiting   atomic.Int64 // requests that wait for their locks
	warned400 atomic.Bool
}

var errMiswired = errors.New("handoff: Middleware has a nil Locker, claim function or next handler, or Guard.Do has a nil Locker or function")

// guardFrom returns the innermost Guard around the request, or one with the defaults.
func guardFrom(ctx context.Context) *Guard {
	if g, ok := ctx.Value(guardKey{}).(*Guard); ok {
		return g
	}
	return new(Guard)
}

func (g *Guard) logger() *slog.Logger { return cmp.Or(g.Logger, slog.Default()) }

// Do takes the locks that claim names, calls serve under these locks, and returns the error of serve as it is. If a
// lock cannot be taken, Do does not call serve, and the error is a *Refusal. The caller must turn either error into an
// answer, with Refuse or RefusalOf. docs/routers.md has adapters.
//
// The context that serve gets carries the locks, and ends for the reasons listed at Middleware. It also ends when serve
// returns. When serve has returned or panicked, Do releases the locks, except those that were handed over, released or
// kept (Keep), so serve must not return while the work still goes on in another goroutine.
//
// Do refuses with status 500 if serve or the Locker is nil, or if g is nil.
func (g *Guard) Do(ctx context.Context, claim Claim, serve func(ctx context.Context) error) error {
	if g == nil {
		g = new(Guard)
	}
	if g.Locks == nil || serve == nil {
		return g.refuse(ctx, errMiswired)
	}
	inside, end, err := g.begin(ctx, claim)
	if err != nil {
		return g.refuse(ctx, err)
	}
	// Deferred without recover: a panic keeps its own stack, and net/http recognises http.ErrAbortHandler.
	defer end()
	return serve(inside)
}

// Refuse is like the function Refuse, but uses the fields of g, such as OnRefusal. It is for handlers that are not
// behind a middleware of g, but call Do or only enqueue.
func (g *Guard) Refuse(w http.ResponseWriter, r *http.Request, err error) {
	if g == nil {
		g = new(Guard)
	}
	answer := g.OnRefusal
	if answer == nil {
		answer = func(w http.ResponseWriter, r *http.Request, f Refusal) { f.ServeHTTP(w, r) }
	}
	answer(w, r, *g.refusalOf(r.Context(), err))
}

// refusalOf returns the answer to a request whose handler got err.
func (g *Guard) refusalOf(ctx context.Context, err error) *Refusal {
	var f *Refusal
	if errors.As(err, &f) && f != nil {
		return f // its Guard has logged it
	}
	return g.refuse(ctx, blameKey(err))
}

// begin takes the locks of claim. It returns the context for the handler, and end, which releases the locks. On error
// both are nil.
func (g *Guard) begin(ctx context.Context, claim Claim) (inside context.Context, end func(), err error) {
	if err := claim.check(); err != nil {
		return nil, nil, &claimError{err}
	}
	inside = context.WithValue(ctx, guardKey{}, g)
	if claim.NoLock {
		return inside, func() {}, nil
	}
	claim = claim.own()
	// Without this check the refusal would say that another request or job holds the lock.
	for _, lock := range joblock.LocksFromContext(ctx) {
		if slices.Contains(claim.keys(), lock.Key()) && (*core.Locker)(g.Locks).Owns((*core.Lock)(lock)) && lock.Err() == nil {
			return nil, nil, &claimError{enqueue.Invalid("claim", lock.Key(), "the request has this lock already, from a Guard or Middleware around this one")}
		}
	}
	locks, err := g.acquire(ctx, claim)
	if err != nil {
		return nil, nil, blame(err, claim.keys()...)
	}
	h := &held{locks: locks, outer: heldFrom(ctx)}
	inside, stopTimer := g.limitHold(context.WithValue(inside, heldKey{}, h), h, claim)
	// Innermost, because the Err of this context reads the clock: in a process that was stopped, Err reports a loss
	// before any timer has fired.
	inside, stop := locks.Context(inside)
	return inside, func() {
		// The context ends first: goroutines that the handler has left must stop before the release of the locks.
		stop()
		stopTimer()
		g.release(ctx, h)
	}, nil
}

// acquire takes the locks of claim. It waits for them at most for Claim.MaxWait, and not at all if MaxWaiting
// requests wait already.
func (g *Guard) acquire(ctx context.Context, claim Claim) (joblock.Locks, error) {
	if claim.MaxWait > 0 {
		defer g.waiting.Add(-1)
		if g.waiting.Add(1) > int64(cmp.Or(g.MaxWaiting, defaultMaxWaiting)) {
			claim.MaxWait = 0
		}
	}
	if claim.Limit > 0 {
		return limit.New(g.Locks, claim.Limit).AcquireAll(ctx, claim.keys(), claim.options()...)
	}
	return g.Locks.AcquireAll(ctx, claim.keys(), claim.options()...)
}

// limitHold returns a context that ends when Claim.MaxHold is up. From then on the locks are not renewed.
func (g *Guard) limitHold(parent context.Context, h *held, claim Claim) (ctx context.Context, stop func()) {
	limit := cmp.Or(claim.MaxHold, defaultMaxHold)
	ctx, cancel := context.WithCancelCause(parent)
	timer := time.AfterFunc(limit, func() {
		holds := false
		for _, lock := range h.end() {
			holds = holds || lock.Err() == nil
			(*core.Lock)(lock).StopRenewing() // nor is a lock renewed that comes back later, from a failed enqueue
		}
		if holds {
			g.logger().WarnContext(ctx, "handoff: a request has held its locks for too long; they are no longer renewed",
				"key", claim.Key, "max_hold", limit)
			cancel(errMaxHold)
		}
	})
	return ctx, func() {
		timer.Stop()
		cancel(nil)
	}
}

// refuse logs err and returns the answer to a request that gets no lock, or whose handler got err. A refusal that
// clients can cause at will is logged once, or at debug level.
func (g *Guard) refuse(ctx context.Context, err error) *Refusal {
	f := newRefusal(ctx, err, cmp.Or(g.MaxRetryAfter, defaultMaxRetryAfter))
	level := slog.LevelDebug
	switch {
	case f.Status == http.StatusServiceUnavailable && ctx.Err() != nil: // the client is gone
	case f.Status == http.StatusServiceUnavailable:
		level = slog.LevelWarn
	case f.Status >= http.StatusInternalServerError:
		level = slog.LevelError
	case f.Status == http.StatusBadRequest && !g.warned400.Swap(true):
		level = slog.LevelWarn
	case f.Status != http.StatusBadRequest:
		return &f
	}
	g.logger().Log(ctx, level, "handoff: request refused", "status", f.Status, "code", f.Code, "err", f.Err)
	return &f
}

// release releases the locks that the handler still holds, all at the same time: the client is waiting, and with an
// unresponsive store it waits for the time of one call only.
func (g *Guard) release(ctx context.Context, h *held) {
	var all sync.WaitGroup
	for _, lock := range h.end() {
		// If the handler has left an enqueue running and that enqueue fails, the lock comes back to its handle, and no code
		// releases it. Without renewal its lease ends.
		(*core.Lock)(lock).StopRenewing()
		if errors.Is(lock.Err(), joblock.ErrAlreadyReleased) {
			continue // by the handler
		}
		all.Go(func() {
			err := lock.Release(ctx, joblock.Reason(enqueue.ReasonRequestOver))
			if err != nil && !errors.Is(err, joblock.ErrNotOwner) { // ErrNotOwner: handed over to a job, or on the way
				g.logger().WarnContext(ctx, "handoff: could not release a lock after the response",
					"key", lock.Key(), "fence", lock.Fence(), "owner", (*core.Lock)(lock).Digest(), "err", err)
			}
		})
	}
	all.Wait()
}

// own returns a copy of c with copies of its strings. A lock outlives its request, and some servers (fasthttp, on which
// fiber is built) overwrite the strings of a request with the next request.
func (c Claim) own() Claim {
	c.Key, c.Holder, c.Keys = strings.Clone(c.Key), strings.Clone(c.Holder), slices.Clone(c.Keys)
	for i, key := range c.Keys {
		c.Keys[i] = strings.Clone(key)
	}
	return c
}
