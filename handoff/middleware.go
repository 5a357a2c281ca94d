package handoff

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/joblock/toolkit/joblock"
)

const (
	defaultMaxRetryAfter = time.Hour
	defaultMaxWaiting    = 1000
)

// GuardOption is an option of NewGuard and Middleware. A nil option changes nothing.
type GuardOption func(*guardOptions)

// guardOptions is what the options say.
type guardOptions struct {
	answer        func(http.ResponseWriter, *http.Request, Refusal)
	maxRetryAfter time.Duration
	maxWaiting    int64
	logger        *slog.Logger
}

// OnRefusal sets the function with which Middleware answers a request that gets no lock. Guard.Refuse calls that function
// too, and so does Refuse in handlers behind the Guard or the Middleware. Guard.Do does not call that function: the
// caller of Do answers. The text of Refusal.Err must not reach the client. The default, also for nil, is
// Refusal.ServeHTTP.
func OnRefusal(answer func(w http.ResponseWriter, r *http.Request, f Refusal)) GuardOption {
	return func(o *guardOptions) {
		if answer != nil {
			o.answer = answer
		}
	}
}

// MaxRetryAfter bounds the Retry-After of refusals. Default one hour; less than one second counts as one second.
//
// Retry-After is the rest of the lease or of the reservation, if that is a minute or less. Otherwise it is a sixtieth of
// that rest, and at least a minute: a lock that is reserved for an hour can become free in a second. But the lock of a job
// whose next attempt is due in two days is reserved for two days and an hour, and Retry-After is then 49 minutes.
func MaxRetryAfter(d time.Duration) GuardOption {
	return func(o *guardOptions) { o.maxRetryAfter = d }
}

// MaxWaiting bounds how many requests wait for their locks at a time (Claim.MaxWait), over all calls of one Guard or all
// routes of one Middleware. Default 1,000. A waiting request costs this process about 13 KB, and the store a place in a
// queue. A request beyond the bound does not wait: it is served if its locks are free, and else refused with 429. With n
// below 1 no request waits.
func MaxWaiting(n int) GuardOption {
	return func(o *guardOptions) { o.maxWaiting = int64(n) }
}

// Logger sets the logger of the Guard or the Middleware. Default slog.Default(). No line has an owner token.
//
//	ERROR   the error behind a 500
//	WARN    the error behind a 503; the first 400 of a Guard or Middleware, where the route
//	        may be wrong and not the client; a release that failed; a request that has held
//	        its locks for Claim.MaxHold
//	DEBUG   the other 400s; a 503 whose client is gone
func Logger(logger *slog.Logger) GuardOption {
	return func(o *guardOptions) {
		if logger != nil {
			o.logger = logger
		}
	}
}

// Middleware returns a middleware of net/http that takes the locks that claim names, and serves the request under these
// locks, as Guard.Do does. If a lock cannot be taken, the middleware does not call the handler, and answers as Refusal
// says.
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
func Middleware(locks *joblock.Locker, claim func(*http.Request) (Claim, error), opts ...GuardOption) func(http.Handler) http.Handler {
	g := NewGuard(locks, opts...)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := g.serve(r, claim, w, next); err != nil {
				g.Refuse(w, r, err)
			}
		})
	}
}

// serve calls next with w under the locks that r claims. Its error is a *Refusal.
func (g *Guard) serve(r *http.Request, claim func(*http.Request) (Claim, error), w http.ResponseWriter, next http.Handler) error {
	ctx := r.Context()
	if g.locks == nil || claim == nil || next == nil {
		return g.refuse(ctx, errMiswired)
	}
	c, err := claim(r)
	if err != nil {
		return g.refuse(ctx, err)
	}
	return g.Do(ctx, c, func(ctx context.Context) error {
		next.ServeHTTP(w, r.WithContext(ctx))
		return nil
	})
}
