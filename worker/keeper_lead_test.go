package worker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// leader returns which of the Workers leads, -1 for none.
func leader(t testing.TB, ws []*worker.Worker) int {
	t.Helper()
	found := -1
	for i, w := range ws {
		if w.KeeperStats().Leading {
			if found >= 0 {
				t.Errorf("keepers %d and %d lead at once", found, i)
			}
			found = i
		}
	}
	return found
}

// Of several keepers one works. When it is killed, which is to stop in the middle of
// whatever it does, another one takes over within one TTL, and at once when it is
// stopped; nothing is freed that should not be.
func TestKeepersTakeTurns(t *testing.T) {
	for _, end := range []string{"stopped", "killed", "closed"} {
		t.Run(end, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var ws []*worker.Worker
				var stops []func()
				var faults []*faultstore.Store
				for range 3 {
					f := faultstore.New(r.faults)
					w, stop := r.keep(r.newLockerOn(f), worker.Config{})
					ws, stops, faults = append(ws, w), append(stops, stop), append(faults, f)
				}
				for i := range 20 {
					r.enqueue(fmt.Sprint("alive-", i), 0, asynq.ProcessIn(10*time.Hour))
				}
				time.Sleep(2 * time.Minute)
				old := leader(t, ws)
				if old < 0 {
					t.Fatal("nobody leads")
				}
				start := time.Now()
				bound := time.Duration(0)
				switch end {
				case "stopped":
					stops[old]()
				case "killed":
					faults[old].Set(faultstore.Fault{Mode: faultstore.Hang}, everyCall...)
					bound = ttl
				case "closed":
					if err := ws[old].Close(context.Background()); err != nil {
						t.Fatal(err)
					}
				}
				for next := old; next == old || next < 0; next = leader(t, ws) {
					if took := time.Since(start); took > bound+time.Second {
						t.Fatalf("nobody has taken over after %s", took)
					}
					time.Sleep(10 * time.Millisecond)
				}
				if err := r.inspector.DeleteTask(queue, "alive-0"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(every + time.Second)
				r.wantFreed("key-alive-0", absent)
				time.Sleep(3 * reserve)
				for i := 1; i < 20; i++ {
					r.wantState(fmt.Sprint("key-alive-", i), joblock.StateParked, fmt.Sprint("alive-", i))
				}
				faults[old].Clear()
			})
		})
	}
}

// A keeper that loses its lock while it asks about tasks does not act on the answers:
// another one is at work by then.
func TestKeeperThatLostItsLockWritesNothing(t *testing.T) {
	virtual(t, func(r *rig) {
		f := faultstore.New(r.faults)
		w, stop := r.keep(r.newLockerOn(f), worker.Config{})
		r.enqueue("a", 0, asynq.ProcessIn(10*time.Hour))
		time.Sleep(2*time.Minute + 100*time.Millisecond) // between two questions for what is due
		if err := r.inspector.DeleteTask(queue, "a"); err != nil {
			t.Fatal(err)
		}
		// The answer to its next read takes longer than the lock lasts.
		f.Set(faultstore.Fault{Mode: faultstore.Slow, Delay: 2 * ttl}, faultstore.Inspect)
		f.Set(faultstore.Fault{Mode: faultstore.Hang}, faultstore.Renew)
		r.until("the keeper lost its lock", func() bool { return !w.KeeperStats().Leading })
		time.Sleep(3 * ttl)
		r.wantState("key-a", joblock.StateParked, "a")
		stop()
	})
}

// Run ends promptly, whatever it waits for.
func TestRunEndsWithItsContext(t *testing.T) {
	for _, doing := range []string{"leading", "standing by", "asking asynq", "reading", "in an outage"} {
		t.Run(doing, func(t *testing.T) {
			virtual(t, func(r *rig) {
				r.enqueue("a", 0, asynq.ProcessIn(10*time.Hour))
				f := faultstore.New(r.faults)
				switch doing {
				case "standing by":
					r.keep(r.newLocker(), worker.Config{})
					time.Sleep(time.Second)
				case "asking asynq":
					r.hang()
				case "reading":
					f.Set(faultstore.Fault{Mode: faultstore.Hang}, faultstore.Inspect)
				case "in an outage":
					f.Set(faultstore.Fault{Mode: faultstore.Refuse}, everyCall...)
				}
				w := r.newWorker(r.newLockerOn(f), worker.Config{})
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error)
				go func() { done <- w.Run(ctx) }()
				time.Sleep(50 * time.Second)
				start := time.Now()
				cancel()
				if err := <-done; err != nil {
					t.Errorf("Run = %v, want nil", err)
				}
				if took := time.Since(start); took > 4*time.Second {
					t.Errorf("Run took %s to end", took)
				}
				f.Clear()
				time.Sleep(time.Minute) // a call that nobody waits for any more ends by itself
			})
		})
	}
}

func TestRunIsRefused(t *testing.T) {
	virtual(t, func(r *rig) {
		want := func(what string, got, want error) {
			t.Helper()
			if !errors.Is(got, want) {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		ctx := context.Background()
		var none *worker.Worker
		want("a nil Worker", none.Run(ctx), joblock.ErrInvalid)

		w, stop := r.keep(r.locks, worker.Config{})
		time.Sleep(time.Second)
		want("a second Run", w.Run(ctx), joblock.ErrInvalid)
		stop()
		done, cancel := context.WithCancel(ctx)
		cancel()
		want("a Run after the first", w.Run(done), nil)
		if err := w.Close(ctx); err != nil {
			t.Fatal(err)
		}
		want("a closed Worker", w.Run(ctx), joblock.ErrClosed)

		locks := r.newLocker()
		w = r.newWorker(locks, worker.Config{})
		if err := locks.Close(ctx); err != nil {
			t.Fatal(err)
		}
		want("a closed Locker", w.Run(ctx), joblock.ErrClosed)
	})
}

// A Locker that is closed under a working keeper ends it.
func TestLockerClosedUnderTheKeeper(t *testing.T) {
	virtual(t, func(r *rig) {
		locks := r.newLocker()
		w := r.newWorker(locks, worker.Config{})
		done := make(chan error, 1)
		go func() { done <- w.Run(context.Background()) }()
		time.Sleep(time.Minute)
		if err := locks.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, joblock.ErrClosed) {
			t.Errorf("Run = %v, want ErrClosed", err)
		}
	})
}
