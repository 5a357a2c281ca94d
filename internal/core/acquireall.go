package core

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Locks is joblock.Locks.
type Locks []*Lock

// AcquireAll is joblock.Locker.AcquireAll, but takes each lock with acquire; nil means l.Acquire.
func (l *Locker) AcquireAll(ctx context.Context, keys []string, o Options, acquire Acquirer) (Locks, error) {
	if acquire == nil {
		acquire = l.Acquire
	}
	const op = "acquire all"
	if err := l.Check(op, keys...); err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, Invalid(op, "", "no keys")
	}
	checked := o
	if err := checked.complete(&l.cfg, op, "", l.cfg.TTL); err != nil {
		return nil, err
	}
	for _, key := range keys {
		if err := CheckTaken(op, key, o.OwnKey); err != nil {
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
		one := o
		if o.Bounded {
			// Not 0, even if no time is left: MaxWait(0) fails with ErrHeld instead of ErrTimeout.
			one.MaxWait = max(min(o.MaxWait, time.Nanosecond), o.MaxWait-l.now().Sub(start))
		}
		lock, err := acquire(ctx, key, one)
		if err != nil {
			if rerr := errors.Join(taken.Release(ctx, Release{})...); rerr != nil {
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

// Release releases the locks, in one batch for each Locker. The errors are in the order of the locks, and have the sentinels
// of joblock.Lock.Release.
func (ls Locks) Release(ctx context.Context, r Release) []error {
	const op = "release"
	errs := make([]error, len(ls))
	err := r.check(op, "")
	if l := ls.locker(); l != nil && err == nil && l.open(op, "") == nil {
		l.endLocks(ctx, op, r, ls, errs)
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
		l.endLocks(ctx, op, r, locks, failed)
		for n, err := range failed {
			errs[items[n]] = err
		}
	}
	return errs
}

// locker returns the Locker that made all of the locks, or nil if there is no such Locker.
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

// Err returns the first error that Lock.Err returns for any of the locks, or nil while all are held.
func (ls Locks) Err() error {
	for _, lock := range ls {
		if err := lock.Err(); err != nil {
			return err
		}
	}
	return nil
}

// ByKey returns the lock on key. ok is false if ls has no lock on key.
func (ls Locks) ByKey(key string) (lock *Lock, ok bool) {
	for _, lock := range ls {
		if lock.Key() == key {
			return lock, true
		}
	}
	return nil, false
}
