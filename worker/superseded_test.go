package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/enqueue"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// newest is the policy under test. Its tests are the scenarios of public bug reports on other systems, by what happens:
//
//	a newer run starts while the cancelled one still cleans up   TestNewerJobStartsWhenTheHandlerHasReturned
//	the pending run is cancelled and the newest one with it      TestOfManyNewerJobsTheNewestRuns
//	a cancelled run is retried, and runs after the newer one     TestSuperseded, TestSupersededBetweenTwoAttempts
//	the enqueue fails after the running one was cancelled        TestEnqueueThatDiesSupersedesNothing
//	a run is cancelled by one of another group or key            TestOnlyJobsOfTheKeyAreSuperseded
//	the cancel arrives before the run has started, and is lost   TestSupersededBeforeItsRun
var newest = handoff.Unique{Key: "k", OnConflict: handoff.CancelInProgress}

// diary records the jobs of a key by the payload of their tasks, and finds two that run at a time.
type diary struct {
	mu      sync.Mutex
	entries []string
	running int
	both    bool
}

func (d *diary) handler(f func(ctx context.Context, name string) error) asynq.HandlerFunc {
	return func(ctx context.Context, task *asynq.Task) error {
		name := string(task.Payload())
		d.note("start "+name, 1)
		defer d.note("end "+name, -1)
		return f(ctx, name)
	}
}

func (d *diary) note(entry string, change int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.entries = append(d.entries, entry)
	d.running += change
	d.both = d.both || d.running > 1
}

func (d *diary) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.entries)
}

func (d *diary) has(entry string) bool { return slices.Contains(d.all(), entry) }

func (d *diary) want(t *testing.T, want ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.entries, want) || d.both {
		t.Errorf("happened: %q, two at a time: %t; want %q", d.entries, d.both, want)
	}
}

// tokenOf returns the token for key that a task carries.
func (r *rig) tokenOf(id, key string) joblock.Token {
	r.t.Helper()
	env, _, err := envelope.Open(context.Background(), (*core.Locker)(r.locks).Ring().Open,
		envelope.Task{Job: envelope.Job(queue, id), Type: taskType, Headers: r.taskHeaders(id)})
	if err != nil {
		r.t.Fatal(err)
	}
	return env.Tokens[slices.IndexFunc(env.Tokens, func(t joblock.Token) bool { return t.Key() == key })]
}

// parkOwn takes one of the toolkit's own keys for a task, as an enqueue does before the task exists.
func (r *rig) parkOwn(key, id string) {
	r.t.Helper()
	lock, err := (*core.Locker)(r.locks).TryAcquire(context.Background(), key, core.Options{OwnKey: true})
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := lock.Park(context.Background(), core.Park{Reserve: reserve, Job: envelope.Job(queue, id)}); err != nil {
		r.t.Fatal(err)
	}
}

// enqueueNewest enqueues a job whose task has name as payload and ID.
func (l *line) enqueueNewest(name string, opts ...asynq.Option) handoff.Result {
	l.t.Helper()
	got, err := l.jobs.Enqueue(context.Background(), newest, asynq.NewTask(taskType, []byte(name)), append([]asynq.Option{asynq.TaskID(name)}, opts...)...)
	if err != nil {
		l.t.Fatalf("enqueue %s: %v", name, err)
	}
	return got
}

// untilDone is a handler that works on a job until it is superseded, and then calls end.
func untilDone(last string, end func(ctx context.Context) error) func(ctx context.Context, name string) error {
	return func(ctx context.Context, name string) error {
		if name == last {
			return nil
		}
		<-ctx.Done()
		return end(ctx)
	}
}

