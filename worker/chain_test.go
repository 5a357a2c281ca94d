package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/chain"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/worker"
)

// steps are tasks that follow another one: payloads are their names.
func steps(names ...string) (tasks []*asynq.Task) {
	for _, name := range names {
		tasks = append(tasks, asynq.NewTask(taskType, []byte(name), asynq.MaxRetry(1)))
	}
	return tasks
}

// pipeline notes which steps ran, by their payloads.
type pipeline struct {
	*line
	probe
	ran []string
}

func (r *rig) pipeline() *pipeline { return &pipeline{line: r.line()} }

// serveSteps starts a server that runs steps. f may be nil.
func (p *pipeline) serveSteps(s service, f func(ctx context.Context, name string, n int) error) server {
	return p.serve(s, func(ctx context.Context, task *asynq.Task) error {
		n, id := p.enter(ctx)
		defer p.leave(id)
		name := string(task.Payload())
		p.mu.Lock()
		p.ran = append(p.ran, name)
		p.mu.Unlock()
		if f == nil {
			return nil
		}
		return f(ctx, name, n)
	})
}

// begin enqueues the chain a, b, … with the first task "a".
func (p *pipeline) begin(under handoff.How, names ...string) handoff.Result {
	p.t.Helper()
	done, err := p.jobs.Enqueue(context.Background(), handoff.Chain{Under: under, Then: steps(names[1:]...)},
		asynq.NewTask(taskType, []byte(names[0]), asynq.TaskID("a"), asynq.MaxRetry(1)))
	if err != nil {
		p.t.Fatalf("enqueue the chain: %v", err)
	}
	return done
}

func (p *pipeline) wantRan(names ...string) {
	p.t.Helper()
	p.mu.Lock()
	got := slices.Clone(p.ran)
	p.mu.Unlock()
	if !slices.Equal(got, names) {
		p.t.Errorf("ran %q, want %q\n%s", got, names, p.log)
	}
}

// step returns the ID of the task of step n of the chain under key.
func (p *pipeline) step(n int, key string) string {
	p.t.Helper()
	return chain.NewLink(n, false, p.status(key).Owner, queue, "a").String()
}

const chainKey = "video:7"

func unique() handoff.How { return handoff.Unique{Key: chainKey} }

// taken returns a lock of a request.
func (p *pipeline) taken() *joblock.Lock {
	p.t.Helper()
	lock, err := p.locks.TryAcquire(context.Background(), chainKey)
	if err != nil {
		p.t.Fatal(err)
	}
	return lock
}

// Each step runs once, in its order, under the key, which no other caller gets before the end of the last step.
func TestChain(t *testing.T) {
	for name, under := range map[string]func(p *pipeline) handoff.How{
		"Carry":               func(p *pipeline) handoff.How { return handoff.Carry(p.taken()) },
		"Unique":              func(*pipeline) handoff.How { return unique() },
		"Unique, KeepLast":    func(*pipeline) handoff.How { return handoff.Unique{Key: chainKey, OnConflict: handoff.KeepLast} },
		"Unique, Limit":       func(*pipeline) handoff.How { return handoff.Unique{Key: chainKey, Limit: 2} },
		"Sequence":            func(*pipeline) handoff.How { return handoff.Sequence{Key: chainKey} },
		"Sequence, Limit":     func(*pipeline) handoff.How { return handoff.Sequence{Key: chainKey, Limit: 2} },
		"Sequence, Lock":      func(p *pipeline) handoff.How { return handoff.Sequence{Lock: p.taken()} },
		"Sequence that halts": func(*pipeline) handoff.How { return handoff.Sequence{Key: chainKey, HaltOnFailure: true} },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				p := r.pipeline()
				fence := int64(0)
				p.serveSteps(service{}, func(ctx context.Context, _ string, n int) error {
					lock, ok := joblock.FromContext(ctx)
					if !ok || lock.Err() != nil || lock.Fence() <= fence {
						t.Errorf("run %d has lock %v, after fence %d", n, lock, fence)
						return nil
					}
					fence = lock.Fence()
					if st := p.status(lock.Key()); st.State != joblock.StateHeld || st.Fence != fence {
						t.Errorf("during run %d the lock is %s, fence %d", n, st.State, st.Fence)
					}
					if got, _ := asynq.GetMaxRetry(ctx); got != 1 {
						t.Errorf("run %d has %d retries", n, got)
					}
					return nil
				})
				begin := time.Now()
				p.begin(under(p), "a", "b", "c")
				p.until("three runs", func() bool { return p.count() == 3 && p.running() == 0 })
				p.until("nothing is left", func() bool { return len(p.left()) == 0 })
				p.wantRan("a", "b", "c")
				if took := time.Since(begin); took > 10*time.Second {
					t.Errorf("three steps that take no time took %s", took)
				}
				for _, run := range p.all() {
					if run.retried != 0 {
						t.Errorf("step %s was charged a retry", run.id)
					}
				}
			})
		})
	}
}

