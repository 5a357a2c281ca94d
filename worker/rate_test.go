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

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/controls"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/rate"
	"github.com/joblock/toolkit/worker"
)

// rated is a server whose tasks have limits, and a ledger of their starts.
type rated struct {
	*rig
	mu     sync.Mutex // guards the fields below
	starts map[string]time.Time
	order  []string
	all    []time.Time
	result func(id string) error // of the handler; nil means success
}

// limitedTo returns the service with RateLimit. Every server looks for tasks each 50 ms.
func limitedTo(limits func(*asynq.Task) []rate.Limit, more ...func(*worker.Worker) asynq.MiddlewareFunc) service {
	use := func(w *worker.Worker) asynq.MiddlewareFunc {
		return w.RateLimit(func(_ context.Context, task *asynq.Task) []rate.Limit { return limits(task) })
	}
	return service{
		asynq: asynq.Config{TaskCheckInterval: 50 * time.Millisecond, DelayedTaskCheckInterval: 5 * time.Second},
		use:   append(more, use),
	}
}

func (r *rated) handle(ctx context.Context, task *asynq.Task) error {
	id, _ := asynq.GetTaskID(ctx)
	r.mu.Lock()
	if r.starts == nil {
		r.starts = make(map[string]time.Time)
	}
	r.starts[id] = time.Now()
	r.order = append(r.order, id)
	r.all = append(r.all, time.Now())
	result := r.result
	r.mu.Unlock()
	if result != nil {
		return result(id)
	}
	return nil
}

// done returns how many tasks have started.
func (r *rated) done() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.order)
}

// most returns the largest number of starts in any time of length per, and from the first to the last start.
func (r *rated) most(per time.Duration) (most int, span time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var at []time.Time
	for _, start := range r.starts {
		at = append(at, start)
	}
	slices.SortFunc(at, time.Time.Compare)
	for i := range at {
		n := 0
		for _, other := range at[i:] {
			if other.Sub(at[i]) < per {
				n++
			}
		}
		most = max(most, n)
	}
	return most, at[len(at)-1].Sub(at[0])
}

func oneLimit(l rate.Limit) func(*asynq.Task) []rate.Limit {
	return func(*asynq.Task) []rate.Limit { return []rate.Limit{l} }
}

// Plain tasks of any client wait for exactly their time: none is charged, none occupies a worker, and the rate is used.
func TestRateLimit(t *testing.T) {
	virtual(t, func(r *rig) {
		k := &rated{rig: r}
		const n, jobs, per = 5, 60, 10 * time.Second
		r.serve(limitedTo(oneLimit(rate.Limit{Key: "key", N: n, Per: per})), k.handle)
		for i := range jobs {
			r.submit(fmt.Sprintf("job-%02d", i), asynq.NewTask(taskType, nil), 3, asynq.Retention(time.Hour))
		}
		r.until("all have run", func() bool { return k.done() == jobs })
		most, span := k.most(per)
		if most > n {
			t.Errorf("%d starts in %s, want at most %d", most, per, n)
		}
		if ideal := (jobs/n - 1) * per; span > ideal*100/95 {
			t.Errorf("%d tasks took %s, want at most a 95th of %s", jobs, span, ideal)
		}
		for i := range jobs {
			r.wantTask(fmt.Sprintf("job-%02d", i), "completed", 0)
		}
		if calls := r.faults.Items(faultstore.Admit); calls > 4*jobs {
			t.Errorf("%d requests to the store for %d tasks", calls, jobs)
		}
	})
}

