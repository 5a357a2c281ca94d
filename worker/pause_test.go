package worker_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
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
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/joblock/rate"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/asynqtick"
	"github.com/joblock/toolkit/worker"
)

// pauseDays is the length of the pause in TestPauseOfDays.
var pauseDays = 2

// pauseKey pauses key as an operator does; atMost 0 is without an end.
func (r *rig) pauseKey(key string, atMost time.Duration) {
	r.t.Helper()
	r.change(func(set *controls.Set, fence int64, now time.Time) {
		p := controls.Pause{ID: fence, Key: key, By: "alice", Note: "down", Since: now}
		if atMost > 0 {
			p.Until = now.Add(atMost)
		}
		set.Remove(key)
		set.Pauses = append(set.Pauses, p)
	})
}

func (r *rig) resumeKey(key string) {
	r.t.Helper()
	r.change(func(set *controls.Set, _ int64, now time.Time) {
		p := set.Find(key)
		if p == nil {
			r.t.Errorf("there is no pause of %q to end", key)
			return
		}
		p.Resumed = now
	})
}

func (r *rig) change(f func(set *controls.Set, fence int64, now time.Time)) {
	r.t.Helper()
	err := (*core.Locker)(r.locks).ChangeControls(context.Background(), "alice", func(set *controls.Set, fence int64, now time.Time) error {
		f(set, fence, now)
		return nil
	})
	if err != nil {
		r.t.Fatalf("change the controls: %v", err)
	}
}

func (r *rig) controls() *controls.Set {
	r.t.Helper()
	set, err := (*core.Locker)(r.locks).Controls().Fresh(context.Background())
	if err != nil {
		r.t.Fatalf("read the controls: %v", err)
	}
	return set
}

// keepOf runs the keeper of w until the end of the test.
func (r *rig) keepOf(w *worker.Worker) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.RunKeeper(ctx)
	}()
	r.t.Cleanup(func() { cancel(); <-done })
}

// wantHeldBack checks which jobs a pause of key holds back, in the order of its line.
func (r *rig) wantHeldBack(key string, ids ...string) {
	r.t.Helper()
	var got []string
	if st := r.status(keyspace.Pause(key)); st.Locked() {
		_, id, _ := envelope.ParseJob(st.Job)
		got = append(got, id)
	}
	for at, err := range jobs.Line(context.Background(), r.locks, keyspace.Pause(key)) {
		if err != nil {
			r.t.Fatal(err)
		}
		_, id, _ := envelope.ParseJob(at.Job)
		got = append(got, id)
	}
	// Jobs that start at once come into the line in either order.
	if !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(ids))) {
		r.t.Errorf("the pause of %s holds back %q, want %q", key, got, ids)
	}
}

// wantNoPause waits until the registry has no pause: all jobs of the pauses were started.
func (r *rig) wantNoPause() {
	r.t.Helper()
	r.until("no pause is left", func() bool { return len(r.controls().Pauses) == 0 })
}

func ran(p *probe) (ids []string) {
	for _, run := range p.all() {
		ids = append(ids, run.id)
	}
	return ids
}