// Whatever the handler of a superseded job does, its task is done: neither retried, nor archived, nor a failure.
func TestSuperseded(t *testing.T) {
	for name, end := range map[string]func(ctx context.Context) error{
		"nil":           func(context.Context) error { return nil },
		"the cause":     context.Cause,
		"ctx.Err":       func(ctx context.Context) error { return ctx.Err() },
		"another error": func(context.Context) error { return errBoom },
		"SkipRetry":     func(context.Context) error { return asynq.SkipRetry },
		"a lost lock":   func(context.Context) error { return joblock.ErrLost },
		"panic":         func(context.Context) error { panic("kaboom") },
	} {
		for _, retries := range []int{0, 3} {
			t.Run(fmt.Sprint(name, ", retries ", retries), func(t *testing.T) {
				kept(t, func(r *rig) {
					l := r.line()
					var d diary
					var p probe
					failures := 0
					cause := make(chan error, 1)
					r.serve(service{asynq: asynq.Config{ErrorHandler: p.ear(), IsFailure: func(error) bool { failures++; return true }}},
						d.handler(untilDone("b", func(ctx context.Context) error {
							cause <- context.Cause(ctx)
							time.Sleep(10 * time.Second) // what cleans up has its time
							return end(ctx)
						})))
					l.enqueueNewest("a", asynq.MaxRetry(retries))
					r.until("a runs", func() bool { return d.has("start a") })
					asked := time.Now()
					l.enqueueNewest("b")
					if err := <-cause; !errors.Is(err, worker.ErrSuperseded) || !strings.Contains(err.Error(), queue+"/b") {
						t.Errorf("the context ended because of %v, want ErrSuperseded and the newer job", err)
					}
					if took := time.Since(asked); took > time.Second {
						t.Errorf("the context ended after %s", took)
					}
					r.untilTask("b", "gone")
					d.want(t, "start a", "end a", "start b", "end b")
					time.Sleep(5 * time.Minute)
					d.want(t, "start a", "end a", "start b", "end b")
					r.wantTask("a", "gone", 0)
					if info, err := r.inspector.GetQueueInfo(queue); err != nil || info.Failed != 0 || info.Processed != 2 {
						t.Errorf("asynq counts %+v, %v; want two processed and no failure", info, err)
					}
					if told := p.heard(); len(told) != 0 || failures != 0 {
						t.Errorf("the ErrorHandler was called with %v, and IsFailure %d times", told, failures)
					}
					r.untilFree("k")
				})
			})
		}
	}
}

// A handler that ignores its context keeps the newer job waiting, which is not charged, and starts just after.
func TestNewerJobStartsWhenTheHandlerHasReturned(t *testing.T) {
	kept(t, func(r *rig) {
		l := r.line()
		var d diary
		returned := time.Time{}
		r.serve(service{}, d.handler(func(ctx context.Context, name string) error {
			if name == "a" {
				<-ctx.Done()
				time.Sleep(10 * time.Minute)
				returned = time.Now()
			} else if late := time.Since(returned); late > 5*time.Second {
				t.Errorf("the newer job has started %s after the end of the older one", late)
			}
			return nil
		}))
		l.enqueueNewest("a")
		r.until("a runs", func() bool { return d.has("start a") })
		l.enqueueNewest("b", asynq.MaxRetry(0))
		time.Sleep(5 * time.Minute)
		d.want(t, "start a")
		r.wantState("k", joblock.StateHeld, "a")
		r.untilTask("b", "gone")
		d.want(t, "start a", "end a", "start b", "end b")
	})
}

// Of many jobs that are enqueued while one runs, the newest runs, and each of the others was replaced.
func TestOfManyNewerJobsTheNewestRuns(t *testing.T) {
	kept(t, func(r *rig) {
		l := r.line()
		var d diary
		r.serve(service{}, d.handler(untilDone("9", func(ctx context.Context) error {
			time.Sleep(time.Minute)
			return ctx.Err()
		})))
		l.enqueueNewest("0")
		r.until("0 runs", func() bool { return d.has("start 0") })
		for i := 1; i < 10; i++ {
			got := l.enqueueNewest(fmt.Sprint(i))
			if want := fmt.Sprint(i - 1); i > 1 && (got.Replaced == nil || got.Replaced.ID != want) {
				t.Errorf("%d has replaced %v, want %s", i, got.Replaced, want)
			}
			time.Sleep(3 * time.Second)
		}
		r.untilTask("9", "gone")
		d.want(t, "start 0", "end 0", "start 9", "end 9")
	})
}

// A job that waits for a retry has no further attempt: neither when the newer job comes first, nor when its retry does.
func TestSupersededBetweenTwoAttempts(t *testing.T) {
	for name, delay := range map[string]time.Duration{"long before": time.Hour, "just before": 2 * time.Second} {
		t.Run(name, func(t *testing.T) {
			kept(t, func(r *rig) {
				l := r.line()
				var d diary
				cfg := asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return delay }}
				handler := d.handler(func(_ context.Context, name string) error {
					if name == "a" {
						return errBoom
					}
					return nil
				})
				s := r.serve(service{asynq: cfg}, handler)
				l.enqueueNewest("a", asynq.MaxRetry(1))
				r.untilTask("a", "retry")
				if name == "just before" { // both are due when a worker comes
					s.Shutdown()
				}
				l.enqueueNewest("b", asynq.MaxRetry(0))
				came := time.Now()
				if name == "just before" {
					time.Sleep(time.Minute)
					r.serve(service{asynq: cfg}, handler)
				}
				r.untilTask("b", "gone")
				if took := time.Since(came); name == "long before" && took > time.Minute {
					t.Errorf("the newer job has waited for %s behind the retry of the older one", took)
				}
				r.untilTask("a", "gone")
				d.want(t, "start a", "end a", "start b", "end b")
			})
		})
	}
}

