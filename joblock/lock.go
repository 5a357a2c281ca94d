package joblock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock/driver"
)

// Lock is a lock on one key, taken by a Locker. A Lock ends when it is released, handed over by Park, or lost. A Lock
// is safe for concurrent use. On a nil *Lock every method is safe, and every method that returns an error returns
// ErrInvalid.
//
// A Lock marshals (text, binary, JSON, msgpack) to its Token, which is a secret. The token of a lock that is still held
// can release it. To resume the token, Park the lock first.
type Lock core.Lock

func (k *Lock) core() *core.Lock { return (*core.Lock)(k) }

// Key returns the key.
func (k *Lock) Key() string { return k.core().Key() }

// Fence returns the lock's fencing number, which is larger than those of all earlier locks on the key. Send it to the
// resource that the lock protects.
func (k *Lock) Fence() int64 { return k.core().Fence() }

// ExpiresAt returns the lock's trust deadline by the local clock, which is a little before the lease ends. The lock
// counts as lost at that time, or a little earlier. Every renewal moves the trust deadline.
func (k *Lock) ExpiresAt() time.Time { return k.core().ExpiresAt() }

// Prior returns how the previous ownership of the key ended: driver.EndedLapsed if the holder died or was cut off, or
// driver.EndedNone if the store remembers no previous ownership.
func (k *Lock) Prior() driver.Ended { return k.core().Prior() }

// Done returns a channel that is closed when the lock is lost, at the latest at the lock's trust deadline. If the lock
// is released or handed over, the channel stays open, because the lock is not lost.
func (k *Lock) Done() <-chan struct{} { return k.core().Done() }

// Err returns nil while the lock is held and trusted, and otherwise the reason: ErrLost, ErrAlreadyReleased, or
// ErrNotOwner after Park. Err reads the clocks itself, so the answer is right even if the process was suspended until
// just now.
func (k *Lock) Err() error { return k.core().Err() }

// Context returns a child of parent that carries the lock (see FromContext). The child is cancelled with cause ErrLost
// when the lock is lost, but not when the lock is released or handed over. If the lock has already ended, the child is
// cancelled at once, with the reason as its cause. Call stop when the work is done.
func (k *Lock) Context(parent context.Context) (ctx context.Context, stop context.CancelFunc) {
	return k.core().Context(parent)
}

// Renew extends the lease now, by a full TTL. Errors: ErrLost when the store refuses, which ends the handle;
// ErrUnavailable, after which the handle is as before; ErrAlreadyReleased; ErrNotOwner after Park; ErrInvalid for a nil
// lock; ErrClosed.
func (k *Lock) Renew(ctx context.Context) error { return k.core().Renew(ctx) }

// Park hands the lock over to its token in one atomic step. From then on this handle can neither renew nor release. The
// key is reserved, under a new fence, for the holder that resumes the token, and with ForJob for that job only. The
// reservation lasts for Config.Reserve, or as long as the option Reserve says. Contexts of the lock are not cancelled.
//
// Errors, after which nothing was parked: ErrLost when the lock was lost before; ErrAlreadyReleased; ErrNotOwner for a
// second Park; ErrInvalid; ErrClosed. After ErrUnavailable the handle still holds the lock, and the caller can call
// Park again. If the store did apply the first Park, the next renewal undoes that Park.
func (k *Lock) Park(ctx context.Context, opts ...ParkOption) (Token, error) {
	token, err := k.core().Park(ctx, core.Parking(opts))
	return Token(token), err
}

// Reclaim undoes Park. Call Reclaim when the enqueue of the job has certainly failed. The handle then holds the lock
// again, under a new fence, with the job and the reservation that it had before the Park: none if the lock was
// acquired, those of its Resume if it was resumed.
//
// Errors, after which the handle is still parked:
//
//	ErrBusy             a job has resumed the token since the Park
//	ErrAlreadyReleased  the lock was released
//	ErrNotOwner         another owner has the key
//	ErrNotFound         the store does not remember the lock
//	ErrUnavailable      the caller can call Reclaim again
//	ErrInvalid          the handle was not parked
//	ErrClosed
func (k *Lock) Reclaim(ctx context.Context) error { return k.core().Reclaim(ctx) }

