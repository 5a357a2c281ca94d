package joblock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// Locks is several locks held together.
type Locks []*Lock

// AcquireAll takes the locks on all keys, or none, and returns the locks in the order of keys. A key that is named
// twice is taken once, and its lock is returned once. Every call takes its keys in sorted order, so calls with
// overlapping keys cannot deadlock.
//
// AcquireAll waits as Acquire does. MaxWait bounds the wait for all keys together. Owner gives all locks the same
// owner. An error is that of Acquire for the first key that failed; then the locks that were already taken are
// released. A call without keys is ErrInvalid.
func (l *Locker) AcquireAll(ctx context.Context, keys []string, opts ...AcquireOption) (Locks, error) {
	return l.acquireAll(ctx, keys, opts, l.Acquire)
}

func (l *Locker) acquireAll(ctx context.Context, keys []string, opts []AcquireOption, acquire acquirer) (Locks, error) {
	const op = "acquire all"
	if err := l.check(op, keys...); err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, invalid(op, "", "no keys")
	}
	var o options
	if err := leaseOptions(&l.cfg, &o, op, "", l.cfg.TTL, opts); err != nil {
		return nil, err
	}
	for _, key := range keys {
		if err := checkTaken(op, key, o.door.OwnKey); err != nil {
			return nil, err
		}
	}
	if err := l.checkCarried(ctx, op, keys...); err != nil { // before the call waits for another key
		return nil, err
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(keys)))
	start := l.now()
	byKey := make(map[string]*Lock, len(sorted))
	taken := make(Locks, 0, len(sorted))
	for _, key := range sorted {
		opts := opts
		if o.hasWait {
			// Not 0, even if the wait is over: MaxWait(0) fails with ErrHeld instead of ErrTimeout.
			left := max(min(o.maxWait, time.Nanosecond), o.maxWait-l.now().Sub(start))
			opts = append(slices.Clip(opts), MaxWait(left))
		}
		lock, err := acquire(ctx, key, opts...)
		if err != nil {
			if rerr := taken.Release(ctx); rerr != nil {
				err = errors.Join(err, rerr)
			}
			return nil, err
		}
		taken = append(taken, lock)
		byKey[key] = lock
	}
	out := make(Locks, 0, len(taken))
	for _, key := range keys {
		if lock, ok := byKey[key]; ok {
			out = append(out, lock)
			delete(byKey, key)
		}
	}
	return out, nil
}

// Release releases all locks in one batch, and joins the errors of Lock.Release.
func (ls Locks) Release(ctx context.Context, opts ...LockReleaseOption) error {
	return errors.Join(ls.end(ctx, opts...)...)
}

// The method end is Release. The errors are in the order of the locks.
func (ls Locks) end(ctx context.Context, opts ...LockReleaseOption) []error {
	const op = "release"
	errs := make([]error, len(ls))
	o, err := optionsOf(op, "", opts)
	if l := ls.locker(); l != nil && err == nil && l.open(op, "") == nil {
		l.endLocks(ctx, op, o.why, ls, errs)
		return errs
	}
	batches := make(map[*Locker][]int)
	for i, k := range ls {
		if errs[i] = err; err == nil {
			errs[i] = k.open(op)
		}
		if errs[i] == nil {
			batches[k.l] = append(batches[k.l], i)
		}
	}
	for l, items := range batches {
		locks := make(Locks, len(items))
		for n, i := range items {
			locks[n] = ls[i]
		}
		failed := make([]error, len(locks))
		l.endLocks(ctx, op, o.why, locks, failed)
		for n, err := range failed {
			errs[items[n]] = err
		}
	}
	return errs
}

// The method locker returns the Locker that has made all of the locks, nil if there is no such Locker.
func (ls Locks) locker() *Locker {
	var l *Locker
	for _, k := range ls {
		if k.none() || l != nil && k.l != l {
			return nil
		}
		l = k.l
	}
	return l
}

// Err returns the first error that Lock.Err returns for any of the locks, nil while all are held.
func (ls Locks) Err() error {
	for _, lock := range ls {
		if err := lock.Err(); err != nil {
			return err
		}
	}
	return nil
}

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
