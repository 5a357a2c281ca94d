package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/controls"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/rate"
	"github.com/joblock/toolkit/worker"
)

// These tests do what people have reported of the controls of other systems, each as it happened there. The reports about
// debounce are in TestDebounceAsReportedElsewhere.

func (l *line) enqueue(how handoff.How, name string, opts ...asynq.Option) (handoff.Result, error) {
	return l.jobs.Enqueue(context.Background(), how, asynq.NewTask(taskType, []byte(name)), append([]asynq.Option{asynq.TaskID(name), asynq.MaxRetry(1)}, opts...)...)
}

func (l *line) mustEnqueue(how handoff.How, name string, opts ...asynq.Option) handoff.Result {
	l.t.Helper()
	got, err := l.enqueue(how, name, opts...)
	if err != nil {
		l.t.Fatalf("enqueue %s: %v", name, err)
	}
	return got
}

func TestCancelInProgressAsReportedElsewhere(t *testing.T) {
	t.Run("a superseded job that waits for a retry runs again, with its next steps", func(t *testing.T) { // hatchet-dev/hatchet#4900
		kept(t, func(r *rig) {
			l := r.line()
			var d diary
			cfg := asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 30 * time.Minute }}
			r.serve(service{asynq: cfg}, d.handler(func(_ context.Context, name string) error {
				if name == "old" {
					return errBoom
				}
				return nil
			}))
			l.mustEnqueue(handoff.Chain{Under: newest, Then: steps("old, downstream")}, "old", asynq.MaxRetry(5))
			r.untilTask("old", "retry")
			l.mustEnqueue(handoff.Chain{Under: newest, Then: steps("new, downstream")}, "new")
			time.Sleep(10 * time.Second) // long before the retry
			want := []string{"start old", "end old", "start new", "end new", "start new, downstream", "end new, downstream"}
			d.want(t, want...)
			time.Sleep(time.Hour)
			d.want(t, want...)
			r.wantTask("old", "gone", 0)
		})
	})
	t.Run("jobs of other keys are cancelled, and the place of a cancelled job stays taken", func(t *testing.T) { // hatchet-dev/hatchet#1324
		kept(t, func(r *rig) {
			l := r.line()
			var d probe
			r.serve(service{asynq: asynq.Config{Concurrency: 20}}, d.handler(func(ctx context.Context, _ int) error {
				select {
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-time.After(10 * time.Minute):
					return nil
				}
			}))
			how := func(i int) handoff.How {
				return handoff.Unique{Key: "group:" + strconv.Itoa(i), OnConflict: handoff.CancelInProgress}
			}
			for i := range 5 {
				l.mustEnqueue(how(i), fmt.Sprint("old-", i))
			}
			r.until("all run", func() bool { return d.running() == 5 })
			for round := range 3 {
				l.mustEnqueue(how(3), fmt.Sprint("new-", round))
				time.Sleep(time.Minute)
				r.wantState("group:3", joblock.StateHeld, fmt.Sprint("new-", round))
			}
			for _, i := range []int{0, 1, 2, 4} {
				r.wantState("group:"+strconv.Itoa(i), joblock.StateHeld, fmt.Sprint("old-", i))
			}
			waiting := l.mustEnqueue(handoff.Unique{Key: "group:0", OnConflict: handoff.KeepLast}, "cancelled while it waits")
			if err := l.jobs.Withdraw(context.Background(), waiting); err != nil {
				t.Error(err)
			}
			time.Sleep(20 * time.Minute)
			for i := range 5 {
				if st := r.status("group:" + strconv.Itoa(i)); st.Locked() {
					t.Errorf("group %d is %s", i, st.State)
				}
				l.mustEnqueue(how(i), fmt.Sprint("again-", i))
				r.until("it runs at once", func() bool { return d.running() == i+1 })
			}
			r.until("the end", func() bool { return d.running() == 0 })
		})
	})
	t.Run("the running job is cancelled although only the pending one should be", func(t *testing.T) { // github/docs#30647
		kept(t, func(r *rig) {
			l := r.line()
			var d diary
			r.serve(service{}, d.handler(func(ctx context.Context, name string) error {
				select {
				case <-ctx.Done():
					t.Errorf("%s is cancelled: %v", name, context.Cause(ctx))
				case <-time.After(5 * time.Minute):
				}
				return nil
			}))
			for i := range 6 {
				got := l.mustEnqueue(handoff.Unique{Key: "prod", OnConflict: handoff.KeepLast}, fmt.Sprint("deploy-", i))
				r.until("the first runs", func() bool { return d.has("start deploy-0") })
				if want := fmt.Sprint("deploy-", i-1); i > 1 && (got.Replaced == nil || got.Replaced.ID != want) {
					t.Errorf("deploy-%d has replaced %+v, want %s: one runs, and one is pending", i, got.Replaced, want)
				}
				time.Sleep(10 * time.Second)
			}
			r.untilTask("deploy-5", "gone")
			d.want(t, "start deploy-0", "end deploy-0", "start deploy-5", "end deploy-5")
		})
	})
	t.Run("a group that is named by the caller and by what it calls is a deadlock", func(t *testing.T) { // metabase/metabase#57960
		kept(t, func(r *rig) {
			l := r.line()
			var d diary
			r.serve(service{use: ctlOverlap()}, d.handler(func(ctx context.Context, name string) error {
				if name != "caller" {
					return nil
				}
				if _, err := l.jobs.Enqueue(ctx, handoff.Unique{Key: ctlKey}, asynq.NewTask(taskType, nil)); !errors.Is(err, joblock.ErrInvalid) {
					t.Errorf("an enqueue under the lock that the context carries: %v, want ErrInvalid", err)
				}
				return worker.Then(ctx, steps("called")...)
			}))
			l.mustEnqueue(handoff.Unique{Key: ctlKey}, "caller")
			r.until("both have run", func() bool { return d.has("end called") })
			r.untilFree(ctlKey)
			d.want(t, "start caller", "end caller", "start called", "end called")
		})
	})
}

