package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/asynqprivate"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
)

// Three jobs of one key run in the order of their enqueues, and the process that ends one starts the next: no poll, no keeper.
func TestJobsOfASequenceRunInOrder(t *testing.T) {
	virtual(t, func(r *rig) {
		l := r.line()
		var p probe
		var mu sync.Mutex
		running := 0
		var ends, starts []time.Time
		handler := p.handler(func(ctx context.Context, n int) error {
			mu.Lock()
			if running++; running > 1 {
				t.Errorf("%d jobs of one sequence at once", running)
			}
			starts = append(starts, time.Now())
			mu.Unlock()
			time.Sleep(time.Minute)
			mu.Lock()
			defer mu.Unlock()
			ends = append(ends, time.Now())
			running--
			return nil
		})
		l.add(handoff.Sequence{}, "a", "b", "c")
		l.wantLine("b", "c")
		l.wantTask("b", "scheduled", 0)
		r.serve(service{}, handler)
		l.until("three runs", func() bool { mu.Lock(); defer mu.Unlock(); return len(ends) == 3 })
		l.wantOrder(&p, "a", "b", "c")
		for i := 1; i < 3; i++ {
			// asynq polls a queue that was empty about once a second.
			if d := starts[i].Sub(ends[i-1]); d > 3*time.Second {
				t.Errorf("job %d started %s after the job before", i+1, d)
			}
		}
		l.untilTask("c", "gone")
		l.wantEnded(seqKey, "job done")
		l.wantLine()
	})
}

// Whichever way a job ends, the next one starts: at once if the job will not run again, and not before if it will. Only
// a job that has failed for good halts a sequence that is to halt.
func TestSequenceAfterEachEndOfAJob(t *testing.T) {
	tests := []struct {
		name    string
		opts    []asynq.Option
		handler func(context.Context, int) error
		runs    []string // of a, until the next one runs
		failed  bool
	}{
		{"success", nil, succeed, []string{"a"}, false},
		{"success with retention", []asynq.Option{asynq.Retention(time.Hour)}, succeed, []string{"a"}, false},
		{"error, then success", nil, first(fail), []string{"a", "a"}, false},
		{"error on the last attempt", nil, fail, []string{"a", "a"}, true},
		{"SkipRetry", nil, returning(asynq.SkipRetry), []string{"a"}, true},
		{"RevokeTask", nil, returning(asynq.RevokeTask), []string{"a"}, false},
		{"panic, then success", nil, first(blow), []string{"a", "a"}, false},
		{"panic on the last attempt", nil, blow, []string{"a", "a"}, true},
		{"timeout, then success", []asynq.Option{asynq.Timeout(time.Second)}, first(obey), []string{"a", "a"}, false},
		{"timeout on the last attempt", []asynq.Option{asynq.Timeout(time.Second)}, obey, []string{"a", "a"}, true},
	}
	for _, tt := range tests {
		for name, policy := range map[string]bool{"go on": false, "halt": true} {
			t.Run(tt.name+", "+name, func(t *testing.T) {
				virtual(t, func(r *rig) {
					l := r.line()
					var p probe
					s := handoff.Sequence{HaltOnFailure: policy}
					l.addOne(s, "a", append(tt.opts, asynq.MaxRetry(1))...)
					l.add(s, "b", "c")
					r.serve(service{}, p.handler(only("a", tt.handler)))
					if !tt.failed || !policy {
						r.untilTask("c", "gone")
						l.wantOrder(&p, append(tt.runs, "b", "c")...)
						return
					}
					r.untilTask("a", "archived")
					time.Sleep(time.Minute)
					l.wantOrder(&p, tt.runs...)
					l.wantLine("b", "c")
					r.wantState(seqKey, joblock.StateParked, "a")
				})
			})
		}
	}
}

