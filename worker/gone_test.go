package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/worker"
)

// vanish are the ways in which a waiting job's lock goes.
var vanish = map[string]func(r *rig, token joblock.Token) *joblock.Lock{
	"forced": func(r *rig, token joblock.Token) *joblock.Lock {
		if err := r.locks.ForceRelease(context.Background(), token.Key(), joblock.Reason("test")); err != nil {
			r.t.Fatalf("force: %v", err)
		}
		return nil
	},
	"released": func(r *rig, token joblock.Token) *joblock.Lock {
		if err := r.locks.Release(context.Background(), token); err != nil {
			r.t.Fatalf("release: %v", err)
		}
		return nil
	},
	"taken": func(r *rig, token joblock.Token) *joblock.Lock { return r.steal(token.Key()) },
	"forgotten": func(r *rig, _ joblock.Token) *joblock.Lock {
		time.Sleep(reserve + 5*time.Minute + time.Minute)
		return nil
	},
}

// policy is a Config.OnLockLost.
type policy string

const reacquiring, skipping, failing policy = "reacquire", "skip", "fail"

var policies = []policy{reacquiring, skipping, failing}

func (p policy) decide(_ context.Context, _ *asynq.Task, err error) error {
	switch p {
	case skipping:
		return asynq.RevokeTask
	case failing:
		return err
	}
	return nil
}

func TestGone(t *testing.T) {
	for how, vanish := range vanish {
		for _, tt := range []struct {
			policy policy
			task   string
			runs   int
			told   int
		}{
			{reacquiring, "gone", 1, 0},
			{skipping, "gone", 0, 0},
			{failing, "archived", 0, 2},
		} {
			t.Run(how+", "+string(tt.policy), func(t *testing.T) {
				virtual(t, func(r *rig) {
					var p probe
					ctx := context.Background()
					tokens := r.park("a", "key-a", "key-b", "key-c")
					task := r.seal(1, tokens...)
					r.submit("a", task, 2, asynq.Retention(time.Hour))
					thief := vanish(r, tokens[1])
					r.serve(service{worker: worker.Config{OnLockLost: tt.policy.decide}, asynq: asynq.Config{ErrorHandler: p.ear()}},
						p.handler(func(ctx context.Context, _ int) error {
							lock, ok := joblock.LocksFromContext(ctx).ByKey("key-b")
							if !ok || lock.Fence() <= core.Token(tokens[1]).Fence() || (*core.Lock)(lock).Owner() != core.Token(tokens[1]).Owner() {
								t.Errorf("reacquired %v, want a larger fence than %d and the same owner", lock, core.Token(tokens[1]).Fence())
							}
							r.wantState("key-b", joblock.StateHeld, "a")
							return nil
						}))
					if thief != nil {
						time.Sleep(time.Minute)
						if err := thief.Err(); err != nil {
							t.Errorf("the new holder lost its lock: %v", err)
						}
						if err := thief.Release(ctx); err != nil {
							t.Fatal(err)
						}
					}
					r.untilTask("a", "completed", "archived")
					state := map[string]string{"gone": "completed"}[tt.task]
					if state == "" {
						state = tt.task
					}
					if got, info := r.task("a"); got != state || tt.policy != failing && info.Retried != 0 {
						t.Errorf("the task is %s with %d retries charged, want %s", got, info.Retried, state)
					}
					r.wantRuns(&p, tt.runs)
					for _, key := range []string{"key-a", "key-b", "key-c"} {
						if st := r.status(key); st.Locked() {
							t.Errorf("lock %q is still %s", key, st.State)
						}
					}
					told := p.heard()
					if len(told) != tt.told {
						t.Errorf("the ErrorHandler heard %+v, want %d calls", told, tt.told)
					}
					for _, tell := range told {
						if joblock.CodeOf(tell.err) == "" || errors.Is(tell.err, asynq.SkipRetry) {
							t.Errorf("the ErrorHandler was given %v, want joblock's error", tell.err)
						}
					}
				})
			})
		}
	}
}

