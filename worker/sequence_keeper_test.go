package worker_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// grace is how long the keeper waits for the task of a place that was just taken.
const grace = time.Minute

// crashed is for a process that gives keys to jobs and dies before it starts their tasks.
func crashed(string, string) {}

// hold takes the key of the sequence as a request does.
func (l *line) hold() *joblock.Lock {
	l.t.Helper()
	lock, err := l.locks.TryAcquire(context.Background(), seqKey)
	if err != nil {
		l.t.Fatalf("acquire: %v", err)
	}
	return lock
}

// token returns the token that a task carries.
func (l *line) token(id string) joblock.Token {
	l.t.Helper()
	_, info := l.task(id)
	env, _, err := envelopekit.Read(info.Headers)
	if err != nil || len(env.Tokens) != 1 {
		l.t.Fatalf("%s carries %v, %v", id, env.Tokens, err)
	}
	return env.Tokens[0]
}

// ghost takes a place for a task that is never enqueued: the process died in between.
func (l *line) ghost(id string) {
	l.t.Helper()
	taken := (*core.Locker)(l.locks).Take(context.Background(), "enqueue", []core.Take{{
		Key: seqKey, Job: envelope.Job(queue, id), Reserve: reserve, Patience: envelope.Patience,
	}})[0]
	if taken.Err != nil {
		l.t.Fatalf("take for %s: %v", id, taken.Err)
	}
}

// A task that waits and is deleted or archived leaves the line, and those behind move up.
func TestTasksThatLeaveTheLine(t *testing.T) {
	for name, end := range map[string]func(*asynq.Inspector, string) error{
		"deleted":  func(in *asynq.Inspector, id string) error { return in.DeleteTask(queue, id) },
		"archived": func(in *asynq.Inspector, id string) error { return in.ArchiveTask(queue, id) },
	} {
		t.Run(name, func(t *testing.T) {
			kept(t, func(r *rig) {
				l := r.line()
				var p probe
				lock := l.hold()
				l.add(handoff.Sequence{HaltOnFailure: true}, "b", "c", "d")
				time.Sleep(grace)
				if err := end(r.inspector, "c"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * every)
				l.wantLine("b", "d")
				if name == "archived" {
					r.serve(service{}, p.handler(succeed))
					l.run("c") // lines up again
					r.until("c waits", func() bool { return slices.Equal(l.inLine(), []string{"b", "d", "c"}) })
				} else {
					r.serve(service{}, p.handler(succeed))
				}
				if err := lock.Release(context.Background()); err != nil {
					t.Fatal(err)
				}
				r.untilTask("d", "gone")
				r.untilTask("c", "gone")
				l.wantOrder(&p, slices.DeleteFunc([]string{"b", "d", "c"}, func(id string) bool { return name == "deleted" && id == "c" })...)
			})
		})
	}
}

// A task that has ended while it waited, and gets its turn before the keeper has seen that, passes the key on.
func TestTurnOfATaskThatHasEnded(t *testing.T) {
	virtual(t, func(r *rig) {
		l := r.line()
		var p probe
		lock := l.hold()
		l.add(handoff.Sequence{HaltOnFailure: true}, "b", "c")
		if err := r.inspector.ArchiveTask(queue, "b"); err != nil {
			t.Fatal(err)
		}
		r.serve(service{}, p.handler(succeed))
		if err := (*core.Lock)(lock).Release(context.Background(), core.Release{Granted: r.next()}); err != nil {
			t.Fatal(err)
		}
		r.untilTask("c", "gone")
		l.wantOrder(&p, "c")
		r.wantTask("b", "archived", 0)
	})
}

