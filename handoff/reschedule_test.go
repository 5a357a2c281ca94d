package handoff_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// However a job was enqueued, and in whatever list it waits, Reschedule moves it, with all that it has.
func TestReschedule(t *testing.T) {
	const payload = "payload"
	hows := map[string]func(*testing.T, *web) handoff.How{
		"unique":   func(*testing.T, *web) handoff.How { return handoff.Unique{Key: "k"} },
		"KeepLast": func(*testing.T, *web) handoff.How { return handoff.Unique{Key: "k", OnConflict: handoff.KeepLast} },
		"permit":   func(*testing.T, *web) handoff.How { return handoff.Unique{Key: "k", Limit: 2} },
		"locks": func(t *testing.T, w *web) handoff.How {
			return handoff.Carry(acquire(t, w.locks, "k"), acquire(t, w.locks, "l"))
		},
		"debounce": func(*testing.T, *web) handoff.How { return handoff.Debounce{Key: "k", Wait: time.Minute} },
	}
	for name, how := range hows {
		for state, opts := range map[string][]asynq.Option{
			"pending": {asynq.MaxRetry(3)}, "scheduled": {asynq.ProcessIn(2 * time.Hour)}, "retry": {asynq.MaxRetry(3)},
		} {
			if name == "debounce" && state != "pending" {
				continue // a debounced job is scheduled
			}
			t.Run(name+", "+state, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newMiniWeb(t)
					done, err := w.jobs.Enqueue(t.Context(), how(t, w), asynq.NewTask("export", []byte(payload)), opts...)
					if err != nil {
						t.Fatal(err)
					}
					if state == "retry" {
						w.retry(t, done)
					}
					before := w.task(t, "default", done.Task.ID)
					for _, at := range []time.Time{time.Now().Add(48 * time.Hour), time.Now().Add(90*time.Minute + time.Millisecond)} {
						ctx, cancel := context.WithCancel(t.Context())
						cancel()
						if err := w.jobs.Reschedule(ctx, done, at); err != nil {
							t.Fatal(err)
						}
						got := w.task(t, "default", done.Task.ID)
						if got.NextProcessAt.Before(at) || got.NextProcessAt.Sub(at) > time.Second {
							t.Errorf("the job is due at %s, want %s", got.NextProcessAt, at)
						}
						if string(got.Payload) != payload || got.MaxRetry != before.MaxRetry || got.Headers["joblock"] != before.Headers["joblock"] {
							t.Errorf("the job is %+v, was %+v", got, before)
						}
						for l, err := range w.locks.List(t.Context(), joblock.ListOptions{}) {
							if err != nil {
								t.Fatal(err)
							}
							if _, _, ok := handoff.JobOf(&joblock.Error{Job: l.Job}); ok && l.Locked() && l.Reserved < time.Until(at)+time.Hour {
								t.Errorf("the lock %q is reserved for %s, which is not long enough", l.Key, l.Reserved)
							}
						}
					}
					if err := w.jobs.Reschedule(t.Context(), done, time.Time{}); err != nil {
						t.Fatal(err)
					}
					if got := w.task(t, "default", done.Task.ID); got.State != asynq.TaskStatePending {
						t.Errorf("the job is %s, want it pending", got.State)
					}
				})
			})
		}
	}
}

// retry makes asynq charge a retry of the job, as for a handler that has failed.
func (w *web) retry(t *testing.T, done handoff.Result) {
	t.Helper()
	if err := w.inspector.RunTask("default", done.Task.ID); err != nil && !strings.Contains(err.Error(), "pending") {
		t.Fatal(err)
	}
	srv := asynq.NewServerFromRedisClient(w.rdb, asynq.Config{
		LogLevel: asynq.FatalLevel, RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
	})
	if err := srv.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return errors.New("try again") })); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Second)
	srv.Shutdown()
	if got := w.task(t, "default", done.Task.ID); got.State != asynq.TaskStateRetry {
		t.Fatalf("the job is %s, want it to wait for a retry", got.State)
	}
}

