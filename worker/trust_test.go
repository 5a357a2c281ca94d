package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/worker"
)

// stranger returns the seal of a program that can enqueue tasks and knows all of this module,
// but not the locks' store.
func (r *rig) stranger() *seal.Ring {
	r.t.Helper()
	locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}),
		&joblock.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = locks.Close(context.Background()) })
	return (*core.Locker)(locks).Ring()
}

// forged returns tokens of n keys, and of others, that no store has issued.
func (r *rig) forged(n int, others ...string) []joblock.Token {
	r.t.Helper()
	var tokens []joblock.Token
	keys := make([]string, n, n+len(others))
	for i := range keys {
		keys[i] = fmt.Sprintf("forged-%04d", i)
	}
	for _, key := range append(keys, others...) {
		token, err := joblock.NewToken(key, "the stranger", time.Hour)
		if err != nil {
			r.t.Fatal(err)
		}
		tokens = append(tokens, token)
	}
	return tokens
}

// Who can enqueue a task, and nothing else, takes no lock, prolongs none, blocks none
// and ends none, whatever the task says that it carries and whatever Config.OnLockLost is. The
// task is what it would be without that.
func TestTheRightToEnqueueIsNotTheRightToLock(t *testing.T) {
	for _, policy := range policies {
		for name, lists := range map[string]func(e *envelope.Envelope){
			"to the end":  func(*envelope.Envelope) {},
			"from start":  func(e *envelope.Envelope) { e.FromStart = e.Tokens },
			"until start": func(e *envelope.Envelope) { e.UntilStart = e.Tokens },
			"half, half": func(e *envelope.Envelope) {
				e.UntilStart, e.FromStart = e.Tokens[:len(e.Tokens)/2], e.Tokens[len(e.Tokens)/2:]
			},
			"many retries": func(e *envelope.Envelope) { e.Retries = 1 << 30 },
			"no retries":   func(e *envelope.Envelope) { e.Retries = 0 },
		} {
			if policy != reacquiring && name != "from start" && name != "to the end" {
				continue // nothing that the policy is about
			}
			t.Run(string(policy)+", "+name, func(t *testing.T) {
				virtual(t, func(r *rig) {
					r.keep(r.locks, worker.Config{})
					var p probe
					parked := r.park("waits", "parked")[0]
					r.submit("waits", r.seal(0, parked), 1, asynq.ProcessIn(3*time.Hour))
					held := r.hold("held")
					time.Sleep(time.Second) // the keeper has its own
					acquired, resumed, parks := r.faults.Calls(faultstore.Acquire), r.faults.Calls(faultstore.Resume), r.faults.Calls(faultstore.Park)

					env := envelope.Envelope{Tokens: r.forged(envelope.MaxCarried-2, "parked", "held"), Retries: 1}
					lists(&env)
					header, err := env.Seal(context.Background(), r.stranger(), envelope.Job(queue, "a"), taskType)
					if err != nil {
						t.Fatal(err)
					}
					// As if it had been sealed with the key that everybody has.
					good := r.header("a", envelope.Envelope{Tokens: []joblock.Token{parked}})
					for id, text := range map[string]string{"a": header, "b": good[:36] + header[36:]} {
						r.submit(id, asynq.NewTaskWithHeaders(taskType, nil, map[string]string{envelope.Header: text}), 2)
					}
					r.serve(service{worker: worker.Config{OnLockLost: policy.decide}}, p.handler(func(ctx context.Context, _ int) error {
						if locks := joblock.LocksFromContext(ctx); len(locks) > 0 {
							t.Errorf("the handler has %d locks", len(locks))
						}
						time.Sleep(2 * time.Minute)
						return errBoom
					}))
					for range 3 {
						time.Sleep(time.Minute)
						r.wantUntouched(env.Tokens[:envelope.MaxCarried-2])
						time.Sleep(time.Minute + 2*retryWait)
						r.wantUntouched(env.Tokens[:envelope.MaxCarried-2])
					}
					r.untilTask("b", "archived")
					r.wantTask("b", "archived", 2)
					r.wantRuns(&p, 3)
					r.untilRetry("a", 0) // this worker cannot verify its header: a worker that has the key may come
					for _, run := range p.all() {
						if run.budget != 2 {
							t.Errorf("an attempt got %d retries, asynq 2", run.budget)
						}
					}
					r.wantState("parked", joblock.StateParked, "waits")
					if err := held.Err(); err != nil {
						t.Error(err)
					}
					if a, b, c := r.faults.Calls(faultstore.Acquire)-acquired, r.faults.Calls(faultstore.Resume)-resumed,
						r.faults.Calls(faultstore.Park)-parks; a != 0 || b != 0 || c != 0 {
						t.Errorf("%d acquires, %d resumes and %d parks because of forged tokens", a, b, c)
					}
					r.wantTrustErrors("not known here", "does not match")
				})
			})
		}
	}
}

