package joblock

import (
	"context"
	"iter"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock/driver"
)

// Locker takes locks in a store and keeps them alive. Make one Locker per process and store with New, share it freely,
// and Close it when the process stops.
type Locker core.Locker

// New returns a Locker on store. cfg may be nil. New sends nothing to the store. New returns ErrInvalid if store is nil
// or a value of cfg is out of bounds; the text of the error names the value and its bound.
//
// The Locker owns the store from then on, and Close closes it. To share a Redis between Lockers, share the client, not
// the store.
func New(store driver.Store, cfg *Config) (*Locker, error) {
	full, err := cfg.core()
	if err != nil {
		return nil, err
	}
	l, err := core.New(store, full)
	return (*Locker)(l), err
}

func (l *Locker) core() *core.Locker { return (*core.Locker)(l) }

// Close stops renewing. It then waits, as long as ctx lasts, for the renewals under way, for waiters to leave their
// queues, and for the clean-up of calls whose outcome was unknown.
//
// Locks still held are lost, not released: their contexts are cancelled at once with cause ErrLost, and the store frees
// the keys when the leases end. Release locks before Close if other callers need the keys at once.
//
// Every later call on the Locker returns ErrClosed, except Close. A second Close waits for the first for as long as its
// own ctx lasts, and returns nil. If ctx ends first, Close returns the cause of ctx, and the remaining leases expire.
// If the store does not answer, Close returns ErrUnavailable after about twice Config.CallTimeout, even if ctx lasts
// longer.
func (l *Locker) Close(ctx context.Context) error { return l.core().Close(ctx) }

// TryAcquire takes the lock on key if the key is free, and does not wait. The Locker renews the lock until the lock is
// released, handed over or lost. ctx bounds this call only.
//
// Errors, after which the caller holds nothing:
//
//	ErrHeld         another owner has the key; the error says who, and how much of the lease remains
//	ErrInvalid      a bad key or option, ctx carries this lock already (see FromContext), or the value at the key is not a lock
//	ErrUnavailable  the store did not answer; a lock that the call did take is released in the background
//	ErrClosed       the Locker was closed
func (l *Locker) TryAcquire(ctx context.Context, key string, opts ...AcquireOption) (*Lock, error) {
	k, err := l.core().TryAcquire(ctx, key, core.Acquiring(opts))
	return (*Lock)(k), err
}

// Acquire takes the lock on key. While another owner has the key, Acquire waits until ctx ends or MaxWait has passed.
// "Waiting" in the package comment has the rules.
//
// Acquire returns the errors of TryAcquire, but ErrHeld only with MaxWait(0), and two more. After every error the
// caller holds nothing.
//
//   - ErrTimeout, when MaxWait or the deadline of ctx has passed. After the deadline of ctx the error also matches
//     context.DeadlineExceeded.
//   - The cause of ctx, when ctx was cancelled.
//
// Acquire returns ErrUnavailable when the store has not answered for Config.CallTimeout. A shorter outage of the store
// only delays the lock.
//
// A push that is lost delays a waiter by at most Config.Poll. Waiters that have died together delay the waiters behind
// them by at most three times Config.Poll plus one poll in all, if the store notices their death. Package redisstore
// notices it by their closed connections. If the store does not notice, for example because a machine has lost its
// power, the bound is one TTL plus one poll, if that is longer.
func (l *Locker) Acquire(ctx context.Context, key string, opts ...AcquireOption) (*Lock, error) {
	k, err := l.core().Acquire(ctx, key, core.Acquiring(opts))
	return (*Lock)(k), err
}

// AcquireAll takes the locks on all keys, or none, and returns them in the order of keys. A key that is named twice is
// taken once, and its lock is returned once. Every call takes its keys in sorted order, so calls with overlapping keys
// cannot deadlock.
//
// AcquireAll waits as Acquire does. MaxWait bounds the wait for all keys together. Owner gives all locks the same
// owner. The error is that of Acquire for the first key that failed; the locks that were already taken are then
// released. Without keys, AcquireAll returns ErrInvalid.
func (l *Locker) AcquireAll(ctx context.Context, keys []string, opts ...AcquireOption) (Locks, error) {
	locks, err := l.core().AcquireAll(ctx, keys, core.Acquiring(opts), nil)
	return locksOf(locks), err
}

// Do takes the lock on key as Acquire does, and runs fn. The context of fn carries the lock (see FromContext), and is
// cancelled with cause ErrLost when the lock is lost. Do releases the lock when fn returns or panics, unless fn has
// released it or handed it over.
//
// Do returns the error of Acquire or of fn. If the lock was lost while fn ran, the error matches ErrLost, whatever fn
// returned. If the release fails, Do joins the error of the release, and the lease expires.
func (l *Locker) Do(ctx context.Context, key string, fn func(ctx context.Context) error, opts ...AcquireOption) error {
	return l.core().Do(ctx, key, fn, core.Acquiring(opts), nil)
}