// kinds are all ways for a job to have a lock. add enqueues the n-th job of the key.
var kinds = []struct {
	name  string
	use   []middleware
	limit int
	add   func(l *line, key, id string)
}{
	{"unique", nil, 1, func(l *line, key, id string) {
		if _, err := l.jobs.Enqueue(context.Background(), handoff.Unique{Key: key + ":" + id}, asynq.NewTask(taskType, nil), asynq.TaskID(id), asynq.MaxRetry(0)); err != nil {
			l.t.Fatal(err)
		}
	}},
	{"unique with a limit", nil, 1, func(l *line, key, id string) {
		if _, err := l.jobs.Enqueue(context.Background(), handoff.Unique{Key: key, Limit: 10}, asynq.NewTask(taskType, nil), asynq.TaskID(id), asynq.MaxRetry(0)); err != nil {
			l.t.Fatal(err)
		}
	}},
	{"until started", nil, 1, func(l *line, key, id string) {
		u := handoff.Unique{Key: key + ":" + id, UntilStarted: true}
		if _, err := l.jobs.Enqueue(context.Background(), u, asynq.NewTask(taskType, nil), asynq.TaskID(id), asynq.MaxRetry(0)); err != nil {
			l.t.Fatal(err)
		}
	}},
	{"keep last", nil, 1, func(l *line, key, id string) {
		u := handoff.Unique{Key: key + ":" + id, OnConflict: handoff.KeepLast}
		if _, err := l.jobs.Enqueue(context.Background(), u, asynq.NewTask(taskType, nil), asynq.TaskID(id), asynq.MaxRetry(0)); err != nil {
			l.t.Fatal(err)
		}
	}},
	{"carried", nil, 1, func(l *line, key, id string) {
		if _, err := l.jobs.Enqueue(context.Background(), handoff.Carry(l.occupy(key+":"+id)), asynq.NewTask(taskType, nil), asynq.TaskID(id), asynq.MaxRetry(0)); err != nil {
			l.t.Fatal(err)
		}
	}},
	{"without overlapping", overlap(), 1, func(l *line, key, id string) { l.submit(id, asynq.NewTask(taskType, []byte(key+":"+id)), 1) }},
	{"without overlapping, dropped if busy", overlap(worker.OverlapConfig{DropIfBusy: true}), 1, func(l *line, key, id string) {
		l.submit(id, asynq.NewTask(taskType, []byte(key+":"+id)), 1)
	}},
	{"several at a time", overlap(worker.OverlapConfig{MaxConcurrent: 2}), 1, func(l *line, key, id string) { l.submit(id, asynq.NewTask(taskType, []byte(key)), 1) }},
	{"in line", overlap(worker.OverlapConfig{InLine: true}), 1, func(l *line, key, id string) { l.submit(id, asynq.NewTask(taskType, []byte(key)), 1) }},
}

// Whatever lock a job has, a pause of its key, or of a key above it, holds the job back; the job waits without a worker, and
// is charged nothing; a job of another key runs. When the pause is over the jobs run soon, in order.
func TestPausedJobs(t *testing.T) {
	for _, kind := range kinds {
		for _, expires := range []time.Duration{0, time.Minute} {
			t.Run(fmt.Sprintf("%s, ends by itself: %t", kind.name, expires > 0), func(t *testing.T) {
				virtual(t, func(r *rig) {
					l := r.line()
					var p probe
					r.keep(r.locks, worker.Config{})
					r.pauseKey("tenant:42", expires)
					began := time.Now()
					r.serve(service{use: kind.use, asynq: asynq.Config{Concurrency: 1}}, p.handler(succeed))
					ids := []string{"a", "b", "c"}
					for _, id := range ids {
						kind.add(l, "tenant:42:export", id)
						r.untilCharged(id, "retry", 0)
					}
					kind.add(l, "tenant:421:export", "other")
					r.untilTask("other", "gone")
					r.wantHeldBack("tenant:42", ids...)
					time.Sleep(time.Until(began.Add(50 * time.Second)))
					r.wantRuns(&p, 1)
					for _, id := range ids {
						r.wantTask(id, "retry", 0)
					}
					if expires > 0 {
						time.Sleep(time.Until(began.Add(expires)))
					} else {
						r.resumeKey("tenant:42")
					}
					over := time.Now()
					for _, id := range ids {
						r.untilTask(id, "gone")
					}
					if took := time.Since(over); took > 6*time.Second { // one worker, which asynq lets look once a second
						t.Errorf("the jobs were done %s after the end of the pause\n%s", took, r.log)
					}
					if got := ran(&p)[1:]; !slices.Equal(got, ids) {
						t.Errorf("ran %q, want %q", got, ids)
					}
					r.wantNoPause()
					r.wantHeldBack("tenant:42")
					for _, run := range p.all() {
						if run.retried != 0 {
							t.Errorf("%+v was charged a retry", run)
						}
					}
				})
			})
		}
	}
}

