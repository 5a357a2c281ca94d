package handoff_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
)

// wantGone checks that the job of done has neither a task nor a lock.
func (w *web) wantGone(t *testing.T, done handoff.Result) {
	t.Helper()
	w.wantNoTask(t, done.Task)
	job := envelope.Job(done.Task.Queue, done.Task.ID)
	for l, err := range w.locks.List(t.Context(), joblock.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if l.Job == job && l.Locked() {
			t.Errorf("the job still has the lock %+v", l)
		}
	}
}

// However a job was enqueued, and wherever its task waits, Withdraw deletes the task and frees its locks at once. The
// context of the caller may have ended by then.
func TestWithdraw(t *testing.T) {
	task := asynq.NewTask("export", nil)
	unique := func(u handoff.Unique) func(*testing.T, *web, ...asynq.Option) (handoff.Result, error) {
		return func(t *testing.T, w *web, opts ...asynq.Option) (handoff.Result, error) {
			return w.jobs.Enqueue(t.Context(), u, task, opts...)
		}
	}
	for name, enqueue := range map[string]func(*testing.T, *web, ...asynq.Option) (handoff.Result, error){
		"unique":        unique(handoff.Unique{Key: "k"}),
		"until started": unique(handoff.Unique{Key: "k", UntilStarted: true}),
		"KeepLast":      unique(handoff.Unique{Key: "k", OnConflict: handoff.KeepLast}),
		"cancel":        unique(handoff.Unique{Key: "k", OnConflict: handoff.CancelInProgress}),
		"one of one":    unique(handoff.Unique{Key: "k", Limit: 1}),
		"replacement": func(t *testing.T, w *web, opts ...asynq.Option) (handoff.Result, error) {
			w.first(t, replaceK)
			return w.jobs.Enqueue(t.Context(), replaceK, task, append(opts, asynq.TaskID("first"))...)
		},
		"sequence": func(t *testing.T, w *web, opts ...asynq.Option) (handoff.Result, error) {
			return w.jobs.Enqueue(t.Context(), handoff.Sequence{Key: "k"}, task, opts...)
		},
		"many": func(t *testing.T, w *web, opts ...asynq.Option) (handoff.Result, error) {
			got, err := w.jobs.EnqueueMany(t.Context(), []handoff.Item{{Task: task, Opts: opts, How: handoff.Unique{Key: "k"}}})
			return got[0], errors.Join(err, got[0].Err)
		},
		"locks": func(t *testing.T, w *web, opts ...asynq.Option) (handoff.Result, error) {
			info, err := taskOf(w.jobs.Enqueue(t.Context(), handoff.Carry(acquire(t, w.locks, "k"), acquire(t, w.locks, "l")), task, opts...))
			return handoff.Result{Task: info}, err
		},
	} {
		for state, opt := range map[string]asynq.Option{"pending": asynq.Queue("default"), "scheduled": asynq.ProcessIn(time.Hour), "aggregating": asynq.Group("g"), "archived": asynq.Queue("default")} {
			if name == "sequence" && state == "aggregating" {
				continue // ErrInvalid
			}
			t.Run(name+", "+state, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newMiniWeb(t)
					w.warm(t)
					done, err := enqueue(t, w, opt)
					if err != nil {
						t.Fatal(err)
					}
					if state == "archived" {
						if err := w.inspector.ArchiveTask(done.Task.Queue, done.Task.ID); err != nil {
							t.Fatal(err)
						}
					}
					ctx, cancel := context.WithCancel(t.Context())
					cancel()
					if err := w.jobs.Withdraw(ctx, done); err != nil {
						t.Error(err)
					}
					w.wantGone(t, done)
					if again, err := enqueue(t, w, opt); err != nil {
						t.Errorf("the next job: %+v, %v", again, err)
					}
					if err := w.jobs.Withdraw(ctx, done); !errors.Is(err, joblock.ErrNotFound) && !errors.Is(err, joblock.ErrNotOwner) {
						t.Errorf("withdrawn again: %v, want ErrNotFound, or ErrNotOwner if the next job has its ID", err)
					}
				})
			})
		}
	}
}