// left returns the keys of locks that jobs have.
func (p *pipeline) left() (keys []string) {
	p.t.Helper()
	for st, err := range p.locks.List(context.Background(), joblock.ListOptions{}) {
		if err != nil {
			p.t.Fatal(err)
		}
		if st.Locked() && st.Job != "" {
			keys = append(keys, st.Key)
		}
	}
	return keys
}

// The jobs behind a chain in a sequence start when its last step is done.
func TestChainInALine(t *testing.T) {
	virtual(t, func(r *rig) {
		p := r.pipeline()
		p.serveSteps(service{}, func(ctx context.Context, name string, n int) error {
			if n == 1 {
				p.addOne(handoff.Sequence{Key: chainKey}, "z")
			}
			return nil
		})
		p.begin(handoff.Sequence{Key: chainKey}, "a", "b", "c")
		p.until("four runs", func() bool { return p.count() == 4 })
		p.wantRan("a", "b", "c", "")
	})
}

// Once a chain has had its turn in a line, none of its steps waits for a turn again. A step that is due later says so, and is
// not taken for one that an operator, the keeper or a late push should start.
func TestStepsAfterTheTurnInALine(t *testing.T) {
	kept(t, func(r *rig) {
		p := r.pipeline()
		p.serveSteps(service{}, func(context.Context, string, int) error { time.Sleep(time.Minute); return nil })
		p.mustEnqueue(handoff.Sequence{Key: chainKey}, "first")
		p.mustEnqueue(handoff.Chain{Under: handoff.Sequence{Key: chainKey}, Then: []*asynq.Task{
			asynq.NewTask(taskType, []byte("b"), asynq.ProcessIn(30*time.Minute)),
		}}, "a")
		waits := func(id string) bool {
			_, info := p.task(id)
			return jobline.Waits(envelope.MayWait(info.Headers), info)
		}
		if !waits("a") {
			t.Error("the first step does not wait for its turn")
		}
		p.until("the first step is done", func() bool { return p.count() == 2 && p.running() == 0 })
		second := p.step(2, chainKey)
		p.untilTask(second, "scheduled")
		if waits(second) {
			t.Error("the second step waits for a turn")
		}
		time.Sleep(25 * time.Minute)
		p.wantRan("first", "a")
		p.untilFree(chainKey)
		p.wantRan("first", "a", "b")
	})
}

// A step has options of its own.
func TestOptionsOfSteps(t *testing.T) {
	virtual(t, func(r *rig) {
		p := r.pipeline()
		times := map[string]time.Time{}
		p.serveSteps(service{asynq: asynq.Config{Queues: map[string]int{queue: 1, "other": 1}}}, func(ctx context.Context, name string, n int) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			times[name] = time.Now()
			q, _ := asynq.GetQueueName(ctx)
			retries, _ := asynq.GetMaxRetry(ctx)
			deadline, _ := ctx.Deadline()
			got := fmt.Sprintf("%s %d %s", q, retries, time.Until(deadline).Round(time.Second))
			if want := map[string]string{"a": "default 1 30m0s", "b": "other 25 1m0s", "c": "default 3 30m0s"}[name]; got != want {
				t.Errorf("step %s has %q, want %q", name, got, want)
			}
			if header := ctx.Value("x"); header != nil {
				t.Error(header)
			}
			return nil
		})
		_, err := p.jobs.Enqueue(context.Background(), handoff.Chain{Under: unique(), Then: []*asynq.Task{
			asynq.NewTask(taskType, []byte("b"), asynq.Queue("other"), asynq.Timeout(time.Minute), asynq.ProcessIn(30*time.Minute), asynq.Retention(time.Hour)),
			asynq.NewTask(taskType, []byte("c"), asynq.MaxRetry(3)),
		}}, asynq.NewTask(taskType, []byte("a"), asynq.TaskID("a"), asynq.MaxRetry(1)))
		if err != nil {
			t.Fatal(err)
		}
		p.until("the first run", func() bool { return p.count() == 1 })
		time.Sleep(20 * time.Minute)
		p.wantHeld(chainKey)
		second := chain.NewLink(2, false, p.status(chainKey).Owner, queue, "a").String()
		p.untilFree(chainKey)
		p.wantRan("a", "b", "c")
		if took := times["b"].Sub(times["a"]); took < 30*time.Minute || took > 30*time.Minute+5*time.Second {
			t.Errorf("the second step began %s after the first, want 30m", took)
		}
		if info, err := p.inspector.GetTaskInfo("other", second); err != nil || info.State != asynq.TaskStateCompleted {
			t.Errorf("the task with a Retention is %+v, %v", info, err)
		}
	})
}