// A sequence keeps its order through a pause. The job that runs goes on, and those behind it wait in their own line.
func TestPausedSequence(t *testing.T) {
	for _, limit := range []int{1, 2} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			virtual(t, func(r *rig) {
				l := r.line()
				var p probe
				r.keep(r.locks, worker.Config{})
				over := make(chan struct{})
				r.serve(service{asynq: asynq.Config{Concurrency: limit}}, p.handler(only("a", func(context.Context, int) error { <-over; return nil })))
				l.add(handoff.Sequence{Limit: limit}, "a")
				r.until("a runs", func() bool { return p.running() == 1 })
				r.pauseKey("customer", 0)
				time.Sleep(controls.MaxAge)
				ids := []string{"b", "c", "d", "e"}
				l.add(handoff.Sequence{Limit: limit}, ids...)
				l.wantLine(ids[limit-1:]...)
				close(over)
				r.untilTask("a", "gone")
				r.until("b is held back", func() bool { return r.status(keyspace.Pause("customer")).Locked() })
				time.Sleep(time.Minute)
				r.wantRuns(&p, 1)
				r.wantHeldBack("customer", ids[:limit]...)
				l.wantLine(ids[limit:]...)
				r.resumeKey("customer")
				for _, id := range ids {
					r.untilTask(id, "gone")
				}
				got := ran(&p)
				if limit > 1 { // jobs that may run at the same time start in any order
					slices.Sort(got)
				}
				if !slices.Equal(got, append([]string{"a"}, ids...)) {
					t.Errorf("ran %q", got)
				}
				r.wantNoPause()
			})
		})
	}
}

