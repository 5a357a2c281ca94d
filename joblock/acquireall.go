package joblock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Locks is several locks held together.
type Locks []*Lock

// AcquireAll takes the locks on all keys, or none, and returns them in the order of
// keys. A key named twice is taken once, and its lock returned once. They are taken in
// one order everywhere, so that two calls with overlapping keys cannot wait for each
// other for ever.
//
// It waits as Acquire does; MaxWait bounds the whole. Owner gives all locks the same
// owner. Errors are those of Acquire, for the first key that failed; the locks taken
// before are released. No keys are ErrInvalid.
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
	sorted := slices.Compact(slices.Sorted(slices.Values(keys)))
	start := l.now()
	byKey := make(map[string]*Lock, len(sorted))
	taken := make(Locks, 0, len(sorted))
	for _, key := range sorted {
		opts := opts
		if o.hasWait {
			// A wait that is over has a nanosecond left: none would mean "do not wait", whose error is ErrHeld.
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

// Release releases all locks at the same time and joins the errors.
func (ls Locks) Release(ctx context.Context) error {
	errs := make([]error, len(ls))
	var all sync.WaitGroup
	for i, lock := range ls {
		all.Go(func() { errs[i] = lock.Release(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Err returns the first error among the locks' Err, nil while all are held.
func (ls Locks) Err() error {
	for _, lock := range ls {
		if err := lock.Err(); err != nil {
			return err
		}
	}
	return nil
}

// LogValue keeps slog from marshalling the tokens.
func (ls Locks) LogValue() slog.Value { return slog.StringValue(fmt.Sprint([]*Lock(ls))) }

// ByKey returns the lock on key; ok is false if there is none.
func (ls Locks) ByKey(key string) (lock *Lock, ok bool) {
	for _, lock := range ls {
		if lock.Key() == key {
			return lock, true
		}
	}
	return nil, false
}