// The retries of a step are its own, and a failure for good ends the chain.
func TestFailureOfAStep(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error // of step b
		ran  []string
		end  string // the reason of the release
		left string // the state of the task of step b
	}{
		"once":   {nil, []string{"a", "b", "b", "c"}, "job done", "gone"},
		"always": {errors.New("no"), []string{"a", "b", "b"}, "job failed", "archived"},
		"skip":   {asynq.SkipRetry, []string{"a", "b"}, "job failed", "archived"},
		"revoke": {asynq.RevokeTask, []string{"a", "b"}, "job revoked", "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				p := r.pipeline()
				p.begin(unique(), "a", "b", "c")
				second := p.step(2, chainKey)
				p.serveSteps(service{}, func(_ context.Context, name string, n int) error {
					if name == "b" && n == 2 && tt.err == nil {
						return errors.New("once")
					}
					if name == "b" {
						return tt.err
					}
					return nil
				})
				p.until("the end", func() bool { return !p.status(chainKey).Locked() })
				time.Sleep(time.Minute)
				p.wantRan(tt.ran...)
				p.wantEnded(chainKey, tt.end)
				if got := p.state(second); got != tt.left {
					t.Errorf("the task of the second step is %s, want %s", got, tt.left)
				}
			})
		})
	}
}

// A chain that halts keeps its key, and goes on when an operator has run the failed step.
func TestChainThatHalts(t *testing.T) {
	virtual(t, func(r *rig) {
		p := r.pipeline()
		p.begin(handoff.Sequence{Key: chainKey, HaltOnFailure: true}, "a", "b", "c")
		second := p.step(2, chainKey)
		p.serveSteps(service{}, func(_ context.Context, name string, n int) error {
			if name == "b" && n < 4 {
				return errors.New("no")
			}
			return nil
		})
		p.keep(p.locks, worker.Config{})
		p.untilTask(second, "archived")
		time.Sleep(10 * time.Minute)
		p.wantHeld(chainKey)
		p.run(second)
		p.untilFree(chainKey)
		p.wantRan("a", "b", "b", "b", "c")
		p.wantEnded(chainKey, "job done")
	})
}

// Handlers add steps, to chains and to other jobs with locks.
func TestThen(t *testing.T) {
	virtual(t, func(r *rig) {
		p := r.pipeline()
		p.serveSteps(service{}, func(ctx context.Context, name string, n int) error {
			switch name {
			case "a":
				if err := worker.Then(ctx, steps("a1", "a2")...); err != nil {
					t.Error(err)
				}
				if n == 1 {
					return errors.New("an attempt that fails adds nothing")
				}
				return worker.Then(ctx, steps("a3")...)
			case "a2":
				return worker.Then(ctx, steps("a2.1")...)
			}
			return nil
		})
		p.begin(unique(), "a", "b")
		p.untilFree(chainKey)
		p.wantRan("a", "a", "a1", "a2", "a2.1", "a3", "b")
		p.wantEnded(chainKey, "job done")

		p.ran = nil
		if _, err := p.jobs.Enqueue(context.Background(), handoff.Sequence{Key: chainKey}, asynq.NewTask(taskType, []byte("a2"))); err != nil {
			t.Fatal(err)
		}
		p.untilFree(chainKey)
		p.wantRan("a2", "a2.1")
	})
}