// wantUntouched checks that there is not even a record of the tokens' keys.
func (r *rig) wantUntouched(tokens []joblock.Token) {
	r.t.Helper()
	keys := make([]string, len(tokens))
	for i, token := range tokens {
		keys[i] = token.Key()
	}
	locks, err := r.locks.Status(context.Background(), keys...)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, st := range locks {
		if st.Locked() || st.Fence != 0 || st.Job != "" {
			r.t.Fatalf("%s is %s with fence %d for %q", st.Key, st.State, st.Fence, st.Job)
		}
	}
}

// wantTrustErrors checks that the log has lines of level ERROR with each of texts, and no
// other; and no more than one a minute each.
func (r *rig) wantTrustErrors(texts ...string) {
	r.t.Helper()
	last := make(map[string]time.Time)
	for line := range strings.Lines(r.log.String()) {
		if !strings.Contains(line, "level=ERROR") {
			continue
		}
		known := ""
		for _, text := range texts {
			if strings.Contains(line, text) {
				known = text
			}
		}
		at, err := time.Parse(time.RFC3339Nano, strings.TrimPrefix(strings.Fields(line)[0], "time="))
		switch {
		case known == "" || err != nil:
			r.t.Errorf("the log says (%v) %s", err, line)
		case at.Sub(last[known]) < time.Minute:
			r.t.Errorf("twice in %s: %s", at.Sub(last[known]), line)
		}
		last[known] = at
	}
	for _, text := range texts {
		if last[text].IsZero() {
			r.t.Errorf("the log does not say %q:\n%s", text, r.log)
		}
	}
}

// What a middleware copies from a task to those that its handler enqueues, all headers,
// makes no job under the first one's lock.
func TestCopiedHeadersCarryNoLock(t *testing.T) {
	for _, policy := range policies {
		t.Run(string(policy), func(t *testing.T) {
			kept(t, func(r *rig) {
				var parent, child probe
				token := r.enqueue("parent", 0)
				r.serve(service{worker: worker.Config{OnLockLost: policy.decide}}, func(ctx context.Context, task *asynq.Task) error {
					if id, _ := asynq.GetTaskID(ctx); id != "parent" {
						return child.handler(func(ctx context.Context, _ int) error {
							if _, ok := joblock.FromContext(ctx); ok {
								t.Error("the child has a lock")
							}
							if n, _ := asynq.GetMaxRetry(ctx); n != 3 {
								t.Errorf("the child has %d retries, want 3", n)
							}
							r.wantState("key-parent", joblock.StateHeld, "parent")
							return nil
						})(ctx, task)
					}
					r.submit("child", asynq.NewTaskWithHeaders(taskType, nil, task.Headers()), 3)
					return parent.handler(func(ctx context.Context, _ int) error {
						r.untilTask("child", "gone")
						lock, ok := joblock.FromContext(ctx)
						if !ok || (*core.Lock)(lock).Owner() != core.Token(token).Owner() {
							t.Error("the parent has no lock")
							return nil
						}
						return lock.Err()
					})(ctx, task)
				})
				r.untilTask("parent", "gone")
				r.wantEnded("key-parent", "job done")
				r.wantRuns(&parent, 1)
				r.wantRuns(&child, 1)
				r.wantTrustErrors("copied from another task")
			})
		})
	}
}

