package fallback

import (
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
)

// Away says what Do does when the store does not answer.
type Away uint8

// The values of Away. In all cases except Refuse, Do reports event.FellBack and runs the function under a local lock.
const (
	Refuse         Away = iota // Do returns ErrUnavailable, and the function does not run
	Warn                       // each fall-back is a warning in the log
	WarnEachMinute             // at most one warning a minute, over all keys, with the number of fall-backs since the last
	Proceed                    // no warning; joblock.Config must have an Observer
)

// Config configures New. The zero value of each field means its default.
type Config struct {
	// Away says what Do does when the store does not answer. Default Refuse.
	Away Away

	// Overrun is how long a function may run before its overrun is reported; see Overrun in the package comment.
	// Default: never.
	Overrun time.Duration
}

// Locker runs functions under locks of a joblock.Locker, or under local locks. A Locker is safe for concurrent use.
type Locker struct {
	cfg   Config
	locks *core.Locker
	local *core.Locker
	log   throttle
}

// New returns a Locker for the locks of a joblock.Locker. cfg may be nil. Events and warnings go to the Observer
// and the Logger of the joblock.Locker, which must outlive the new Locker.
//
// New returns ErrInvalid if joblock.New has not made locks, if Config.Away is unknown, if Config.Overrun is negative,
// and if Config.Away is Proceed and locks has no Observer. It returns ErrClosed if locks is closed.
func New(locks *joblock.Locker, cfg *Config) (*Locker, error) {
	const op = "fallback"
	f := &Locker{locks: (*core.Locker)(locks)}
	if cfg != nil {
		f.cfg = *cfg
	}
	if err := f.locks.Check(op); err != nil {
		return nil, err
	}
	set := f.locks.Settings()
	switch {
	case f.cfg.Away > Proceed:
		return nil, core.Invalid(op, "", "Config.Away is %d, must be at most %d", f.cfg.Away, Proceed)
	case f.cfg.Overrun < 0:
		return nil, core.Invalid(op, "", "Config.Overrun is %s, must not be negative", f.cfg.Overrun)
	case f.cfg.Away == Proceed && set.Observer == nil:
		return nil, core.Invalid(op, "", "Config.Away is Proceed and the joblock.Locker has no Observer: a fall-back would go unreported")
	}
	var err error
	f.local, err = core.New(newLocalStore(), &core.Config{
		TTL: set.TTL, MaxTTL: set.MaxTTL, MaxRenew: set.MaxRenew, Retain: set.Retain, Holder: set.Holder, Logger: set.Logger,
	})
	if err != nil {
		return nil, err
	}
	f.log.logger = set.Logger
	return f, nil
}

// Close gives the local locks up as lost: the contexts of functions that still run are cancelled with cause ErrLost.
// Later calls of Do return ErrClosed. Close leaves the joblock.Locker open. See joblock.Locker.Close for ctx and the
// errors.
func (f *Locker) Close(ctx context.Context) error {
	if f == nil || f.local == nil {
		return core.Invalid("close", "", "the Locker is nil or was not made by fallback.New")
	}
	return f.local.Close(ctx)
}