// Tasks are run before their time by as much as asynq takes to deliver them, so that none of the rate is lost.
func TestRateLimitOfASecondIsUsed(t *testing.T) {
	virtual(t, func(r *rig) {
		k := &rated{rig: r}
		const jobs = 120
		s := limitedTo(oneLimit(rate.Limit{Key: "key", N: 2, Per: time.Second}))
		s.asynq.TaskCheckInterval = shortLook
		r.serve(s, k.handle)
		for i := range jobs {
			r.submit(fmt.Sprint(i), asynq.NewTask(taskType, nil), 3)
		}
		r.until("all have run", func() bool { return k.done() == jobs })
		most, span := k.most(time.Second)
		if ideal := jobs / 2 * time.Second; most > 2 || span > ideal*100/95 {
			t.Errorf("%d starts in a second; %d tasks took %s, want at most a 95th of %s", most, jobs, span, ideal)
		}
		if strings.Contains(r.log.String(), "TaskCheckInterval") {
			t.Errorf("a warning:\n%s", r.log)
		}
	})
}

// shortLook is a TaskCheckInterval that wastes nothing of a rate per second.
const shortLook = 100 * time.Millisecond

func TestRateLimitKeepsTheOrderNearly(t *testing.T) {
	virtual(t, func(r *rig) {
		k := &rated{rig: r}
		s := limitedTo(oneLimit(rate.Limit{Key: "key", N: 1, Per: 10 * time.Second}))
		r.serve(s, k.handle)
		for i := range 10 {
			r.submit(fmt.Sprintf("job-%02d", i), asynq.NewTask(taskType, nil), 3)
			time.Sleep(time.Second)
		}
		r.until("all have run", func() bool { return k.done() == 10 })
		if !slices.IsSorted(k.order) {
			t.Errorf("the order is %v", k.order)
		}
	})
}

// The workers are busy for long, and then all delayed tasks come at once.
func TestRateLimitCountsAtTheStart(t *testing.T) {
	virtual(t, func(r *rig) {
		k := &rated{rig: r}
		s := limitedTo(func(task *asynq.Task) []rate.Limit {
			if string(task.Payload()) == "busy" {
				return nil
			}
			return []rate.Limit{{Key: "key", N: 3, Per: 10 * time.Second}}
		})
		s.asynq.Concurrency = 8
		r.serve(s, func(ctx context.Context, task *asynq.Task) error {
			if string(task.Payload()) == "busy" {
				time.Sleep(time.Minute)
				return nil
			}
			return k.handle(ctx, task)
		})
		for i := range 6 {
			r.submit(fmt.Sprint("job-", i), asynq.NewTask(taskType, nil), 3)
		}
		time.Sleep(time.Second)
		for i := range 8 {
			r.submit(fmt.Sprint("busy-", i), asynq.NewTask(taskType, []byte("busy")), 3)
		}
		for i := range 20 {
			r.submit(fmt.Sprint("late-", i), asynq.NewTask(taskType, nil), 3)
		}
		r.until("all have run", func() bool { return k.done() == 26 })
		if most, _ := k.most(10 * time.Second); most > 3 {
			t.Errorf("%d starts in 10 s, want at most 3", most)
		}
	})
}

func TestSeveralRatesOnOneTask(t *testing.T) {
	virtual(t, func(r *rig) {
		k := &rated{rig: r}
		r.serve(limitedTo(func(task *asynq.Task) []rate.Limit {
			return []rate.Limit{
				{Key: joblock.Key("tenant", string(task.Payload())), N: 2, Per: 10 * time.Second},
				{Key: "provider", N: 3, Per: 10 * time.Second},
			}
		}), k.handle)
		for i := range 24 {
			r.submit(fmt.Sprint(i), asynq.NewTask(taskType, []byte{"ab"[i%2]}), 3, asynq.Retention(time.Hour))
		}
		r.until("all have run", func() bool { return k.done() == 24 })
		most, span := k.most(10 * time.Second)
		if ideal := 70 * time.Second; most > 3 || span > ideal*100/95 {
			t.Errorf("%d starts in 10 s, all in %s", most, span)
		}
		for i := range 24 {
			r.wantTask(fmt.Sprint(i), "completed", 0)
		}
	})
}