// Those behind a job of a sequence go on in its place; a job that waits leaves the line.
func TestWithdrawFromASequence(t *testing.T) {
	for _, most := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			w := newMiniWeb(t)
			var all []handoff.Result
			for range 5 {
				got, err := w.jobs.Enqueue(t.Context(), handoff.Sequence{Key: "k", Limit: most}, asynq.NewTask("export", nil))
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, got)
			}
			for _, n := range []int{3, most - 1} { // in line, and with the key or another slot
				if err := w.jobs.Withdraw(t.Context(), all[n]); err != nil {
					t.Fatal(err)
				}
				w.wantGone(t, all[n])
			}
			synctest.Wait()
			if got := w.task(t, "default", all[most].Task.ID); got.State != asynq.TaskStatePending {
				t.Errorf("limit %d: the next job is %s, want pending", most, got.State)
			}
			if st := wantAny(t, w.locks, "k"); st.Waiters != 5-most-2 {
				t.Errorf("limit %d: %d wait, want %d", most, st.Waiters, 5-most-2)
			}
		})
	}
}

// A job that runs is left alone. Once it has failed, because its row does not exist, it can be withdrawn.
func TestWithdrawOfAJobThatHasStarted(t *testing.T) {
	for name, u := range map[string]handoff.Unique{
		"until done": {Key: "k"}, "KeepLast": {Key: "k", OnConflict: handoff.KeepLast}, "cancel": {Key: "k", OnConflict: handoff.CancelInProgress}, "until started": {Key: "k", UntilStarted: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				done, err := w.jobs.Enqueue(t.Context(), u, asynq.NewTask("export", nil), asynq.Timeout(time.Minute))
				if err != nil {
					t.Fatal(err)
				}
				s := running
				if u.UntilStarted {
					s = started
				}
				w.work(t, s)
				time.Sleep(10 * time.Second)
				if err := w.jobs.Withdraw(t.Context(), done); !errors.Is(err, joblock.ErrBusy) {
					t.Errorf("while it runs: %v, want ErrBusy", err)
				}
				if got := w.task(t, "default", done.Task.ID); got.State != asynq.TaskStateActive {
					t.Errorf("the job is %s, want it active", got.State)
				}
			})
		})
		t.Run(name+", between two attempts", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				done, err := w.jobs.Enqueue(t.Context(), u, asynq.NewTask("export", nil))
				if err != nil {
					t.Fatal(err)
				}
				w.work(t, retrying)
				time.Sleep(10 * time.Second)
				if err := w.jobs.Withdraw(t.Context(), done); err != nil {
					t.Error(err)
				}
				w.wantGone(t, done)
			})
		})
	}
}

// Withdraw takes back what its caller has enqueued, and nothing else.
func TestWithdrawLeavesOtherJobsAlone(t *testing.T) {
	w := newMiniWeb(t)
	first, err := w.jobs.Enqueue(t.Context(), replaceK, asynq.NewTask("export", nil), asynq.TaskID("first"))
	if err != nil {
		t.Fatal(err)
	}
	duplicate, err := w.jobs.Enqueue(t.Context(), handoff.Unique{Key: "k", OnConflict: handoff.Skip}, asynq.NewTask("export", nil))
	if err != nil || !duplicate.Duplicate {
		t.Fatalf("%+v, %v; want a duplicate", duplicate, err)
	}
	if err := w.jobs.Withdraw(t.Context(), duplicate); err != nil {
		t.Errorf("a duplicate: %v", err)
	}
	w.task(t, "default", "first")
	if err := w.jobs.Withdraw(t.Context(), handoff.Result{}); !errors.Is(err, joblock.ErrInvalid) {
		t.Errorf("no task: %v, want ErrInvalid", err)
	}
	if err := (*handoff.Client)(nil).Withdraw(t.Context(), first); !errors.Is(err, joblock.ErrInvalid) {
		t.Errorf("no Client: %v, want ErrInvalid", err)
	}
	second, err := w.second(t.Context(), replaceK, asynq.TaskID("first"))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.jobs.Withdraw(t.Context(), first); !errors.Is(err, joblock.ErrNotOwner) {
		t.Errorf("replaced under its ID: %v, want ErrNotOwner", err)
	}
	w.wantOnly(t, replaceK, second)
}