// A pause of days costs no job anything, whatever its lock, though keepers die again and again and workers are away for most of
// the time: locks stay reserved for their jobs, places in lines stay, the newest payload of a debounce is kept, and cron jobs
// go on to enqueue. A keeper works for half a minute, and the next begins four minutes later. With the tag servers the pause lasts a
// week, otherwise two days; JOBLOCK_PAUSE_DAYS changes that.
func TestPauseOfDays(t *testing.T) {
	days := pauseDays
	if n, err := strconv.Atoi(os.Getenv("JOBLOCK_PAUSE_DAYS")); err == nil {
		days = n
	}
	virtual(t, func(r *rig) {
		l := r.line()
		var p probe
		var mu sync.Mutex
		payloads := map[string][]string{} // that ran, by the key of their jobs
		handler := p.handler(succeed)
		handle := func(ctx context.Context, task *asynq.Task) error {
			mu.Lock()
			lock, _ := joblock.FromContext(ctx)
			payloads[lock.Key()] = append(payloads[lock.Key()], string(task.Payload()))
			mu.Unlock()
			return handler(ctx, task)
		}
		// The payload of a task for WithoutOverlapping is its key.
		overlapping := func(key string, cfg *worker.OverlapConfig) middleware {
			return func(w *worker.Worker) asynq.MiddlewareFunc {
				return w.WithoutOverlapping(func(task *asynq.Task) string {
					if string(task.Payload()) != key {
						return ""
					}
					return key
				}, cfg)
			}
		}
		seldom := service{
			use:   []middleware{overlapping("customer:plain", nil), overlapping("customer:line", &worker.OverlapConfig{InLine: true})},
			asynq: asynq.Config{TaskCheckInterval: 10 * time.Second, DelayedTaskCheckInterval: 10 * time.Second},
		}
		enqueue := func(how handoff.How, payload string, opts ...asynq.Option) string {
			t.Helper()
			done, err := l.jobs.Enqueue(context.Background(), how, asynq.NewTask(taskType, []byte(payload)), append(opts, asynq.MaxRetry(0))...)
			if err != nil {
				t.Fatal(err)
			}
			return done.Task.ID
		}
		_, stop := r.keep(r.locks, worker.Config{})
		defer func() { stop() }()
		r.pauseKey("customer", 0)
		s := r.serve(seldom, handle)

		ids := []string{"a", "b", "c"}
		l.add(handoff.Sequence{}, ids...)
		var held []string
		for _, u := range []handoff.Unique{
			{Key: "customer:8"}, {Key: "customer:9", OnConflict: handoff.Replace}, {Key: "customer:10", Limit: 2}, {Key: "customer:11", UntilStarted: true},
		} {
			held = append(held, enqueue(u, "", asynq.TaskID(u.Key)))
		}
		held = append(held, enqueue(handoff.Carry(l.occupy("customer:12")), "", asynq.TaskID("carried")))
		for i := range 3 {
			for _, key := range []string{"customer:plain", "customer:line"} {
				id := fmt.Sprint(key, "-", i)
				r.submit(id, asynq.NewTask(taskType, []byte(key)), i) // the first has no retry to spare
				held = append(held, id)
			}
		}
		newest := handoff.Unique{Key: "customer:newest", OnConflict: handoff.KeepLast}
		document := handoff.Debounce{Key: "customer:document", Wait: time.Minute, MaxWait: time.Hour}
		enqueue(newest, "0")
		enqueue(document, "0")
		other := enqueue(handoff.Unique{Key: "customers:1"}, "")
		r.untilTask(other, "gone")

		cron, err := scheduler.New(r.locks, &scheduler.Config{Scope: "shop", Logger: r.log.Text()})
		if err != nil {
			t.Fatal(err)
		}
		ticks := 0
		for name, how := range map[string]handoff.How{
			"skip":  handoff.Unique{Key: "customer:cron", OnConflict: handoff.Skip},
			"queue": handoff.Sequence{Key: "customer:ticks"},
		} {
			if err := cron.Task(name, "30 */4 * * *", func(ctx context.Context, tick scheduler.Tick) error {
				if name == "queue" {
					ticks++
				}
				return asynqtick.EnqueueWith(l.jobs, how, asynq.NewTask(taskType, []byte(tick.At.Format(time.RFC3339))), asynq.MaxRetry(0))(ctx, tick)
			}); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		cronEnded := make(chan struct{})
		go func() { defer close(cronEnded); _ = cron.Run(ctx) }()
		defer func() { cancel(); <-cronEnded }()

		time.Sleep(5 * time.Minute)
		for _, id := range held {
			if _, info := r.task(id); info.Retried != 0 || info.State == asynq.TaskStateActive {
				t.Errorf("%s is %s with %d retries charged", id, info.State, info.Retried)
			}
		}
		writes, up := 0, true
		for start := time.Now(); time.Since(start) < time.Duration(days)*24*time.Hour; {
			stop()
			time.Sleep(4 * time.Minute)
			_, stop = r.keep(r.locks, worker.Config{})
			time.Sleep(30 * time.Second)
			r.wantState(seqKey, joblock.StateParked, "a")
			r.wantState("customer:8", joblock.StateParked, "customer:8")
			l.wantLine("b", "c")
			// Workers are there for the last hour of each day: asynq brings jobs back, and they are held back again.
			switch away := time.Since(start)%(24*time.Hour) < 23*time.Hour; {
			case away && up:
				s.Shutdown()
				up = false
			case !away && !up:
				s = r.serve(seldom, handle)
				up = true
				writes++
				enqueue(newest, fmt.Sprint(writes))
				enqueue(document, fmt.Sprint(writes))
			}
		}
		if !up {
			r.serve(seldom, handle)
			time.Sleep(time.Minute)
		}
		r.wantRuns(&p, 1) // of the other customer
		cancel()
		<-cronEnded
		r.resumeKey("customer")
		resumed := time.Now()
		for _, id := range slices.Concat(ids, held) {
			r.untilTask(id, "gone")
		}
		r.until("the queue is empty", func() bool {
			info, err := r.inspector.GetQueueInfo(queue)
			return err == nil && info.Size == 0
		})
		t.Logf("all were done %s after the end of the pause", time.Since(resumed))
		if got := slices.DeleteFunc(ran(&p), func(id string) bool { return !slices.Contains(ids, id) }); !slices.Equal(got, ids) {
			t.Errorf("ran %q, want %q", got, ids)
		}
		runs := map[string]int{}
		for _, run := range p.all() {
			runs[run.id]++
			if run.retried != 0 {
				t.Errorf("%+v was charged a retry", run)
			}
		}
		for _, id := range held {
			if runs[id] != 1 {
				t.Errorf("%s ran %d times", id, runs[id])
			}
		}
		for _, key := range []string{newest.Key, document.Key} {
			if got := payloads[key]; !slices.Equal(got, []string{fmt.Sprint(writes)}) {
				t.Errorf("of %s ran %q, want the newest, which is %d", key, got, writes)
			}
		}
		queued := payloads["customer:ticks"]
		if len(queued) != ticks || ticks < 6*days || !slices.IsSorted(queued) {
			t.Errorf("of %d ticks ran %d jobs, in order: %t", ticks, len(queued), slices.IsSorted(queued))
		}
		if got := payloads["customer:cron"]; len(got) != 1 || got[0] != queued[0] {
			t.Errorf("of the cron job with Skip ran %q, want the first tick", got)
		}
		r.wantNoPause()
	})
}

// Where several pauses cover a job, it waits for all of them.
func TestSeveralPauses(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.keep(r.locks, worker.Config{})
		r.pauseKey("a", 0)
		r.pauseKey("a:b", time.Hour)
		r.pauseKey("a:b:c", 0)
		r.serve(service{use: overlap()}, p.handler(succeed))
		id := r.plain(1, "a:b:c", 1)[0]
		r.untilCharged(id, "retry", 0)
		for i, key := range []string{"a", "a:b:c", "a:b"} {
			time.Sleep(10 * time.Second)
			r.wantTask(id, "retry", 0)
			if len(r.controls().Pauses) != 3-i {
				t.Errorf("pauses are %+v", r.controls().Pauses)
			}
			r.resumeKey(key)
		}
		r.wantDone(id)
		r.wantNoPause()
		r.wantRuns(&p, 1)
	})
}

