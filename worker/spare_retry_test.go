package worker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
)

// A task with a lock runs as often as it does with asynq alone, whatever its attempts
// end by and whether or not that counts.
func TestRunsAreThoseOfAsynqAlone(t *testing.T) {
	ends := map[string]func(context.Context, int) error{"error": fail, "timeout": obey, "panic": blow, "crash": fail}
	counts := map[string]func(error) bool{"all count": nil, "none counts": func(error) bool { return false },
		"all but timeouts and crashes count": func(err error) bool {
			return !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, asynq.ErrLeaseExpired)
		}}
	for what, end := range ends {
		for which, counted := range counts {
			for retries := range 2 {
				t.Run(fmt.Sprintf("%s, %s, MaxRetry %d", what, which, retries), func(t *testing.T) {
					alone := runsOf(t, true, what, end, counted, retries)
					locked := runsOf(t, false, what, end, counted, retries)
					if alone.state == "archived" && locked != alone || locked.state != alone.state {
						t.Errorf("with a lock %+v, with asynq alone %+v", locked, alone)
					}
					if alone.runs < locked.runs*3/4 || alone.runs*3/4 > locked.runs {
						t.Errorf("with a lock %d runs, with asynq alone %d", locked.runs, alone.runs)
					}
				})
			}
		}
	}
}

type outcome struct {
	state      string
	runs, told int
}

// runsOf lets ten minutes pass for a task whose attempts all end in the same way; by a
// crash only the last one that the author wants.
func runsOf(t *testing.T, bare bool, what string, end func(context.Context, int) error, counted func(error) bool, retries int) (out outcome) {
	virtual(t, func(r *rig) {
		var p probe
		var token joblock.Token
		s := service{bare: bare, asynq: asynq.Config{IsFailure: counted, ErrorHandler: p.ear()}}
		if bare {
			r.submit("a", asynq.NewTask(taskType, nil), retries, asynq.Timeout(5*time.Second))
		} else {
			token = r.enqueue("a", retries, asynq.Timeout(5*time.Second))
		}
		if what == "crash" {
			if retries > 0 {
				srv := r.serve(s, p.handler(end))
				r.untilTask("a", "retry")
				srv.Shutdown()
				if err := r.inspector.RunTask(queue, "a"); err != nil {
					t.Fatal(err)
				}
			}
			r.crash("a", token)
		}
		r.serve(s, p.handler(end))
		time.Sleep(10 * time.Minute)
		out.state, _ = r.task("a")
		out.runs = p.count()
		if what != "crash" { // asynq's recoverer does not call the ErrorHandler; the worker does
			out.told = len(p.heard())
		}
		if out.state == "retry" || out.state == "pending" {
			out.state = "alive" // asynq alone would try it forever
		}
		if out.state == "archived" && !bare && r.status("key-a").Locked() {
			t.Errorf("the lock is %s", r.status("key-a").State)
		}
	})
	return out
}

// A timeout or a panic on the last attempt has the task archived at once, without another
// delivery: the lock is free although the queue is paused, and no retry is shown that
// does not come.
func TestLastAttemptIsArchivedWithoutAnotherDelivery(t *testing.T) {
	for name, end := range map[string]func(context.Context, int) error{"timeout": obey, "panic": blow} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.enqueue("a", 0, asynq.Timeout(time.Second))
				r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(func(ctx context.Context, n int) error {
					if err := r.inspector.PauseQueue(queue); err != nil {
						t.Error(err)
					}
					return end(ctx, n)
				}))
				r.until("archived", func() bool { return r.state("a") == "archived" })
				time.Sleep(time.Second)
				r.wantEnded("key-a", "job failed")
				r.wantRuns(&p, 1)
				if told := p.heard(); len(told) != 1 {
					t.Errorf("the ErrorHandler heard %+v", told)
				}
			})
		})
	}
}

// Each RunTask of an archived task runs it once, in whatever way the run before has
// ended.
func TestEachRunTaskOfAnArchivedTaskRunsIt(t *testing.T) {
	for name, end := range map[string]func(context.Context, int) error{"error": fail, "timeout": obey, "panic": blow} {
		for which, counted := range map[string]func(error) bool{"all count": nil, "none counts": func(error) bool { return false }} {
			t.Run(name+", "+which, func(t *testing.T) {
				virtual(t, func(r *rig) {
					var p probe
					r.enqueue("a", 0, asynq.Timeout(time.Second))
					r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear(), IsFailure: counted}}, p.handler(end))
					for n := 1; n <= 5; n++ {
						r.untilTask("a", "archived")
						r.untilFree("key-a")
						time.Sleep(time.Minute)
						r.wantRuns(&p, n)
						if told := p.heard(); len(told) != n {
							t.Errorf("after %d runs the ErrorHandler heard %+v", n, told)
						}
						if n == 3 { // its lock is forgotten
							time.Sleep(10 * time.Minute)
						}
						if err := r.inspector.RunTask(queue, "a"); err != nil {
							t.Fatal(err)
						}
						r.until("run again", func() bool { return p.count() > n })
					}
				})
			})
		}
	}
}