func TestUniqueJobsAsReportedElsewhere(t *testing.T) {
	t.Run("what happens while the job runs is lost", func(t *testing.T) { // taskforcesh/bullmq#3151, taskforcesh/bullmq#3427
		paceIn(t, func(string, int) (time.Duration, error) { return 10 * time.Second, nil }, func(p *paced) {
			how := handoff.Unique{Key: "k", OnConflict: handoff.KeepLast}
			for _, at := range []float64{0, 3, 5, 8} {
				p.at(at)
				p.add(how, fmt.Sprint(at))
			}
			p.at(60)
			p.want(14, pacedRun{payload: "0"}, pacedRun{payload: "8", at: 10})
		})
	})
	t.Run("a job that is put back counts neither as waiting nor is its key freed at last", func(t *testing.T) { // laravel/framework#60042, laravel/framework#48013
		kept(t, func(r *rig) {
			l := r.line()
			var d diary
			r.serve(service{use: ctlOverlap(worker.OverlapConfig{MaxWait: -1})}, d.handler(func(context.Context, string) error { time.Sleep(time.Minute); return nil }))
			how := handoff.Unique{Key: "until processing", UntilStarted: true}
			l.mustEnqueue(how, "a")
			r.until("a runs", func() bool { return d.has("start a") })
			l.mustEnqueue(how, "b")
			r.until("b was put back", func() bool { return r.state("b") == "retry" })
			for range 5 {
				if _, err := l.enqueue(how, "c"); !errors.Is(err, joblock.ErrHeld) {
					t.Errorf("while b waits: %v, want ErrHeld", err)
				}
				time.Sleep(10 * time.Second)
			}
			r.until("b runs", func() bool { return d.has("start b") })
			l.mustEnqueue(how, "c") // what has changed since b began is not lost
			r.untilTask("c", "gone")
			d.want(t, "start a", "end a", "start b", "end b", "start c", "end c")
			r.untilFree("until processing")
		})
	})
	t.Run("the retry of an older job frees the key of a newer one", func(t *testing.T) { // laravel/framework#59567
		kept(t, func(r *rig) {
			l := r.line()
			var d diary
			r.serve(service{}, d.handler(func(_ context.Context, name string) error {
				if name == "a" {
					return errBoom
				}
				return nil
			}))
			how := handoff.Unique{Key: "k", UntilStarted: true}
			l.mustEnqueue(how, "a", asynq.MaxRetry(3))
			r.untilTask("a", "retry")
			l.mustEnqueue(how, "b", asynq.ProcessIn(time.Hour))
			r.untilTask("a", "archived")
			d.want(t, "start a", "end a", "start a", "end a", "start a", "end a", "start a", "end a")
			if _, err := l.enqueue(how, "c"); !errors.Is(err, joblock.ErrHeld) {
				t.Errorf("after the retries of a: %v, want ErrHeld", err)
			}
			r.wantState("k", joblock.StateParked, "b")
		})
	})
	t.Run("a chain is there twice", func(t *testing.T) { // laravel/framework#49263
		virtual(t, func(r *rig) {
			p := r.pipeline()
			p.serveSteps(service{}, func(context.Context, string, int) error { time.Sleep(time.Minute); return nil })
			var then []*asynq.Task
			for _, name := range []string{"b", "c"} {
				then = append(then, asynq.NewTask(taskType, []byte(name), asynq.ProcessIn(time.Minute)))
			}
			p.mustEnqueue(handoff.Chain{Under: unique(), Then: then}, "a")
			refused := func(when string) {
				if _, err := p.enqueue(handoff.Chain{Under: unique(), Then: steps("y")}, "x"); !errors.Is(err, joblock.ErrHeld) {
					t.Errorf("%s: %v, want ErrHeld", when, err)
				}
			}
			for i := 1; i <= 3; i++ {
				refused(fmt.Sprint("before step ", i))
				p.until("it runs", func() bool { return p.count() == i })
				refused(fmt.Sprint("during step ", i))
				p.until("it is done", func() bool { return p.running() == 0 })
			}
			p.untilFree(chainKey)
			p.wantRan("a", "b", "c")
		})
	})
	t.Run("jobs that enqueue further ones of their line starve it", func(t *testing.T) { // triggerdotdev/trigger.dev#1272
		kept(t, func(r *rig) {
			l := r.line()
			var d diary
			r.serve(service{asynq: asynq.Config{Concurrency: 1}}, d.handler(func(_ context.Context, name string) error {
				if n, _ := strconv.Atoi(name); n < 4 {
					l.mustEnqueue(handoff.Sequence{Key: "k"}, strconv.Itoa(n+1))
				}
				return nil
			}))
			began := time.Now()
			l.mustEnqueue(handoff.Sequence{Key: "k"}, "0")
			r.until("the last has run", func() bool { return d.has("end 4") })
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("five jobs that take no time took %s", took)
			}
			r.untilFree("k")
		})
	})
	t.Run("a limit of one key is that of all keys, or the other way round", func(t *testing.T) { // triggerdotdev/trigger.dev#3235
		kept(t, func(r *rig) {
			var mu sync.Mutex
			users, all, most := map[string]int{}, 0, 0
			perUser := func(w *worker.Worker) asynq.MiddlewareFunc {
				return w.WithoutOverlapping(func(task *asynq.Task) string { return joblock.Key("user", string(task.Payload())) }, &worker.OverlapConfig{InLine: true})
			}
			total := func(w *worker.Worker) asynq.MiddlewareFunc {
				return w.WithoutOverlapping(func(*asynq.Task) string { return "images" }, &worker.OverlapConfig{MaxConcurrent: 4})
			}
			s := service{use: []middleware{perUser, total}, asynq: asynq.Config{Concurrency: 20, TaskCheckInterval: 50 * time.Millisecond}}
			r.serve(s, func(_ context.Context, task *asynq.Task) error {
				user := string(task.Payload())
				mu.Lock()
				users[user]++
				if all++; users[user] > 1 {
					t.Errorf("%d jobs of user %s run", users[user], user)
				}
				most = max(most, all)
				mu.Unlock()
				time.Sleep(10 * time.Second)
				mu.Lock()
				users[user]--
				all--
				mu.Unlock()
				return nil
			})
			for i := range 40 {
				r.submit(fmt.Sprint(i), asynq.NewTask(taskType, []byte(fmt.Sprint(i%8))), 1)
			}
			r.until("all are done", func() bool {
				info, err := r.inspector.GetQueueInfo(queue)
				return err == nil && info.Size == 0
			})
			if most != 4 {
				t.Errorf("%d have run at a time, want 4", most)
			}
		})
	})
}

