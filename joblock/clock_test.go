package joblock_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/joblock"
)

// The monotonic clock can stand still while a machine is suspended; the wall
// clock tells.
func TestWallClockAheadLosesTheLock(t *testing.T) {
	clock := newSteppable()
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		clock.enter()
		locks := joblock.NewWithClock(k.store, &joblock.Config{Logger: discard}, clock.now)
		defer locks.Close(context.Background())
		a, err := locks.TryAcquire(t.Context(), "a")
		wantNil(t, "TryAcquire", err)
		b, err := locks.TryAcquire(t.Context(), "b", joblock.TTL(time.Hour))
		wantNil(t, "TryAcquire", err)
		done := a.Done()
		ctx, stop := a.Context(t.Context())
		defer stop()

		clock.step.Store(int64(-time.Hour))
		time.Sleep(10 * time.Second)
		wantNil(t, "Err after the clock was set back", a.Err())

		clock.step.Store(int64(40 * time.Second))
		wantErr(t, ctx.Err(), context.Canceled) // without any timer having had its turn
		wantErr(t, context.Cause(ctx), joblock.ErrLost)
		wantErr(t, a.Err(), joblock.ErrLost)
		if text := a.Err().Error(); !strings.Contains(text, "this machine was suspended, or its clock was set") || strings.Contains(text, "was paused") {
			t.Errorf("%s: the process was not paused", text)
		}
		<-done
		wantNil(t, "Err of a longer lease", b.Err())
	})
}

func TestEngineNoticesAWallClockAhead(t *testing.T) {
	clock := newSteppable()
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		clock.enter()
		locks := joblock.NewWithClock(k.store, &joblock.Config{Logger: discard}, clock.now)
		defer locks.Close(context.Background())
		// In the queue the long lease comes first: it has its renewal due.
		long, err := locks.TryAcquire(t.Context(), "long", joblock.TTL(90*time.Second))
		wantNil(t, "TryAcquire", err)
		short, err := locks.TryAcquire(t.Context(), "short", joblock.TTL(40*time.Second), joblock.NoRenew())
		wantNil(t, "TryAcquire", err)
		time.Sleep(2 * time.Second)
		start := time.Now()
		clock.step.Store(int64(45 * time.Second))
		<-short.Done()
		if d := time.Since(start); d > time.Second {
			t.Errorf("noticed after %s", d)
		}
		wantNil(t, "Err of the longer lease", long.Err())
	})
}
