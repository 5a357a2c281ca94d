package routers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/gofiber/fiber/v2"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/joblocktest"
)

// bench is a Guard on locks in memory, and the work of a handler.
type bench struct {
	*testing.T
	*joblocktest.Kit
	guard *handoff.Guard
	work  func(ctx context.Context) error
	calls atomic.Int32
}

// run is what each framework's handler calls with the context that such handlers have.
func (b *bench) run(ctx context.Context) error {
	b.calls.Add(1)
	return b.work(ctx)
}

// answer is what a client learns.
type answer struct {
	status int // of HTTP; that of a gRPC code is its like
	code   string
	retry  time.Duration
}

// sender sends one request for an account. With typo, the claim asks for a parameter by a wrong name, or for nothing.
type sender func(account string, typo bool) answer

// stacks start a server of each framework.
var stacks = map[string]func(*bench) sender{
	"net/http": startNetHTTP,
	"chi":      startChi,
	"gin":      startGin,
	"echo":     startEcho,
	"fiber":    startFiber,
	"echo v5":  startEchoV5,
	"fiber v3": startFiberV3,
	"unary":    startUnary,
	"stream":   startStream,
	"function": startFunction,
}

func onEachStack(t *testing.T, f func(b *bench, send sender)) {
	for name, start := range stacks {
		t.Run(name, func(t *testing.T) {
			k := joblocktest.New(t, nil)
			b := &bench{T: t, Kit: k, guard: &handoff.Guard{Locks: k.Locks}}
			b.work = func(context.Context) error { return nil }
			f(b, start(b))
		})
	}
}

var (
	heldCode        = joblock.CodeOf(joblock.ErrHeld)
	unavailableCode = joblock.CodeOf(joblock.ErrUnavailable)
)

func (b *bench) wantRefused(got answer, status int, code string) {
	b.Helper()
	if got.status != status || got.code != code || (got.retry >= time.Second) != (status != http.StatusBadRequest) {
		b.Errorf("the answer is %+v, want status %d and code %s", got, status, code)
	}
}

func (b *bench) wantCalls(n int32) {
	b.Helper()
	if got := b.calls.Load(); got != n {
		b.Errorf("the handler was called %d times, want %d", got, n)
	}
}

func TestTheHandlerRunsUnderItsLock(t *testing.T) {
	onEachStack(t, func(b *bench, send sender) {
		b.work = func(ctx context.Context) error {
			lock, ok := joblock.FromContext(ctx)
			if !ok || lock.Key() != "export:acct-7" || lock.Err() != nil || ctx.Err() != nil {
				return fmt.Errorf("the lock is %v, %v", lock, ok)
			}
			if st := b.Kit.Status("export:acct-7"); st.State != joblock.StateHeld {
				return fmt.Errorf("the lock is %s", st.State)
			}
			return nil
		}
		if got := send("acct-7", false); got.status != http.StatusOK {
			b.Errorf("the answer is %+v", got)
		}
		b.wantCalls(1)
		if st := b.Kit.Status("export:acct-7"); st.Locked() {
			b.Errorf("after the answer the lock is %s", st.State)
		}
	})
}

func TestARefusedRequestNeverReachesTheHandler(t *testing.T) {
	onEachStack(t, func(b *bench, send sender) {
		release := b.Kit.Hold("export:acct-7")
		b.wantRefused(send("acct-7", false), http.StatusTooManyRequests, heldCode)
		b.wantCalls(0)
		if got := send("acct-8", false); got.status != http.StatusOK {
			b.Errorf("another account's answer is %+v", got)
		}
		release()
		if got := send("acct-7", false); got.status != http.StatusOK {
			b.Errorf("then the answer is %+v", got)
		}
		b.wantCalls(2)
		repair := b.Kit.Fail()
		b.wantRefused(send("acct-7", false), http.StatusServiceUnavailable, unavailableCode)
		repair()
		b.wantCalls(2)
	})
}

func TestAMissingPartOfTheKeyIsNoSharedLock(t *testing.T) {
	onEachStack(t, func(b *bench, send sender) {
		b.wantRefused(send("acct-7", true), http.StatusBadRequest, joblock.CodeOf(joblock.ErrInvalid))
		b.wantCalls(0)
	})
}

func TestTheHandlerIsCancelledOnALoss(t *testing.T) {
	onEachStack(t, func(b *bench, send sender) {
		b.work = func(ctx context.Context) error {
			b.Kit.Lose("export:acct-7")
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(time.Minute):
				return errors.New("the context does not end")
			}
		}
		b.wantRefused(send("acct-7", false), http.StatusServiceUnavailable, joblock.CodeOf(joblock.ErrLost))
	})
}

func TestAPanicReleasesTheLock(t *testing.T) {
	onEachStack(t, func(b *bench, send sender) {
		b.work = func(context.Context) error { panic("boom") }
		if got := send("acct-7", false); got.status != http.StatusInternalServerError {
			b.Errorf("the answer is %+v", got)
		}
		if st := b.Kit.Status("export:acct-7"); st.Locked() {
			b.Errorf("after the panic the lock is %s", st.State)
		}
	})
}

// An error of Enqueue, or of a Locker, in a handler is answered like a refusal of the Guard.
func TestTheHandlersOwnRefusal(t *testing.T) {
	onEachStack(t, func(b *bench, send sender) {
		b.Kit.Hold("other")
		b.work = func(ctx context.Context) error {
			_, err := b.Kit.Locks.TryAcquire(ctx, "other")
			return err
		}
		b.wantRefused(send("acct-7", false), http.StatusTooManyRequests, heldCode)
		b.wantCalls(1)
	})
}