// The tasks in front were deleted: those behind do not wait for their times, and a lock that one of them had is free.
func TestRateLimitPassesOverDeletedTasks(t *testing.T) {
	kept(t, func(r *rig) {
		k := &rated{rig: r}
		r.serve(limitedTo(oneLimit(rate.Limit{Key: "key", N: 1, Per: time.Minute})), k.handle)
		for i := range 40 {
			r.submit(fmt.Sprintf("job-%02d", i), asynq.NewTask(taskType, nil), 3)
		}
		r.until("one has run", func() bool { return k.done() == 1 })
		r.line().mustEnqueue(handoff.Unique{Key: "unique"}, "unique")
		r.untilCharged("unique", "retry", 0)
		if err := r.inspector.DeleteTask(queue, "unique"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		for i := range 39 {
			_ = r.inspector.DeleteTask(queue, fmt.Sprintf("job-%02d", i))
		}
		began := time.Now()
		r.until("the last has run", func() bool { return k.done() == 2 })
		if took := time.Since(began); took > time.Minute {
			t.Errorf("the last task has waited for %s behind tasks that do not exist", took)
		}
		time.Sleep(5 * time.Minute)
		if st := r.status("unique"); st.Locked() {
			t.Errorf("the lock of a job whose task was deleted is %s", st.State)
		}
	})
}

// A process that has snoozed the tasks is gone: the other one and asynq run them.
func TestRateLimitAfterTheDeathOfAProcess(t *testing.T) {
	virtual(t, func(r *rig) {
		k := &rated{rig: r}
		s := limitedTo(oneLimit(rate.Limit{Key: "key", N: 2, Per: 10 * time.Second}))
		first := r.serve(s, k.handle)
		for i := range 20 {
			r.submit(fmt.Sprint(i), asynq.NewTask(taskType, nil), 3, asynq.Retention(time.Hour))
		}
		r.until("two have run", func() bool { return k.done() == 2 })
		time.Sleep(time.Second)
		first.Shutdown()
		r.closeWorker(first.worker)
		r.serve(s, k.handle)
		r.until("all have run", func() bool { return k.done() == 20 })
		if most, span := k.most(10 * time.Second); most > 2 || span > 150*time.Second {
			t.Errorf("%d starts in 10 s, all in %s", most, span)
		}
		for i := range 20 {
			r.wantTask(fmt.Sprint(i), "completed", 0)
		}
	})
}

// asynq#609: the provider answers 429 with Retry-After.
func TestRetryAfterPushesTheKeyBackWithoutCharge(t *testing.T) {
	virtual(t, func(r *rig) {
		k := &rated{rig: r}
		var calls atomic.Int64
		k.result = func(string) error {
			if calls.Add(1) <= 2 {
				return fmt.Errorf("call: %w", rate.RetryAfter("provider", 30*time.Second))
			}
			return nil
		}
		r.serve(limitedTo(oneLimit(rate.Limit{Key: "provider", N: 100, Per: time.Second})), k.handle)
		r.submit("job", asynq.NewTask(taskType, nil), 3, asynq.Retention(time.Hour))
		r.until("the job was refused", func() bool { return k.done() == 1 })
		began := time.Now()
		time.Sleep(time.Second)
		r.submit("other", asynq.NewTask(taskType, nil), 3, asynq.Retention(time.Hour))
		r.until("both have run", func() bool { return k.done() == 4 })
		if k.starts["other"].Sub(began) < 55*time.Second {
			t.Errorf("the other started %s after the first refusal, want a minute at least", k.starts["other"].Sub(began))
		}
		r.untilTask("job", "completed")
		r.wantTask("job", "completed", 0)
		r.untilTask("other", "completed")
		if _, info := r.task("other"); info.Retried != 0 {
			t.Errorf("%d retries are charged", info.Retried)
		}
	})
}

// A provider that names no time, or a senseless one, is not called in a loop, and ends no longer push-back.
func TestRetryAfterOfNoTime(t *testing.T) {
	for _, after := range []time.Duration{0, -time.Hour, 1000 * 24 * time.Hour} {
		virtual(t, func(r *rig) {
			k := &rated{rig: r}
			k.result = func(string) error { return rate.RetryAfter("provider", after) }
			r.serve(limitedTo(oneLimit(rate.Limit{Key: "provider", N: 1000, Per: time.Second})), k.handle)
			r.submit("job", asynq.NewTask(taskType, nil), 0)
			r.until("the job was refused", func() bool { return k.done() > 0 })
			time.Sleep(20 * time.Second)
			if n := k.done(); n > 21 || after <= 0 && n < 10 {
				t.Errorf("after %s: %d calls in 20 s", after, n)
			}
			r.untilCharged("job", "retry", 0)
			if err := rate.PushBack(context.Background(), r.locks, "provider", time.Hour); err != nil {
				t.Fatal(err)
			}
			n := k.done()
			time.Sleep(time.Minute)
			if more := k.done() - n; more > 1 {
				t.Errorf("after %s: %d calls while the key is pushed back", after, more)
			}
			if err := r.inspector.DeleteTask(queue, "job"); err != nil {
				t.Error(err)
			}
		})
	}
}

// Whatever a handler returns, its start has counted, and the next attempt is a start of its own.
func TestEndsOfTasksWithARate(t *testing.T) {
	for name, end := range map[string]struct {
		result func() error
		state  string // at last
		runs   int
	}{
		"error":     {func() error { return errBoom }, "archived", 2},
		"panic":     {func() error { panic("kaboom") }, "archived", 2},
		"SkipRetry": {func() error { return asynq.SkipRetry }, "archived", 1},
		"Revoke":    {func() error { return asynq.RevokeTask }, "gone", 1},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				k := &rated{rig: r}
				k.result = func(id string) error {
					if id == "job" {
						return end.result()
					}
					return nil
				}
				s := limitedTo(oneLimit(rate.Limit{Key: "key", N: 1, Per: 30 * time.Second}))
				r.serve(s, k.handle)
				r.submit("job", asynq.NewTask(taskType, nil), 1)
				r.until("it has run", func() bool { return k.done() == 1 })
				r.submit("other", asynq.NewTask(taskType, nil), 0)
				r.untilTask("job", end.state)
				r.untilTask("other", "gone")
				if k.done() != end.runs+1 {
					t.Errorf("ran %q", k.order)
				}
				if most := mostStarts(k.all, 30*time.Second); most > 1 {
					t.Errorf("%d starts in 30 s", most)
				}
			})
		})
	}
}

