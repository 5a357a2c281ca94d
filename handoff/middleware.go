package handoff

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock"
)

const (
	defaultMaxRetryAfter = time.Minute
	defaultMaxWaiting    = 1000
)

// MiddlewareOption is an option of Middleware. A nil option changes nothing.
type MiddlewareOption func(*middleware)

// OnRefusal sets the function that answers a request that gets no lock. Refuse, in handlers behind the middleware,
// calls that function too. The text of Refusal.Err must not reach the client. The default, also for nil, is
// Refusal.ServeHTTP.
func OnRefusal(answer func(w http.ResponseWriter, r *http.Request, f Refusal)) MiddlewareOption {
	return func(m *middleware) {
		if answer != nil {
			m.answer = answer
		}
	}
}

// MaxRetryAfter bounds the Retry-After of refusals. Default one minute; less than one second counts as one second.
// The rest of the lock's reservation would be bad advice: a lock that is reserved for an hour can become free in a
// second.
func MaxRetryAfter(d time.Duration) MiddlewareOption {
	return func(m *middleware) { m.maxRetryAfter = d }
}

// MaxWaiting bounds how many requests wait for their locks at a time (Claim.MaxWait), over all routes of one
// Middleware. Default 1,000. A waiting request costs this process about 13 KB, and the store a place in a queue. A
// request beyond the bound does not wait: it is served if its locks are free, and else refused with 429. With n below 1
// no request waits.
func MaxWaiting(n int) MiddlewareOption {
	return func(m *middleware) { m.maxWaiting = int64(n) }
}

// Logger sets the logger of the middleware. Default slog.Default(). No line has an owner token.
//
//	ERROR   the error behind a 500
//	WARN    the error behind a 503; the first 400 of a Middleware, where the route may be
//	        wrong and not the client; a release that failed; a request that has held its
//	        locks for Claim.MaxHold
//	DEBUG   the other 400s; a 503 whose client is gone
func Logger(logger *slog.Logger) MiddlewareOption {
	return func(m *middleware) {
		if logger != nil {
			m.logger = logger
		}
	}
}

type middleware struct {
	locks         *joblock.Locker
	claim         func(*http.Request) (Claim, error)
	answer        func(http.ResponseWriter, *http.Request, Refusal)
	maxRetryAfter time.Duration
	maxWaiting    int64
	logger        *slog.Logger

	waiting   atomic.Int64
	toldOf400 atomic.Bool
}

func newMiddleware(opts ...MiddlewareOption) *middleware {
	m := &middleware{
		answer:        func(w http.ResponseWriter, r *http.Request, f Refusal) { f.ServeHTTP(w, r) },
		maxRetryAfter: defaultMaxRetryAfter,
		maxWaiting:    defaultMaxWaiting,
		logger:        slog.Default(),
	}
	for _, opt := range opts {
		if opt != nil {
			opt(m)
		}
	}
	return m
}

// Middleware returns a middleware that takes the locks that claim names, and serves the request under these locks. If
// a lock cannot be taken, the middleware does not call the handler, and answers as Refusal says.
//
// The request's context carries the locks: joblock.FromContext returns the lock on Claim.Key,
// joblock.LocksFromContext returns all locks. The context ends with cause joblock.ErrLost when a lock is lost, and
// with cause ErrMaxHold when Claim.MaxHold is up.
//
// When the handler has returned or panicked, the middleware releases the locks, even if the client is gone. Locks
// that were handed over, released or kept (Keep) are excepted. A connection that the handler has hijacked has no lock
// after the release. The handler gets the ResponseWriter unchanged.
//
// Middlewares can be nested, on different keys. One Claim locks its keys in the same order everywhere, but requests in
// nested middlewares can wait for each other. So nest them in the same order everywhere, or set no Claim.MaxWait.
//
// If locks, claim or the next handler is nil, every request is answered with 500, and the log says why. A route that
// is wired wrongly must not be served without its lock. A panic would take down the rest of the server too.
func Middleware(locks *joblock.Locker, claim func(*http.Request) (Claim, error), opts ...MiddlewareOption) func(http.Handler) http.Handler {
	m := newMiddleware(opts...)
	m.locks, m.claim = locks, claim
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

var errMiswired = errors.New("handoff: Middleware was made with a nil Locker, claim function or next handler")

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.locks == nil || m.claim == nil || next == nil {
		m.refuse(w, r, errMiswired)
		return
	}
	ctx, end, err := m.begin(r)
	if err != nil {
		m.refuse(w, r, err)
		return
	}
	// Deferred without recover: a panic keeps its own stack, and net/http recognises http.ErrAbortHandler.
	defer end()
	next.ServeHTTP(w, r.WithContext(ctx))
}