// What runs before the route is known sees no parameters.
func TestBeforeTheRouteIsKnown(t *testing.T) {
	k := joblocktest.New(t, nil)
	b := &bench{T: t, Kit: k, guard: &handoff.Guard{Locks: k.Locks}, work: func(context.Context) error { return nil }}
	router := chi.NewRouter()
	router.Use(handoff.Middleware(k.Locks, func(r *http.Request) (handoff.Claim, error) {
		return handoff.Claim{Key: joblock.Key("export", r.PathValue("account"))}, nil
	}))
	router.Method("POST", "/exports/{account}", b.handler())
	b.wantRefused(b.overHTTP(router)("acct-7", false), http.StatusBadRequest, joblock.CodeOf(joblock.ErrInvalid))

	perAccount := handoff.Middleware(k.Locks, func(r *http.Request) (handoff.Claim, error) {
		return handoff.Claim{Key: joblock.Key("export", r.PathValue("account"))}, nil
	})
	router = chi.NewRouter()
	router.Route("/exports", func(r chi.Router) {
		r.Use(perAccount)
		r.Method("POST", "/{account}", b.handler())
	})
	b.wantRefused(b.overHTTP(router)("acct-7", false), http.StatusBadRequest, joblock.CodeOf(joblock.ErrInvalid))
	router = chi.NewRouter()
	router.Route("/exports/{account}", func(r chi.Router) { // known here
		r.Use(perAccount)
		r.Method("POST", "/", b.handler())
	})
	if got := b.overHTTP(router)("acct-7", false); got.status != http.StatusOK {
		t.Errorf("inside of a Route the answer is %+v", got)
	}

	app := fiber.New()
	app.Use(Fiber(b.guard, func(c *fiber.Ctx) handoff.Claim {
		return handoff.Claim{Key: joblock.Key("export", c.Params("account"))}
	}))
	app.Post("/exports/:account", b.fiberHandler)
	b.wantRefused(b.overFiber(app)("acct-7", false), http.StatusBadRequest, joblock.CodeOf(joblock.ErrInvalid))
	b.wantCalls(1)
}

// fiber writes the next request over the parameters of the last one. The lock must keep its key.
func TestTheKeyOutlivesTheRequestOfFiber(t *testing.T) {
	k := joblocktest.New(t, nil)
	b := &bench{T: t, Kit: k, guard: &handoff.Guard{Locks: k.Locks}}
	var locks joblock.Locks
	b.work = func(ctx context.Context) error {
		lock, _ := joblock.FromContext(ctx)
		locks = append(locks, lock)
		handoff.Keep(ctx, lock)
		return nil
	}
	app := fiber.New()
	app.Post("/exports/:account", Fiber(b.guard, func(c *fiber.Ctx) handoff.Claim {
		return handoff.Claim{Key: c.Params("account")} // not copied by joblock.Key
	}), b.fiberHandler)
	send := b.overFiber(app)
	for _, account := range []string{"first", "other"} {
		if got := send(account, false); got.status != http.StatusOK {
			t.Errorf("%s: the answer is %+v", account, got)
		}
	}
	for i, key := range []string{"first", "other"} {
		if locks[i].Key() != key {
			t.Errorf("the lock on %s now has the key %s", key, locks[i].Key())
		}
		if err := locks[i].Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Without ContextWithFallback a *gin.Context is not the request's context.
func TestGinWithoutFallback(t *testing.T) {
	k := joblocktest.New(t, nil)
	b := &bench{T: t, Kit: k, guard: &handoff.Guard{Locks: k.Locks}}
	router := gin.New()
	router.POST("/exports/:account", Gin(b.guard, func(c *gin.Context) handoff.Claim {
		return handoff.Claim{Key: joblock.Key("export", c.Param("account"))}
	}), func(c *gin.Context) {
		if lock, ok := joblock.FromContext(c); ok {
			t.Errorf("the gin.Context has %v", lock)
		}
		if _, ok := joblock.FromContext(c.Request.Context()); !ok {
			t.Error("the request's context has no lock")
		}
	})
	b.overHTTP(router)("acct-7", false)
}

func TestGuard(t *testing.T) {
	locks, account := joblocktest.New(t, nil).Locks, "acct-7"
	ctx, calls := t.Context(), 0
	served := func(ctx context.Context) error {
		if lock, ok := joblock.FromContext(ctx); ok && lock.Err() == nil {
			calls++
		}
		return nil
	}

	guard := &handoff.Guard{Locks: locks} // one per process
	err := guard.Do(ctx, handoff.Claim{Key: joblock.Key("export", account)}, func(ctx context.Context) error {
		return served(ctx) // the handler: joblock.FromContext(ctx) has the lock
	})

	if err != nil || calls != 1 {
		t.Errorf("%d calls, error %v", calls, err)
	}
}

// No answer names a key or a holder.
func (a answer) wantDiscreet(t *testing.T, text string) answer {
	t.Helper()
	for _, secret := range []string{"acct-7", "export", "another holder"} {
		if strings.Contains(text, secret) {
			t.Errorf("the answer has %q in it: %s", secret, text)
		}
	}
	return a
}
