package worker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// untilStart enqueues a task that has "key-"+id until it starts, and for as many
// retries.
func (r *rig) untilStart(id string, retries int) {
	r.t.Helper()
	tokens := r.park(id, "key-"+id)
	r.submit(id, r.sealed(nil, envelope.Envelope{Tokens: tokens, UntilStart: tokens, Retries: retries}), retries+1)
}

// queued enqueues a task that has "slot-"+id until it starts, and is to run under
// the lock on "run".
func (r *rig) queued(id string, retries int, opts ...asynq.Option) {
	r.t.Helper()
	slot := r.park(id, "slot-"+id)[0]
	run, err := joblock.NewToken("run", core.Token(slot).Owner(), core.Token(slot).TTL())
	if err != nil {
		r.t.Fatal(err)
	}
	r.submit(id, r.sealed(nil, envelope.Envelope{
		Tokens: []joblock.Token{slot, run}, UntilStart: []joblock.Token{slot}, FromStart: []joblock.Token{run}, Retries: retries,
	}), retries+1, opts...)
}

func TestLockUntilStartIsFreeWhileTheHandlerRuns(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.untilStart("a", 0)
		r.serve(service{}, p.handler(func(ctx context.Context, _ int) error {
			r.wantEnded("key-a", "job started")
			if lock, ok := joblock.FromContext(ctx); ok {
				t.Errorf("the handler has %v, want no lock", lock)
			}
			return nil
		}))
		r.untilTask("a", "gone")
		r.wantEnded("key-a", "job started")
		r.wantRuns(&p, 1)
	})
}

// Later attempts run whichever job has the key by then, and leave the key alone;
// Config.OnLockLost does not count.
func TestRetryAfterLockUntilStart(t *testing.T) {
	for _, policy := range policies {
		t.Run(string(policy), func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.untilStart("a", 1)
				r.serve(service{worker: worker.Config{OnLockLost: policy.decide}}, p.handler(first(fail)))
				r.untilRetry("a", 1)
				other := r.park("other", "key-a")
				r.untilTask("a", "gone")
				r.wantRuns(&p, 2)
				r.wantState("key-a", joblock.StateParked, "other")
				if err := r.locks.Release(context.Background(), other[0], joblock.IfIdle()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Nor does it when the lock was gone before the first attempt: there is a job to do.
func TestLockUntilStartGoneBeforeTheStart(t *testing.T) {
	for how, vanish := range vanish {
		t.Run(how, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				tokens := r.park("a", "key-a")
				r.submit("a", r.sealed(nil, envelope.Envelope{Tokens: tokens, UntilStart: tokens}), 1)
				thief := vanish(r, tokens[0])
				r.serve(service{worker: worker.Config{OnLockLost: failing.decide}}, p.handler(succeed))
				r.untilTask("a", "gone")
				r.wantRuns(&p, 1)
				if thief != nil && thief.Renew(context.Background()) != nil {
					t.Errorf("the new holder lost its lock: %v", thief.Err())
				}
			})
		})
	}
}

// A task that is snoozed has not started.
func TestLockUntilStartStaysWhileTheSnoozedTaskWaits(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		holder := r.hold("run")
		r.queued("a", 0)
		r.serve(service{}, p.handler(succeed))
		r.untilRetry("a", 0)
		r.wantState("slot-a", joblock.StateParked, "a")
		if err := holder.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
		r.untilTask("a", "gone")
		r.wantEnded("slot-a", "job started")
		r.wantEnded("run", "job done")
		r.wantRuns(&p, 1)
	})
}

// A caller has resumed the lock to put another task in the place of this one, which then
// must not start, and must not keep the lock that it would run under.
func TestLockUntilStartInHandPutsTheTaskBack(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.queued("a", 0)
		env, _, err := envelopekit.Read(r.taskHeaders("a"))
		if err != nil {
			t.Fatal(err)
		}
		job := envelope.Job(queue, "a")
		inHand, err := r.locks.Resume(context.Background(), env.Tokens[0], joblock.ForJob(job))
		if err != nil {
			t.Fatal(err)
		}
		r.serve(service{}, p.handler(succeed))
		for range 3 {
			r.untilRetry("a", 0)
			r.wantEnded("run", "job snoozed")
			time.Sleep(3 * time.Second)
		}
		if err := inHand.Err(); err != nil {
			t.Errorf("it was taken away: %v", err)
		}
		r.wantRuns(&p, 0)
		if _, err := inHand.Park(context.Background(), joblock.ForJob(job)); err != nil {
			t.Fatal(err)
		}
		r.untilTask("a", "gone")
		r.wantRuns(&p, 1)
	})
}

// Other locks of a task that is snoozed at the last moment stay reserved for it.
func TestCarriedLockStaysWhenTheTaskCannotStart(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		tokens := r.park("a", "key-a", "slot-a")
		r.submit("a", r.sealed(nil, envelope.Envelope{Tokens: tokens, UntilStart: tokens[1:]}), 1)
		r.faults.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Release)
		r.serve(service{}, p.handler(succeed))
		r.untilRetry("a", 0)
		r.wantState("key-a", joblock.StateParked, "a")
		r.wantState("slot-a", joblock.StateParked, "a")
		r.wantRuns(&p, 0)
		r.faults.Clear()
		r.untilTask("a", "gone")
		r.wantRuns(&p, 1)
	})
}

