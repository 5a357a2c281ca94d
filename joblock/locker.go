package joblock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"
)

// Locker takes locks in a Store and keeps them alive. Make one per process and
// store with New, share it freely, and Close it when the process stops.
type Locker struct {
	store   Store
	cfg     Config
	engine  *engine
	janitor *janitor
	now     func() time.Time // time.Now, but for tests of a clock that jumps

	closeOnce sync.Once
	closing   chan struct{}
	closed    chan struct{}
}

// New returns a Locker on store; cfg may be nil. It returns ErrInvalid, naming
// the value and the bound, for a nil store, for a store that reports itself
// unusable (a Validate() error method, as redisstore and memstore have), and for
// a Config out of bounds. Nothing is sent to the store.
//
// The Locker owns the Store from here on and closes it in Close. To share a
// Redis between Lockers, share the client, not the Store.
func New(store Store, cfg *Config) (*Locker, error) {
	if store == nil {
		return nil, invalid("new", "", "store is nil")
	}
	if v, ok := store.(interface{ Validate() error }); ok {
		if err := v.Validate(); err != nil {
			return nil, err
		}
	}
	full := cfg.WithDefaults()
	if err := full.validate(); err != nil {
		return nil, err
	}
	if full.TTL < time.Second {
		full.Logger.Warn("joblock: a TTL below one second leaves little room for a slow network", "ttl", full.TTL)
	}
	return newLocker(store, full, time.Now), nil
}

func newLocker(store Store, cfg *Config, now func() time.Time) *Locker {
	l := &Locker{
		store:   store,
		cfg:     *cfg,
		now:     now,
		closing: make(chan struct{}),
		closed:  make(chan struct{}),
	}
	l.engine = newEngine(l)
	l.janitor = newJanitor(l)
	return l
}

// Close stops renewing and waits, as long as ctx lets it, for the renewals under
// way and for the clean-up of calls whose outcome was unknown. Locks still held
// are given up by this process, not released: their contexts are cancelled at
// once with cause ErrLost, and the store frees them when their leases end. To
// release them instead, do so before Close.
//
// Every later call on the Locker returns ErrClosed; a second Close waits for the
// first, as long as its own ctx lets it, and returns nil. If ctx ends first its
// error is returned and the rest of the work is left to the leases' ends.
func (l *Locker) Close(ctx context.Context) error {
	if l == nil {
		return invalid("close", "", "the Locker is nil")
	}
	first := false
	l.closeOnce.Do(func() {
		first = true
		close(l.closing)
	})
	if !first {
		select {
		case <-l.closed:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	defer close(l.closed)
	l.engine.stop()
	err := l.janitor.stop(ctx)
	if cerr := l.store.Close(); cerr != nil {
		err = errors.Join(err, fmt.Errorf("joblock: close store: %w", cerr))
	}
	return err
}

// open returns ErrClosed once Close was called.
func (l *Locker) open(op, key string) error {
	if l == nil {
		return invalid(op, key, "the Locker is nil")
	}
	select {
	case <-l.closing:
		return &Error{Code: CodeClosed, Op: op, Key: key}
	default:
		return nil
	}
}

// call runs f with ctx bounded by Config.CallTimeout and turns a transport error
// into ErrUnavailable. An error that the Store classified itself is passed on.
func (l *Locker) call(ctx context.Context, op, key string, f func(context.Context) error) error {
	cctx, cancel := context.WithTimeout(ctx, l.cfg.CallTimeout)
	defer cancel()
	err := f(cctx)
	if err == nil {
		return nil
	}
	var own *Error
	if errors.As(err, &own) {
		return err
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = errors.Join(cause, err)
	}
	return &Error{Code: CodeUnavailable, Op: op, Key: key, Err: err}
}

// errorOf turns a refusal into an error; nil for OutcomeOK.
func (r *Reply) errorOf(op, key string) error {
	e := &Error{Op: op, Key: key, Holder: r.Holder, Job: r.Job, Remaining: r.Remaining}
	switch r.Outcome {
	case OutcomeOK:
		return nil
	case OutcomeHeld:
		e.Code = CodeHeld
	case OutcomeBusy:
		e.Code = CodeBusy
	case OutcomeNotFound:
		e.Code = CodeNotFound
	case OutcomeNotOwner:
		e.Code = CodeNotOwner
	case OutcomeReleased:
		e.Code, e.Ended, e.Reason = CodeAlreadyReleased, r.Ended, r.Reason
	case OutcomeLapsed:
		e.Code, e.Detail = CodeLost, "its time ran out before it was renewed"
	case OutcomeWrongJob:
		e.Code, e.Detail = CodeNotOwner, "the lock is bound to another job"
	case OutcomeForeign:
		e.Code, e.Detail = CodeInvalid, "the value at this key is not a lock; it was left alone"
	default:
		e.Code, e.Detail = CodeUnavailable, "the store gave no answer"
	}
	return e
}

// newNonce identifies one call across re-sends. It need not be secret, only
// different from the other calls on the same key.
func newNonce() string { return strconv.FormatUint(rand.Uint64(), 36) }