// The header is of a type of task too: with the same ID, after the job is gone, another
// type is another job.
func TestEnvelopeIsOfOneTypeOfTask(t *testing.T) {
	virtual(t, func(r *rig) {
		token := r.park("a", "key-a")[0]
		text, err := envelope.Envelope{Tokens: []joblock.Token{token}}.Seal(context.Background(), (*core.Locker)(r.locks).Ring(),
			envelope.Job(queue, "a"), "import")
		if err != nil {
			t.Fatal(err)
		}
		var p probe
		r.submit("a", asynq.NewTaskWithHeaders(taskType, nil, map[string]string{envelope.Header: text}), 1)
		r.serve(service{}, p.handler(succeed))
		r.untilTask("a", "gone")
		r.wantRuns(&p, 1)
		r.wantState("key-a", joblock.StateParked, "a")
		r.wantTrustErrors("copied from another task")
	})
}

// A copy of a member's header moves no lock into a group that the member is not in, nor
// does one of a task that is in no group.
func TestAggregateDistrustsCopiedHeaders(t *testing.T) {
	kept(t, func(r *rig) {
		var p probe
		r.enqueue("other", 0, asynq.ProcessIn(time.Hour))
		r.enqueue("elsewhere", 0, asynq.Group("another"))
		r.enqueue("here", 0, asynq.Group("g"))
		for i, id := range []string{"other", "elsewhere", "here"} {
			r.submit(fmt.Sprint("copy-", i), asynq.NewTaskWithHeaders(taskType, []byte("another payload"), r.taskHeaders(id)),
				1, asynq.Group("g"))
		}
		forged := r.header("forger", envelope.Envelope{Tokens: r.forged(3)}) + "x"
		r.submit("forger", asynq.NewTaskWithHeaders(taskType, nil, map[string]string{envelope.Header: forged}), 1, asynq.Group("g"))
		got := make(chan []string, 1)
		r.serve(service{asynq: asynq.Config{
			GroupGracePeriod: 10 * time.Minute, GroupMaxSize: 5,
			GroupAggregator: asynq.GroupAggregatorFunc(func(string, []*asynq.Task) *asynq.Task {
				return asynq.NewTask(taskType, nil)
			}),
		}}, p.handler(func(ctx context.Context, _ int) error {
			got <- keysHeld(ctx)
			return nil
		}))
		if keys := <-got; len(keys) != 1 || keys[0] != "key-here" {
			t.Errorf("the group's task has %q, want that of its member alone", keys)
		}
		r.wantState("key-other", joblock.StateParked, "other")
		r.wantState("key-elsewhere", joblock.StateParked, "elsewhere")
		for i := range 3 {
			if st := r.status(fmt.Sprintf("forged-%04d", i)); st.Fence != 0 {
				t.Errorf("a forged token made %+v", st)
			}
		}
		r.wantTrustErrors("copied from another task", "does not match")
	})
}

// A copy that comes without the member leaves its lock alone.
func TestCopyInAGroupWithoutTheMember(t *testing.T) {
	kept(t, func(r *rig) {
		var p probe
		r.enqueue("a", 0, asynq.Group("another"))
		r.submit("copy", asynq.NewTaskWithHeaders(taskType, nil, r.taskHeaders("a")), 1, asynq.Group("g"))
		r.serve(service{asynq: asynq.Config{
			GroupGracePeriod: 10 * time.Minute, GroupMaxSize: 1,
			GroupAggregator: asynq.GroupAggregatorFunc(func(group string, members []*asynq.Task) *asynq.Task {
				if group == "another" {
					return nil
				}
				return asynq.NewTaskWithHeaders(taskType, nil, members[0].Headers()) // as some do
			}),
		}}, p.handler(func(ctx context.Context, _ int) error {
			if keys := keysHeld(ctx); len(keys) > 0 {
				t.Errorf("the group's task has %q", keys)
			}
			return nil
		}))
		r.untilTask("copy", "gone")
		r.until("the group's task ran", func() bool { return p.count() == 1 })
		r.wantState("key-a", joblock.StateParked, "a")
	})
}

