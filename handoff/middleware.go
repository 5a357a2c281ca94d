package handoff

import (
	"context"
	"net/http"

	"github.com/joblock/toolkit/joblock"
)

// Middleware returns a middleware of net/http that takes the locks that claim names, and serves the request under these
// locks, as Guard.Do does. If a lock cannot be taken, the middleware does not call the handler, and answers as Refusal
// says. For other answers, bounds and logs use Guard.Middleware.
//
// The request's context carries the locks: joblock.FromContext returns the lock on Claim.Key,
// joblock.LocksFromContext returns all locks. The context ends with cause joblock.ErrLost when a lock is lost, and
// with a cause that matches context.DeadlineExceeded when Claim.MaxHold is up.
//
// When the handler has returned or panicked, the middleware releases the locks, even if the client has disconnected.
// Locks that were handed over, released or kept (Keep) are left alone. A connection that the handler has hijacked has
// no lock after the release. The handler gets the ResponseWriter unchanged.
//
// Middlewares can be nested, on different keys. One Claim locks its keys in the same order everywhere, but requests in
// nested middlewares can wait for each other: nest them in the same order everywhere, or set no Claim.MaxWait.
//
// If locks, claim or the next handler is nil, every request is answered with 500, and the log says why. A route that is
// wired wrongly must not be served without its lock, and a panic would take down the rest of the server too.
func Middleware(locks *joblock.Locker, claim func(*http.Request) (Claim, error)) func(http.Handler) http.Handler {
	return (&Guard{Locks: locks}).Middleware(claim)
}

// Middleware is like the function Middleware, but uses the fields of g: its Locker, its bounds, its OnRefusal and its
// Logger.
func (g *Guard) Middleware(claim func(*http.Request) (Claim, error)) func(http.Handler) http.Handler {
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
	if g == nil || g.Locks == nil || claim == nil || next == nil {
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
