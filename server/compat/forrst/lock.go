package forrst

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Config configures AtomicLock. The zero value of each field means its default.
type Config struct {
	// MaxBlock bounds the option block. Default one minute.
	MaxBlock time.Duration

	// MaxWaiting is how many calls may wait for their locks at a time. Further calls do not wait. Default 1,000.
	MaxWaiting int

	// ForceRelease serves the function force-release: it must check the caller's rights, and call
	// joblock.Locker.ForceRelease. To refuse, return an *Error with the code FORBIDDEN. Default: there is no such
	// function.
	ForceRelease func(ctx context.Context, key string) error

	// Logger logs releases that failed. Default slog.Default().
	Logger *slog.Logger
}

// AtomicLock returns a Function that runs next under the lock that the request's extension asks for. cfg may be nil. If
// locks or next is nil, or cfg has a negative bound, the Function refuses every request with INTERNAL_ERROR: a
// misconfigured service must not run without its locks.
func AtomicLock(locks *joblock.Locker, next Function, cfg *Config) Function {
	l := &locker{locks: locks, next: next, functions: LocksOf(locks)}
	if cfg != nil {
		l.cfg = *cfg
	}
	l.cfg.MaxBlock = cmp.Or(l.cfg.MaxBlock, time.Minute)
	l.cfg.MaxWaiting = cmp.Or(l.cfg.MaxWaiting, 1000)
	if l.cfg.Logger == nil {
		l.cfg.Logger = slog.Default()
	}
	l.functions.ForceRelease = l.cfg.ForceRelease
	if (*core.Locker)(locks).Ring() == nil || next == nil || l.cfg.MaxBlock < 0 || l.cfg.MaxWaiting < 0 {
		return func(_ context.Context, req *Request) *Response { return req.Refuse(ErrorOf(errMiswired)) }
	}
	return l.call
}

var errMiswired = errors.New("forrst: AtomicLock has a nil Locker or function, or a negative bound")

type locker struct {
	locks     *joblock.Locker
	next      Function
	functions Functions
	cfg       Config
	waiting   atomic.Int64 // calls that wait for their locks
}

// options are the options of the extension.
type options struct {
	Key         string    `json:"key"`
	TTL         *duration `json:"ttl"`
	Scope       string    `json:"scope"`
	Block       *duration `json:"block"`
	Owner       *string   `json:"owner"`
	AutoRelease *bool     `json:"auto_release"`
}

// wish is what a request asks for.
type wish struct {
	key, scope, full string
	ttl, block       time.Duration
	waits            duration // the option block as received
	owner            *string
	keep             bool // auto_release is false
}

// data is the extension's data in a response about a lock that was taken.
type data struct {
	Key       string `json:"key"`
	Acquired  bool   `json:"acquired"`
	Owner     string `json:"owner"`
	Scope     string `json:"scope"`
	ExpiresAt stamp  `json:"expires_at"`
}

// refused is the extension's data in a response about a lock that was not taken.
type refused struct {
	Key      string `json:"key"`
	Acquired bool   `json:"acquired"`
}

// details are the details of an error about a lock that was not taken.
type details struct {
	Key    string    `json:"key"`
	Scope  string    `json:"scope"`
	Full   string    `json:"full_key"`
	Waited *duration `json:"waited,omitempty"`
}

func (l *locker) call(ctx context.Context, req *Request) *Response {
	if owned(req.Call.Function) {
		return l.functions.Call(ctx, req)
	}
	w, e := l.wishOf(req)
	if e != nil {
		return req.Refuse(e)
	}
	if w == nil {
		return l.answer(ctx, req)
	}
	lock, err := l.acquire(ctx, w)
	if err != nil {
		return l.refuse(ctx, req, w, err)
	}
	return l.run(ctx, req, w, lock)
}

func (l *locker) answer(ctx context.Context, req *Request) *Response {
	if res := l.next(ctx, req); res != nil {
		return res
	}
	return req.Refuse(errorf(codeInternal, "The function has given no answer"))
}

// wishOf returns what a request asks for, or nil for a request without the extension.
func (l *locker) wishOf(req *Request) (*wish, *Error) {
	var found *Extension
	for i := range req.Extensions {
		if req.Extensions[i].URN != ExtensionURN {
			continue
		}
		if found != nil {
			return nil, errorf(codeArguments, "the extension %s comes twice", ExtensionURN)
		}
		found = &req.Extensions[i]
	}
	if found == nil {
		return nil, nil
	}
	var o options
	if e := decode("options", found.Options, &o); e != nil {
		return nil, e
	}
	w := &wish{key: o.Key, scope: cmp.Or(o.Scope, "function"), owner: o.Owner, keep: o.AutoRelease != nil && !*o.AutoRelease}
	switch {
	case o.Key == "":
		return nil, errorf(codeArguments, "options.key is missing")
	case o.TTL == nil:
		return nil, errorf(codeArguments, "options.ttl is missing")
	case w.scope == "function":
		w.full = keyPrefix + req.Call.Function + ":" + o.Key
	case w.scope == "global":
		w.full = keyPrefix + o.Key
	default:
		return nil, errorf(codeArguments, "options.scope must be function or global")
	}
	var e *Error
	if w.ttl, e = o.TTL.length("options.ttl"); e != nil {
		return nil, e
	}
	// The Locker checks everything else, but treats a TTL of 0 as its default.
	if most := (*core.Locker)(l.locks).Settings().MaxTTL; w.ttl < driver.MinPeriod || w.ttl > most {
		return nil, errorf(codeArguments, "options.ttl is %s, must be at least %s and at most %s", o.TTL, driver.MinPeriod, most)
	}
	if o.Block == nil {
		return w, nil
	}
	w.waits = *o.Block
	if w.block, e = o.Block.length("options.block"); e != nil {
		return nil, e
	}
	if w.block > l.cfg.MaxBlock {
		return nil, errorf(codeArguments, "options.block is %s, must be at most %s", o.Block, l.cfg.MaxBlock)
	}
	return w, nil
}