// A copy that is aggregated before the member, in the same group, leaves the lock to that.
func TestCopyInAGroupBeforeTheMember(t *testing.T) {
	kept(t, func(r *rig) {
		tokens := r.park("a", "key-a")
		header := map[string]string{envelope.Header: r.header("a", envelope.Envelope{Tokens: tokens})}
		r.submit("copy", asynq.NewTaskWithHeaders(taskType, []byte("copy"), header), 1, asynq.Group("g"))
		time.Sleep(time.Second)
		r.submit("a", asynq.NewTaskWithHeaders(taskType, []byte("a"), header), 1, asynq.Group("g"))
		seen := make(chan string, 2)
		r.serve(service{asynq: asynq.Config{
			GroupGracePeriod: 10 * time.Minute, GroupMaxSize: 1,
			GroupAggregator: asynq.GroupAggregatorFunc(func(_ string, members []*asynq.Task) *asynq.Task {
				return asynq.NewTask(taskType, members[0].Payload())
			}),
		}}, func(ctx context.Context, task *asynq.Task) error {
			seen <- fmt.Sprintf("%s has %q", task.Payload(), keysHeld(ctx))
			return nil
		})
		for range 2 {
			if got := <-seen; got != `copy has []` && got != `a has ["key-a"]` {
				t.Error(got)
			}
		}
	})
}

// A copy of a task that waits in a group of that name in another queue does not pass the
// group off as one of that queue's: the members have their locks.
func TestCopyInAGroupFromAnotherQueue(t *testing.T) {
	kept(t, func(r *rig) {
		lock, err := r.locks.TryAcquire(context.Background(), "key-low")
		if err != nil {
			t.Fatal(err)
		}
		token, err := lock.Park(context.Background(), joblock.Reserve(reserve), joblock.ForJob(envelope.Job("low", "low")))
		if err != nil {
			t.Fatal(err)
		}
		sealed, err := envelope.Envelope{Tokens: []joblock.Token{token}}.Seal(context.Background(), (*core.Locker)(r.locks).Ring(), envelope.Job("low", "low"), taskType)
		if err != nil {
			t.Fatal(err)
		}
		low := asynq.NewTaskWithHeaders(taskType, nil, map[string]string{envelope.Header: sealed})
		r.submit("low", low, 1, asynq.Group("g"), asynq.Queue("low"))
		r.submit("copy", low, 1, asynq.Group("g"))
		time.Sleep(time.Second)
		r.enqueue("here", 0, asynq.Group("g"))
		got := make(chan []string, 1)
		r.serve(service{asynq: asynq.Config{
			GroupGracePeriod: 10 * time.Minute, GroupMaxSize: 2,
			GroupAggregator: asynq.GroupAggregatorFunc(func(string, []*asynq.Task) *asynq.Task {
				return asynq.NewTask(taskType, nil)
			}),
		}}, func(ctx context.Context, _ *asynq.Task) error {
			got <- keysHeld(ctx)
			return nil
		})
		if keys := <-got; len(keys) != 1 || keys[0] != "key-here" {
			t.Errorf("the group's task has %q, want that of its member alone", keys)
		}
		if st := r.status("key-low"); st.State != joblock.StateParked || st.Job != "low/low" {
			t.Errorf("the lock of the task in the other queue is %+v", st)
		}
		r.wantTrustErrors("copied from another task")
	})
}