func TestRatesAsReportedElsewhere(t *testing.T) {
	// plain starts a server with limits, and checks that n jobs that are there at once take no longer than most.
	burst := func(t *testing.T, n int, most time.Duration, s service, opts func(i int) []asynq.Option) {
		virtual(t, func(r *rig) {
			k := &rated{rig: r}
			r.serve(s, k.handle)
			began := time.Now()
			for i := range n {
				r.submit(fmt.Sprint(i), asynq.NewTask(taskType, []byte(fmt.Sprint(i))), 5, append(opts(i), asynq.Retention(time.Hour))...)
			}
			r.until("all have run", func() bool { return k.done() >= n })
			if took := time.Since(began); took > most {
				t.Errorf("%d jobs took %s, want at most %s", n, took, most)
			}
			for i := range n {
				r.untilTask(fmt.Sprint(i), "completed")
				r.wantTask(fmt.Sprint(i), "completed", 0)
			}
		})
	}
	none := func(int) []asynq.Option { return nil }
	t.Run("each refusal by the provider counts as an attempt", func(t *testing.T) { // taskforcesh/bullmq#1571
		virtual(t, func(r *rig) {
			k := &rated{rig: r}
			k.result = func(string) error {
				if len(k.order) <= 6 {
					return rate.RetryAfter("provider", 10*time.Second)
				}
				return errBoom
			}
			r.serve(limitedTo(oneLimit(rate.Limit{Key: "provider", N: 100, Per: time.Second})), k.handle)
			r.submit("job", asynq.NewTask(taskType, nil), 2)
			r.untilTask("job", "archived")
			if n := k.done(); n != 9 {
				t.Errorf("%d runs, want 6 that were refused and 3 attempts", n)
			}
		})
	})
	t.Run("the limit of each key holds all keys back", func(t *testing.T) { // taskforcesh/bullmq#1322
		burst(t, 30, 25*time.Second, limitedTo(func(task *asynq.Task) []rate.Limit {
			n, _ := strconv.Atoi(string(task.Payload()))
			return []rate.Limit{{Key: joblock.Key("tenant", strconv.Itoa(n%10)), N: 1, Per: 10 * time.Second}}
		}), none)
	})
	t.Run("a delayed job slows the others down", func(t *testing.T) { // taskforcesh/bullmq#3325
		s := limitedTo(oneLimit(rate.Limit{Key: "k", N: 1, Per: 2 * time.Second}))
		virtual(t, func(r *rig) {
			k := &rated{rig: r}
			r.serve(s, k.handle)
			r.submit("delayed", asynq.NewTask(taskType, nil), 1, asynq.ProcessIn(10*time.Minute))
			for i := range 30 {
				r.submit(fmt.Sprint(i), asynq.NewTask(taskType, nil), 1)
			}
			began := time.Now()
			r.until("all but one have run", func() bool { return k.done() == 30 })
			if took := time.Since(began); took > 65*time.Second {
				t.Errorf("30 jobs took %s at one in 2 s", took)
			}
			r.untilTask("delayed", "gone")
		})
	})
	t.Run("a job waits for its backoff as if it had failed", func(t *testing.T) { // taskforcesh/bullmq#1302
		s := limitedTo(oneLimit(rate.Limit{Key: "k", N: 2, Per: time.Second}))
		s.asynq.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 5 * time.Minute }
		burst(t, 20, 12*time.Second, s, none)
	})
	t.Run("jobs of a tenant that is over its limit use up the limit of all", func(t *testing.T) { // laravel/framework#61449
		burst(t, 40, 46*time.Second, limitedTo(func(task *asynq.Task) []rate.Limit {
			tenant := "a"
			if n, _ := strconv.Atoi(string(task.Payload())); n >= 20 {
				tenant = "b"
			}
			return []rate.Limit{{Key: "all", N: 5, Per: 5 * time.Second}, {Key: joblock.Key("tenant", tenant), N: 5, Per: 10 * time.Second}}
		}), none)
	})
	t.Run("after a burst, jobs within the limit wait too", func(t *testing.T) { // OptimalBits/bull#2235
		virtual(t, func(r *rig) {
			k := &rated{rig: r}
			r.serve(limitedTo(oneLimit(rate.Limit{Key: "k", N: 10, Per: 10 * time.Second})), k.handle)
			for i := range 30 {
				r.submit(fmt.Sprint("burst-", i), asynq.NewTask(taskType, nil), 1)
			}
			r.until("the burst is over", func() bool { return k.done() == 30 })
			time.Sleep(10 * time.Second)
			for i := range 30 {
				id := fmt.Sprint("calm-", i)
				came := time.Now()
				r.submit(id, asynq.NewTask(taskType, nil), 1)
				time.Sleep(2 * time.Second)
				k.mu.Lock()
				if start, ok := k.starts[id]; !ok || start.Sub(came) > time.Second {
					t.Errorf("%s came at %s and started at %s", id, came, start)
				}
				k.mu.Unlock()
			}
		})
	})
	t.Run("two types of task cannot share a budget", func(t *testing.T) { // inngest/inngest-js#1729
		virtual(t, func(r *rig) {
			k := &rated{rig: r}
			budget := oneLimit(rate.Limit{Key: "provider", N: 3, Per: 10 * time.Second})
			for range 2 { // two programs, each for a type of its own, in one queue or in two
				s := limitedTo(budget)
				s.locks = r.newLocker()
				r.serve(s, k.handle)
			}
			for i := range 18 {
				r.submit(fmt.Sprint(i), asynq.NewTask(taskType, nil), 1)
			}
			r.until("all have run", func() bool { return k.done() == 18 })
			if most, span := k.most(10 * time.Second); most > 3 || span > 55*time.Second {
				t.Errorf("%d starts in 10 s, all in %s", most, span)
			}
		})
	})
	t.Run("jobs that have their place wait for the rate, and after a restart forever", func(t *testing.T) { // hatchet-dev/hatchet#4804
		kept(t, func(r *rig) {
			l, k := r.line(), &rated{rig: r}
			s := limitedTo(oneLimit(rate.Limit{Key: "provider", N: 1, Per: 20 * time.Second}))
			srv := r.serve(s, k.handle)
			for i := range 8 {
				l.mustEnqueue(handoff.Sequence{Key: "group", Limit: 2}, fmt.Sprint(i))
			}
			r.until("two have run", func() bool { return k.done() == 2 })
			srv.Shutdown()
			r.closeWorker(srv.worker)
			time.Sleep(10 * time.Minute)
			r.serve(s, k.handle)
			began := time.Now()
			r.until("all have run", func() bool { return k.done() == 8 })
			if took := time.Since(began); took > 3*time.Minute {
				t.Errorf("six jobs took %s at one in 20 s", took)
			}
			if most, _ := k.most(20 * time.Second); most > 1 {
				t.Errorf("%d starts in 20 s", most)
			}
			r.until("the group is free", func() bool { return len((&pipeline{line: l}).left()) == 0 })
		})
	})
}