// acquire takes the lock. If too many calls wait already, it does not wait.
func (l *locker) acquire(ctx context.Context, w *wish) (*joblock.Lock, error) {
	opts := []joblock.AcquireOption{joblock.TTL(w.ttl), joblock.NoRenew()}
	if w.owner == nil {
		// The extension's specification asks for a UUID. Owners that joblock makes for locks without renewal begin with a
		// mark.
		opts = append(opts, joblock.Owner(uuid.NewString()))
	} else {
		opts = append(opts, joblock.Owner(*w.owner))
	}
	wait := w.block
	if wait > 0 {
		defer l.waiting.Add(-1)
		if l.waiting.Add(1) > int64(l.cfg.MaxWaiting) {
			wait = 0
		}
	}
	return l.locks.Acquire(ctx, w.full, append(opts, joblock.MaxWait(wait))...)
}

// refuse answers a request whose lock was not taken.
func (l *locker) refuse(ctx context.Context, req *Request, w *wish, err error) *Response {
	about := details{Key: w.key, Scope: w.scope, Full: w.full}
	switch {
	case errors.Is(err, joblock.ErrHeld), errors.Is(err, joblock.ErrBusy):
		res := req.Refuse(&Error{Code: codeHeld, Message: "Unable to acquire lock", Details: about})
		res.Extensions = []Extension{{URN: ExtensionURN, Data: refused{Key: w.key}}}
		return res
	case ctx.Err() != nil && !errors.Is(err, joblock.ErrUnavailable):
		return req.Refuse(&Error{Code: codeDeadline, Message: "The request ended before the lock was acquired", Details: about})
	case errors.Is(err, joblock.ErrTimeout):
		about.Waited = &w.waits
		return req.Refuse(&Error{Code: codeTimeout, Message: "Lock acquisition timed out after " + w.waits.String(), Details: about})
	}
	e := *ErrorOf(err)
	e.Details = about
	return req.Refuse(&e)
}

// run runs the function under its lock.
func (l *locker) run(ctx context.Context, req *Request, w *wish, lock *joblock.Lock) *Response {
	owner := core.Token(lock.Token()).Owner() // the caller gets it, so the store must remember the end of the lock
	expires := lock.ExpiresAt()
	inside, stop := lock.Context(ctx)
	returned := false
	defer func() {
		stop() // goroutines that the function left behind must stop before the release
		// If the client did not choose the owner and has disconnected, it will never know the owner, so keeping the lock
		// would be useless.
		if returned && w.keep && (w.owner != nil || ctx.Err() == nil) {
			l.keep(context.WithoutCancel(ctx), lock, expires)
			return
		}
		l.release(context.WithoutCancel(ctx), lock)
	}()
	res := *l.answer(inside, req)
	returned = true
	res.Extensions = append(res.Extensions[:len(res.Extensions):len(res.Extensions)], Extension{
		URN: ExtensionURN, Data: data{Key: w.key, Acquired: true, Owner: owner, Scope: w.scope, ExpiresAt: stamp(expires)},
	})
	return &res
}

// keep leaves the lock to the caller that has its owner. A parked lock has no holder in this process, so its end is not
// reported here as a loss.
func (l *locker) keep(ctx context.Context, lock *joblock.Lock, expires time.Time) {
	_, err := lock.Park(ctx, joblock.Reserve(max(driver.MinPeriod, time.Until(expires))))
	l.failed("keep", lock, err)
}

func (l *locker) release(ctx context.Context, lock *joblock.Lock) {
	l.failed("release", lock, lock.Release(ctx, joblock.Reason("the function has returned")))
}

// failed logs an error, unless the function has released the lock or handed it over. A loss is logged by the Locker.
func (l *locker) failed(what string, lock *joblock.Lock, err error) {
	if err == nil || errors.Is(err, joblock.ErrNotOwner) || errors.Is(err, joblock.ErrAlreadyReleased) || errors.Is(err, joblock.ErrLost) {
		return
	}
	l.cfg.Logger.Warn("forrst: releasing or handing over a call's lock failed; it ends with its lease at the latest",
		"call", what, "key", lock.Key(), "fence", lock.Fence(), "err", err)
}