// WithoutOverlapping passes a task over that carries the lock it wants: if it does.
func TestForgedTaskDoesNotGetAroundWithoutOverlapping(t *testing.T) {
	for _, bare := range []bool{false, true} {
		t.Run(fmt.Sprintf("without the middleware %v", bare), func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				busy := r.hold("busy")
				text, err := envelope.Envelope{Tokens: r.forged(0, "busy")}.Seal(context.Background(), r.stranger(), "default/a", taskType)
				if err != nil {
					t.Fatal(err)
				}
				good := r.header("a", envelope.Envelope{Tokens: r.forged(1)})
				for id, text := range map[string]string{"a": text, "b": r.header("a", envelope.Envelope{Tokens: r.forged(0, "busy")}), "c": good[:36] + text[36:]} {
					r.submit(id, asynq.NewTaskWithHeaders(taskType, nil, map[string]string{envelope.Header: text}), 1, asynq.Timeout(time.Hour))
				}
				r.serve(service{bare: bare, use: []func(*worker.Worker) asynq.MiddlewareFunc{func(w *worker.Worker) asynq.MiddlewareFunc {
					return w.WithoutOverlapping(func(*asynq.Task) string { return "busy" }, nil)
				}}}, p.handler(succeed))
				time.Sleep(10 * time.Minute)
				r.wantRuns(&p, 0)
				r.release(busy)
				r.untilTask("b", "gone")
				r.untilTask("c", "gone")
				r.wantRuns(&p, 2)
				if state, info := r.task("a"); !bare && (state == "archived" || info.Retried != 0) {
					t.Errorf("the task that cannot be verified is %s, and %d retries were charged", state, info.Retried)
				}
			})
		})
	}
}

// While the store does not say which keys there are, an honest task is neither run
// without its lock nor charged.
func TestTaskIsSnoozedWhileItsSealCannotBeChecked(t *testing.T) {
	for spare, unconfigure := range []bool{true, false} {
		virtual(t, func(r *rig) {
			var p probe
			token := r.enqueue("a", 0)
			r.faults.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.SealKeys)
			r.serve(service{locks: r.newLocker(), unconfigure: unconfigure}, p.handler(func(ctx context.Context, _ int) error {
				if lock, ok := joblock.FromContext(ctx); !ok || (*core.Lock)(lock).Owner() != core.Token(token).Owner() {
					t.Error("the job runs without its lock")
				}
				return nil
			}))
			time.Sleep(5 * time.Minute)
			r.wantRuns(&p, 0)
			if _, info := r.task("a"); info.Retried != 0 {
				t.Errorf("configured %d: %d retries charged", spare, info.Retried)
			}
			r.faults.Clear()
			r.untilTask("a", "gone")
			r.wantRuns(&p, 1)
			r.wantEnded("key-a", "job done")
		})
	}
}

// A secret was removed from the workers too early, or an enqueuing process has a new one too early. The workers do not run
// the task without its lock: it waits, uncharged, for one that has the secret. This goes for every policy, and for
// WithoutOverlapping without Middleware, and while the store does not say which keys there are.
func TestTaskSealedWithALostKeyWaits(t *testing.T) {
	for name, c := range map[string]struct {
		service service
		outage  bool
		overlap bool
	}{
		"reacquire":                  {},
		"skip":                       {service: service{worker: worker.Config{OnLockLost: skipping.decide}}},
		"fail":                       {service: service{worker: worker.Config{OnLockLost: failing.decide}}},
		"during an outage":           {outage: true},
		"WithoutOverlapping, around": {service: service{unguarded: true}, overlap: true},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				const old, young joblock.Secret = "the secret of last year", "the secret of this year"
				with := func(secrets ...joblock.Secret) *joblock.Locker { return r.newLockerOn(r.faults, secrets...) }
				r.locks = with(old)
				var p probe
				handler := p.handler(func(ctx context.Context, _ int) error {
					if lock, ok := joblock.FromContext(ctx); !c.overlap && (!ok || lock.Key() != "key-a") {
						t.Error("the job runs without its lock")
					}
					return nil
				})
				if c.overlap {
					c.service.use = append(c.service.use, func(w *worker.Worker) asynq.MiddlewareFunc {
						return w.WithoutOverlapping(func(*asynq.Task) string { return "key-a" }, nil)
					})
				}
				c.service.locks = with(young, joblock.SecretOfStore)
				r.enqueue("a", 0)
				if c.outage {
					r.faults.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.SealKeys)
				}
				srv := r.serve(c.service, handler)
				r.keep(c.service.locks, worker.Config{})
				time.Sleep(2 * reserve)
				r.faults.Clear()
				time.Sleep(2 * reserve)
				r.wantRuns(&p, 0)
				r.untilRetry("a", 0)
				r.wantState("key-a", joblock.StateParked, "a")
				srv.Shutdown()
				c.service.locks = with(young, old)
				r.serve(c.service, handler)
				r.untilTask("a", "gone")
				r.wantRuns(&p, 1)
				if !c.overlap {
					r.wantEnded("key-a", "job done")
				}
				r.wantTrustErrors("not known here")
			})
		})
	}
}