// Policy Fail keeps what locks there are for the whole delay of the retry.
func TestGoneFailKeepsTheOtherLocksForTheRetry(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		const delay = 9 * time.Minute
		tokens := r.park("a", "key-a", "key-b")
		r.submit("a", r.seal(1, tokens...), 2)
		vanish["forced"](r, tokens[1])
		r.serve(service{
			worker: worker.Config{OnLockLost: failing.decide, Reserve: time.Minute},
			asynq:  asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return delay }},
		}, p.handler(succeed))
		r.untilTask("a", "retry")
		time.Sleep(delay / 2)
		r.wantState("key-a", joblock.StateParked, "a")
	})
}

// What a handler does to its lock is respected.
func TestHandlerReleasesItsLockEarly(t *testing.T) {
	for name, result := range map[string]error{"success": nil, "error": errBoom} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				var next *joblock.Lock
				r.enqueue("a", 1)
				r.serve(service{}, p.handler(first(func(ctx context.Context, _ int) error {
					lock, _ := joblock.FromContext(ctx)
					if err := lock.Release(ctx, joblock.Reason("early")); err != nil {
						return err
					}
					var err error
					if next, err = r.locks.TryAcquire(ctx, "key-a"); err != nil {
						return err
					}
					return result
				})))
				if result != nil {
					r.untilTask("a", "retry")
				} else {
					r.untilTask("a", "gone")
				}
				if err := next.Renew(context.Background()); err != nil {
					t.Errorf("the successor lost its lock: %v", err)
				}
				if err := next.Release(context.Background()); err != nil {
					t.Fatal(err)
				}
				r.untilTask("a", "gone", "archived")
				r.wantTask("a", "gone", 0)
				if result != nil {
					r.wantRuns(&p, 2)
					r.wantEnded("key-a", "job done")
				}
			})
		})
	}
}

// A handler may hand its lock over to another task, however it ends itself: the
// lock is the other task's from then on.
func TestHandlerHandsItsLockToAnotherTask(t *testing.T) {
	for _, tt := range []struct {
		name    string
		retries int
		end     func(context.Context, int) error
		task    string // what happens to the task that handed over
		retried int
		runs    int // of it
	}{
		{"and succeeds", 1, succeed, "gone", 0, 1},
		{"and fails, retries left", 1, fail, "gone", 0, 2},
		{"and fails for good", 0, fail, "archived", 0, 1},
		{"and panics on the last attempt", 0, blow, "archived", 1, 1},
		{"and times out on the last attempt", 0, obey, "archived", 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var a, b probe
				r.enqueue("a", tt.retries, asynq.Timeout(time.Second))
				handed := false
				handleA := a.handler(func(ctx context.Context, n int) error {
					if handed {
						return nil // the next run of it, once the other task is done
					}
					handed = true
					lock, _ := joblock.FromContext(ctx)
					r.submit("b", r.seal(0, r.parkLock(lock, "b")), 1, asynq.ProcessIn(3*time.Minute))
					return tt.end(ctx, n)
				})
				handleB := b.handler(succeed)
				r.serve(service{}, func(ctx context.Context, task *asynq.Task) error {
					if id, _ := asynq.GetTaskID(ctx); id == "b" {
						return handleB(ctx, task)
					}
					return handleA(ctx, task)
				})
				time.Sleep(time.Minute)
				r.wantState("key-a", joblock.StateParked, "b") // whatever became of a
				r.wantHeld("key-a")
				r.wantRuns(&a, 1)
				r.untilTask("b", "gone", "archived")
				r.wantTask("b", "gone", 0)
				r.wantRuns(&b, 1)
				r.untilTask("a", "gone", "archived")
				r.wantTask("a", tt.task, tt.retried)
				r.wantRuns(&a, tt.runs)
				r.wantEnded("key-a", "job done")
			})
		})
	}
}