// Processes of two versions use two rates for one key: neither is exceeded by more than the other allows, none of the tasks is
// lost, and the log says so.
func TestProcessesThatDisagreeAboutARate(t *testing.T) {
	virtual(t, func(r *rig) {
		k := &rated{rig: r}
		for _, n := range []int{2, 4} {
			s := limitedTo(oneLimit(rate.Limit{Key: "key", N: n, Per: 10 * time.Second}))
			s.locks = r.newLocker()
			r.serve(s, k.handle)
		}
		for i := range 30 {
			r.submit(fmt.Sprint(i), asynq.NewTask(taskType, nil), 3, asynq.Retention(time.Hour))
		}
		r.until("all have run", func() bool { return k.done() == 30 })
		if most, span := k.most(10 * time.Second); most > 4 || span > 150*time.Second {
			t.Errorf("%d starts in 10 s, all in %s", most, span)
		}
		if !strings.Contains(r.log.String(), "another process uses a different rate") {
			t.Errorf("no warning:\n%s", r.log)
		}
		for i := range 30 {
			r.wantTask(fmt.Sprint(i), "completed", 0)
		}
	})
}

// The store forgets all it has: the starts before do not count any more, and no task is lost or charged.
func TestRateLimitAfterTheLossOfAllData(t *testing.T) {
	flushed(t, func(r *rig, flush func()) {
		k := &rated{rig: r}
		r.serve(limitedTo(oneLimit(rate.Limit{Key: "key", N: 2, Per: 20 * time.Second})), k.handle)
		for i := range 12 {
			r.submit(fmt.Sprint(i), asynq.NewTask(taskType, nil), 3, asynq.Retention(time.Hour))
		}
		r.until("four have run", func() bool { return k.done() == 4 })
		time.Sleep(time.Second)
		flush()
		r.until("all have run", func() bool { return k.done() == 12 })
		if most, _ := k.most(20 * time.Second); most > 4 {
			t.Errorf("%d starts in 20 s, want at most 4", most)
		}
		for i := range 12 {
			r.wantTask(fmt.Sprint(i), "completed", 0)
		}
	})
}