// A process that crashes between the steps of a sequence leaves the rest to the keeper. Order is kept.
func TestCrashBetweenTheStepsOfASequence(t *testing.T) {
	const asynqRecovers = 2 * time.Minute
	tests := []struct {
		name   string
		within time.Duration // until the last job has started
		f      func(l *line) (order []string)
	}{
		{"place, then no enqueue", 2*time.Second + time.Second, func(l *line) []string {
			lock := l.hold()
			l.ghost("x")
			l.add(handoff.Sequence{}, "b")
			time.Sleep(grace + 2*every)
			l.wantLine("b")
			l.release(lock, nil)
			return []string{"b"}
		}},
		{"place, a grant, then no enqueue", grace + 2*every, func(l *line) []string {
			lock := l.hold()
			l.ghost("x")
			l.add(handoff.Sequence{}, "b")
			l.release(lock, crashed)
			return []string{"b"}
		}},
		{"the key, then no enqueue", grace + 2*every, func(l *line) []string {
			l.ghost("x")
			l.add(handoff.Sequence{}, "b")
			return []string{"b"}
		}},
		{"enqueue, then no answer", 4 * time.Second, func(l *line) []string {
			time.Sleep(100 * time.Millisecond) // a keeper that starts does not listen yet
			lock := l.hold()
			l.add(handoff.Sequence{}, "b", "c")
			l.release(lock, nil) // the request announces the job, and the keeper receives that
			return []string{"b", "c"}
		}},
		{"grant, then no start", 2*every + 3*time.Second, func(l *line) []string {
			lock := l.hold()
			l.add(handoff.Sequence{}, "b", "c")
			l.release(lock, crashed)
			return []string{"b", "c"}
		}},
		{"grant of a task that was snoozed, then no start", 2*every + 3*time.Second, func(l *line) []string {
			lock := l.hold()
			l.add(handoff.Sequence{}, "b", "c")
			l.run("b")
			l.untilTask("b", "retry")
			l.release(lock, crashed)
			return []string{"b", "c"}
		}},
		{"the lease of a request ends", ttl + 2*every + 3*time.Second, func(l *line) []string {
			lock := l.hold()
			l.add(handoff.Sequence{}, "b", "c")
			(*core.Lock)(lock).StopRenewing()
			return []string{"b", "c"}
		}},
		{"start, then no end", asynqRecovers + retryWait, func(l *line) []string {
			l.add(handoff.Sequence{}, "b", "c")
			l.crash("b", l.token("b"))
			return []string{"b", "c"}
		}},
		{"start, then no resume, then no end", asynqRecovers + retryWait, func(l *line) []string {
			l.add(handoff.Sequence{}, "b", "c")
			l.crash("b", joblock.Token{})
			return []string{"b", "c"}
		}},
		{"end, then no release", ttl + grace + 2*every, func(l *line) []string {
			l.add(handoff.Sequence{}, "b", "c")
			l.crash("b", l.token("b"))
			l.endActive("b", "")
			return []string{"c"}
		}},
		{"end with retention, then no release", ttl + 2*every + 3*time.Second, func(l *line) []string {
			l.addOne(handoff.Sequence{}, "b", asynq.Retention(time.Hour))
			l.add(handoff.Sequence{}, "c")
			l.crash("b", l.token("b"))
			l.endActive("b", "completed")
			return []string{"c"}
		}},
		{"final failure, then no release", ttl + 2*every + 3*time.Second, func(l *line) []string {
			l.add(handoff.Sequence{}, "b", "c")
			l.crash("b", l.token("b"))
			l.endActive("b", "archived")
			return []string{"c"}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			kept(t, func(r *rig) {
				l := r.line()
				var p probe
				r.serve(service{}, p.handler(succeed))
				crashes := strings.Contains(tt.name, ", then no end") || strings.Contains(tt.name, ", then no release")
				if crashes {
					r.pause(true)
					time.Sleep(100 * time.Millisecond) // asynq's recoverer looks when it starts, and would find the job that crashes
				}
				start := time.Now()
				order := tt.f(l)
				if crashes {
					r.pause(false)
				} else if tt.name == "place, then no enqueue" {
					start = time.Now()
				}
				r.until("all have run", func() bool { return p.count() == len(order) })
				if took := time.Since(start); took > tt.within {
					t.Errorf("all had run after %s, want %s at most", took, tt.within)
				}
				r.untilTask(order[len(order)-1], "gone")
				l.wantOrder(&p, order...)
				l.wantLine()
			})
		})
	}
}

// endActive writes the end of an active task as asynq does. state is "" for a task that asynq deletes.
func (l *line) endActive(id, state string) {
	l.t.Helper()
	ctx, prefix := context.Background(), "asynq:{"+queue+"}:"
	_, err := l.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.LRem(ctx, prefix+"active", 0, id)
		p.ZRem(ctx, prefix+"lease", id)
		if state == "" {
			p.Del(ctx, prefix+"t:"+id)
			return nil
		}
		p.ZAdd(ctx, prefix+state, redis.Z{Score: float64(time.Now().Add(time.Hour).Unix()), Member: id})
		p.HSet(ctx, prefix+"t:"+id, "state", state)
		return nil
	})
	if err != nil {
		l.t.Fatalf("end task %s: %v", id, err)
	}
}

func (l *line) release(lock *joblock.Lock, granted core.Granted) {
	l.t.Helper()
	if err := (*core.Lock)(lock).Release(context.Background(), core.Release{Granted: granted}); err != nil {
		l.t.Fatalf("release: %v", err)
	}
}

func (r *rig) pause(yes bool) {
	r.t.Helper()
	f := r.inspector.UnpauseQueue
	if yes {
		f = r.inspector.PauseQueue
	}
	if err := f(queue); err != nil {
		r.t.Fatalf("pause: %v", err)
	}
}

