package joblock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

func TestDoReleasesWhateverTheFunctionDoes(t *testing.T) {
	mine := errors.New("mine")
	for _, c := range []struct {
		name  string
		fn    func(k *kit, lock *joblock.Lock) error
		want  error
		state joblock.State
	}{
		{"returns", func(*kit, *joblock.Lock) error { return nil }, nil, joblock.StateFree},
		{"fails", func(*kit, *joblock.Lock) error { return mine }, mine, joblock.StateFree},
		{"releases", func(k *kit, l *joblock.Lock) error { return l.Release(k.Context()) }, nil, joblock.StateFree},
		{"parks", func(k *kit, l *joblock.Lock) error { k.park(l); return nil }, nil, joblock.StateParked},
		{"parks and fails", func(k *kit, l *joblock.Lock) error { k.park(l); return mine }, mine, joblock.StateParked},
		{"parks and reclaims", func(k *kit, l *joblock.Lock) error {
			k.park(l)
			return l.Reclaim(k.Context())
		}, nil, joblock.StateFree},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				err := k.locks.Do(t.Context(), "key", func(ctx context.Context) error {
					lock, ok := joblock.FromContext(ctx)
					if !ok {
						t.Fatal("the context does not carry the lock")
					}
					k.wantState("key", joblock.StateHeld)
					return c.fn(k, lock)
				})
				if !errors.Is(err, c.want) || (c.want == nil && err != nil) {
					t.Errorf("Do returned %v, want %v", err, c.want)
				}
				k.wantState("key", c.state)
			})
		})
	}
}

func TestDoReleasesOnPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		var kept context.Context
		func() {
			defer func() {
				if p := recover(); p != "boom" {
					t.Errorf("recovered %v, want the panic to go on", p)
				}
			}()
			_ = k.locks.Do(t.Context(), "key", func(ctx context.Context) error {
				kept = ctx
				panic("boom")
			})
		}()
		k.wantState("key", joblock.StateFree)
		if kept.Err() == nil {
			t.Error("the function's context lives on")
		}
	})
}

func TestDoReportsALoss(t *testing.T) {
	mine := errors.New("mine")
	for name, ret := range map[string]error{"returns nil": nil, "returns its own error": mine} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				err := k.locks.Do(t.Context(), "key", func(ctx context.Context) error {
					wantNil(t, "ForceRelease", k.locks.ForceRelease(t.Context(), "key"))
					<-ctx.Done()
					return ret
				})
				wantErr(t, err, joblock.ErrLost)
				if ret != nil {
					wantErr(t, err, ret)
				}
			})
		})
	}
}

// fn has returned before any renewal could tell that the lock was taken away.
func TestDoReportsALossThatOnlyTheReleaseFinds(t *testing.T) {
	for name, away := range map[string]func(k *kit) error{
		"forced":   func(k *kit) error { return k.peer().ForceRelease(k.Context(), "key", joblock.Reason("stuck")) },
		"released": func(k *kit) error { return releaseOf(k.Context(), k.peer(), "key", "me") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				err := k.locks.Do(t.Context(), "key", func(context.Context) error {
					wantNil(t, "taking it away", away(k))
					return nil
				}, joblock.Owner("me"))
				wantErr(t, err, joblock.ErrLost)
				if errors.Is(err, joblock.ErrAlreadyReleased) {
					t.Errorf("%v could be taken for a second release", err)
				}
			})
		})
	}
}

// Close in the middle: the lock is lost, whatever the failing Release says.
func TestDoReportsALossByClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		err := k.locks.Do(t.Context(), "key", func(ctx context.Context) error {
			wantNil(t, "Close", k.locks.Close(t.Context()))
			<-ctx.Done()
			return nil
		})
		wantErr(t, err, joblock.ErrLost, joblock.ErrClosed)
	})
}

func TestDoReportsAFailedRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		mine := errors.New("mine")
		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse, Times: 1}, faultstore.Release)
		err := k.locks.Do(t.Context(), "key", func(context.Context) error { return mine })
		wantErr(t, err, mine, joblock.ErrUnavailable)
		k.wantFreeWithin("key", time.Second)
	})
}

func TestDoReleasesWhenItsContextHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		err := k.locks.Do(ctx, "key", func(ctx context.Context) error {
			cancel()
			return ctx.Err()
		})
		wantErr(t, err, context.Canceled)
		k.wantState("key", joblock.StateFree)
	})
}

func TestDoDoesNotRunWithoutTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.acquire("key")
		err := k.locks.Do(t.Context(), "key", func(context.Context) error {
			t.Error("ran")
			return nil
		}, joblock.MaxWait(time.Second))
		wantErr(t, err, joblock.ErrTimeout)
	})
}

// wrapping is a Store that wraps errors which it classifies itself.
type wrapping struct{ driver.Store }

func (s wrapping) Release(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
	return nil, fmt.Errorf("their store: %w", joblock.ErrAlreadyReleased)
}

func TestDoWithAStoreThatWrapsItsErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		locks := k.open(wrapping{k.mem}, nil)
		err := locks.Do(t.Context(), "key", func(context.Context) error { return nil })
		wantErr(t, err, joblock.ErrLost)
	})
}