func TestThenRefuses(t *testing.T) {
	virtual(t, func(r *rig) {
		p := r.pipeline()
		bad := map[string][]*asynq.Task{
			"no type":      {asynq.NewTask(" ", nil)},
			"nil":          {nil},
			"TaskID":       {asynq.NewTask(taskType, nil, asynq.TaskID("x"))},
			"asynq.Unique": {asynq.NewTask(taskType, nil, asynq.Unique(time.Hour))},
			"Group":        {asynq.NewTask(taskType, nil, asynq.Group("g"))},
			"too many":     steps(strings.Split(strings.Repeat("x ", 101), " ")...),
			"too large":    steps(strings.Repeat("x", chain.MaxBytes+1)),
			"long queue":   {asynq.NewTask(taskType, nil, asynq.Queue(strings.Repeat("q", driver.MaxLabelBytes)))},
			"no queue":     {asynq.NewTask(taskType, nil, asynq.Queue(" "))},
		}
		var later context.Context
		p.serveSteps(service{}, func(ctx context.Context, name string, n int) error {
			later = ctx
			for name, tasks := range bad {
				if err := worker.Then(ctx, tasks...); !errors.Is(err, joblock.ErrInvalid) {
					t.Errorf("%s: %v, want ErrInvalid", name, err)
				}
			}
			return nil
		})
		p.begin(unique(), "a")
		p.untilFree(chainKey)
		for name, ctx := range map[string]context.Context{"late": later, "no handler": context.Background()} {
			if err := worker.Then(ctx, steps("x")...); !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", name, err)
			}
		}
		p.wantRan("a")
		if _, err := p.client.Enqueue(asynq.NewTask(taskType, []byte("bare"))); err != nil {
			t.Fatal(err)
		}
		p.until("the bare task", func() bool { return p.count() == 2 })
		if err := worker.Then(later, steps("x")...); !errors.Is(err, joblock.ErrInvalid) {
			t.Errorf("of a task without locks: %v, want ErrInvalid", err)
		}
	})
}

// Each moment at which the worker of a step may die: see the way of a chain in worker/chain.go. Of the two steps that were
// there, no one runs again that was done when its worker died.
func TestCrashBetweenTheStepsOfAChain(t *testing.T) {
	handOver := func(p *pipeline, added bool) (job string, token joblock.Token) {
		st := p.status(chainKey)
		link := chain.NewLink(2, added, st.Owner, queue, "a")
		job = envelope.Job(queue, link.String())
		lock, err := p.locks.Resume(context.Background(), p.token("a"), joblock.ForJob(envelope.Job(queue, "a")))
		if err != nil {
			p.t.Fatal(err)
		}
		if token, err = lock.Park(context.Background(), joblock.Reserve(reserve), joblock.ForJob(job)); err != nil {
			p.t.Fatal(err)
		}
		return job, token
	}
	for name, tt := range map[string]struct {
		crash func(p *pipeline)
		ran   []string
	}{
		"before the hand-over": {func(p *pipeline) { p.crash("a", p.token("a")) }, []string{"a", "b", "c"}},
		"after the park": {func(p *pipeline) {
			handOver(p, false)
			p.crash("a", joblock.Token{})
		}, []string{"b", "c"}},
		"after the park, of a step that the handler has added": {func(p *pipeline) {
			handOver(p, true)
			p.crash("a", joblock.Token{})
		}, []string{"a", "b", "c"}},
		"after the enqueue": {func(p *pipeline) {
			_, token := handOver(p, false)
			id := p.step(2, chainKey)
			env := envelope.Envelope{Tokens: []joblock.Token{token}, Retries: 1, Chain: &chain.Chain{
				Step: 2, Queue: queue, ID: "a", Prev: envelope.Job(queue, "a"), Next: []chain.Step{{Type: taskType, Payload: []byte("c"), Queue: queue}},
			}}
			p.crash("a", joblock.Token{})
			p.submit(id, p.sealed([]byte("b"), env), 2)
		}, []string{"b", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				p := r.pipeline()
				p.begin(unique(), "a", "b", "c")
				tt.crash(p)
				p.serveSteps(service{asynq: asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 5 * time.Minute }}}, nil)
				p.keep(p.locks, worker.Config{})
				for range 100 { // no other caller slips in
					if p.count() > 0 {
						break
					}
					p.wantHeld(chainKey)
					time.Sleep(3 * time.Second)
				}
				p.untilFree(chainKey)
				p.wantEnded(chainKey, "job done")
				time.Sleep(15 * time.Minute) // no delivery is left that would run a step again
				p.wantRan(tt.ran...)
				for _, run := range p.all() {
					if run.id != "a" && run.retried != 0 {
						t.Errorf("step %s was charged a retry", run.id)
					}
				}
			})
		})
	}
}