// A job that waits for its turn to reacquire is not a warning every few seconds.
func TestGoneIsWarnedAboutOnce(t *testing.T) {
	for _, policy := range policies {
		t.Run(string(policy), func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				token := r.enqueue("a", 0)
				thief := r.steal(token.Key())
				r.serve(service{worker: worker.Config{OnLockLost: policy.decide}}, p.handler(succeed))
				time.Sleep(5 * time.Minute)
				if err := thief.Release(context.Background()); err != nil {
					t.Fatal(err)
				}
				r.untilTask("a", "gone", "archived")
				warnings, hints := 0, 0
				for line := range strings.Lines(r.log.String()) {
					switch {
					case !strings.Contains(line, "the lock is gone"):
					case strings.Contains(line, "level=WARN"):
						warnings++
					case strings.Contains(line, "level=DEBUG"):
						hints++
					}
				}
				if warnings != 1 || (hints > 0) != (policy == reacquiring) {
					t.Errorf("%d warnings and %d debug lines\n%s", warnings, hints, r.log)
				}
			})
		})
	}
}

// A lock that was taken again is the job's like any other: the retry resumes it, with the
// token of the lock before.
func TestRetryResumesTheLockThatWasTakenAgain(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		var fences []int64
		began := time.Now()
		r.enqueue("a", 1)
		if err := r.locks.ForceRelease(context.Background(), "key-a", joblock.Reason("test")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // a later ownership, by the store's clock too
		r.serve(service{}, p.handler(func(ctx context.Context, run int) error {
			lock, _ := joblock.LocksFromContext(ctx).ByKey("key-a")
			fences = append(fences, lock.Fence())
			if run == 1 {
				return errors.New("once more")
			}
			return nil
		}))
		r.untilTask("a", "gone", "archived")
		r.wantTask("a", "gone", 0)
		r.wantEnded("key-a", "job done")
		r.wantRuns(&p, 2)
		if len(fences) != 2 || fences[1] <= fences[0] {
			t.Errorf("fences %v", fences)
		}
		if took := time.Since(began); took > 10*time.Minute {
			t.Errorf("it took %s", took)
		}
	})
}

// A task may carry a lock on a key that applications cannot take by name: a permit of
// a limit. It takes that again like any other.
func TestGoneLockOnTheToolkitsOwnKey(t *testing.T) {
	virtual(t, func(r *rig) {
		lock, err := limit.New(r.locks, 2).TryAcquire(context.Background(), "key")
		if err != nil {
			t.Fatal(err)
		}
		token := r.parkLock(lock, "a")
		r.submit("a", r.seal(1, token), 1, asynq.Retention(time.Hour))
		vanish["forced"](r, token)
		var p probe
		r.serve(service{}, p.handler(func(ctx context.Context, _ int) error {
			r.wantState(token.Key(), joblock.StateHeld, "a")
			return nil
		}))
		r.untilTask("a", "completed", "archived")
		if state, info := r.task("a"); state != "completed" {
			t.Errorf("the task is %s: %s", state, info.LastErr)
		}
	})
}

// That a job is done is for the worker alone to say: no reason that people or handlers
// give for a release has its retry succeed without being run.
func TestReasonsDoNotMakeAJobDone(t *testing.T) {
	for _, reason := range []string{"job done", "job revoked"} {
		for how, release := range map[string]func(r *rig, lock *joblock.Lock) error{
			"by the handler": func(_ *rig, lock *joblock.Lock) error {
				return lock.Release(context.Background(), joblock.Reason(reason))
			},
			"by force": func(r *rig, lock *joblock.Lock) error {
				return r.locks.ForceRelease(context.Background(), lock.Key(), joblock.Reason(reason))
			},
			"by its token": func(r *rig, lock *joblock.Lock) error {
				token, err := lock.Park(context.Background(), joblock.ForJob(envelope.Job(queue, "a")))
				return errors.Join(err, (*core.Locker)(r.locks).Release(context.Background(), []core.Token{core.Token(token)}, core.Release{IfIdle: true, Job: envelope.Job(queue, "a"), Reason: reason})[0])
			},
		} {
			t.Run(reason+" "+how, func(t *testing.T) {
				virtual(t, func(r *rig) {
					var p probe
					r.enqueue("a", 1)
					r.serve(service{}, p.handler(first(func(ctx context.Context, _ int) error {
						lock, _ := joblock.FromContext(ctx)
						return errors.Join(errBoom, release(r, lock))
					})))
					r.untilTask("a", "gone", "archived")
					r.wantTask("a", "gone", 0)
					r.wantRuns(&p, 2)
				})
			})
		}
	}
}
