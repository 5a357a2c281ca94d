package worker_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// inLine has a server run tasks one at a time, in line for the key of the sequence.
func inLine() []middleware {
	return []middleware{func(w *worker.Worker) asynq.MiddlewareFunc {
		return w.WithoutOverlapping(func(*asynq.Task) string { return seqKey }, &worker.OverlapConfig{InLine: true})
	}}
}

// Tasks that another client has enqueued wait in line too: in the order in which they found the key busy, behind the
// jobs of handoff, without a worker slot, and charged nothing.
func TestTasksOfOtherClientsWaitInLine(t *testing.T) {
	virtual(t, func(r *rig) {
		l := r.line()
		var p probe
		over := make(chan struct{})
		r.serve(service{asynq: asynq.Config{Concurrency: 2}, use: inLine()}, p.handler(only("a", func(context.Context, int) error { <-over; return nil })))
		l.add(handoff.Sequence{}, "a")
		r.until("a runs", func() bool { return p.running() == 1 })
		l.add(handoff.Sequence{}, "b")
		for _, id := range []string{"c", "d", "e"} {
			r.submit(id, asynq.NewTask(taskType, nil), 1)
			r.untilCharged(id, "retry", 0)
		}
		l.wantLine("b", "c", "d", "e")
		time.Sleep(time.Minute)
		l.wantLine("b", "c", "d", "e")
		start := time.Now()
		close(over)
		r.untilTask("e", "gone")
		var got []string
		for _, run := range p.all() {
			got = append(got, run.id)
		}
		if want := []string{"a", "b", "c", "d", "e"}; !slices.Equal(got, want) {
			t.Errorf("ran %q, want %q", got, want)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("the line took %s", took)
		}
		r.untilFree(seqKey)
	})
}

// A task in the line of a sequence with a Limit runs in whichever slot is free first, next to the job in the other one.
// The jobs of the sequence have their slots, and line up for nothing more.
func TestTurnInAnotherSlot(t *testing.T) {
	for _, c := range []struct{ name, ends, stays string }{{"the second slot", "b", "a"}, {"the first slot", "a", "b"}} {
		t.Run(c.name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				l := r.line()
				var p probe
				over := map[string]chan struct{}{"a": make(chan struct{}), "b": make(chan struct{})}
				r.serve(service{use: inLine()}, p.handler(func(ctx context.Context, _ int) error {
					id, _ := asynq.GetTaskID(ctx)
					if wait, ok := over[id]; ok {
						<-wait
					}
					return nil
				}))
				l.add(handoff.Sequence{Limit: 2}, "a", "b")
				r.until("a and b run", func() bool { return p.running() == 2 })
				l.wantLine()
				for _, id := range []string{"c", "d"} {
					r.submit(id, asynq.NewTask(taskType, nil), 3)
					r.untilTask(id, "retry")
				}
				l.wantLine("c", "d")
				start := time.Now()
				close(over[c.ends])
				r.untilTask("d", "gone")
				if took := time.Since(start); took > 10*time.Second {
					t.Errorf("the line took %s\n%s", took, r.log)
				}
				l.wantLine()
				r.until("only one job runs", func() bool { return p.running() == 1 })
				close(over[c.stays])
				r.untilTask(c.stays, "gone")
				time.Sleep(time.Second)
				l.wantFreeSlots(2)
				r.wantRuns(&p, 4)
			})
		})
	}
}

// A task without a retry left waits by way of the archive, and is run when its turn comes.
func TestLastAttemptWaitsInLine(t *testing.T) {
	virtual(t, func(r *rig) {
		l := r.line()
		var p probe
		r.serve(service{worker: worker.Config{Snooze: time.Hour}, use: inLine()}, p.handler(succeed))
		lock := l.hold()
		r.submit("a", asynq.NewTask(taskType, nil), 0)
		r.untilPostponed("a")
		l.wantLine("a")
		l.release(lock, r.next())
		start := time.Now()
		r.untilTask("a", "gone")
		if took := time.Since(start); took > time.Minute {
			t.Errorf("a ran after %s", took)
		}
		r.wantRuns(&p, 1)
	})
}

// A task whose deadline passes while it waits in line ends when its turn comes, whatever retries it has left, and those
// behind it go on.
func TestDeadlineOfATaskInLine(t *testing.T) {
	kept(t, func(r *rig) {
		l := r.line()
		var p probe
		r.serve(service{use: inLine()}, p.handler(succeed))
		lock := l.hold()
		r.submit("a", asynq.NewTask(taskType, nil), 25, asynq.Deadline(time.Now().Add(time.Minute)))
		r.untilTask("a", "retry")
		r.submit("b", asynq.NewTask(taskType, nil), 25)
		r.untilTask("b", "retry")
		l.wantLine("a", "b")
		time.Sleep(2 * time.Minute)
		l.release(lock, r.next())
		start := time.Now()
		r.untilTask("a", "archived")
		r.untilTask("b", "gone")
		if took := time.Since(start); took > time.Minute+2*every {
			t.Errorf("b ran after %s", took)
		}
		l.wantOrder(&p, "b")
	})
}

// An attempt whose process dies leaves the key to its task: the next attempt has the key, and those in line wait for it.
func TestCrashInLine(t *testing.T) {
	virtual(t, func(r *rig) {
		l := r.line()
		var p probe
		dying := faultstore.New(r.faults)
		locks := r.newLockerOn(dying)
		first := r.serve(service{locks: locks, use: inLine()}, p.handler(func(context.Context, int) error {
			dying.Set(faultstore.Fault{Err: errBoom}, append(everyCall, faultstore.Take)...) // this process sends nothing any more
			return errBoom
		}))
		r.submit("a", asynq.NewTask(taskType, nil), 3)
		r.untilRetry("a", 1)
		first.Shutdown()
		r.closeWorker(first.worker)
		r.submit("b", asynq.NewTask(taskType, nil), 3)
		r.serve(service{use: inLine()}, p.handler(succeed))
		r.untilTask("b", "retry")
		time.Sleep(ttl)
		r.wantState(seqKey, joblock.StateOrphaned, "a")
		l.wantLine("b")
		r.untilTask("b", "gone")
		l.wantOrder(&p, "a", "a", "b")
		dying.Clear(append(everyCall, faultstore.Take)...)
	})
}

func TestInLineExcludesOtherOptions(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		for name, cfg := range map[string]worker.OverlapConfig{
			"limit": {InLine: true, MaxConcurrent: 2}, "drop": {InLine: true, DropIfBusy: true}, "fail": {InLine: true, FailIfBusy: true},
		} {
			w := r.newWorker(r.locks, worker.Config{})
			h := w.WithoutOverlapping(func(*asynq.Task) string { return seqKey }, &cfg)(p.handler(succeed))
			if err := h.ProcessTask(context.Background(), asynq.NewTask(taskType, nil)); !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", name, err)
			}
		}
		r.wantRuns(&p, 0)
	})
}