// The third of five fails for good and halts the sequence. The operator runs it again, and it succeeds; or skips it.
func TestHaltedSequence(t *testing.T) {
	halted := func(t *testing.T, f func(l *line, p *probe, heal func())) {
		virtual(t, func(r *rig) {
			l := r.line()
			var p probe
			var healed atomic.Bool
			l.add(handoff.Sequence{HaltOnFailure: true}, "1", "2", "3", "4", "5")
			r.serve(service{}, p.handler(only("3", func(context.Context, int) error {
				if healed.Load() {
					return nil
				}
				return errBoom
			})))
			r.untilTask("3", "archived")
			time.Sleep(time.Minute)
			l.wantOrder(&p, "1", "2", "3", "3")
			l.wantLine("4", "5")
			r.wantState(seqKey, joblock.StateParked, "3")
			r.wantTask("4", "scheduled", 0)
			f(l, &p, func() { healed.Store(true) })
			r.untilTask("5", "gone")
			l.wantLine()
		})
	}
	t.Run("run again", func(t *testing.T) {
		halted(t, func(l *line, p *probe, heal func()) {
			l.run("3")
			l.until("one more failure", func() bool { return p.count() == 5 })
			l.untilTask("3", "archived")
			time.Sleep(time.Minute)
			l.wantLine("4", "5")
			heal()
			l.run("3")
			l.untilTask("5", "gone")
			l.wantOrder(p, "1", "2", "3", "3", "3", "3", "4", "5")
		})
	})
	t.Run("skipped", func(t *testing.T) {
		halted(t, func(l *line, p *probe, _ func()) {
			free := func() error {
				failed := []core.JobRelease{{Key: seqKey, Job: envelope.Job("default", "3")}}
				return (*core.Locker)(l.locks).FreeJobs(context.Background(), l.next(), failed)[0]
			}
			if err := free(); err != nil {
				l.t.Fatal(err)
			}
			l.untilTask("5", "gone")
			l.wantOrder(p, "1", "2", "3", "3", "4", "5")
			l.wantTask("3", "archived", 1)
			if err := free(); !errors.Is(err, joblock.ErrNotFound) {
				t.Errorf("Free of a sequence that is over: %v", err)
			}
		})
	})
}

// RunTask and the end of the day bring a task up before its turn: it keeps its place, is not charged, and runs when its
// turn comes.
func TestTaskThatComesUpBeforeItsTurn(t *testing.T) {
	for who, people := range map[string]bool{"by RunTask": true, "by itself": false} {
		t.Run(who, func(t *testing.T) { testComesUp(t, people) })
	}
}

func testComesUp(t *testing.T, people bool) {
	virtual(t, func(r *rig) {
		l := r.line()
		var p probe
		lock, err := r.locks.TryAcquire(context.Background(), seqKey)
		if err != nil {
			r.t.Fatal(err)
		}
		l.add(handoff.Sequence{}, "b", "c")
		if !people {
			time.Sleep(envelope.Wait + time.Second)
		}
		r.serve(service{}, p.handler(succeed))
		if people {
			l.run("c")
			r.untilTask("c", "retry")
			l.run("b")
		}
		r.untilTask("b", "retry")
		r.untilTask("c", "retry")
		for _, id := range []string{"b", "c"} {
			if _, info := r.task(id); time.Until(info.NextProcessAt) < envelope.Wait-time.Minute || info.Retried != 0 {
				t.Errorf("%s comes back at %s, charged %d", id, info.NextProcessAt, info.Retried)
			}
		}
		l.wantLine("b", "c")
		if err := (*core.Lock)(lock).Release(context.Background(), core.Release{Granted: r.next()}); err != nil {
			r.t.Fatal(err)
		}
		r.untilTask("c", "gone")
		l.wantOrder(&p, "b", "c")
	})
}