// A process that dies while it starts the jobs of a pause leaves the rest to another one: the pause stays in the registry.
func TestEndOfAPauseIsTakenOver(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.pauseKey("k", 0)
		s := r.serve(service{use: overlap()}, p.handler(succeed))
		ids := r.plain(3, "k", 1)
		for _, id := range ids {
			r.untilCharged(id, "retry", 0)
		}
		r.resumeKey("k")
		dead, err := r.newLocker().TryAcquire(context.Background(), keyspace.PauseEnd("k"), core.OwnKey, joblock.NoRenew())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		r.wantRuns(&p, 0)
		r.keepOf(s.worker)
		start := time.Now()
		r.wantDone(ids...)
		if took := time.Since(start); took < ttl/2 || took > ttl+5*time.Second {
			t.Errorf("the jobs ran after %s, want some %s", took, ttl)
		}
		_ = dead
		r.wantNoPause()
	})
}

// halting is a store that waits at one call: before the first release for a reason, or after the second take of a key.
type halting struct {
	driver.Store
	reason, key     string
	takes           *atomic.Int32
	reached, goesOn chan struct{}
	once            *sync.Once
}

func (r *rig) halting(reason, key string) halting {
	return halting{r.faults, reason, key, new(atomic.Int32), make(chan struct{}), make(chan struct{}), new(sync.Once)}
}

func (s halting) Release(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
	if s.reason != "" && reqs[0].Reason == s.reason {
		s.once.Do(func() { close(s.reached); <-s.goesOn })
	}
	return s.Store.Release(ctx, reqs)
}

func (s halting) Take(ctx context.Context, reqs []driver.TakeRequest) ([]driver.Reply, error) {
	replies, err := s.Store.Take(ctx, reqs)
	if s.key != "" && reqs[0].Key == s.key && s.takes.Add(1) == 2 {
		s.once.Do(func() { close(s.reached); <-s.goesOn })
	}
	return replies, err
}

// The key is paused again while the jobs of the pause before are started: they have started, and are held back by the new pause
// before they have lost their old places. They run when the new pause ends, and not a day later.
func TestPausedAgainWhileTheJobsStart(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		slow := r.halting("the pause has ended", "")
		r.keep(r.newLockerOn(slow), worker.Config{})
		r.pauseKey("k", 0)
		r.serve(service{use: overlap()}, p.handler(succeed))
		ids := r.plain(3, "k", 1)
		for _, id := range ids {
			r.untilCharged(id, "retry", 0)
		}
		r.resumeKey("k")
		<-slow.reached
		r.pauseKey("k", 0)
		for _, id := range ids {
			r.untilCharged(id, "retry", 0)
		}
		close(slow.goesOn)
		time.Sleep(time.Minute)
		r.wantRuns(&p, 0)
		r.resumeKey("k")
		start := time.Now()
		r.wantDone(ids...)
		if took := time.Since(start); took > 15*time.Second {
			t.Errorf("the jobs were done %s after the end of the pause", took)
		}
		r.wantNoPause()
	})
}

