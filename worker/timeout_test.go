package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// deaf works for d, whatever its context says.
func deaf(d time.Duration) func(context.Context, int) error {
	return func(context.Context, int) error { time.Sleep(d); return nil }
}

// atOnce is a RetryDelayFunc.
func atOnce(int, error, *asynq.Task) time.Duration { return 0 }

// asynq does not wait for a handler after its timeout. On its own it starts the
// next attempt while the handler still runs; with a lock the next attempt waits for it.
func TestHandlerDeafToItsTimeoutNeverRunsTwiceAtOnce(t *testing.T) {
	for name, bare := range map[string]bool{"asynq alone": true, "with the middleware": false} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				opts := []asynq.Option{asynq.Timeout(time.Second)}
				if bare {
					r.submit("a", asynq.NewTask(taskType, nil), 3, opts...)
				} else {
					r.enqueue("a", 3, opts...)
				}
				r.serve(service{bare: bare, asynq: asynq.Config{RetryDelayFunc: atOnce}}, p.handler(deaf(4*time.Second)))
				r.untilTask("a", "archived")
				time.Sleep(time.Minute)

				r.wantRuns(&p, 4)
				if bare {
					r.wantTask("a", "archived", 3)
					if p.most() < 2 {
						t.Errorf("asynq alone ran at most %d at once, want 2: the contrast is gone", p.most())
					}
					return
				}
				r.wantTask("a", "archived", 4) // the spare one included
				r.wantEnded("key-a", "job failed")
				if p.most() != 1 {
					t.Errorf("%d attempts ran at once, want 1", p.most())
				}
			})
		})
	}
}

// A handler that hangs keeps its lease for Config.Overrun; then the next attempt
// gets the lock, and the old one can do nothing to it.
func TestOverrunLetsTheNextAttemptIn(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.enqueue("a", 1, asynq.Timeout(time.Minute))
		old := make(chan *joblock.Lock, 1)
		release := make(chan struct{})
		r.serve(service{worker: worker.Config{Overrun: 30 * time.Second}, asynq: asynq.Config{RetryDelayFunc: atOnce}},
			p.handler(func(ctx context.Context, n int) error {
				lock, _ := joblock.FromContext(ctx)
				if n == 1 {
					old <- lock
					<-release // longer than anyone is willing to wait
					return errBoom
				}
				<-release
				time.Sleep(10 * time.Second) // the old attempt settles meanwhile
				return nil
			}))
		lock := <-old
		time.Sleep(80 * time.Second) // timeout 60 s, overrun 30 s
		r.wantRuns(&p, 1)
		r.wantState("key-a", joblock.StateHeld, "a")
		if err := lock.Err(); err != nil {
			t.Errorf("within the overrun the lock is over: %v", err)
		}

		r.until("the next attempt runs", func() bool { return p.count() == 2 })
		if err := lock.Err(); !errors.Is(err, joblock.ErrLost) {
			t.Errorf("after the overrun the old attempt's lock has error %v, want ErrLost", err)
		}
		before := r.status("key-a")
		for op, err := range map[string]error{
			"renew": lock.Renew(context.Background()), "release": lock.Release(context.Background()),
			"park": parkErr(lock),
		} {
			if !errors.Is(err, joblock.ErrLost) {
				t.Errorf("the old attempt's %s gave %v, want ErrLost", op, err)
			}
		}
		if after := r.status("key-a"); after.State != joblock.StateHeld || after.Fence != before.Fence {
			t.Errorf("the old attempt moved the lock from %+v to %+v", before, after)
		}
		close(release)
		r.untilTask("a", "gone")
		r.wantEnded("key-a", "job done")
		r.wantRuns(&p, 2)
	})
}

func parkErr(lock *joblock.Lock) error {
	_, err := lock.Park(context.Background())
	return err
}

// The lock of a task that is over is freed although its last handler never
// returns: nothing else would free it before the reservation's end.
func TestHandlerThatHangsForeverDoesNotKeepTheLockOfAnArchivedTask(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.enqueue("a", 0, asynq.Timeout(time.Second))
		release := make(chan struct{})
		defer close(release)
		r.serve(service{worker: worker.Config{Overrun: 20 * time.Second}},
			p.handler(func(context.Context, int) error { <-release; return nil }))
		r.untilTask("a", "archived")
		r.wantState("key-a", joblock.StateHeld, "a") // it is still at work
		time.Sleep(time.Minute)                      // overrun and lease, but not the reservation
		r.wantEnded("key-a", "job failed")
	})
}

// If an operator runs the archived task again before its lock is freed, the task keeps the lock.
func TestArchivedTaskThatIsRunAgainKeepsItsLock(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.enqueue("a", 0, asynq.Timeout(time.Second))
		release := make(chan struct{})
		defer close(release)
		r.serve(service{worker: worker.Config{Overrun: 20 * time.Second}},
			p.handler(func(context.Context, int) error { <-release; return nil }))
		r.untilTask("a", "archived")
		r.wantState("key-a", joblock.StateHeld, "a") // by the handler that hangs
		r.pause(true)
		if err := r.inspector.RunTask(queue, "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // overrun and lease, but not the reservation
		r.wantState("key-a", joblock.StateOrphaned, "a")
		r.wantTask("a", "pending", 1)
	})
}