// begin takes the locks that r claims. It returns the context for the handler, and the function end, which releases
// the locks. After an error both are nil.
func (m *middleware) begin(r *http.Request) (inside context.Context, end func(), err error) {
	ctx := r.Context()
	claim, err := m.claim(r)
	if err != nil {
		return nil, nil, err
	}
	if err := claim.check(); err != nil {
		return nil, nil, &claimError{err}
	}
	inside = context.WithValue(ctx, middlewareKey{}, m)
	if claim.NoLock {
		return inside, func() {}, nil
	}
	// Without this check the refusal would say that another request or job holds the lock.
	for _, lock := range joblock.LocksFromContext(ctx) {
		if slices.Contains(claim.keys(), lock.Key()) && door.Of(m.locks).Owns(lock) && lock.Err() == nil {
			return nil, nil, &claimError{invalid("claim", lock.Key(), "the request has this lock already, from around this Middleware")}
		}
	}
	locks, err := m.acquire(ctx, claim)
	if err != nil {
		return nil, nil, blame(err, claim.keys()...)
	}
	h := &held{locks: locks, outer: heldFrom(ctx)}
	inside, stopTimer := m.limitHold(context.WithValue(inside, heldKey{}, h), h, claim)
	// Innermost, because the Err of this context reads the clock: in a process that was stopped, Err reports a loss
	// before any timer has fired.
	inside, stop := locks.Context(inside)
	return inside, func() {
		// The context ends first: goroutines that the handler has left must stop before the release of the locks.
		stop()
		stopTimer()
		m.release(ctx, h)
	}, nil
}

// acquire takes the locks of claim. It waits for them at most for Claim.MaxWait, and not at all if MaxWaiting
// requests wait already.
func (m *middleware) acquire(ctx context.Context, claim Claim) (joblock.Locks, error) {
	if claim.MaxWait > 0 {
		defer m.waiting.Add(-1)
		if m.waiting.Add(1) > m.maxWaiting {
			claim.MaxWait = 0
		}
	}
	return m.locks.AcquireAll(ctx, claim.keys(), claim.options()...)
}

// limitHold returns a context that ends when Claim.MaxHold is up. From then on the locks are not renewed.
func (m *middleware) limitHold(parent context.Context, h *held, claim Claim) (ctx context.Context, stop func()) {
	limit := cmp.Or(claim.MaxHold, defaultMaxHold)
	ctx, cancel := context.WithCancelCause(parent)
	timer := time.AfterFunc(limit, func() {
		holds := false
		for _, lock := range h.end() {
			holds = holds || lock.Err() == nil
			lock.StopRenewing() // nor is a lock renewed that comes back later, from a failed enqueue
		}
		if holds {
			m.logger.WarnContext(ctx, "handoff: the request has held its locks for too long, the locks are no longer renewed",
				"key", claim.Key, "max_hold", limit)
			cancel(ErrMaxHold)
		}
	})
	return ctx, func() {
		timer.Stop()
		cancel(nil)
	}
}

// refuse answers a request that gets no lock. A refusal that clients can cause at will is logged once, or at debug
// level.
func (m *middleware) refuse(w http.ResponseWriter, r *http.Request, err error) {
	ctx := r.Context()
	f := newRefusal(ctx, err, m.maxRetryAfter)
	defer m.answer(w, r, f)
	level := slog.LevelDebug
	switch {
	case f.Status == http.StatusServiceUnavailable && ctx.Err() != nil: // the client is gone
	case f.Status == http.StatusServiceUnavailable:
		level = slog.LevelWarn
	case f.Status >= http.StatusInternalServerError:
		level = slog.LevelError
	case f.Status == http.StatusBadRequest && !m.toldOf400.Swap(true):
		level = slog.LevelWarn
	case f.Status != http.StatusBadRequest:
		return
	}
	m.logger.Log(ctx, level, "handoff: request refused", "status", f.Status, "code", f.Code, "err", f.Err)
}

// release releases the locks that the handler has left, all at the same time: the client waits, and a silent store
// costs the client the time of one call.
func (m *middleware) release(ctx context.Context, h *held) {
	var all sync.WaitGroup
	for _, lock := range h.end() {
		// If the handler has left an enqueue running and that enqueue fails, the lock comes back to its handle, and
		// nobody releases the lock. Without renewal its lease ends.
		lock.StopRenewing()
		if errors.Is(lock.Err(), joblock.ErrAlreadyReleased) {
			continue // by the handler
		}
		all.Go(func() {
			err := lock.Release(ctx, joblock.Reason(reasonRequestOver))
			if err != nil && !errors.Is(err, joblock.ErrNotOwner) { // ErrNotOwner: handed over to a job, or on the way
				m.logger.WarnContext(ctx, "handoff: release after the response failed",
					"key", lock.Key(), "fence", lock.Fence(), "owner", door.IdentityOf(lock).Digest, "err", err)
			}
		})
	}
	all.Wait()
}
