package joblock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// A Releaser that fails leaves the lock as it was: held, renewed, and to be released later by the same call. No
// goroutine repeats the release meanwhile.
func TestReleaserThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key", joblock.TTL(10*time.Second))
		end := func(release core.Releaser) error {
			return (*core.Lock)(lock).Release(context.Background(), core.Release{Reason: "why", Releaser: release})
		}
		var sent []driver.ReleaseRequest
		fails := errors.New("not yet")
		for range 2 {
			err := end(func(_ context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
				sent = append(sent, reqs...)
				if !errors.Is(lock.Err(), joblock.ErrAlreadyReleased) {
					t.Errorf("during the call the lock is %v, want ErrAlreadyReleased", lock.Err())
				}
				return make([]driver.Reply, 1), fails
			})
			if err != fails || lock.Err() != nil {
				t.Fatalf("the release returns %v, and the lock is %v; want the error of the Releaser, and a lock that is held", err, lock.Err())
			}
			time.Sleep(time.Minute)
			k.wantState("key", joblock.StateHeld)
			if err := lock.Err(); err != nil {
				t.Fatalf("a minute later the lock is %v, want it renewed", err)
			}
		}
		if len(sent) != 2 || sent[0] != sent[1] {
			t.Errorf("sent were %+v, want the same release twice", sent)
		}
		if err := end(nil); err != nil {
			t.Errorf("the release returns %v", err)
		}
		k.wantState("key", joblock.StateFree)
		if err := end(nil); !errors.Is(err, joblock.ErrAlreadyReleased) {
			t.Errorf("a second release returns %v, want ErrAlreadyReleased", err)
		}
	})
}

// A lock that was lost before stays lost, and one whose Locker is closed is lost.
func TestReleaserThatFailsForALostLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key", joblock.TTL(10*time.Second))
		lock.StopRenewing()
		time.Sleep(time.Minute)
		fails := errors.New("not yet")
		end := func(lock *joblock.Lock, release core.Releaser) error {
			return (*core.Lock)(lock).Release(context.Background(), core.Release{Reason: "why", Releaser: release})
		}
		if err := end(lock, func(context.Context, []driver.ReleaseRequest) ([]driver.Reply, error) {
			return nil, fails
		}); err != fails {
			t.Errorf("the release returns %v, want the error of the Releaser", err)
		}
		wantErr(t, lock.Err(), joblock.ErrLost)

		other := k.peer()
		held, err := other.TryAcquire(context.Background(), "other")
		if err != nil {
			t.Fatal(err)
		}
		if err := end(held, func(context.Context, []driver.ReleaseRequest) ([]driver.Reply, error) {
			return nil, errors.Join(fails, other.Close(context.Background()))
		}); !errors.Is(err, fails) {
			t.Errorf("the release returns %v, want the error of the Releaser", err)
		}
		wantErr(t, held.Err(), joblock.ErrLost)
	})
}