// An operator changes a rate, beyond what a limit of tasks at a time may be.
func TestNamedRate(t *testing.T) {
	virtual(t, func(r *rig) {
		k := &rated{rig: r}
		r.serve(limitedTo(oneLimit(rate.Limit{Key: "key", N: 2, Per: 10 * time.Second, Name: "acme"})), k.handle)
		for i := range 700 {
			r.submit(fmt.Sprint(i), asynq.NewTask(taskType, nil), 3)
		}
		during := func(d time.Duration) int {
			before := k.done()
			time.Sleep(d)
			return k.done() - before
		}
		if n := during(40 * time.Second); n < 6 || n > 10 {
			t.Errorf("%d starts in 40 s, want 8", n)
		}
		r.setLimit("acme", 1)
		time.Sleep(10 * time.Second)
		if n := during(40 * time.Second); n < 3 || n > 4 {
			t.Errorf("%d starts in 40 s, want 4", n)
		}
		r.setLimit("acme", 600)
		r.until("all have run", func() bool { return k.done() == 700 })
		if most, _ := k.most(10 * time.Second); most > 600 || most < 300 {
			t.Errorf("%d starts in 10 s, want nearly 600", most)
		}
	})
}

// The jobs of a sequence start in their order, at the rate, and keep their key while they wait.
func TestRateLimitOfASequence(t *testing.T) {
	virtual(t, func(r *rig) {
		k := &rated{rig: r}
		r.serve(limitedTo(oneLimit(rate.Limit{Key: "key", N: 1, Per: 10 * time.Second})), k.handle)
		client, err := handoff.NewClient(r.locks, r.client, r.inspector, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close(context.Background())
		for i := range 8 {
			task := asynq.NewTask(taskType, nil)
			if _, err := client.Enqueue(context.Background(), handoff.Sequence{Key: "line"}, task, asynq.TaskID(strconv.Itoa(i)), asynq.MaxRetry(2), asynq.Retention(time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
		r.until("all have run", func() bool { return k.done() == 8 })
		if most, span := k.most(10 * time.Second); !slices.IsSorted(k.order) || most > 1 || span > 7*105*time.Second/10 {
			t.Errorf("the order is %v, with %d starts in 10 s, all in %s", k.order, most, span)
		}
	})
}

// A job whose Deadline passes while it waits for a rate, or for the end of a pause, ends with its Deadline, and not when its
// turn comes: until then its key would be refused to others. Those behind it in the line of the rate do not wait for it.
func TestDeadlineOfAJobThatWaits(t *testing.T) {
	for _, how := range []handoff.How{handoff.Unique{Key: "k"}, handoff.Sequence{Key: "k"}} {
		for _, retries := range []int{0, 3} {
			for _, what := range []string{"rate", "pushed back", "pause"} {
				t.Run(fmt.Sprintf("%T, %d retries, %s", how, retries, what), func(t *testing.T) {
					virtual(t, func(r *rig) {
						r.patience = 3 * time.Hour
						l, k := r.line(), &rated{rig: r}
						r.keep(r.locks, worker.Config{})
						first := what != "rate"
						k.result = func(id string) error {
							if id == "late" && what == "pushed back" {
								return rate.RetryAfter("provider", time.Hour)
							}
							return nil
						}
						r.serve(limitedTo(oneLimit(rate.Limit{Key: "provider", N: 1, Per: time.Hour})), k.handle)
						if !first {
							r.submit("first", asynq.NewTask(taskType, nil), 0)
							r.until("the first has run", func() bool { return k.done() == 1 })
						}
						if what == "pause" {
							r.pauseKey("k", time.Hour)
							time.Sleep(2 * controls.MaxAge)
						}
						begun := time.Now()
						if _, err := l.jobs.Enqueue(context.Background(), how, asynq.NewTask(taskType, nil), asynq.TaskID("late"),
							asynq.MaxRetry(retries), asynq.Deadline(begun.Add(10*time.Minute))); err != nil {
							t.Fatal(err)
						}
						if !first {
							time.Sleep(time.Minute)
							r.submit("behind", asynq.NewTask(taskType, nil), 0)
						}
						r.untilTask("late", "archived")
						r.untilFree("k")
						if took := time.Since(begun); took > 12*time.Minute {
							t.Errorf("the job ended after %s", took)
						}
						if !first {
							r.untilTask("behind", "gone")
							if took := time.Since(begun); took > 62*time.Minute {
								t.Errorf("the one behind ran after %s", took)
							}
						}
					})
				})
			}
		}
	}
}

func TestRateLimitOnTheLastAttempt(t *testing.T) {
	virtual(t, func(r *rig) {
		k := &rated{rig: r}
		r.serve(limitedTo(oneLimit(rate.Limit{Key: "key", N: 1, Per: 20 * time.Second})), k.handle)
		for i := range 4 {
			r.submit(fmt.Sprint(i), asynq.NewTask(taskType, nil), 0, asynq.Retention(time.Hour))
		}
		r.until("all have run", func() bool { return k.done() == 4 })
		if most, span := k.most(20 * time.Second); most > 1 || span > 80*time.Second {
			t.Errorf("%d starts in 20 s, all in %s", most, span)
		}
	})
}

func TestRateLimitWithoutTheStore(t *testing.T) {
	virtual(t, func(r *rig) {
		k := &rated{rig: r}
		r.faults.Set(faultstore.Fault{Mode: faultstore.Refuse, Times: 3}, faultstore.Admit)
		r.serve(limitedTo(oneLimit(rate.Limit{Key: "key", N: 1, Per: time.Second})), k.handle)
		r.submit("job", asynq.NewTask(taskType, nil), 1, asynq.Retention(time.Hour))
		r.untilTask("job", "completed")
		r.wantTask("job", "completed", 0)
	})
}

func TestRateLimitWarnsOfLongLooks(t *testing.T) {
	virtual(t, func(r *rig) {
		k := &rated{rig: r}
		s := limitedTo(oneLimit(rate.Limit{Key: "key", N: 1, Per: time.Second}))
		s.asynq.TaskCheckInterval = time.Second
		r.serve(s, k.handle)
		r.submit("a", asynq.NewTask(taskType, nil), 1)
		r.submit("b", asynq.NewTask(taskType, nil), 1)
		r.until("both have run", func() bool { return k.done() == 2 })
		if !strings.Contains(r.log.String(), "TaskCheckInterval") {
			t.Errorf("no warning:\n%s", r.log)
		}
	})
}

func TestBadRateLimits(t *testing.T) {
	virtual(t, func(r *rig) {
		next := asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })
		w := r.newWorker(r.locks, worker.Config{})
		for name, h := range map[string]asynq.Handler{
			"nil worker":   (*worker.Worker)(nil).RateLimit(nil)(next),
			"nil function": w.RateLimit(nil)(next),
			"nil handler":  w.RateLimit(func(context.Context, *asynq.Task) []rate.Limit { return nil })(nil),
			"no context of asynq": w.RateLimit(func(context.Context, *asynq.Task) []rate.Limit {
				return []rate.Limit{{Key: "key", N: 1, Per: time.Second}}
			})(next),
		} {
			if err := h.ProcessTask(context.Background(), asynq.NewTask(taskType, nil)); !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("%s: the error is %v, want ErrInvalid", name, err)
			}
		}
	})
}
