package joblock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/ministore"
	"github.com/joblock/toolkit/joblock"
)

// A store may count its fences 1, 2, 3. No fence is taken for a time.
func TestAPlainSequenceOfFencesWillDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		locks := k.open(&ministore.Store{}, nil)
		ctx := t.Context()
		acquire := func() *joblock.Lock {
			t.Helper()
			lock, err := locks.TryAcquire(ctx, "key", joblock.Owner("me"))
			wantNil(t, "TryAcquire", err)
			return lock
		}
		park := func(lock *joblock.Lock, opts ...joblock.ParkOption) joblock.Token {
			t.Helper()
			token, err := lock.Park(ctx, append(opts, joblock.Reserve(time.Minute))...)
			wantNil(t, "Park", err)
			return token
		}

		first := acquire()
		if f := first.Fence(); f != 1 {
			t.Fatalf("the first fence is %d, so this is no plain sequence", f)
		}
		atOne := first.Token()
		earlier := park(first)
		time.Sleep(2 * time.Minute)

		later := park(acquire())
		for _, token := range []joblock.Token{atOne, earlier} {
			_, err := locks.Resume(ctx, token)
			wantErr(t, err, joblock.ErrNotOwner)
		}
		st, err := locks.Status(ctx, "key")
		wantNil(t, "Status", err)
		if !st[0].Changed.Equal(time.Now()) || st[0].First <= earlier.Fence() {
			t.Errorf("changed at %s, first %d; want now, and above %d", st[0].Changed, st[0].First, earlier.Fence())
		}
		lock, err := locks.Resume(ctx, later)
		wantNil(t, "Resume of the later one", err)
		wantNil(t, "Release", lock.Release(ctx))

		// The job that the lock is bound to may come with any token of its owner.
		park(acquire(), joblock.ForJob("q/1"))
		lock, err = locks.Resume(ctx, earlier, joblock.ForJob("q/1"))
		wantNil(t, "Resume for the job", err)
		wantNil(t, "Release", lock.Release(ctx))

		// A token that was made before anybody had the lock is of any ownership.
		token, err := joblock.NewToken("key", "me", time.Minute)
		wantNil(t, "NewToken", err)
		park(acquire())
		lock, err = locks.Resume(ctx, token)
		wantNil(t, "Resume of a token that is older than the lock", err)
		wantNil(t, "Release", lock.Release(ctx))
	})
}