// If asynq or the locks' store does not answer, a second call completes the first. So it does for a task that was deleted
// otherwise.
func TestWithdrawInAnOutage(t *testing.T) {
	for name, outage := range map[string]struct {
		begin, end func(w *web)
		unknown    bool
	}{
		"asynq": {func(w *web) { w.faults.setDown(errDown) }, func(w *web) { w.faults.setDown(nil) }, true},
		"asynq's deletion": {func(w *web) {
			w.faults.onDelete(func(_ context.Context, apply func() error) error { return errors.Join(apply(), errDown) })
		}, func(w *web) { w.faults.onDelete(nil) }, true},
		"resume":  {func(w *web) { w.store.Set(faultstore.Fault{Err: errDown}, faultstore.Resume) }, func(w *web) { w.store.Clear() }, true},
		"release": {func(w *web) { w.store.Set(faultstore.Fault{Err: errDown}, faultstore.Release) }, func(w *web) { w.store.Clear() }, true},
		"deleted by others": {func(w *web) {
			if err := w.inspector.DeleteTask("default", "first"); err != nil {
				t.Error(err)
			}
		}, func(*web) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				w.warm(t)
				done, err := w.jobs.Enqueue(t.Context(), handoff.Unique{Key: "k"}, asynq.NewTask("export", nil), asynq.TaskID("first"))
				if err != nil {
					t.Fatal(err)
				}
				outage.begin(w)
				start := time.Now()
				if err := w.jobs.Withdraw(t.Context(), done); errors.Is(err, joblock.ErrUnavailable) != outage.unknown || err != nil && !outage.unknown {
					t.Errorf("%v, want ErrUnavailable: %t", err, outage.unknown)
				}
				if took := time.Since(start); took > 9*time.Second {
					t.Errorf("it took %s", took)
				}
				outage.end(w)
				time.Sleep(time.Minute) // what goes on in the background
				if err := w.jobs.Withdraw(t.Context(), done); err != nil && !errors.Is(err, joblock.ErrNotFound) {
					t.Errorf("the second call: %v", err)
				}
				w.wantGone(t, done)
				wantState(t, w.locks, "k", joblock.StateFree)
			})
		})
	}
}

// A permit is freed as a lock is.
func TestWithdrawOfAPermit(t *testing.T) {
	w := newMiniWeb(t)
	u := handoff.Unique{Key: "k", Limit: 2}
	for range 2 {
		done, err := w.jobs.Enqueue(t.Context(), u, asynq.NewTask("export", nil))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.jobs.Withdraw(t.Context(), done); err != nil {
			t.Error(err)
		}
	}
	if at, err := limit.New(w.locks, 2).Status(t.Context(), "k"); err != nil || at.Taken != 0 {
		t.Errorf("%+v, %v; want no permit taken", at, err)
	}
}

// While another call replaces the job, or a handler still runs that has timed out, the job is left alone.
func TestWithdrawOfAJobWhoseLockIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		done, err := w.jobs.Enqueue(t.Context(), replaceK, asynq.NewTask("export", nil))
		if err != nil {
			t.Fatal(err)
		}
		job := envelope.Job("default", done.Task.ID)
		env, _, err := envelopekit.Read(w.task(t, "default", done.Task.ID).Headers)
		if err != nil {
			t.Fatal(err)
		}
		other, err := w.locks.Resume(t.Context(), env.Tokens[0], joblock.ForJob(job))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.jobs.Withdraw(t.Context(), done); !errors.Is(err, joblock.ErrBusy) {
			t.Errorf("%v, want ErrBusy", err)
		}
		w.task(t, "default", done.Task.ID)
		time.AfterFunc(time.Second, func() {
			if _, err := other.Park(context.Background(), joblock.ForJob(job)); err != nil {
				t.Error(err)
			}
		})
		if err := w.jobs.Withdraw(t.Context(), done); err != nil {
			t.Errorf("when the lock is back in a moment: %v", err)
		}
		w.wantGone(t, done)
	})
}
