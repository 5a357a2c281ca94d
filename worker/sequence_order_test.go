package worker_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// At the moment in which asynq writes that a job will not run again, the key is the job's, and the next job has not been
// started. So a worker that dies just before that write leaves a job that runs again before those behind.
func TestNextJobStartsWhenAsynqHasTheResult(t *testing.T) {
	for name, handler := range map[string]func(context.Context, int) error{
		"success":                     succeed,
		"RevokeTask":                  returning(asynq.RevokeTask),
		"SkipRetry":                   returning(asynq.SkipRetry),
		"error on the last attempt":   fail,
		"panic on the last attempt":   blow,
		"timeout on the last attempt": obey,
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(r *rig) {
				l := r.line()
				var p probe
				w := &writes{r: r, id: "a"}
				r.rdb.AddHook(w)
				l.addOne(handoff.Sequence{}, "a", asynq.MaxRetry(0), asynq.Timeout(time.Minute))
				l.add(handoff.Sequence{}, "b")
				r.serve(service{}, p.handler(only("a", handler)))
				r.untilTask("b", "gone")
				l.wantOrder(&p, "a", "b")
				w.mu.Lock()
				defer w.mu.Unlock()
				// A lookup at the time of the write may see the end as well.
				if want := []string{"a; b scheduled"}; !slices.Equal(slices.Compact(w.ends), want) {
					t.Errorf("when a ended, the key was of %q, want %q", w.ends, want)
				}
			})
		})
	}
}

// writes notes who has the key of the sequence, and what the next task does, when asynq records the end of the task id.
type writes struct {
	r  *rig
	id string

	mu   sync.Mutex
	ends []string
}

func (*writes) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*writes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (w *writes) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !strings.HasPrefix(cmd.Name(), "eval") || !w.lives() {
			return next(ctx, cmd)
		}
		st := w.r.status(seqKey)
		_, job, _ := envelope.ParseJob(st.Job)
		seen := job + "; b " + w.state("b")
		if !w.lives() { // another command has just written the end: what was seen may be of before and after it
			return next(ctx, cmd)
		}
		err := next(ctx, cmd)
		if !w.lives() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ends = append(w.ends, seen)
		}
		return err
	}
}

func (w *writes) lives() bool {
	state := w.state(w.id)
	return state != "" && state != "archived" && state != "completed"
}

func (w *writes) state(id string) string {
	return w.r.mini.HGet("asynq:{"+queue+"}:t:"+id, "state")
}

// asynq cannot write that a job is done, and runs the job again. The job's key has waited for that: those behind come
// later.
func TestResultThatAsynqDoesNotGetKeepsTheOrder(t *testing.T) {
	for name, policy := range map[string]bool{"go on": false, "halt": true} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(r *rig) {
				r.keep(r.locks, worker.Config{})
				l := r.line()
				var p probe
				rdb := redistest.MiniClient(r.t, r.mini)
				r.rdb = rdb // of the server alone
				lost := &unwritten{}
				rdb.AddHook(lost)
				s := handoff.Sequence{HaltOnFailure: policy}
				l.add(s, "a", "b", "c")
				r.serve(service{}, p.handler(only("a", func(_ context.Context, n int) error {
					if n == 1 {
						lost.next.Store(true)
					}
					return nil
				})))
				r.untilTask("c", "gone")
				l.wantOrder(&p, "a", "a", "b", "c")
			})
		})
	}
}

// unwritten fails the next script about task a, as an asynq whose Redis is away for a moment.
type unwritten struct{ next atomic.Bool }

func (*unwritten) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*unwritten) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (u *unwritten) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") && strings.Contains(cmd.String(), ":t:a") && u.next.CompareAndSwap(true, false) {
			err := errors.New("asynq's Redis is away")
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

// The attempt has ended, and it is not known what asynq has written: after Close the key stays with the job until the
// keeper knows.
func TestCloseBeforeAsynqHasTheResult(t *testing.T) {
	virtual(t, func(r *rig) {
		l := r.line()
		var p probe
		hook := r.hang() // of the Workers made from now on
		over := make(chan struct{})
		srv := r.serve(service{}, p.handler(func(context.Context, int) error { <-over; return nil }))
		l.add(handoff.Sequence{}, "a", "b")
		r.until("a runs", func() bool { return p.running() == 1 })
		close(over)
		srv.Shutdown()
		r.closeWorker(srv.worker)
		r.wantState(seqKey, joblock.StateParked, "a")
		hook.answer.Store(true)
		r.keep(r.locks, worker.Config{})
		time.Sleep(grace + 3*every)
		r.wantState(seqKey, joblock.StateParked, "b")
		r.wantTask("b", "pending", 0)
	})
}

// What one job of a sequence costs asynq's Redis in addition to its enqueue and asynq's Dequeue: the command that runs its
// task, asynq's own command that writes its end, and a lookup of that end. No command asks whether the queue exists, or
// whether the task is scheduled.
func TestCommandsOfAJobOfASequence(t *testing.T) {
	virtual(t, func(r *rig) {
		l := r.line()
		ids := []string{"a", "b", "c", "d", "e"}
		l.add(handoff.Sequence{}, ids...)
		var count about
		r.rdb.AddHook(&count)
		var p probe
		r.serve(service{}, p.handler(succeed))
		time.Sleep(time.Minute)
		l.wantOrder(&p, ids...)
		for i, id := range ids {
			scripts := 3
			if i == 0 {
				scripts = 2 // a has been started by its enqueue
			}
			if got := count.of("evalsha", "asynq:{"+queue+"}:t:"+id); got != scripts {
				t.Errorf("%d scripts are about the task %s, want %d", got, id, scripts)
			}
			if got := count.of("zscore", id); got > 0 {
				t.Errorf("%d looks whether %s is scheduled", got, id)
			}
		}
		if got := count.of("sismember", "asynq:queues"); got > 0 {
			t.Errorf("asynq was asked %d times whether a queue exists", got)
		}
	})
}

// about counts the commands of a client by their names and arguments.
type about struct {
	mu  sync.Mutex
	all []redis.Cmder
}

func (*about) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *about) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.mu.Lock()
		h.all = append(h.all, cmd)
		h.mu.Unlock()
		return next(ctx, cmd)
	}
}

func (h *about) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.mu.Lock()
		h.all = append(h.all, cmds...)
		h.mu.Unlock()
		return next(ctx, cmds)
	}
}

func (h *about) of(name, arg string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, cmd := range h.all {
		if cmd.Name() == name && slices.Contains(cmd.Args(), any(arg)) {
			n++
		}
	}
	return n
}