// flushed is a rig whose locks are in a Redis of their own, which loses all.
func flushed(t *testing.T, f func(r *rig, flush func())) {
	t.Helper()
	testkit.Parallel(t)
	synctest.Test(t, func(t *testing.T) {
		redistest.Ran(t, redistest.MiniBackend())
		time.Sleep(21 * 366 * 24 * time.Hour) // the script of rates knows no time before 2020
		mini, locks := redistest.Mini(t), redistest.Mini(t)
		r := newRig(t, redistest.MiniClient(t, mini), testkit.Must(redisstore.New(redistest.MiniClient(t, locks), nil)), ttl)
		r.mini = mini
		r.patience, r.step = 6*time.Hour, 500*time.Millisecond
		f(r, locks.FlushAll)
	})
}

// runCount counts the runs of each task, and how many had their lock.
type runCount struct {
	mu     sync.Mutex
	runs   map[string]int
	locked int
}

func (c *runCount) handler(ctx context.Context, _ *asynq.Task) error {
	id, _ := asynq.GetTaskID(ctx)
	lock, ok := joblock.FromContext(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runs[id]++
	if ok && lock.Key() == "key-"+id {
		c.locked++
	}
	return nil
}

// want checks that n jobs ran, each once.
func (c *runCount) want(r *rig, n, locked int) {
	r.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, times := range c.runs {
		if times != 1 {
			r.t.Errorf("%s ran %d times", id, times)
		}
	}
	if len(c.runs) != n || c.locked != locked {
		r.t.Errorf("%d of %d jobs ran, %d of them with their lock, want %d", len(c.runs), n, c.locked, locked)
	}
}

// No honest job is lost when the locks' Redis loses all. A worker with the key in memory has
// the jobs take their locks again. A worker that comes later waits with the jobs until another
// process that knows the key gives it back.
func TestFlushOfTheLocksLosesNoJob(t *testing.T) {
	jobs := 50
	if testkit.Whole {
		jobs = 200
	}
	for _, c := range []struct {
		name   string
		before bool // the workers ran before
		inUse  bool // the enqueuing side goes on at once
		later  bool // the enqueuing side goes on when the jobs are due
	}{
		{"workers that ran before", true, false, false},
		{"workers that come after", false, false, true},
		{"workers that come after, while the enqueuing side goes on", false, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			flushed(t, func(r *rig, flush func()) {
				count := &runCount{runs: make(map[string]int)}
				serve := func() server {
					return r.serve(service{locks: r.newLocker(), worker: worker.Config{OnLockLost: reacquiring.decide}}, count.handler)
				}
				srv := serve()
				r.enqueue("before", 0)
				r.untilTask("before", "gone")
				if !c.before {
					srv.Shutdown()
				}
				for i := range jobs {
					r.enqueue(fmt.Sprint("job-", i), 0, asynq.ProcessIn(5*time.Minute))
				}
				total := jobs + 1
				time.Sleep(time.Minute)
				flush()
				if c.inUse {
					r.enqueue("after", 0, asynq.ProcessIn(5*time.Minute))
					time.Sleep(time.Second)
					total++
				}
				if !c.before {
					serve()
				}
				if c.later {
					time.Sleep(10 * time.Minute)
					count.want(r, 1, 1)
					r.enqueue("after", 0)
					total++
				}
				for i := range jobs {
					r.untilTask(fmt.Sprint("job-", i), "gone")
				}
				if c.inUse || c.later {
					r.untilTask("after", "gone")
				}
				count.want(r, total, total)
				if archived, err := r.inspector.ListArchivedTasks(queue); err != nil || len(archived) > 0 {
					t.Errorf("%d jobs are archived, %v", len(archived), err)
				}
			})
		})
	}
}