// Withdraw takes back what is left of a chain that has begun.
func TestWithdrawOfAChain(t *testing.T) {
	virtual(t, func(r *rig) {
		p := r.pipeline()
		done := p.begin(unique(), "a", "b", "c", "d")
		third := p.step(3, chainKey)
		p.serveSteps(service{}, func(_ context.Context, name string, n int) error {
			if name == "c" {
				time.Sleep(time.Minute)
				return errors.New("no")
			}
			return nil
		})
		p.until("the third step", func() bool { return p.count() == 3 })
		if err := p.jobs.Withdraw(context.Background(), done); !errors.Is(err, joblock.ErrBusy) {
			t.Errorf("while a step runs: %v, want ErrBusy", err)
		}
		p.untilTask(third, "retry")
		if err := p.jobs.Withdraw(context.Background(), done); err != nil {
			t.Error(err)
		}
		if st := p.status(chainKey); st.Locked() || p.state(third) != "gone" {
			t.Errorf("the key is %s, and the task of the step %s", st.State, p.state(third))
		}
		if err := p.jobs.Withdraw(context.Background(), done); !errors.Is(err, joblock.ErrNotFound) {
			t.Errorf("withdrawn again: %v, want ErrNotFound", err)
		}
		time.Sleep(time.Hour)
		p.wantRan("a", "b", "c")
	})
}

// The step that follows the loss of a lock gets the lock again, or waits until it is free; no step is lost, and none is
// charged.
func TestChainWhoseLockIsLost(t *testing.T) {
	virtual(t, func(r *rig) {
		p := r.pipeline()
		var stranger *joblock.Lock
		p.serveSteps(service{}, func(ctx context.Context, name string, n int) (err error) {
			if name == "a" {
				if err := p.locks.ForceRelease(context.Background(), chainKey); err != nil {
					t.Error(err)
				}
				if stranger, err = p.locks.Acquire(context.Background(), chainKey); err != nil {
					t.Error(err)
				}
			}
			return nil
		})
		p.begin(unique(), "a", "b", "c")
		p.until("the first run", func() bool { return p.count() == 1 })
		time.Sleep(5 * time.Minute)
		p.wantRan("a")
		if err := stranger.Release(context.Background()); err != nil {
			t.Error(err)
		}
		p.until("all runs", func() bool { return p.count() == 3 })
		p.untilFree(chainKey)
		p.wantRan("a", "b", "c")
		for _, run := range p.all() {
			if run.retried != 0 {
				t.Errorf("step %s was charged a retry", run.id)
			}
		}
	})
}

// While the locks' store does not answer, no step is lost or charged, and only the step that was to be handed on may run
// again.
func TestHandOverWhileTheStoreIsAway(t *testing.T) {
	for _, mode := range []faultstore.Mode{faultstore.Refuse, faultstore.Drop, faultstore.Hang, faultstore.HangApplied, faultstore.Stray} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			virtual(t, func(r *rig) {
				p := r.pipeline()
				p.serveSteps(service{}, func(ctx context.Context, name string, n int) error {
					if n == 2 {
						p.faults.Set(faultstore.Fault{Mode: mode}, faultstore.Park)
						time.AfterFunc(4*time.Second, func() { p.faults.Clear() })
					}
					return nil
				})
				p.begin(unique(), "a", "b", "c")
				p.until("all runs", func() bool { return p.count() >= 3 && !p.status(chainKey).Locked() })
				time.Sleep(10 * time.Minute)
				p.mu.Lock()
				ran := slices.Compact(slices.Clone(p.ran))
				p.mu.Unlock()
				if !slices.Equal(ran, []string{"a", "b", "c"}) {
					t.Errorf("ran %q", ran)
				}
				for _, run := range p.all() {
					if run.retried != 0 {
						t.Errorf("step %s was charged a retry", run.id)
					}
				}
			})
		})
	}
}
