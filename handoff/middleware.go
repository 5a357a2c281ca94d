package handoff

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/joblock/toolkit/joblock"
)

// DefaultMaxRetryAfter is the longest wait that a refused client is told, unless
// MaxRetryAfter says otherwise.
const DefaultMaxRetryAfter = time.Minute

// MiddlewareOption changes a Middleware. A nil one changes nothing.
type MiddlewareOption func(*middleware)

// OnRefusal replaces the answer to a request that gets no lock, whatever the
// reason: f has the status, the code and the error. Refusal.ServeHTTP is the
// answer that is replaced. nil leaves it as it is.
func OnRefusal(answer func(w http.ResponseWriter, r *http.Request, f Refusal)) MiddlewareOption {
	return func(m *middleware) {
		if answer != nil {
			m.answer = answer
		}
	}
}

// MaxRetryAfter bounds what Retry-After says, DefaultMaxRetryAfter if not given.
// The lock of a queued job may be reserved for an hour and free in a second, so
// what is left of it is no advice. Retry-After is never below one second.
func MaxRetryAfter(d time.Duration) MiddlewareOption {
	return func(m *middleware) { m.maxRetryAfter = d }
}

// Logger sets who hears of releases that failed and, once each, of the errors
// behind 5xx answers: 500 as an error, 503 as a warning, or for information where
// the client had left before. Default slog.Default(). It never hears an owner
// token.
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
	logger        *slog.Logger
}

// Middleware returns a middleware that serves a request while holding the locks
// that claim names for it, and refuses the request when it cannot have them; see
// Refusal for the answers. The package comment has the life of a request.
//
// The request's context carries the locks (joblock.FromContext has the one on
// Claim.Key, joblock.LocksFromContext all of them) and is cancelled
// with cause joblock.ErrLost when one of them is lost. After the handler has
// returned, or panicked, they are released, last first, even if the client is
// gone; those that were handed over, released or kept (Keep) are left alone. The
// ResponseWriter is passed through as it is. A handler that hijacks the connection
// and goes on after it has returned has no lock any more.
//
// Middlewares can be nested. All nestings should take their locks in one order,
// or not wait: unlike the keys of one Claim, two middlewares' keys are not
// ordered for you.
//
// If locks, claim or the next handler is nil, every request is answered 500 and
// the log says why: one route that is wired wrongly must neither be served without
// its lock nor take the rest of the server down with it.
func Middleware(locks *joblock.Locker, claim func(*http.Request) (Claim, error), opts ...MiddlewareOption) func(http.Handler) http.Handler {
	m := &middleware{
		locks:         locks,
		claim:         claim,
		answer:        func(w http.ResponseWriter, r *http.Request, f Refusal) { f.ServeHTTP(w, r) },
		maxRetryAfter: DefaultMaxRetryAfter,
		logger:        slog.Default(),
	}
	for _, opt := range opts {
		if opt != nil {
			opt(m)
		}
	}
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
	if claim.isZero() {
		next.ServeHTTP(w, r)
		return
	}
	locks, err := m.locks.AcquireAll(r.Context(), claim.keys(), claim.options()...)
	if err != nil {
		if errors.Is(err, joblock.ErrInvalid) && !m.badKey(claim) {
			err = &claimError{err}
		}
		m.refuse(w, r, err)
		return
	}
	h := &held{locks: locks, outer: heldFrom(r.Context())}
	ctx, stop := locks.Context(context.WithValue(r.Context(), heldKey{}, h))
	// Deferred without recover: a panic goes on with its own stack, and net/http
	// treats http.ErrAbortHandler as ever. The context ends before the locks do, so
	// that whatever the handler left running is told to stop first.
	defer m.release(r.Context(), h)
	defer stop()
	next.ServeHTTP(w, r.WithContext(ctx))
}

// badKey reports whether it is a key of claim that makes it ErrInvalid. The Locker
// is asked, for its rules for keys are its own; with a context that is over it
// judges the key and sends nothing.
func (m *middleware) badKey(claim Claim) bool {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	return slices.ContainsFunc(claim.keys(), func(key string) bool {
		_, err := m.locks.TryAcquire(over, key)
		return errors.Is(err, joblock.ErrInvalid)
	})
}

// claimError is an ErrInvalid that the client cannot help: of a Claim's settings,
// or about what the store keeps at the key.
type claimError struct{ err error }

func (e *claimError) Error() string { return e.err.Error() }
func (e *claimError) Unwrap() error { return e.err }

// refuse answers a request that gets no lock.
func (m *middleware) refuse(w http.ResponseWriter, r *http.Request, err error) {
	ctx := r.Context()
	f := newRefusal(ctx, err, m.maxRetryAfter)
	if f.Status >= http.StatusInternalServerError {
		level := slog.LevelError
		switch {
		case f.Status != http.StatusServiceUnavailable:
		case ctx.Err() != nil:
			level = slog.LevelInfo // nobody is waiting for the answer
		default:
			level = slog.LevelWarn
		}
		m.logger.Log(ctx, level, "handoff: request refused",
			"status", f.Status, "code", string(f.Code), "key", f.Key, "err", err)
	}
	m.answer(w, r, f)
}

// release gives back what the handler has not disposed of itself.
func (m *middleware) release(ctx context.Context, h *held) {
	for _, lock := range h.end() {
		// By code: a loss may have one of these as its cause.
		switch joblock.CodeOf(lock.Err()) {
		case joblock.CodeNotOwner, joblock.CodeAlreadyReleased:
			continue // handed over to a job, or released by the handler
		}
		if err := lock.Release(ctx); err != nil {
			m.logger.WarnContext(ctx, "handoff: release after the response failed",
				"key", lock.Key(), "fence", lock.Fence(), "owner", lock.Digest(), "err", err)
		}
	}
}