// The enqueuing side and the workers use different locks: that is logged with the first
// job. With a common secret the jobs run, and Config.OnLockLost decides. Without, they wait.
func TestWebAndWorkerOnDifferentLocks(t *testing.T) {
	for _, secret := range []joblock.Secret{"", "shared by all who are honest"} {
		t.Run(fmt.Sprint("secret ", secret), func(t *testing.T) {
			testkit.Parallel(t)
			synctest.Test(t, func(t *testing.T) {
				redistest.Ran(t, redistest.MiniBackend())
				mini := redistest.Mini(t)
				r := newRig(t, redistest.MiniClient(t, mini), memstore.New(&memstore.Config{Silent: true}), ttl)
				r.mini, r.patience, r.step = mini, time.Hour, 500*time.Millisecond
				with := func(prefix string) *joblock.Locker {
					cfg := &joblock.Config{TTL: ttl, Logger: r.log.Text()}
					if secret != "" {
						cfg.Secrets = []joblock.Secret{secret}
					}
					locks, err := joblock.New(testkit.Must(redisstore.New(redistest.MiniClient(t, mini), &redisstore.Config{Prefix: prefix})), cfg)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = locks.Close(context.Background()) })
					return locks
				}
				var p probe
				r.locks = with("web:")
				r.serve(service{locks: with("worker:")}, p.handler(succeed))
				for i := range 3 {
					r.enqueue(fmt.Sprint("job-", i), 0)
				}
				if secret == "" {
					time.Sleep(10 * time.Minute)
					for i := range 3 {
						r.untilRetry(fmt.Sprint("job-", i), 0)
					}
					r.wantRuns(&p, 0)
					r.wantTrustErrors("not known here")
				} else {
					for i := range 3 {
						r.untilTask(fmt.Sprint("job-", i), "gone")
					}
					r.wantRuns(&p, 3)
					r.wantTrustErrors("uses a different Redis, database or prefix")
				}
				if text := r.log.String(); !strings.Contains(text, `worker:`) || strings.Contains(text, string(secret)) && secret != "" {
					t.Errorf("the log should name the worker's prefix, and no secret:\n%s", text)
				}
				for _, run := range p.all() {
					if run.fence == 0 {
						t.Errorf("ran with fence %d", run.fence)
					}
				}
			})
		})
	}
}

// Sealing and opening costs a call of the store per process, and one in ten seconds while
// it is in use: none per job.
func TestSealsCostNoCallsPerJob(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.serve(service{locks: r.newLocker()}, p.handler(succeed))
		began := time.Now()
		const jobs = 100
		for i := range jobs {
			r.enqueue(fmt.Sprint(i), 0)
		}
		r.until("all ran", func() bool { return p.count() == jobs })
		most := 2 * (1 + int(time.Since(began)/(10*time.Second)))
		if n := r.faults.Calls(faultstore.SealKeys); n > most {
			t.Errorf("%d calls for seal keys in %s, want %d at the most", n, time.Since(began), most)
		}
		if n := r.faults.Calls(faultstore.Resume); n != jobs {
			t.Errorf("%d resumes of %d jobs", n, jobs)
		}
	})
}