func TestPausesAsReportedElsewhere(t *testing.T) {
	t.Run("a worker that has just started runs paused jobs", func(t *testing.T) { // sidekiq/sidekiq#4975
		kept(t, func(r *rig) {
			var p probe
			r.pauseKey("k", 0)
			ids := r.plain(5, "k", 1)
			for range 3 { // deploys
				s := service{use: overlap(), locks: r.newLocker()}
				srv := r.serve(s, p.handler(succeed))
				time.Sleep(20 * time.Second)
				srv.Shutdown()
				r.closeWorker(srv.worker)
			}
			r.wantRuns(&p, 0)
			r.serve(service{use: overlap()}, p.handler(succeed))
			r.resumeKey("k")
			r.wantDone(ids...)
			r.wantRuns(&p, 5)
		})
	})
	t.Run("a job whose time comes during the pause runs", func(t *testing.T) { // OptimalBits/bull#1087
		kept(t, func(r *rig) {
			var p probe
			r.serve(service{use: overlap()}, p.handler(succeed))
			id := r.plain(1, "k", 1, asynq.ProcessIn(time.Minute))[0]
			r.pauseKey("k", 0)
			time.Sleep(10 * time.Minute)
			r.wantRuns(&p, 0)
			r.wantTask(id, "retry", 0)
			r.resumeKey("k")
			r.wantDone(id)
			r.wantRuns(&p, 1)
		})
	})
	t.Run("a resume while jobs still run does nothing", func(t *testing.T) { // taskforcesh/bullmq#3971
		kept(t, func(r *rig) {
			l := r.line()
			var p probe
			over := make(chan struct{})
			r.serve(service{}, p.handler(only("a", func(context.Context, int) error { <-over; return nil })))
			l.add(handoff.Sequence{}, "a", "b")
			r.until("a runs", func() bool { return p.running() == 1 })
			r.pauseKey("customer", 0)
			time.Sleep(2 * controls.MaxAge)
			r.resumeKey("customer")
			r.wantNoPause()
			time.Sleep(time.Minute)
			r.wantRuns(&p, 1)
			close(over)
			r.untilTask("b", "gone")
			l.wantOrder(&p, "a", "b")
		})
	})
	t.Run("a paused job keeps the group that it shares with others", func(t *testing.T) { // concourse/concourse#994
		kept(t, func(r *rig) {
			l := r.line()
			var d diary
			r.serve(service{use: ctlOverlap(worker.OverlapConfig{InLine: true})}, d.handler(func(context.Context, string) error { return nil }))
			r.pauseKey("job:two", 0)
			l.mustEnqueue(handoff.Unique{Key: "job:two"}, "two")
			r.untilTask("two", "retry")
			l.mustEnqueue(handoff.Unique{Key: "job:one"}, "one")
			r.untilTask("one", "gone")
			d.want(t, "start one", "end one")
			r.resumeKey("job:two")
			r.untilTask("two", "gone")
			d.want(t, "start one", "end one", "start two", "end two")
		})
	})
	t.Run("jobs of a paused tenant stand in front of all others", func(t *testing.T) { // langwatch/langwatch#4220, timgit/pg-boss#756
		kept(t, func(r *rig) {
			l := r.line()
			var p probe
			r.serve(service{asynq: asynq.Config{Concurrency: 1, TaskCheckInterval: 50 * time.Millisecond}}, p.handler(succeed))
			r.pauseKey("a", 0)
			began := time.Now()
			const backlog = 300
			for i := range backlog {
				l.mustEnqueue(handoff.Unique{Key: joblock.Key("a", strconv.Itoa(i))}, fmt.Sprint("a-", i))
			}
			r.until("they are held back", func() bool {
				info, err := r.inspector.GetQueueInfo(queue)
				return err == nil && info.Retry == backlog
			})
			if took := time.Since(began); took > time.Minute {
				t.Errorf("one worker took %s to put %d paused jobs back", took, backlog)
			}
			for range 5 {
				began := time.Now()
				l.mustEnqueue(handoff.Unique{Key: "b"}, "b")
				r.untilTask("b", "gone")
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("the job of another tenant took %s", took)
				}
				time.Sleep(30 * time.Second)
			}
			r.wantRuns(&p, 5)
			r.resumeKey("a")
			r.until("all have run", func() bool { return p.count() == backlog+5 })
			r.wantNoPause()
			if st := r.status(keyspace.Pause("a")); st.Locked() {
				t.Errorf("the pause is %s", st.State)
			}
		})
	})
	t.Run("a resume takes back the limit that an operator has set", func(t *testing.T) { // triggerdotdev/trigger.dev#2745
		kept(t, func(r *rig) {
			var c crowd
			r.serve(service{use: ctlOverlap(worker.OverlapConfig{MaxConcurrent: 5, LimitName: "n"})}, func(context.Context, *asynq.Task) error { c.stay(10 * time.Second); return nil })
			r.setLimit("n", 2)
			r.pauseKey("k", 0)
			time.Sleep(2 * controls.MaxAge)
			ids := r.plain(8, "k", 1)
			time.Sleep(time.Minute)
			r.resumeKey("k")
			r.wantDone(ids...)
			if c.most != 2 {
				t.Errorf("%d at a time, want 2", c.most)
			}
			if set := r.controls(); !slices.ContainsFunc(set.Limits, func(l controls.Limit) bool { return l.Name == "n" && l.Value == 2 }) {
				t.Errorf("the limits are %+v", set.Limits)
			}
		})
	})
}