// A job that has its turn before its time has the key and waits. RunTask then runs it.
func TestTurnBeforeTheTime(t *testing.T) {
	virtual(t, func(r *rig) {
		l := r.line()
		var p probe
		start := time.Now()
		l.addOne(handoff.Sequence{}, "a", asynq.ProcessIn(3*time.Minute)) // has the key at once
		l.addOne(handoff.Sequence{}, "b", asynq.ProcessIn(10*time.Minute))
		l.addOne(handoff.Sequence{}, "c", asynq.ProcessIn(time.Minute))
		l.addOne(handoff.Sequence{}, "d", asynq.ProcessIn(30*time.Minute))
		r.serve(service{}, p.handler(succeed))
		time.Sleep(6 * time.Minute)
		l.wantOrder(&p, "a")
		r.wantState(seqKey, joblock.StateParked, "b")
		r.wantTask("b", "retry", 0)
		r.untilTask("c", "gone")
		l.wantOrder(&p, "a", "b", "c")
		if took := time.Since(start); took < 10*time.Minute-time.Second || took > 10*time.Minute+time.Minute {
			t.Errorf("b and c were done after %s, want 10m", took)
		}
		r.untilTask("d", "retry")
		l.run("d")
		asked := time.Now()
		r.untilTask("d", "gone")
		if took := time.Since(asked); took > time.Minute {
			t.Errorf("d ran %s after RunTask", took)
		}
		l.wantOrder(&p, "a", "b", "c", "d")
	})
}

// No job runs before its time, although asynq cuts the times of tasks to whole seconds: neither a job that has its turn
// before its time, nor a job that did not have to wait.
func TestTimeWithinASecond(t *testing.T) {
	virtual(t, func(r *rig) {
		l := r.line()
		due := map[string]time.Time{"a": time.Now().Add(3*time.Minute + 900*time.Millisecond)}
		due["b"] = due["a"].Add(3 * time.Minute)
		for _, id := range []string{"a", "b"} {
			l.addOne(handoff.Sequence{}, id, asynq.ProcessAt(due[id]))
		}
		var p probe
		r.serve(service{}, p.handler(func(ctx context.Context, _ int) error {
			id, _ := asynq.GetTaskID(ctx)
			if early := time.Until(due[id]); early > 0 {
				t.Errorf("%s runs %s before its time", id, early)
			}
			return nil
		}))
		r.untilTask("b", "gone")
		l.wantOrder(&p, "a", "b")
	})
}

// A job whose place was lost lines up again, and that is logged, whichever answers are lost.
func TestJobThatHasLostItsPlace(t *testing.T) {
	for name, lost := range map[string][]string{
		"all answers come":                   nil,
		"the answer about the place is lost": {faultstore.Reserve},
		"the answer to the Take is lost":     {faultstore.Take},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				l := r.line()
				var p probe
				over := make(chan struct{})
				l.add(handoff.Sequence{}, "a", "b", "c")
				free := jobs.Free(context.Background(), r.locks, jobs.Release{Key: seqKey, Job: envelope.Job(queue, "b")})
				if free[0] != nil {
					r.t.Fatal(free[0])
				}
				r.serve(service{}, p.handler(only("a", func(context.Context, int) error { <-over; return nil })))
				r.until("a runs", func() bool { return p.running() == 1 })
				r.faults.Set(faultstore.Fault{Mode: faultstore.Drop, Times: 1}, lost...)
				l.run("b")
				r.until("b is in line", func() bool { return slices.Equal(l.inLine(), []string{"c", "b"}) })
				r.untilTask("b", "retry")
				close(over)
				r.untilTask("b", "gone")
				l.wantOrder(&p, "a", "c", "b")
				r.wantLostPlace()
			})
		})
	}
}

// The turn of a job comes while an attempt asks for the job's place: no lost place is reported.
func TestTurnThatComesWhileAJobLinesUp(t *testing.T) {
	virtual(t, func(r *rig) {
		l := r.line()
		first := l.hold()
		l.add(handoff.Sequence{}, "a", "b")
		release := sync.OnceFunc(func() {
			if err := first.Release(context.Background()); err != nil {
				t.Error(err)
			}
		})
		r.faults.Set(faultstore.Fault{Mode: faultstore.Pass, Times: 1, Before: release}, faultstore.Reserve, faultstore.Take)
		var p probe
		r.serve(service{}, p.handler(succeed))
		l.run("a")
		r.untilTask("a", "gone")
		r.untilTask("b", "gone")
		l.wantOrder(&p, "a", "b")
		if log := r.log.String(); strings.Contains(log, lostPlace) || strings.Contains(log, "level=WARN") {
			t.Errorf("a lost place is reported:\n%s", log)
		}
	})
}