// Singleton runs fn on one Locker of the cluster at a time, namely the Locker that holds the lock on key. The other
// Lockers wait in line. The next Locker runs its fn
//
//   - at once when the holder releases the lock;
//   - at most a TTL and a quarter of a poll after the holder has crashed, or one poll later if more than seven Lockers
//     in line have died with the holder. A poll is Config.Poll, or a sixth of the TTL if that sixth is shorter.
//
// The context of fn carries the lock (see FromContext), and ends with cause ErrLost when the lock is lost; fn should
// then return. Singleton waits for fn to return, so one call never runs fn twice at a time, and then lines up again.
// During an outage of the store Singleton waits.
//
// Singleton returns
//
//   - the error of fn, after releasing the lock, if the lock was still held when fn returned;
//   - the cause of ctx, when ctx ends before fn runs;
//   - ErrTimeout when MaxWait passes before fn runs;
//   - ErrClosed when the Locker is closed;
//   - ErrInvalid for a nil fn, a bad key or a bad option.
//
// If fn panics, the lock is released and the panic continues. The fns of two Lockers can overlap if the first fn
// ignores both its context and the fence.
func (l *Locker) Singleton(ctx context.Context, key string, fn func(ctx context.Context) error, opts ...AcquireOption) error {
	return l.core().Singleton(ctx, key, fn, core.Acquiring(opts))
}

// Resume takes a lock by its token, usually in another process, after the lock was parked or its holder has died. The
// lock gets a new fence and is renewed like any lock. A lock that is bound to a job needs ForJob with that job. A live
// holder is never pre-empted.
//
// Errors, after which the caller holds nothing:
//
//	ErrBusy             another attempt with this token holds the lock; the error says how much of its lease remains
//	ErrNotOwner         the key belongs to another owner, or the lock is bound to another job or to none,
//	                    or this owner has acquired the key again after the token was made
//	ErrAlreadyReleased  the lock was released; the error has the reason
//	ErrNotFound         the store does not remember the lock
//	ErrUnavailable      the store did not answer; if it did apply the call, the token can be resumed one TTL later
//	ErrInvalid, ErrClosed
func (l *Locker) Resume(ctx context.Context, token Token, opts ...ResumeOption) (*Lock, error) {
	locks, errs := l.core().Resume(ctx, []core.Token{core.Token(token)}, core.Resuming(opts))
	return (*Lock)(locks[0]), errs[0]
}

// Release releases the lock of token, whichever holder in the owner's chain has it. A live holder finds out at the next
// renewal of its lock. Status and later errors show the text of the option Reason.
//
// IfIdle frees the lock only while it has no live holder. Use IfIdle when a job will not run again, but an attempt may
// still be at work.
//
// Errors, after which nothing is released: ErrNotOwner; ErrAlreadyReleased; ErrNotFound when there is no such lock or
// its lease has ended; ErrBusy with IfIdle while a lease is alive; ErrInvalid; ErrClosed. After ErrUnavailable the
// outcome is unknown.
func (l *Locker) Release(ctx context.Context, token Token, opts ...ReleaseOption) error {
	return l.core().Release(ctx, []core.Token{core.Token(token)}, core.Releasing(opts))[0]
}

// ForceRelease frees key, regardless of its owner. Look at the Status first, and pass the fence that it shows to
// IfFence: otherwise a holder that has taken the lock since then loses it. IfIdle frees the key only while the lock has
// no live holder. Status and later errors show the text of Reason.
//
// The contexts of a live holder end with ErrLost at the holder's next renewal, or at once if the holder's Locker has
// Config.WatchForced. Until then two callers may hold the lock, with different fences.
//
// Errors, after which nothing is freed: ErrNotFound when the key is free; ErrNotOwner when the key's fence is not the
// one given to IfFence; ErrBusy with IfIdle while a lease is alive; ErrInvalid; ErrClosed. After ErrUnavailable the
// outcome is unknown.
func (l *Locker) ForceRelease(ctx context.Context, key string, opts ...ReleaseOption) error {
	return l.core().ForceRelease(ctx, key, core.Releasing(opts))
}

// Status reads the states of keys, and returns them in the order of keys. A key without an owner has StateFree, which
// is not an error. A value that is not a lock has StateForeign.
//
// Errors: ErrInvalid, ErrUnavailable, ErrClosed. On error Status returns no states at all: a key that could not be read
// would look free.
func (l *Locker) Status(ctx context.Context, keys ...string) ([]Status, error) {
	found, err := l.core().Status(ctx, keys...)
	if err != nil {
		return nil, err
	}
	out := make([]Status, len(found))
	for i, st := range found {
		out[i] = Status(st)
	}
	return out, nil
}

// List walks over the keys in the store, page by page, in no particular order. In a cluster List reads from several
// nodes at the same time. List is for people and tools, not for every request, because it walks over all keys of the
// store: see ListOptions.Share. The walk may miss a lock that changes meanwhile, or show it twice. The loop may end
// early: then List reads no more pages. An error ends the walk: ErrInvalid, ErrUnavailable or ErrClosed.
func (l *Locker) List(ctx context.Context, opts ListOptions) iter.Seq2[Status, error] {
	return func(yield func(Status, error) bool) {
		for st, err := range l.core().List(ctx, core.ListOptions(opts)) {
			if !yield(Status(st), err) {
				return
			}
		}
	}
}