// A task past its deadline when it comes out of the queue never meets the
// middleware. However many retries are left, it ends at once.
func TestDeadlinePastAtDequeue(t *testing.T) {
	for _, tt := range []struct {
		name    string
		retries int
		spare   int
	}{
		{"one attempt", 0, 1},
		{"several attempts", 2, 1},
		{"asynq's default", 25, 1},
		{"no spare retry", 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				token := r.park("a", "key-a")[0]
				task := r.seal(tt.retries, token)
				r.submit("a", task, tt.retries+tt.spare, asynq.Deadline(time.Now().Add(time.Second)))
				time.Sleep(time.Minute)
				r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
				r.untilTask("a", "archived")
				r.wantTask("a", "archived", 1)
				r.untilFree("key-a")
				r.wantEnded("key-a", "job failed")
				r.wantRuns(&p, 0)
				if got := p.heard(); len(got) != 1 {
					t.Errorf("the ErrorHandler heard %v, want one call", got)
				}
				if logged := strings.Contains(r.log.String(), "the deadline of a job has passed"); logged != (tt.retries > 0) {
					t.Errorf("the deadline is logged: %t\n%s", logged, r.log)
				}
				if err := r.inspector.RunTask(queue, "a"); err != nil {
					t.Fatal(err)
				}
				r.untilTask("a", "archived") // and no operator brings it back
				r.wantRuns(&p, 0)
			})
		})
	}
}

// A deadline that passes while the handler runs leaves nothing to retry either.
func TestDeadlinePassesDuringTheRun(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		release := make(chan struct{})
		r.serve(service{}, p.handler(func(context.Context, int) error { <-release; return nil }))
		r.enqueue("a", 5, asynq.Deadline(time.Now().Add(5*time.Second)))
		r.untilTask("a", "archived")
		r.wantState("key-a", joblock.StateHeld, "a") // its handler still runs
		close(release)
		r.untilFree("key-a")
		r.wantEnded("key-a", "job failed")
		r.wantRuns(&p, 1)
	})
}

// If the next attempt would begin after the deadline, the job ends with the attempt that failed, and not when asynq
// delivers the task for nothing: with asynq's delays that is hours later.
func TestDeadlineBeforeTheNextAttempt(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(context.Context, int) error
		opts []asynq.Option
	}{
		{"an error", fail, nil},
		{"an error, with a timeout", fail, []asynq.Option{asynq.Timeout(time.Second)}},
		{"a panic", blow, nil},
		{"a timeout", obey, []asynq.Option{asynq.Timeout(time.Second)}},
	} {
		for _, sequence := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, sequence %t", tt.name, sequence), func(t *testing.T) {
				virtual(t, func(r *rig) {
					var p probe
					delay := func(n int, _ error, _ *asynq.Task) time.Duration { return time.Duration(1+59*n) * time.Minute }
					r.serve(service{asynq: asynq.Config{RetryDelayFunc: delay}}, p.handler(tt.do))
					opts := append(tt.opts, asynq.Deadline(time.Now().Add(30*time.Minute)))
					key := "key-a"
					if sequence {
						key = seqKey
						r.line().addOne(handoff.Sequence{}, "a", append(opts, asynq.MaxRetry(25))...)
					} else {
						r.enqueue("a", 25, opts...)
					}
					r.untilRetry("a", 1)
					r.wantState(key, joblock.StateParked, "a")
					begun := time.Now()
					r.untilTask("a", "archived")
					r.untilFree(key)
					if took := time.Since(begun); took > 2*time.Minute {
						t.Errorf("the job ended after %s", took)
					}
					r.wantEnded(key, "job failed")
					r.wantRuns(&p, 2)
				})
			})
		}
	}
}

// A timeout alone, before the deadline, is one of the attempts.
func TestTimeoutBeforeTheDeadline(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.serve(service{}, p.handler(first(obey)))
		r.enqueue("a", 1, asynq.Timeout(time.Second), asynq.Deadline(time.Now().Add(time.Hour)))
		r.untilTask("a", "gone")
		r.wantRuns(&p, 2)
	})
}

// Inspector.CancelProcessing ends the context; asynq counts it as a failure.
func TestCancelProcessing(t *testing.T) {
	for _, tt := range []struct {
		name    string
		retries int
		task    string
		retried int
		reason  string
		runs    int
	}{
		{"retries left", 1, "gone", 0, "job done", 2},
		{"last attempt", 0, "archived", 1, "job failed", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.enqueue("a", tt.retries)
				r.serve(service{}, p.handler(first(obey)))
				r.until("running", func() bool { return p.running() == 1 })
				if err := r.inspector.CancelProcessing("a"); err != nil {
					t.Fatal(err)
				}
				if tt.retries > 0 {
					r.untilTask("a", "retry")
					time.Sleep(retryWait / 2)
					r.wantState("key-a", joblock.StateParked, "a")
				}
				r.untilTask("a", "gone", "archived")
				r.wantTask("a", tt.task, tt.retried)
				r.untilFree("key-a")
				r.wantEnded("key-a", tt.reason)
				r.wantRuns(&p, tt.runs)
			})
		})
	}
}

// asynq archives only after the ErrorHandler, which may take its time. The
// attempt must not reserve the lock again for a task that is about to end.
func TestSlowErrorHandlerDoesNotLeakTheLock(t *testing.T) {
	for name, spare := range map[string]int{"no spare retry": 0, "spare retry": 1} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				token := r.park("a", "key-a")[0]
				r.submit("a", r.seal(0, token), spare, asynq.Timeout(time.Second))
				r.serve(service{asynq: asynq.Config{
					ErrorHandler: asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) {
						time.Sleep(15 * time.Second)
					}),
				}}, p.handler(obey))
				r.untilTask("a", "archived")
				time.Sleep(10 * time.Second)
				r.wantEnded("key-a", "job failed")
				r.wantRuns(&p, 1)
			})
		})
	}
}