// An attempt asks for the place of its job and finds the key free: the job that is first in line gets the key and is
// started, be it the attempt's own or another.
func TestKeyThatIsFreeWhileAJobLinesUp(t *testing.T) {
	for name, steps := range map[string][]string{"first in line": {"a", "b"}, "second in line": {"b", "a"}} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				l := r.line()
				token, err := l.hold().Park(context.Background(), joblock.Reserve(time.Minute))
				if err != nil {
					t.Fatal(err)
				}
				l.add(handoff.Sequence{}, steps...)
				time.Sleep(2 * time.Minute) // the reservation ends, and nothing reads it
				if st := r.status(token.Key()); st.Locked() {
					t.Fatalf("the key is %s", st.State)
				}
				var p probe
				r.serve(service{}, p.handler(func(context.Context, int) error { time.Sleep(time.Minute); return nil }))
				l.run("a")
				r.untilTask("a", "gone")
				r.untilTask("b", "gone")
				l.wantOrder(&p, steps...)
				if log := r.log.String(); strings.Contains(log, "level=WARN") {
					t.Errorf("warnings:\n%s", log)
				}
			})
		})
	}
}

// The turn of a job may come before its task exists: who gives it the key looks for the task for about a second.
func TestTurnBeforeTheEnqueue(t *testing.T) {
	virtual(t, func(r *rig) {
		l := r.line()
		var p probe
		slow := &late{by: 300 * time.Millisecond}
		rdb := redistest.MiniClient(r.t, r.mini)
		rdb.AddHook(slow)
		other, err := handoff.NewClient(r.locks, asynq.NewClientFromRedisClient(rdb), r.inspector, &handoff.Config{Reserve: reserve})
		if err != nil {
			r.t.Fatal(err)
		}
		defer other.Close(context.Background())
		over := make(chan struct{})
		r.serve(service{}, p.handler(only("a", func(context.Context, int) error { <-over; return nil })))
		l.add(handoff.Sequence{}, "a")
		r.until("a runs", func() bool { return p.running() == 1 })
		start := time.Now()
		go func() { time.Sleep(slow.by / 3); close(over) }()
		done, err := other.Enqueue(context.Background(), handoff.Sequence{Key: seqKey}, asynq.NewTask(taskType, nil), asynq.TaskID("b"))
		if err != nil || !done.Waits || done.Ahead != 0 {
			r.t.Fatalf("enqueue: %+v, %v", done, err)
		}
		if time.Since(start) < slow.by {
			r.t.Fatal("the enqueue was not late")
		}
		r.until("b runs", func() bool { return p.count() == 2 })
		if d := time.Since(start); d > 10*time.Second { // without another try it would be a day
			t.Errorf("b started after %s", d)
		}
		l.wantOrder(&p, "a", "b")
	})
}

// late delays the scripts that write tasks.
type late struct{ by time.Duration }

func (*late) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*late) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *late) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			time.Sleep(h.by)
		}
		return next(ctx, cmd)
	}
}

// Close waits until the next job has been started.
func TestCloseStartsTheNextJob(t *testing.T) {
	virtual(t, func(r *rig) {
		l := r.line()
		var p probe
		over := make(chan struct{})
		srv := r.serve(service{asynq: asynq.Config{Concurrency: 1}}, p.handler(func(context.Context, int) error { <-over; return nil }))
		l.add(handoff.Sequence{}, "a", "b")
		r.until("a runs", func() bool { return p.running() == 1 })
		go func() { time.Sleep(time.Second); close(over) }()
		srv.Shutdown()
		r.closeWorker(srv.worker)
		r.wantTask("b", "pending", 0)
	})
}

