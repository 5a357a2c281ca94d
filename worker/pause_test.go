package worker_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/controls"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/joblock/rate"
	"github.com/joblock/toolkit/worker"
)

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
	r.change(func(set *controls.Set, _ int64, now time.Time) { set.Find(key).Resumed = now })
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
	if !slices.Equal(got, ids) {
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

// A pause of days costs a job nothing, with a keeper that dies and workers that are away: the locks stay reserved for their jobs,
// the places in their lines stay, and no retry is charged. A keeper works for half a minute, and the next begins four minutes later. JOBLOCK_PAUSE_DAYS
// changes the length.
func TestPauseOfDays(t *testing.T) {
	days := 2
	if n, err := strconv.Atoi(os.Getenv("JOBLOCK_PAUSE_DAYS")); err == nil {
		days = n
	}
	virtual(t, func(r *rig) {
		l := r.line()
		var p probe
		_, stop := r.keep(r.locks, worker.Config{})
		r.pauseKey("customer", 0)
		s := r.serve(service{}, p.handler(succeed))
		ids := []string{"a", "b", "c"}
		l.add(handoff.Sequence{}, ids...)
		if _, err := l.jobs.Enqueue(context.Background(), handoff.Unique{Key: "customer:8"}, asynq.NewTask(taskType, nil), asynq.TaskID("u"), asynq.MaxRetry(0)); err != nil {
			t.Fatal(err)
		}
		r.untilCharged("u", "retry", 0)
		r.untilCharged("a", "retry", 0)
		s.Shutdown()
		for start := time.Now(); time.Since(start) < time.Duration(days)*24*time.Hour; {
			stop()
			time.Sleep(4 * time.Minute)
			_, stop = r.keep(r.locks, worker.Config{})
			time.Sleep(30 * time.Second)
			r.wantState(seqKey, joblock.StateParked, "a")
			r.wantState("customer:8", joblock.StateParked, "u")
			l.wantLine("b", "c")
		}
		r.serve(service{}, p.handler(succeed))
		time.Sleep(10 * time.Second) // asynq brings the jobs back, and they are held back again
		r.wantRuns(&p, 0)
		r.resumeKey("customer")
		for _, id := range append(ids, "u") {
			r.untilTask(id, "gone")
		}
		if got := slices.DeleteFunc(ran(&p), func(id string) bool { return id == "u" }); !slices.Equal(got, ids) {
			t.Errorf("ran %q, want %q", got, ids)
		}
		r.wantRuns(&p, 4)
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

// An operator may run a job that is held back: it is held back again. A job that ends while it is held back, because an operator deletes
// its task, leaves no trace.
func TestOperatorsAndPausedJobs(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.keep(r.locks, worker.Config{})
		r.pauseKey("k", 0)
		r.serve(service{use: overlap()}, p.handler(succeed))
		ids := r.plain(3, "k", 1)
		for _, id := range ids {
			r.untilCharged(id, "retry", 0)
		}
		for _, err := range []error{r.inspector.RunTask(queue, ids[1]), r.inspector.DeleteTask(queue, ids[0])} {
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Minute)
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

// A registry that cannot be read may have a pause: a process that has never read it starts no job with a lock, and says why.
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
			if err := lock.End(context.Background(), core.Release{}); err != nil {
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