// A lock taken for running is the job's like any other: over retries, to its end,
// and whatever Config.OnLockLost says of locks that are gone.
func TestLockFromStart(t *testing.T) {
	for _, policy := range policies {
		t.Run(string(policy), func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.queued("a", 1)
				r.serve(service{worker: worker.Config{OnLockLost: policy.decide}}, p.handler(func(ctx context.Context, n int) error {
					if lock, ok := joblock.FromContext(ctx); !ok || lock.Key() != "run" {
						t.Errorf("the handler has %v, want the lock on run", lock)
					}
					r.wantState("run", joblock.StateHeld, "a")
					if n == 1 {
						return errors.New("try again")
					}
					return nil
				}))
				r.untilRetry("a", 1)
				r.wantState("run", joblock.StateParked, "a")
				r.wantHeld("run")
				r.untilTask("a", "gone")
				r.wantEnded("run", "job done")
				r.wantRuns(&p, 2)
			})
		})
	}
}

// Jobs of one run key run one after the other, none is charged a retry or lost.
func TestLockFromStartExcludes(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		ids := []string{"a", "b", "c"}
		for _, id := range ids {
			r.queued(id, 0)
		}
		r.serve(service{}, p.handler(func(context.Context, int) error {
			if n := p.running(); n != 1 {
				t.Errorf("%d handlers run at once", n)
			}
			time.Sleep(time.Minute)
			return nil
		}))
		for _, id := range ids {
			r.untilTask(id, "gone")
		}
		r.wantRuns(&p, 3)
	})
}

// A crash of the process that had just taken the run lock does not let another job
// pass, and the retry continues it.
func TestLockFromStartOutlivesACrash(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.queued("a", 1)
		env, _, err := envelopekit.Read(r.taskHeaders("a"))
		if err != nil {
			t.Fatal(err)
		}
		run := env.FromStart[0]
		lock, err := r.locks.TryAcquire(context.Background(), "run", joblock.Owner(core.Token(run).Owner()))
		if err != nil {
			t.Fatal(err)
		}
		r.parkLock(lock, "a")
		r.wantHeld("run")
		r.serve(service{}, p.handler(succeed))
		r.untilTask("a", "gone")
		r.wantRuns(&p, 1)
		r.wantEnded("run", "job done")
	})
}

// A job that is not to run, because another lock of its is gone, frees what it would
// have given up at the start.
func TestSkippedTaskFreesItsLockUntilStart(t *testing.T) {
	for _, gone := range []string{"a-gone", "z-gone"} {
		virtual(t, func(r *rig) {
			var p probe
			tokens := r.park("a", gone, "slot-a")
			r.submit("a", r.sealed(nil, envelope.Envelope{Tokens: tokens, UntilStart: tokens[1:]}), 1)
			if err := r.locks.ForceRelease(context.Background(), gone, joblock.Reason("test")); err != nil {
				t.Fatal(err)
			}
			r.serve(service{worker: worker.Config{OnLockLost: skipping.decide}}, p.handler(succeed))
			r.untilTask("a", "gone")
			r.wantEnded("slot-a", "job skipped")
			r.wantRuns(&p, 0)
		})
	}
}

// A job that fails for good without having started frees it too.
func TestFailedTaskFreesItsLockUntilStart(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		tokens := r.park("a", "key-a", "slot-a")
		r.submit("a", r.sealed(nil, envelope.Envelope{Tokens: tokens, UntilStart: tokens[1:]}), 1)
		if err := r.locks.ForceRelease(context.Background(), "key-a", joblock.Reason("test")); err != nil {
			t.Fatal(err)
		}
		r.serve(service{worker: worker.Config{OnLockLost: failing.decide}}, p.handler(succeed))
		r.untilTask("a", "archived")
		r.wantEnded("slot-a", "job failed")
		r.wantRuns(&p, 0)
	})
}

// A token that is with another job has not gone: the task waits for it, whatever
// Config.OnLockLost says of locks that have.
func TestLockThatIsWithAnotherJobIsWaitedFor(t *testing.T) {
	for _, policy := range policies {
		for _, untilStart := range []bool{false, true} {
			for _, inHand := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, until start %v, in hand %v", policy, untilStart, inHand), func(t *testing.T) {
					virtual(t, func(r *rig) {
						var p probe
						ctx := context.Background()
						tokens := r.park("old", "key-a")
						env := envelope.Envelope{Tokens: tokens}
						if untilStart {
							env.UntilStart = tokens
						}
						r.submit("a", r.sealed(nil, env), 1)
						resume := func() *joblock.Lock {
							lock, err := r.locks.Resume(ctx, tokens[0], joblock.ForJob(envelope.Job(queue, "old")))
							if err != nil {
								t.Fatal(err)
							}
							return lock
						}
						var lock *joblock.Lock
						if inHand {
							lock = resume()
						}
						r.serve(service{worker: worker.Config{OnLockLost: policy.decide}}, p.handler(succeed))
						time.Sleep(time.Minute)
						r.untilRetry("a", 0)
						if !inHand {
							r.wantState("key-a", joblock.StateParked, "old")
							lock = resume()
						}
						r.parkLock(lock, "a")
						back := time.Now()
						r.untilTask("a", "gone")
						r.wantRuns(&p, 1)
						// A lock in hand is back in a moment, and tried for accordingly.
						if took := time.Since(back); inHand && took > 5*time.Second {
							t.Errorf("the task ran %s after it had its lock", took)
						}
					})
				})
			}
		}
	}
}

func (r *rig) taskHeaders(id string) map[string]string {
	r.t.Helper()
	_, info := r.task(id)
	return info.Headers
}

// hold takes a lock that must be free.
func (r *rig) hold(key string) *joblock.Lock {
	r.t.Helper()
	lock, err := r.locks.TryAcquire(context.Background(), key)
	if err != nil {
		r.t.Fatal(err)
	}
	return lock
}