// What cannot be moved stays as it is, and the error says why.
func TestRescheduleRefused(t *testing.T) {
	at := func() time.Time { return time.Now().Add(time.Hour) }
	for name, tc := range map[string]struct {
		how    handoff.How
		opts   []asynq.Option
		before func(t *testing.T, w *web, done *handoff.Result)
		at     func() time.Time
		want   error
		says   string
	}{
		"no task": {
			before: func(_ *testing.T, _ *web, done *handoff.Result) { *done = handoff.Result{} }, want: joblock.ErrInvalid, says: "Task is nil",
		},
		"too late":  {at: func() time.Time { return time.Now().Add(driver.MaxPeriod) }, want: joblock.ErrInvalid, says: "can be reserved"},
		"Deadline":  {opts: []asynq.Option{asynq.Deadline(time.Now().Add(30 * time.Minute))}, want: joblock.ErrInvalid, says: "not before the job's Deadline"},
		"group":     {opts: []asynq.Option{asynq.Group("g")}, want: joblock.ErrInvalid, says: "waits in a group"},
		"sequence":  {how: handoff.Sequence{Key: "k"}, want: joblock.ErrInvalid, says: "in a sequence"},
		"withdrawn": {before: func(t *testing.T, w *web, done *handoff.Result) { w.jobs.Withdraw(t.Context(), *done) }, want: joblock.ErrNotFound},
		"archived": {before: func(t *testing.T, w *web, done *handoff.Result) {
			if err := w.inspector.ArchiveTask("default", done.Task.ID); err != nil {
				t.Error(err)
			}
		}, want: joblock.ErrNotFound, says: "RunTask"},
		"replaced under its ID": {how: handoff.Unique{Key: "k", OnConflict: handoff.Replace}, opts: []asynq.Option{asynq.TaskID("a")},
			before: func(t *testing.T, w *web, _ *handoff.Result) {
				if _, err := w.jobs.Enqueue(t.Context(), replaceK, asynq.NewTask("export", nil), asynq.TaskID("a")); err != nil {
					t.Error(err)
				}
			}, want: joblock.ErrNotOwner},
		"active": {before: func(t *testing.T, w *web, done *handoff.Result) {
			if err := w.rdb.HSet(t.Context(), "asynq:{default}:t:"+done.Task.ID, "state", "active").Err(); err != nil {
				t.Error(err)
			}
		}, want: joblock.ErrBusy},
		"active between the look and the move": {before: func(t *testing.T, w *web, done *handoff.Result) {
			if err := w.rdb.LRem(t.Context(), "asynq:{default}:pending", 1, done.Task.ID).Err(); err != nil {
				t.Error(err)
			}
		}, want: joblock.ErrBusy, says: "just being started"},
		"store away": {before: func(_ *testing.T, w *web, _ *handoff.Result) {
			w.store.Set(faultstore.Fault{Err: errDown}, faultstore.Reserve)
		}, want: joblock.ErrUnavailable},
		"asynq away": {before: func(_ *testing.T, w *web, _ *handoff.Result) { w.faults.setDown(errDown) }, want: joblock.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				if tc.how == nil {
					tc.how = handoff.Unique{Key: "k"}
				}
				if name == "Deadline" { // by the clock of the bubble
					tc.opts = []asynq.Option{asynq.Deadline(time.Now().Add(30 * time.Minute))}
				}
				done, err := w.jobs.Enqueue(t.Context(), tc.how, asynq.NewTask("export", nil), tc.opts...)
				if err != nil {
					t.Fatal(err)
				}
				if tc.before != nil {
					tc.before(t, w, &done)
				}
				if tc.at == nil {
					tc.at = at
				}
				start := time.Now()
				if err := w.jobs.Reschedule(t.Context(), done, tc.at()); !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("%v, want %v with %q", err, tc.want, tc.says)
				}
				if took := time.Since(start); took > 5*time.Second {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
	if err := (*handoff.Client)(nil).Reschedule(t.Context(), handoff.Result{}, at()); !errors.Is(err, joblock.ErrInvalid) {
		t.Errorf("no Client: %v, want ErrInvalid", err)
	}
}

// Job finds the job that has a key, and no other task.
func TestJobOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		none := func(key string) {
			t.Helper()
			if got, err := w.jobs.Job(t.Context(), key); !errors.Is(err, joblock.ErrNotFound) {
				t.Errorf("%+v, %v; want ErrNotFound", got, err)
			}
		}
		none("k")
		none("k%next")
		for _, how := range []func() handoff.How{
			func() handoff.How { return handoff.Unique{Key: "k"} },
			func() handoff.How { return handoff.Unique{Key: "k", OnConflict: handoff.KeepLast} },
			func() handoff.How { return handoff.Debounce{Key: "k", Wait: time.Second} },
			func() handoff.How { return handoff.Sequence{Key: "k"} },
			func() handoff.How { return handoff.Carry(acquire(t, w.locks, "k")) },
		} {
			done, err := w.jobs.Enqueue(t.Context(), how(), asynq.NewTask("export", nil))
			if err != nil {
				t.Fatal(err)
			}
			got, err := w.jobs.Job(t.Context(), "k")
			if err != nil || got.Task.ID != done.Task.ID || len(got.Task.Headers) > 0 {
				t.Fatalf("%+v, %v; want %s", got.Task, err, done.Task.ID)
			}
			if err := w.jobs.Withdraw(t.Context(), got); err != nil {
				t.Errorf("%s: %v", done.Task.ID, err)
			}
			none("k")
		}
		held := acquire(t, w.locks, "k") // no job
		none("k")
		if err := held.Release(t.Context()); err != nil {
			t.Error(err)
		}
		w.faults.setDown(errDown)
		none("k")
		if _, err := (*handoff.Client)(nil).Job(t.Context(), "k"); !errors.Is(err, joblock.ErrInvalid) {
			t.Errorf("no Client: %v, want ErrInvalid", err)
		}
		w.faults.setDown(nil)
	})
}