// The same, but the process of the job has not read that the first pause has ended: the job finds its old place, loses it, and is
// held back by the new pause.
func TestPausedAgainBeforeAProcessKnows(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		slow := r.halting("", keyspace.Pause("k"))
		r.keep(r.locks, worker.Config{})
		r.pauseKey("k", 0)
		r.serve(service{use: overlap(), locks: r.newLockerOn(slow), asynq: asynq.Config{TaskCheckInterval: 20 * time.Millisecond}}, p.handler(succeed))
		id := r.plain(1, "k", 1)[0]
		usual := r.step
		r.patience = 5 * time.Minute
		r.step = time.Millisecond // the process must not read the registry again
		r.untilCharged(id, "retry", 0)
		r.step = usual
		r.resumeKey("k")
		<-slow.reached
		r.wantNoPause() // the job has lost its place
		r.pauseKey("k", 0)
		close(slow.goesOn)
		r.untilCharged(id, "retry", 0)
		time.Sleep(time.Minute)
		r.wantRuns(&p, 0)
		r.resumeKey("k")
		start := time.Now()
		r.wantDone(id)
		if took := time.Since(start); took > 15*time.Second {
			t.Errorf("the job was done %s after the end of the pause", took)
		}
		r.wantNoPause()
	})
}

// An operator may run a job that is held back: it is held back again. A job that ends while it is held back, because an operator deletes
// its task, leaves no trace.
func TestOperatorsAndPausedJobs(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.keep(r.locks, worker.Config{})
		r.pauseKey("k", 0)
		r.serve(service{use: overlap()}, p.handler(succeed))
		ids := r.plain(3, "k", 1)
		r.line().mustEnqueue(handoff.Unique{Key: "k:unique"}, "unique")
		for _, id := range append(ids, "unique") {
			r.untilCharged(id, "retry", 0)
		}
		for _, err := range []error{r.inspector.RunTask(queue, ids[1]), r.inspector.DeleteTask(queue, ids[0]), r.inspector.DeleteTask(queue, "unique")} {
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Minute)
		if st := r.status("k:unique"); st.Locked() {
			t.Errorf("the lock of a job whose task was deleted is %s", st.State)
		}
		r.wantTask(ids[1], "retry", 0)
		r.wantHeldBack("k", ids[1:]...)
		r.wantRuns(&p, 0)
		r.resumeKey("k")
		r.wantDone(ids[1:]...)
		r.wantRuns(&p, 2)
		r.wantNoPause()
	})
}

// A task without a retry left waits by way of the archive, and one of a server without Configure in place.
func TestPausedWithoutARetry(t *testing.T) {
	for _, unconfigure := range []bool{false, true} {
		t.Run(fmt.Sprint(unconfigure), func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.keep(r.locks, worker.Config{})
				r.pauseKey("k", 0)
				r.serve(service{use: overlap(), unconfigure: unconfigure}, p.handler(succeed))
				id := r.plain(1, "k", 0)[0]
				time.Sleep(time.Minute)
				r.wantRuns(&p, 0)
				r.resumeKey("k")
				start := time.Now()
				r.wantDone(id)
				if took := time.Since(start); took > 15*time.Second {
					t.Errorf("it was done after %s", took)
				}
				r.wantRuns(&p, 1)
				r.wantNoPause()
			})
		})
	}
}