// A deadline counts while a job waits. Past its deadline a job fails without a run: its turn passes to the next, or
// halts the sequence, and a place that it still has is given up.
func TestDeadlineOfAJobInLine(t *testing.T) {
	for name, policy := range map[string]bool{"go on": false, "halt": true} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				l := r.line()
				var p probe
				lock := l.hold()
				soon := asynq.Deadline(time.Now().Add(time.Minute))
				s := handoff.Sequence{HaltOnFailure: policy}
				l.addOne(s, "a", soon)
				l.addOne(s, "b", soon)
				l.add(s, "c")
				r.serve(service{}, p.handler(succeed))
				time.Sleep(2 * time.Minute)
				l.run("b")
				r.untilTask("b", "archived")
				if _, info := r.task("b"); info.Retried != 1 {
					t.Errorf("b was retried %d times", info.Retried)
				}
				time.Sleep(time.Second)
				l.wantLine("a", "c")
				l.release(lock, r.next())
				r.untilTask("a", "archived")
				if policy {
					time.Sleep(time.Minute)
					l.wantLine("c")
					l.wantOrder(&p)
					r.wantState(seqKey, joblock.StateParked, "a")
					return
				}
				r.untilTask("c", "gone")
				l.wantOrder(&p, "c")
			})
		})
	}
}

// Jobs that wait occupy no worker, and asynq does not deliver them: others have the one worker there is to themselves.
func TestJobsThatWaitUseNoWorker(t *testing.T) {
	virtual(t, func(r *rig) {
		const others = 50
		l := r.line()
		var p probe
		l.hold()
		items := make([]handoff.Item, 1000)
		for i := range items {
			items[i] = handoff.Item{Task: asynq.NewTask(taskType, nil), How: handoff.Sequence{Key: seqKey}}
		}
		if _, err := l.jobs.EnqueueMany(context.Background(), items); err != nil {
			r.t.Fatal(err)
		}
		for i := range others {
			r.submit("other-"+strconv.Itoa(i), asynq.NewTask(taskType, nil), 0)
		}
		r.serve(service{asynq: asynq.Config{Concurrency: 1}}, p.handler(succeed))
		r.until("all others have run", func() bool { return p.count() == others })
		time.Sleep(time.Minute)
		info, err := r.inspector.GetQueueInfo(queue)
		if err != nil || info.Processed != others || info.Scheduled != len(items) || p.count() != others {
			t.Errorf("%d runs, and the queue is %+v, %v; want %d deliveries", p.count(), info, err, others)
		}
	})
}

// lostRun has the first answer of RunTask come late, and then as an error.
type lostRun struct{ done atomic.Bool }

func (l *lostRun) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *lostRun) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *lostRun) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if args := cmd.Args(); err == nil && strings.HasPrefix(cmd.Name(), "eval") && len(args) > 2 && fmt.Sprint(args[2]) == "3" && !l.done.Swap(true) {
			time.Sleep(3 * time.Second) // until the task has run
			err = errBoom
			cmd.SetErr(err)
		}
		return err
	}
}

// The answer of RunTask is lost, and the job fails for good before the next try: its sequence halts all the same.
func TestHaltAfterALostAnswerOfRunTask(t *testing.T) {
	virtual(t, func(r *rig) {
		l := r.line()
		first := l.hold()
		l.add(handoff.Sequence{HaltOnFailure: true}, "a", "b")
		r.serve(service{}, func(context.Context, *asynq.Task) error { return asynq.SkipRetry })
		if err := (*core.Lock)(first).Release(context.Background(), core.Release{Granted: crashed}); err != nil {
			t.Fatal(err)
		}
		rdb, lost := redistest.MiniClient(r.t, r.mini), new(lostRun)
		rdb.AddHook(lost)
		var background sync.WaitGroup
		starter := jobline.Starter{
			Locks: r.locks, Inspectors: []*asynqprivate.Inspector{asynqprivate.New(asynq.NewInspectorFromRedisClient(rdb))}, Logger: r.log.Text(),
			Go: func(f func()) { background.Go(f) },
		}
		starter.Granted(seqKey, envelope.Job(queue, "a"))
		background.Wait()
		r.untilTask("a", "archived")
		time.Sleep(time.Minute)
		if !lost.done.Load() {
			t.Error("RunTask was not called")
		}
		r.wantState(seqKey, joblock.StateParked, "a")
		l.wantLine("b")
	})
}
