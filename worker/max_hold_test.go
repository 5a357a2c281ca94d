package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// However its attempts end, a job that keeps failing gives its key back within Config.MaxHold, and says why.
func TestMaxHold(t *testing.T) {
	const most = 90 * time.Second // attempts end at 0, 20, 40, 60 and 80 s or, with a timeout of 5 s, at 5, 30, 55 and 80 s
	for name, tc := range map[string]struct {
		handler func(context.Context, int) error
		opts    []asynq.Option
		runs    int
		reason  string
		lastErr string
	}{
		"an error":  {fail, nil, 5, "job failed: had its key for longer than Config.MaxHold", "Config.MaxHold is 1m30s: boom"},
		"a panic":   {blow, nil, 5, "job failed: had its key for longer than Config.MaxHold", "kaboom"},
		"a timeout": {obey, []asynq.Option{asynq.Timeout(5 * time.Second)}, 4, "job failed: had its key for longer than Config.MaxHold", "deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				start := time.Now()
				r.enqueue("a", 25, tc.opts...)
				r.serve(service{worker: worker.Config{MaxHold: most}, asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(tc.handler))
				r.untilTask("a", "archived")
				r.untilFree("key-a")
				if took := time.Since(start); took > most {
					t.Errorf("the key was free after %s", took)
				}
				r.wantRuns(&p, tc.runs)
				if st := r.status("key-a"); st.Reason != tc.reason {
					t.Errorf("the reason is %q, want %q", st.Reason, tc.reason)
				}
				if _, info := r.task("a"); !strings.Contains(info.LastErr, tc.lastErr) {
					t.Errorf("the last error is %q, want %q in it", info.LastErr, tc.lastErr)
				}
				if log := r.log.String(); strings.Count(log, "level=ERROR") != 1 || !strings.Contains(log, "longer than Config.MaxHold") {
					t.Errorf("the log does not say why:\n%s", log)
				}
				if told := p.heard(); len(told) != tc.runs || tc.handler != nil && name == "an error" && !errors.Is(told[tc.runs-1].err, errBoom) {
					t.Errorf("the ErrorHandler got %+v", told)
				}
				time.Sleep(time.Hour)
				r.wantTask("a", "archived", tc.runs-1+map[bool]int{true: 1}[name != "an error"])
				if err := r.inspector.RunTask(queue, "a"); err != nil { // an operator's rerun gets the key again
					t.Fatal(err)
				}
				r.until("the rerun", func() bool { return p.count() > tc.runs })
			})
		})
	}
}

// asynq ends an attempt by its timeout while the handler still cleans up. The reason and the log are then the same as when
// the handler returns at once.
func TestMaxHoldOfAHandlerThatCleansUp(t *testing.T) {
	const most = time.Minute
	tidy := func(ctx context.Context, _ int) error {
		<-ctx.Done()
		time.Sleep(time.Second)
		return ctx.Err()
	}
	late := asynq.Timeout(5 * time.Second)
	for name, enqueue := range map[string]func(r *rig) (key string){
		"one key":    func(r *rig) string { r.enqueue("a", 25, late); return "key-a" },
		"a sequence": func(r *rig) string { r.line().addOne(handoff.Sequence{}, "a", asynq.MaxRetry(25), late); return seqKey },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				key := enqueue(r)
				srv := r.serve(service{worker: worker.Config{MaxHold: most}}, p.handler(tidy))
				r.untilTask("a", "archived")
				r.untilFree(key)
				if st := r.status(key); st.Reason != "job failed: had its key for longer than Config.MaxHold" {
					t.Errorf("the reason is %q, want one that names MaxHold", st.Reason)
				}
				srv.Shutdown()
				r.closeWorker(srv.worker)
				if log := r.log.String(); strings.Contains(log, "stays reserved") {
					t.Errorf("the key is free, and the log says that it stays reserved:\n%s", log)
				}
			})
		})
	}
}

// A job whose worker dies at each attempt never reports an end.
func TestMaxHoldOfAJobThatCrashes(t *testing.T) {
	for name, most := range map[string]time.Duration{"over": time.Minute, "not over": time.Hour} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				r.crash("a", r.enqueue("a", 25))
				time.Sleep(2 * time.Minute)
				r.serve(service{worker: worker.Config{MaxHold: most}, asynq: asynq.Config{ErrorHandler: p.ear()}}, p.handler(succeed))
				if most == time.Hour {
					r.untilTask("a", "gone")
					r.wantRuns(&p, 1)
					return
				}
				r.untilTask("a", "archived")
				r.wantEnded("key-a", "job failed: had its key for longer than Config.MaxHold")
				r.wantRuns(&p, 0)
				if told := p.heard(); len(told) != 1 || !errors.Is(told[0].err, asynq.ErrLeaseExpired) {
					t.Errorf("the ErrorHandler got %+v, want one asynq.ErrLeaseExpired", told)
				}
			})
		})
	}
}

// A job that waits for its first attempt has failed at nothing.
func TestMaxHoldOfAJobThatHasNotBegun(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.enqueue("a", 25)
		time.Sleep(reserve / 2)
		r.serve(service{worker: worker.Config{MaxHold: time.Second}}, p.handler(succeed))
		r.untilTask("a", "gone")
		r.wantEnded("key-a", "job done")
	})
}

// While the store does not answer, a job is retried as always.
func TestMaxHoldWithoutTheStore(t *testing.T) {
	virtual(t, func(r *rig) {
		var p probe
		r.enqueue("a", 25)
		r.serve(service{worker: worker.Config{MaxHold: time.Second}}, p.handler(func(context.Context, int) error {
			r.fault(faultstore.Refuse, faultstore.Inspect)
			return errBoom
		}))
		r.untilRetry("a", 1)
		r.faults.Clear(faultstore.Inspect)
		r.wantState("key-a", joblock.StateParked, "a")
	})
}

// A job of a sequence counts from its turn, and its failure goes the way of every failure: the next job runs, or the
// sequence halts.
func TestMaxHoldInASequence(t *testing.T) {
	for name, policy := range map[string]bool{"goes on": false, "halts": true} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				var p probe
				l := r.line()
				for _, id := range []string{"a", "b"} {
					l.addOne(handoff.Sequence{HaltOnFailure: policy}, id, asynq.MaxRetry(25))
				}
				start := time.Now()
				r.serve(service{worker: worker.Config{MaxHold: time.Minute}}, p.handler(fail))
				r.untilTask("a", "archived")
				if policy {
					time.Sleep(time.Minute)
					r.wantState(seqKey, joblock.StateParked, "a")
					return
				}
				r.untilTask("b", "archived")
				r.untilFree(seqKey)
				if took := time.Since(start); took < 70*time.Second || took > 2*time.Minute {
					t.Errorf("both jobs had the key for %s, want nearly a minute for each", took)
				}
			})
		})
	}
}