// The keeper keeps the place of a job that waits for longer than places last, and the key of a halted sequence.
func TestKeeperKeepsALine(t *testing.T) {
	virtual(t, func(r *rig) {
		l := r.line()
		l.add(handoff.Sequence{HaltOnFailure: true}, "a", "b", "c")
		if err := r.inspector.ArchiveTask(queue, "a"); err != nil {
			t.Fatal(err)
		}
		r.ttl = 10 * time.Minute // of the keeper's permit, which is renewed for days
		w, stop := r.keep(r.newLocker(), worker.Config{Reserve: 2 * time.Hour, Keeper: worker.KeeperConfig{Interval: time.Hour}})
		time.Sleep(envelope.Patience + time.Hour)
		stop()
		l.wantLine("b", "c")
		r.wantState(seqKey, joblock.StateParked, "a")
		if got := w.KeeperStats(); got.Extended == 0 || len(got.Freed) != 0 {
			t.Errorf("stats %+v", got)
		}
		// The keeper finds that the task was deleted: the sequence goes on.
		if err := r.inspector.DeleteTask(queue, "a"); err != nil {
			t.Fatal(err)
		}
		r.keep(r.locks, worker.Config{})
		time.Sleep(3 * time.Hour)
		r.wantState(seqKey, joblock.StateParked, "b")
		r.wantTask("b", "pending", 0)
	})
}

// A keeper on a dry run finds the job whose turn has come, and does not start it.
func TestDryRunStartsNoJob(t *testing.T) {
	virtual(t, func(r *rig) {
		l := r.line()
		w, _ := r.keep(r.newLocker(), worker.Config{Keeper: worker.KeeperConfig{DryRun: true}})
		lock := l.hold()
		l.add(handoff.Sequence{}, "b")
		l.release(lock, crashed)
		r.until("the keeper has seen it", func() bool { return w.KeeperStats().Extended > 0 })
		time.Sleep(2 * every)
		r.wantState(seqKey, joblock.StateParked, "b")
		r.wantTask("b", "scheduled", 0)
	})
}

// A crash on the last attempt halts a sequence too.
func TestCrashOnTheLastAttemptHaltsASequence(t *testing.T) {
	kept(t, func(r *rig) {
		l := r.line()
		var p probe
		s := handoff.Sequence{HaltOnFailure: true}
		l.addOne(s, "a", asynq.MaxRetry(0))
		l.add(s, "b")
		l.crash("a", l.token("a"))
		r.serve(service{}, p.handler(succeed))
		r.untilTask("a", "archived")
		time.Sleep(10 * time.Minute)
		r.wantRuns(&p, 0)
		l.wantLine("b")
		l.run("a")
		r.untilTask("b", "gone")
		l.wantOrder(&p, "a", "b")
	})
}

// A worker that dies between asynq's write of a final failure and the halt leaves a sequence that halts.
func TestCrashBetweenFailureAndHalt(t *testing.T) {
	kept(t, func(r *rig) {
		l := r.line()
		var p probe
		l.add(handoff.Sequence{HaltOnFailure: true}, "a", "b")
		l.crash("a", l.token("a"))
		l.endActive("a", "archived")
		r.serve(service{}, p.handler(succeed))
		time.Sleep(2 * reserve)
		l.wantOrder(&p)
		l.wantLine("b")
		r.wantTask("a", "archived", 0)
		l.run("a")
		r.untilTask("b", "gone")
		l.wantOrder(&p, "a", "b")
	})
}

// A job that was enqueued into a halted sequence waits as well; and a forged push starts nothing.
func TestForgedAnnouncement(t *testing.T) {
	kept(t, func(r *rig) {
		l := r.line()
		var p probe
		r.serve(service{}, p.handler(only("a", func(context.Context, int) error { return errors.New("not yet") })))
		l.addOne(handoff.Sequence{}, "a", asynq.MaxRetry(5))
		r.untilTask("a", "retry")
		lock := l.holdKey("other")
		taken := (*core.Locker)(l.locks).Take(context.Background(), "enqueue", []core.Take{{
			Key: "other", Job: envelope.Job(queue, "a"), Reserve: reserve, Patience: envelope.Patience,
		}})[0]
		if taken.Err != nil {
			t.Fatal(taken.Err)
		}
		runs := p.count()
		l.release(lock, nil) // announces a job that does not wait
		time.Sleep(retryWait / 2)
		r.wantRuns(&p, runs)
	})
}

func (l *line) holdKey(key string) *joblock.Lock {
	l.t.Helper()
	lock, err := l.locks.TryAcquire(context.Background(), key)
	if err != nil {
		l.t.Fatalf("acquire: %v", err)
	}
	return lock
}

// The enqueue of a job that has just got its place may still be under way.
func TestYoungPlaceWithoutATask(t *testing.T) {
	kept(t, func(r *rig) {
		l := r.line()
		l.hold()
		l.add(handoff.Sequence{}, "z") // the keeper knows the queue
		taken := (*core.Locker)(l.locks).Take(context.Background(), "enqueue", []core.Take{{
			Key: seqKey, Job: envelope.Job(queue, "a"), Reserve: every, Patience: envelope.Patience, // checked after half of every
		}})[0]
		if taken.Err != nil {
			t.Fatal(taken.Err)
		}
		time.Sleep(grace - time.Second)
		l.wantLine("z", "a")
		time.Sleep(2 * every)
		l.wantLine("z")
	})
}