// The rerun of an archived task crashes: asynq archives it without a word, and the next
// one runs all the same.
func TestRunTaskAfterARerunThatCrashed(t *testing.T) {
	for fences, newStore := range lockStores {
		t.Run(fences, func(t *testing.T) {
			virtualOn(t, newStore, func(r *rig) {
				var p probe
				token := r.enqueue("a", 0, asynq.Timeout(time.Second))
				srv := r.serve(service{}, p.handler(obey))
				r.untilTask("a", "archived")
				r.untilFree("key-a")
				srv.Shutdown()
				if err := r.inspector.RunTask(queue, "a"); err != nil {
					t.Fatal(err)
				}
				// What the rerun does before it dies: it takes the lock again.
				time.Sleep(time.Second)
				lock, err := r.locks.TryAcquire(context.Background(), "key-a", joblock.Owner(core.Token(token).Owner()))
				if err != nil {
					t.Fatal(err)
				}
				r.crash("a", r.parkLock(lock, "a"))
				r.serve(service{}, p.handler(succeed))
				r.untilTask("a", "archived")
				r.wantRuns(&p, 1)
				if err := r.inspector.RunTask(queue, "a"); err != nil {
					t.Fatal(err)
				}
				r.untilTask("a", "gone")
				r.wantRuns(&p, 2)
			})
		})
	}
}

// A newer job has the key when an archived task is run again: it is snoozed
// until the key is free, and then it runs. Its slot is free meanwhile.
func TestRunTaskWhileANewerJobHasTheKey(t *testing.T) {
	for name, end := range map[string]func(context.Context, int) error{"error": fail, "timeout": obey} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.enqueue("a", 0, asynq.Timeout(5*time.Second))
				srv := r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(first(end)))
				r.untilTask("a", "archived")
				r.untilFree("key-a")
				time.Sleep(time.Minute)
				newer, err := r.locks.TryAcquire(context.Background(), "key-a")
				if err != nil {
					t.Fatal(err)
				}
				if err := r.inspector.RunTask(queue, "a"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Minute)
				r.wantRuns(&p, 1)
				if told := p.heard(); len(told) != 1 {
					t.Errorf("the ErrorHandler heard of snoozes: %+v", told)
				}
				// The process is stopped in the middle of a pause: the task is not lost.
				srv.Shutdown()
				if err := srv.worker.Close(context.Background()); err != nil {
					t.Fatal(err)
				}
				if state, _ := r.task("a"); state != "pending" && state != "retry" {
					t.Errorf("after Close the task is %s, want it on its way", state)
				}
				if err := newer.Release(context.Background()); err != nil {
					t.Fatal(err)
				}
				r.serve(service{}, p.handler(first(end)))
				r.untilTask("a", "gone")
				r.wantRuns(&p, 2)
				r.wantEnded("key-a", "job done")
			})
		})
	}
}

// The lock is taken away from a running job, whose handler says so: that costs the job
// nothing, on its last attempt either. An error of its own does.
func TestJobIsNotChargedForTheLossOfItsLock(t *testing.T) {
	for how, lose := range map[string]func(r *rig, token joblock.Token) *joblock.Lock{
		"forced": vanish["forced"],
		"taken":  vanish["taken"],
	} {
		for what, tt := range map[string]struct {
			result func(ctx context.Context, lock *joblock.Lock) error
			runs   int
			state  string
		}{
			"the lock's error":       {func(_ context.Context, lock *joblock.Lock) error { return fmt.Errorf("writing: %w", lock.Err()) }, 2, "gone"},
			"the context's cause":    {func(ctx context.Context, _ *joblock.Lock) error { return context.Cause(ctx) }, 2, "gone"},
			"the context's error":    {func(ctx context.Context, _ *joblock.Lock) error { return fmt.Errorf("read: %w", ctx.Err()) }, 2, "gone"},
			"an error of its own":    {func(context.Context, *joblock.Lock) error { return errBoom }, 1, "archived"},
			"its word, not to retry": {func(_ context.Context, lock *joblock.Lock) error { return errors.Join(lock.Err(), asynq.SkipRetry) }, 1, "archived"},
		} {
			for _, spare := range []int{1, 0} {
				t.Run(fmt.Sprintf("%s, %s, %d spare", how, what, spare), func(t *testing.T) {
					virtual(t, func(r *rig) {
						var p probe
						token := r.park("a", "key-a")[0]
						r.submit("a", r.seal(0, token), spare)
						r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(func(ctx context.Context, n int) error {
							if n > 1 {
								return nil
							}
							if thief := lose(r, token); thief != nil {
								time.AfterFunc(time.Minute, func() { _ = thief.Release(context.Background()) })
							}
							<-ctx.Done()
							lock, _ := joblock.FromContext(ctx)
							return tt.result(ctx, lock)
						}))
						time.Sleep(5 * time.Minute)
						r.wantTask("a", tt.state, 0)
						r.wantRuns(&p, tt.runs)
						if told := p.heard(); len(told) != 2-tt.runs {
							t.Errorf("the ErrorHandler heard %+v", told)
						}
					})
				})
			}
		}
	}
}