// A registry that cannot be read may have a pause: a process that has never read it starts no job with a lock, and says why. One
// that has read it goes on with what it has read.
func TestPausesThatCannotBeRead(t *testing.T) {
	virtual(t, func(r *rig) {
		write := func(memo string) {
			lock, err := (*core.Locker)(r.locks).Acquire(context.Background(), keyspace.Controls, core.Options{OwnKey: true, Memo: true, Retain: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			if err := lock.WriteMemo(context.Background(), []byte(memo)); err != nil {
				t.Fatal(err)
			}
			if err := lock.Release(context.Background(), core.Release{}); err != nil {
				t.Fatal(err)
			}
		}
		write("of a newer version")
		var p probe
		r.keep(r.locks, worker.Config{})
		r.serve(service{use: overlap()}, p.handler(succeed))
		ids := r.plain(1, "k", 1)
		r.untilCharged(ids[0], "retry", 0)
		time.Sleep(time.Minute)
		r.wantRuns(&p, 0)
		if !strings.Contains(r.log.String(), "cannot be read") {
			t.Errorf("the log says nothing:\n%s", r.log)
		}
		write("")
		r.wantDone(ids...)
		r.wantRuns(&p, 1)

		r.pauseKey("k", 0)
		time.Sleep(2 * controls.MaxAge)
		read := r.controls().Encode()
		write("of a newer version")
		time.Sleep(2 * controls.MaxAge)
		held, runs := r.plain(1, "k", 1), r.plain(1, "another key", 1)
		r.wantDone(runs...)
		time.Sleep(time.Minute)
		r.wantRuns(&p, 2)
		r.untilCharged(held[0], "retry", 0) // just now it may be on its way to the next attempt
		write(string(read))
		r.resumeKey("k")
		r.wantDone(held...)
		r.wantRuns(&p, 3)
	})
}

// Jobs of a paused tenant wait for the rate of a provider, in front of those of another tenant: they give up their places.
func TestPausedJobsKeepNoRateFromOthers(t *testing.T) {
	virtual(t, func(r *rig) {
		l, k := r.line(), &rated{rig: r}
		r.keep(r.locks, worker.Config{})
		r.serve(limitedTo(oneLimit(rate.Limit{Key: "provider", N: 1, Per: 2 * time.Second})), k.handle)
		enqueue := func(tenant string, i int) string {
			id := fmt.Sprint(tenant, "-", i)
			u := handoff.Unique{Key: joblock.Key(tenant, strconv.Itoa(i))}
			if _, err := l.jobs.Enqueue(context.Background(), u, asynq.NewTask(taskType, nil), asynq.TaskID(id), asynq.MaxRetry(1)); err != nil {
				t.Fatal(err)
			}
			return id
		}
		enqueue("b", 0)
		r.until("the first has run", func() bool { return k.done() == 1 })
		for i := range 10 {
			r.untilCharged(enqueue("a", i), "retry", 0)
		}
		r.pauseKey("a", 0)
		time.Sleep(2 * controls.MaxAge)
		before := k.done()
		begin := time.Now()
		for i := range 10 {
			enqueue("b", i+1)
		}
		r.until("those of the other tenant have run", func() bool { return k.done() == before+10 })
		if took := time.Since(begin); took > 27*time.Second {
			t.Errorf("ten jobs took %s at one in two seconds, behind ten that are paused", took)
		}
		r.resumeKey("a")
		r.until("all have run", func() bool { return k.done() == 21 })
		r.wantNoPause()
	})
}

// The end of a pause and the arrival of a job meet in every order. None is lost, and none runs twice.
func TestPausedAndResumedAgainAndAgain(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.keep(r.locks, worker.Config{})
		r.serve(service{use: overlap(worker.OverlapConfig{InLine: true})}, p.handler(func(context.Context, int) error { time.Sleep(100 * time.Millisecond); return nil }))
		var ids []string
		for i := range 60 {
			id := fmt.Sprintf("job-%02d", i)
			ids = append(ids, id)
			r.submit(id, asynq.NewTask(taskType, []byte("k:"+strconv.Itoa(i%3))), 1)
			if i%2 == 0 {
				r.pauseKey("k", 0)
			} else {
				r.resumeKey("k")
			}
			time.Sleep(time.Duration(i%7) * 173 * time.Millisecond)
		}
		for _, id := range ids {
			r.untilTask(id, "gone")
		}
		got := ran(&p)
		slices.SortFunc(got, cmp.Compare[string])
		if !slices.Equal(got, ids) {
			t.Errorf("ran %q, want each once", got)
		}
		r.wantNoPause()
	})
}