// Do does what joblock.Locker.Do does, except when the store does not answer: then Config.Away decides whether fn runs.
// If Do falls back, the context of fn carries a local lock; see Local. MaxWait bounds the wait in the store, and then
// the wait in this process: each of the two may last that long.
//
// If fn has not run, the error is one of those of joblock.Locker.Do, or one of these:
//
//   - ErrLost, when the store's lock was lost during the wait for the local lock.
//   - ErrUnavailable joined with ErrHeld or ErrTimeout, when the store did not answer and another function of this
//     process had the key.
//
// An error that matches ErrUnavailable also matches the cause of ctx if ctx has ended.
func (f *Locker) Do(ctx context.Context, key string, fn func(ctx context.Context) error, opts ...joblock.AcquireOption) error {
	const op = "do"
	if f == nil || f.local == nil {
		return core.Invalid(op, key, "the Locker is nil or was not made by fallback.New")
	}
	if err := f.local.Check(op, key); err != nil {
		return err
	}
	var beside *core.Lock // the local lock of a call that has the store's lock
	defer func() {
		if beside != nil {
			_ = beside.Release(context.WithoutCancel(ctx), core.Release{}) // a local lock that is lost is as good as released
		}
	}()
	acquire := func(ctx context.Context, key string, o core.Options) (lock *core.Lock, err error) {
		lock, beside, err = f.acquire(ctx, key, o)
		return lock, err
	}
	run := fn
	if fn != nil && f.cfg.Overrun > 0 {
		run = func(ctx context.Context) error {
			lock, _ := core.FromContext(ctx)
			overrun := time.AfterFunc(f.cfg.Overrun, func() { f.tellOverrun(lock) })
			defer overrun.Stop()
			return fn(ctx)
		}
	}
	return f.locks.Do(ctx, key, run, core.Acquiring(opts), acquire)
}

// acquire returns the lock under which the function runs. If that is the store's lock, the second result is the local
// lock; after a fall-back it is nil.
//
// The store's lock comes before the local lock. In the other order only one waiter of each process would be in the
// store's line, so waiters of several processes would not be served in order of arrival. A call that has only a local
// lock never waits for the store's lock of the same key, so no two calls wait for each other.
func (f *Locker) acquire(ctx context.Context, key string, o core.Options) (lock, beside *core.Lock, err error) {
	begun := f.locks.Now()
	local := o
	local.Retain = time.Second // no call reads the record
	lock, err = f.locks.Acquire(ctx, key, o)
	if err == nil {
		watched, stop := lock.Context(ctx)
		defer stop()
		if beside, err = f.local.Acquire(watched, key, local); err != nil {
			return nil, nil, errors.Join(err, lock.Release(context.WithoutCancel(ctx), core.Release{}))
		}
		return lock, beside, nil
	}
	if f.cfg.Away == Refuse || !errors.Is(err, joblock.ErrUnavailable) {
		return nil, nil, err
	}
	lock, busy := f.local.Acquire(ctx, key, local)
	if busy != nil {
		return nil, nil, errors.Join(err, busy)
	}
	f.tellFellBack(lock, err, f.locks.Now().Sub(begun))
	return lock, nil, nil
}

// Local reports whether lock is a local lock: then nothing keeps other processes out. A nil lock is not local.
func Local(lock *joblock.Lock) bool {
	return isLocal((*core.Lock)(lock))
}

func isLocal(lock *core.Lock) bool {
	_, local := lock.Store().(*localStore)
	return local
}

func (f *Locker) tellFellBack(lock *core.Lock, why error, waited time.Duration) {
	f.locks.Emit(f.about(event.Event{Kind: event.FellBack, Err: why, Waited: waited}, lock))
	attrs := []any{"key", lock.Key(), "fence", lock.Fence(), "waited", waited, "cause", why}
	const text = "joblock: the store does not answer; the work runs under a lock of this process alone"
	switch f.cfg.Away {
	case Warn:
		f.log.logger.Warn(text, attrs...)
	case WarnEachMinute:
		f.log.warn(f.locks.Now(), text, attrs)
	}
}

func (f *Locker) tellOverrun(lock *core.Lock) {
	f.locks.Emit(f.about(event.Event{Kind: event.Overran, Held: f.cfg.Overrun}, lock))
	f.log.logger.Warn("joblock: a function is still running after Config.Overrun",
		"key", lock.Key(), "fence", lock.Fence(), "overrun", f.cfg.Overrun, "local", isLocal(lock))
}

// about returns e with the fields that describe a lock.
func (f *Locker) about(e event.Event, lock *core.Lock) event.Event {
	e.Key, e.Owner, e.Fence = lock.Key(), lock.Digest(), lock.Fence()
	return e
}