// Release gives the lock back and ends the handle. Cancelling ctx does not stop Release, so it can be deferred.
// Config.CallTimeout bounds the call. Reason is the only option.
//
//	ErrAlreadyReleased  a second call, or another caller has released the lock or forced its release
//	ErrNotOwner         after Park; nothing is freed, so a deferred Release is harmless
//	ErrLost             the lock was lost before; what the store still has of the lock is released
//	ErrUnavailable      the store did not answer; the handle has ended, and the release is repeated in the background
//	ErrInvalid, ErrClosed
func (k *Lock) Release(ctx context.Context, opts ...LockReleaseOption) error {
	return k.core().Release(ctx, core.Releasing(opts))
}

// Token returns the lock's token, with which Locker.Release can release the lock. Resume returns ErrBusy while the lock
// is held. To hand the lock over, use Park.
func (k *Lock) Token() Token { return Token(k.core().Token()) }

// String describes the lock without its owner.
func (k *Lock) String() string { return k.core().String() }

// Format writes what String returns, for every verb, %#v and %d included.
func (k *Lock) Format(f fmt.State, verb rune) { k.core().Format(f, verb) }

// LogValue returns what String returns, so that slog does not marshal the token.
func (k *Lock) LogValue() slog.Value { return k.core().LogValue() }

// MarshalText returns the text form of the token, which encoding/json uses too.
func (k *Lock) MarshalText() ([]byte, error) { return k.Token().MarshalText() }

// MarshalBinary returns the binary form of the token, which msgpack uses too.
func (k *Lock) MarshalBinary() ([]byte, error) { return k.Token().MarshalBinary() }

// Locks is several locks held together.
type Locks []*Lock

func (ls Locks) core() core.Locks {
	locks := make(core.Locks, len(ls))
	for i, k := range ls {
		locks[i] = k.core()
	}
	return locks
}

func locksOf(locks core.Locks) Locks {
	if locks == nil {
		return nil
	}
	ls := make(Locks, len(locks))
	for i, k := range locks {
		ls[i] = (*Lock)(k)
	}
	return ls
}

// Release releases all locks in one batch, and joins the errors of Lock.Release.
func (ls Locks) Release(ctx context.Context, opts ...LockReleaseOption) error {
	return errors.Join(ls.core().Release(ctx, core.Releasing(opts))...)
}

// Err returns the first error that Lock.Err returns for any of the locks, or nil while all are held.
func (ls Locks) Err() error { return ls.core().Err() }

// LogValue returns what String returns for each lock, so that slog does not marshal the tokens.
func (ls Locks) LogValue() slog.Value { return slog.StringValue(fmt.Sprint([]*Lock(ls))) }

// ByKey returns the lock on key. ok is false if ls has no lock on key.
func (ls Locks) ByKey(key string) (lock *Lock, ok bool) {
	for _, lock := range ls {
		if lock.Key() == key {
			return lock, true
		}
	}
	return nil, false
}

// Context returns a child of parent that carries the locks (see FromContext). The child is cancelled, as that of
// Lock.Context is, when any of the locks is lost. If ls is empty, only parent and stop cancel the child.
func (ls Locks) Context(parent context.Context) (ctx context.Context, stop context.CancelFunc) {
	return ls.core().Context(parent)
}

// FromContext returns the lock under which the work with ctx runs. ok is false if there is none. The lock may have
// ended since: see Lock.Err. Contexts that carry locks come from Do, Singleton, package singleflight, Lock.Context,
// Locks.Context, the middlewares of packages handoff and worker, and the scheduler.
//
// A call that takes a lock, such as Acquire or Do, returns ErrInvalid if its context already carries that lock, because
// the call would wait for itself. Use the lock that FromContext returns. If the call is for work that outlives the
// present work, pass a context that does not carry the lock.
//
// If ctx carries several locks, FromContext returns the innermost one. Of locks that were taken together, it returns
// the first in the order of the call. Other code may add a lock on another key, so code that sends a fence to a
// resource should ask for the key that protects the resource:
//
//	lock, ok := joblock.LocksFromContext(ctx).ByKey(key)
func FromContext(ctx context.Context) (lock *Lock, ok bool) {
	k, ok := core.FromContext(ctx)
	return (*Lock)(k), ok
}

// LocksFromContext returns all locks under which the work with ctx runs, the outermost first, or nil. Locks that were
// taken together are in the order of the call.
func LocksFromContext(ctx context.Context) Locks { return locksOf(core.LocksFromContext(ctx)) }