// Only the newest job supersedes. An enqueue that replaces b by c dies before it deletes the task of b: b does not end the
// job that waits for a retry.
func TestReplacedJobSupersedesNothing(t *testing.T) {
	virtual(t, func(r *rig) {
		l := r.line()
		var d diary
		cfg := asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour }}
		r.serve(service{asynq: cfg}, d.handler(func(context.Context, string) error { return errBoom }))
		l.enqueueNewest("a", asynq.MaxRetry(1))
		r.untilTask("a", "retry")
		l.enqueueNewest("b", asynq.ProcessIn(time.Minute))
		lock, err := l.locks.Resume(context.Background(), l.tokenOf("b", "k%next"), joblock.ForJob(envelope.Job(queue, "b")))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := lock.Park(context.Background(), joblock.Reserve(reserve), joblock.ForJob(envelope.Job(queue, "c"))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		r.wantTask("a", "retry", 1)
		r.wantState("k", joblock.StateParked, "a")
		r.untilTask("b", "retry") // snoozed
	})
}

// The worker of a job is killed. asynq delivers the job again: without a run, if a newer one waits.
func TestSupersededAfterACrash(t *testing.T) {
	kept(t, func(r *rig) {
		l := r.line()
		var d diary
		handler := d.handler(func(_ context.Context, name string) error {
			if name == "a" {
				return errBoom
			}
			return nil
		})
		done := r.serve(service{}, handler)
		l.enqueueNewest("a", asynq.MaxRetry(3))
		r.untilTask("a", "retry")
		done.Shutdown()
		if err := r.inspector.RunTask(queue, "a"); err != nil {
			t.Fatal(err)
		}
		r.crash("a", r.tokenOf("a", "k"))
		l.enqueueNewest("b", asynq.MaxRetry(0))
		r.serve(service{}, handler)
		r.untilTask("b", "gone")
		r.untilTask("a", "gone")
		time.Sleep(10 * time.Minute)
		d.want(t, "start a", "end a", "start b", "end b")
	})
}

// An enqueue that has taken its place and dies before its task exists has superseded nothing.
func TestEnqueueThatDiesSupersedesNothing(t *testing.T) {
	kept(t, func(r *rig) {
		l := r.line()
		var d diary
		r.serve(service{}, d.handler(func(ctx context.Context, name string) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(10 * time.Minute):
				return nil
			}
		}))
		l.enqueueNewest("a")
		r.until("a runs", func() bool { return d.has("start a") })
		r.parkOwn("k%next", "b")
		time.Sleep(8 * time.Minute)
		d.want(t, "start a")
		r.untilTask("a", "gone")
		d.want(t, "start a", "end a")
	})
}

// With a time of its own the newer job ends the running one when it is due. No notice is needed for that.
func TestSupersededWhenTheNewerJobIsDue(t *testing.T) {
	kept(t, func(r *rig) {
		l := r.line()
		var d diary
		r.serve(service{}, d.handler(untilDone("b", context.Cause)))
		l.enqueueNewest("a")
		r.until("a runs", func() bool { return d.has("start a") })
		l.enqueueNewest("b", asynq.ProcessIn(10*time.Minute))
		time.Sleep(9 * time.Minute)
		d.want(t, "start a")
		time.Sleep(90 * time.Second)
		d.want(t, "start a", "end a", "start b", "end b")
	})
}

// A notice that is lost makes the end of the running job late, also where no worker is free to take the newer job.
func TestSupersededWithoutANotice(t *testing.T) {
	for _, concurrency := range []int{1, 10} {
		t.Run(fmt.Sprint(concurrency), func(t *testing.T) {
			kept(t, func(r *rig) {
				r.faults.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Notify)
				l := r.line()
				var d diary
				r.serve(service{asynq: asynq.Config{Concurrency: concurrency}}, d.handler(untilDone("b", context.Cause)))
				l.enqueueNewest("a")
				r.until("a runs", func() bool { return d.has("start a") })
				l.enqueueNewest("b")
				time.Sleep(2 * defaultSnooze)
				d.want(t, "start a", "end a", "start b", "end b")
			})
		})
	}
}

