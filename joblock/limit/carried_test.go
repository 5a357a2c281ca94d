package limit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
)

// Work that waits for a second permit of a key would wait for itself with one permit, and with more for others that do the
// same: it is refused at once. So is work that has all permits and tries to take another.
func TestPermitThatTheContextCarriesIsRefused(t *testing.T) {
	type take = func(ctx context.Context, l *limit.Limit) error
	for name, take := range map[string]take{
		"TryAcquire": func(ctx context.Context, l *limit.Limit) error { _, err := l.TryAcquire(ctx, "key"); return err },
		"Acquire":    func(ctx context.Context, l *limit.Limit) error { _, err := l.Acquire(ctx, "key"); return err },
		"Do": func(ctx context.Context, l *limit.Limit) error {
			return l.Do(ctx, "key", func(context.Context) error { return nil })
		},
		"AcquireAll": func(ctx context.Context, l *limit.Limit) error {
			_, err := l.AcquireAll(ctx, []string{"a", "key"})
			return err
		},
	} {
		for _, n := range []int{1, 3} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					k := newKit(t, nil)
					l := limit.New(k.Locks, n)
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					err := l.Do(ctx, "key", func(ctx context.Context) error {
						for range n { // AcquireAll must not wait for "a" first
							k.take(n, "a")
						}
						if name == "TryAcquire" {
							for range n - 1 {
								another, err := l.TryAcquire(ctx, "key")
								if err != nil {
									t.Fatalf("of %d: %v, want a permit", n, err)
								}
								var stop context.CancelFunc
								ctx, stop = another.Context(ctx)
								defer stop()
							}
						}
						if err := take(ctx, l); !errors.Is(err, joblock.ErrInvalid) {
							t.Errorf("of %d: %v, want ErrInvalid", n, err)
						}
						if err := l.Do(ctx, "other", func(context.Context) error { return nil }); err != nil {
							t.Errorf("of another key: %v", err)
						}
						return k.Locks.Do(ctx, "key", func(context.Context) error { return nil }) // a lock, and no permit
					})
					if err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}
