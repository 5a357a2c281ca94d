package handoff

import (
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

// MiddlewareOption changes a Middleware. A nil one changes nothing.
type MiddlewareOption func(*middleware)

// OnRefusal replaces the answer to a request that gets no lock, whatever the
// reason, and that of Refuse in the handlers behind the middleware: f has the
// status, the code and the error, which is not for the client. Refusal.ServeHTTP is
// the answer that is replaced. nil leaves it as it is.
func OnRefusal(answer func(w http.ResponseWriter, r *http.Request, f Refusal)) MiddlewareOption {
	return func(m *middleware) {
		if answer != nil {
			m.answer = answer
		}
	}
}

// MaxRetryAfter bounds what Retry-After says. Default one minute.
// The lock of a queued job may be reserved for an hour and free in a second, so
// what is left of it is no advice. Retry-After is never below one second.
func MaxRetryAfter(d time.Duration) MiddlewareOption {
	return func(m *middleware) { m.maxRetryAfter = d }
}

// MaxWaiting bounds how many requests wait for their locks at a time, by Claim.MaxWait,
// 1,000 if not given: each of them costs this process about 13 KB, and the
// store a place in a queue. A request beyond the bound does not wait: it is served if
// its locks are free, and refused at once, with 429, if they are not. With n below 1
// none waits. The bound is that of all routes that use one Middleware.
func MaxWaiting(n int) MiddlewareOption {
	return func(m *middleware) { m.maxWaiting = int64(n) }
}

// Logger sets who hears of releases that failed, of requests that held their locks for
// Claim.MaxHold and, once each, of the errors behind 5xx answers: 500 as an error, 503
// as a warning. Where the client had left before, it is for debugging, and so is a
// 400, except that the first of a Middleware is a warning: it may be the route that is
// wrong and not the client. Default slog.Default(). It never hears an owner token.
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

// newMiddleware returns one with the defaults, changed by opts.
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

// Middleware returns a middleware that serves a request while holding the locks
// that claim names for it, and refuses the request when it cannot have them; see
// Refusal for the answers. A request that is refused does not reach the handler. The
// package comment has the life of a request.
//
// The request's context carries the locks (joblock.FromContext has the one on
// Claim.Key, joblock.LocksFromContext all of them). It is cancelled with cause
// joblock.ErrLost when one of them is lost, and with cause ErrMaxHold when the request
// has held them for Claim.MaxHold. After the handler has returned, or panicked, they
// are released, even if the client is gone; those that were handed over, released or
// kept (Keep) are left alone. The ResponseWriter is passed through as it
// is. A handler that hijacks the connection and goes on after it has returned has no
// lock any more.
//
// Middlewares can be nested, on different keys. All nestings should take their locks in one order,
// or not wait: unlike the keys of one Claim, two middlewares' keys are not
// ordered for you.
//
// If locks, claim or the next handler is nil, every request is answered 500 and
// the log says why: one route that is wired wrongly must neither be served without
// its lock nor take the rest of the server down with it.
func Middleware(locks *joblock.Locker, claim func(*http.Request) (Claim, error), opts ...MiddlewareOption) func(http.Handler) http.Handler {
	m := newMiddleware(opts...)
	m.locks, m.claim = locks, claim
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

// errMiswired is the error of every request to a Middleware that lacks a part.
var errMiswired = errors.New("handoff: Middleware was made with a nil Locker, claim function or next handler")

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.locks == nil || m.claim == nil || next == nil {
		m.refuse(w, r, errMiswired)
		return
	}
	claim, err := m.claim(r)
	if err != nil {
		m.refuse(w, r, err)
		return
	}
	ctx, end, err := m.begin(r.Context(), claim)
	if err != nil {
		m.refuse(w, r, err)
		return
	}
	// Deferred without recover: a panic goes on with its own stack, and net/http
	// treats http.ErrAbortHandler as ever.
	defer end()
	next.ServeHTTP(w, r.WithContext(ctx))
}

// begin takes the locks of claim and returns the context to serve the request with,
// and what to call afterwards. It knows nothing of HTTP. After an error there is
// nothing to serve and nothing to end.
func (m *middleware) begin(ctx context.Context, claim Claim) (_ context.Context, end func(), err error) {
	if err := claim.check(); err != nil {
		return nil, nil, &claimError{err}
	}
	inside := context.WithValue(ctx, middlewareKey{}, m)
	if claim.NoLock {
		return inside, func() {}, nil
	}
	// Whoever has a lock and asks for it again is refused like anybody, and would look
	// for somebody else who has it.
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
	// Innermost, for the Err of this context looks at the clocks: in a process that was
	// stopped it tells of a loss before any timer has had its turn.
	inside, stop := locks.Context(inside)
	return inside, func() {
		// The context ends before the locks do, so that whatever the handler left
		// running is told to stop first.
		stop()
		stopTimer()
		m.release(ctx, h)
	}, nil
}

// acquire takes the locks of claim, and waits for them if the claim says so and not
// too many wait already.
func (m *middleware) acquire(ctx context.Context, claim Claim) (joblock.Locks, error) {
	if claim.MaxWait > 0 {
		defer m.waiting.Add(-1)
		if m.waiting.Add(1) > m.maxWaiting {
			claim.MaxWait = 0
		}
	}
	return m.locks.AcquireAll(ctx, claim.keys(), claim.options()...)
}

// limitHold returns a context that ends when the request has held its locks for as
// long as it may. From then on they are not renewed.
func (m *middleware) limitHold(parent context.Context, h *held, claim Claim) (ctx context.Context, stop func()) {
	limit := claim.MaxHold
	if limit == 0 {
		limit = defaultMaxHold
	}
	ctx, cancel := context.WithCancelCause(parent)
	timer := time.AfterFunc(limit, func() {
		if h.stopRenewing() {
			m.logger.WarnContext(ctx, "handoff: the request has held its locks for too long, they are renewed no more",
				"key", claim.Key, "max_hold", limit)
			cancel(ErrMaxHold)
		}
	})
	return ctx, func() {
		timer.Stop()
		cancel(nil)
	}
}

// refuse answers a request that gets no lock.
func (m *middleware) refuse(w http.ResponseWriter, r *http.Request, err error) {
	f := newRefusal(r.Context(), err, m.maxRetryAfter)
	m.log(r.Context(), f)
	m.answer(w, r, f)
}

// log tells of a refusal. What clients can bring about at will is told but once, or
// for debugging.
func (m *middleware) log(ctx context.Context, f Refusal) {
	level := slog.LevelDebug
	switch {
	case f.Status == http.StatusServiceUnavailable && ctx.Err() != nil: // nobody is waiting for the answer
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

// reasonRequestOver is the reason with which a request's locks are released.
const reasonRequestOver = "request over"

// release gives back what the handler has not disposed of itself: all at once, since the
// client waits, and a store that is silent costs it the time of one call.
func (m *middleware) release(ctx context.Context, h *held) {
	var all sync.WaitGroup
	for _, lock := range h.end() {
		all.Go(func() { m.releaseOne(ctx, lock) })
	}
	all.Wait()
}

func (m *middleware) releaseOne(ctx context.Context, lock *joblock.Lock) {
	// An enqueue that the handler has left running, and that fails, gives the lock
	// back to the handle, when nobody is left to release it. It then ends by itself.
	lock.StopRenewing()
	// By code: a loss may have one of these as its cause.
	if joblock.CodeOf(lock.Err()) == joblock.CodeAlreadyReleased {
		return // by the handler
	}
	err := lock.Release(ctx, joblock.Reason(reasonRequestOver))
	if err != nil && joblock.CodeOf(err) != joblock.CodeNotOwner { // handed over to a job, or on the way
		m.logger.WarnContext(ctx, "handoff: release after the response failed",
			"key", lock.Key(), "fence", lock.Fence(), "owner", lock.Digest(), "err", err)
	}
}