// Both jobs are there before a worker: the newer has replaced the older, so only one runs. If the newer one comes between
// the start of an attempt and the call of the handler, the handler is not called.
func TestSupersededBeforeItsRun(t *testing.T) {
	kept(t, func(r *rig) {
		l := r.line()
		var d diary
		l.enqueueNewest("a")
		l.enqueueNewest("b")
		r.serve(service{}, d.handler(func(context.Context, string) error { return nil }))
		r.untilTask("b", "gone")
		d.want(t, "start b", "end b")
	})
}

// Only a job of the same key is superseded, and only if both jobs were enqueued with the policy.
func TestOnlyJobsOfTheKeyAreSuperseded(t *testing.T) {
	for name, c := range map[string]struct{ first, then handoff.How }{
		"another key":                       {handoff.Unique{Key: "k2", OnConflict: handoff.CancelInProgress}, newest},
		"another policy":                    {handoff.Unique{Key: "k", OnConflict: handoff.KeepLast}, newest},
		"another policy of the newer":       {newest, handoff.Unique{Key: "k", OnConflict: handoff.KeepLast}},
		"a debounce after CancelInProgress": {newest, handoff.Debounce{Key: "k", Wait: time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			kept(t, func(r *rig) {
				l := r.line()
				var d diary
				r.serve(service{}, d.handler(func(ctx context.Context, name string) error {
					if name == "a" {
						select {
						case <-ctx.Done():
							t.Errorf("the context has ended: %v", context.Cause(ctx))
						case <-time.After(5 * time.Minute):
						}
					}
					return nil
				}))
				if _, err := l.jobs.Enqueue(context.Background(), c.first, asynq.NewTask(taskType, []byte("a"))); err != nil {
					t.Fatal(err)
				}
				r.until("a runs", func() bool { return d.has("start a") })
				if _, err := l.jobs.Enqueue(context.Background(), c.then, asynq.NewTask(taskType, []byte("b"))); err != nil {
					t.Fatal(err)
				}
				r.until("both have run", func() bool { return d.has("end a") && d.has("end b") })
				if name != "another key" {
					d.want(t, "start a", "end a", "start b", "end b")
				}
			})
		})
	}
}

// A caller that may not touch every queue ends a job of its key in its own queue alone: while the job runs, and while it waits
// for a retry.
func TestJobOfAnotherQueueIsNotSuperseded(t *testing.T) {
	for name, fails := range map[string]bool{"runs": false, "waits for a retry": true} {
		t.Run(name, func(t *testing.T) {
			kept(t, func(r *rig) {
				l := r.line()
				var d diary
				r.serve(service{}, d.handler(func(ctx context.Context, name string) error {
					if name != "a" {
						return nil
					}
					if fails {
						return errors.New("not yet")
					}
					<-ctx.Done()
					return ctx.Err()
				}))
				l.enqueueNewest("a", asynq.MaxRetry(100), asynq.Timeout(time.Hour))
				r.until("a runs", func() bool { return d.has("start a") })
				enqueueOwn := func(name, of string) {
					_, err := (*enqueue.Client)(l.jobs).Enqueue(context.Background(), enqueue.Request{
						How: enqueue.Unique{Key: "k", OnConflict: enqueue.CancelInProgress}, OwnQueue: true,
						Task: asynq.NewTask(taskType, []byte(name)), Opts: []asynq.Option{asynq.TaskID(name), asynq.Queue(of)},
					})
					if err != nil {
						t.Fatal(err)
					}
				}
				enqueueOwn("b", "elsewhere")
				time.Sleep(time.Minute)
				if _, err := r.inspector.GetTaskInfo(queue, "a"); err != nil || !fails && d.has("end a") {
					t.Fatalf("the job of another queue has ended: %v, %q", err, d.all())
				}
				enqueueOwn("c", queue)
				r.untilTask("a", "gone")
				r.until("c has run", func() bool { return d.has("end c") })
			})
		})
	}
}

