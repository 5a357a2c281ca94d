package joblock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
)

// takes are the calls that take the lock on a key.
var takes = map[string]func(ctx context.Context, locks *joblock.Locker, key string) error{
	"TryAcquire": func(ctx context.Context, locks *joblock.Locker, key string) error {
		lock, err := locks.TryAcquire(ctx, key)
		if err != nil {
			return err
		}
		return lock.Release(ctx)
	},
	"Acquire": func(ctx context.Context, locks *joblock.Locker, key string) error {
		lock, err := locks.Acquire(ctx, key)
		if err != nil {
			return err
		}
		return lock.Release(ctx)
	},
	"AcquireAll": func(ctx context.Context, locks *joblock.Locker, key string) error {
		all, err := locks.AcquireAll(ctx, []string{"a", key})
		return errors.Join(err, all.Release(ctx))
	},
	"Do": func(ctx context.Context, locks *joblock.Locker, key string) error {
		return locks.Do(ctx, key, func(context.Context) error { return nil })
	},
	"Singleton": func(ctx context.Context, locks *joblock.Locker, key string) error {
		return locks.Singleton(ctx, key, func(context.Context) error { return nil })
	},
}

// Work that takes its own lock a second time would wait for itself: it is refused at once.
func TestLockThatTheContextCarriesIsRefused(t *testing.T) {
	for name, take := range takes {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				k := newKit(t, nil)
				busy, err := k.locks.TryAcquire(t.Context(), "a") // AcquireAll must not wait for it first
				if err != nil {
					t.Fatal(err)
				}
				err = k.locks.Do(ctx, "key", func(ctx context.Context) error {
					inner, stop := context.WithCancel(ctx)
					defer stop()
					return k.locks.Do(inner, "other", func(ctx context.Context) error {
						err := take(ctx, k.locks, "key")
						if !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), "this context has the lock already") {
							t.Errorf("%v, want an ErrInvalid that says why", err)
						}
						return nil
					})
				})
				if err := errors.Join(err, busy.Release(t.Context())); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// The line of a sequence has slots. A job under a slot other than the first waits behind the line if it takes the key.
func TestSlotThatTheContextCarriesCountsAsTheKey(t *testing.T) {
	k := newKit(t, nil)
	slot, err := k.locks.TryAcquire(t.Context(), "key%+2", core.OwnKey)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := slot.Context(t.Context())
	defer stop()
	if err := takes["TryAcquire"](ctx, k.locks, "key"); !errors.Is(err, joblock.ErrInvalid) {
		t.Errorf("%v, want ErrInvalid", err)
	}
	if err := takes["TryAcquire"](ctx, k.locks, "key%2B2"); err != nil {
		t.Errorf("another key: %v", err)
	}
}

// A lock that the context carries no longer, or that is another Locker's, is nothing to wait for.
func TestLockThatHasEndedMayBeTakenAgain(t *testing.T) {
	for name, end := range map[string]func(k *kit, lock *joblock.Lock){
		"released": func(k *kit, lock *joblock.Lock) {
			if err := lock.Release(k.Context()); err != nil {
				k.Error(err)
			}
		},
		"forced": func(k *kit, lock *joblock.Lock) {
			if err := k.locks.ForceRelease(k.Context(), "key"); err != nil {
				k.Error(err)
			}
			synctest.Wait()
			_ = lock.Renew(k.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				lock, err := k.locks.TryAcquire(t.Context(), "key")
				if err != nil {
					t.Fatal(err)
				}
				ctx, stop := lock.Context(context.Background())
				defer stop()
				end(k, lock)
				if err := takes["TryAcquire"](context.WithoutCancel(ctx), k.locks, "key"); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