// A chain is superseded as a whole: in each of its steps, and while its next step waits for its time.
func TestSupersededChain(t *testing.T) {
	for name, s := range map[string]struct {
		at   string // the step that runs, or waits, when the newer job comes
		want []string
	}{
		"first step":        {"start a", []string{"start a", "end a", "start b", "end b"}},
		"second step":       {"start a2", []string{"start a", "end a", "start a2", "end a2", "start b", "end b"}},
		"step in an hour":   {"end a", []string{"start a", "end a", "start b", "end b"}},
		"between two steps": {"end a", []string{"start a", "end a", "start b", "end b"}},
	} {
		t.Run(name, func(t *testing.T) {
			kept(t, func(r *rig) {
				l := r.line()
				var d diary
				r.serve(service{}, d.handler(func(ctx context.Context, name string) error {
					if "start "+name == s.at {
						<-ctx.Done()
						return nil // it has come to its end all the same, and the next step does not follow
					}
					return nil
				}))
				var opts []asynq.Option
				if s.at == "end a" {
					opts = append(opts, asynq.ProcessIn(time.Hour))
				}
				_, err := l.jobs.Enqueue(context.Background(), handoff.Chain{Under: newest, Then: []*asynq.Task{
					asynq.NewTask(taskType, []byte("a2"), opts...), asynq.NewTask(taskType, []byte("a3")),
				}}, asynq.NewTask(taskType, []byte("a")))
				if err != nil {
					t.Fatal(err)
				}
				r.until(s.at, func() bool { return d.has(s.at) })
				if name != "between two steps" {
					time.Sleep(time.Minute)
				}
				l.enqueueNewest("b", asynq.MaxRetry(0))
				r.untilTask("b", "gone")
				time.Sleep(2 * time.Hour)
				d.want(t, s.want...)
			})
		})
	}
}

// asynq does not get the end of a superseded job, as when the worker dies just then, and delivers the job again: without
// a run, and before the newer job has the key.
func TestSupersededEndThatAsynqDoesNotGet(t *testing.T) {
	kept(t, func(r *rig) {
		l := r.line()
		var d diary
		rdb := redistest.MiniClient(r.t, r.mini)
		r.rdb = rdb // of the server alone
		lost := &unwritten{}
		rdb.AddHook(lost)
		r.serve(service{}, d.handler(untilDone("b", func(context.Context) error {
			lost.next.Store(true)
			return nil
		})))
		l.enqueueNewest("a")
		r.until("a runs", func() bool { return d.has("start a") })
		l.enqueueNewest("b")
		r.untilTask("b", "gone")
		time.Sleep(10 * time.Minute)
		r.untilTask("a", "gone")
		d.want(t, "start a", "end a", "start b", "end b")
	})
}

// A shutdown that does not wait for what cleans up puts the task back. The next worker does not run it.
func TestSupersededDuringAShutdown(t *testing.T) {
	kept(t, func(r *rig) {
		l := r.line()
		var d diary
		handler := d.handler(untilDone("b", func(ctx context.Context) error {
			time.Sleep(time.Minute)
			return ctx.Err()
		}))
		s := r.serve(service{asynq: asynq.Config{ShutdownTimeout: time.Second}}, handler)
		l.enqueueNewest("a", asynq.MaxRetry(0))
		r.until("a runs", func() bool { return d.has("start a") })
		l.enqueueNewest("b", asynq.MaxRetry(0))
		s.Shutdown()
		r.closeWorker(s.worker)
		r.serve(service{}, handler)
		r.untilTask("b", "gone")
		r.untilTask("a", "gone")
		d.want(t, "start a", "end a", "start b", "end b")
	})
}

// A handler that returns ErrSuperseded by itself has failed like with any other error: nothing has superseded its job.
func TestErrSupersededOfAHandler(t *testing.T) {
	for name, err := range map[string]error{"itself": worker.ErrSuperseded, "wrapped": fmt.Errorf("the other run: %w", worker.ErrSuperseded)} {
		t.Run(name, func(t *testing.T) {
			paceIn(t, func(_ string, n int) (time.Duration, error) {
				if n == 0 {
					return time.Second, err
				}
				return time.Second, nil
			}, func(p *paced) {
				p.add(handoff.Unique{Key: "k"}, "a")
				p.at(10)
				if _, err := p.jobs.Enqueue(context.Background(), handoff.Unique{Key: "k"}, asynq.NewTask(taskType, nil)); !errors.Is(err, joblock.ErrHeld) {
					t.Errorf("between the attempts: %v, want ErrHeld", err)
				}
				p.at(60)
				p.want(3, pacedRun{payload: "a", at: 0}, pacedRun{payload: "a", at: 21})
			})
		})
	}
}

// The job that has superseded a handler which ignores its context is replaced meanwhile. The newest job starts when that handler
// has returned, and not at the end of its own pause.
func TestNewestStartsAtOnceAfterADeafHandler(t *testing.T) {
	paceIn(t, func(payload string, _ int) (time.Duration, error) {
		if payload == "a" {
			return 8 * time.Second, nil
		}
		return time.Second, nil
	}, func(p *paced) {
		p.add(newest, "a")
		for i, name := range []string{"b", "c"} {
			p.at(1.5 + 2*float64(i))
			p.add(newest, name)
		}
		p.at(40)
		p.want(2, pacedRun{payload: "a", at: 0}, pacedRun{payload: "c", at: 8})
	})
}
