package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit/envelopekit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// cooldown is longer than any check of the keeper that could free the key.
const cooldown = 5 * time.Minute

// wantCooling checks what others get while the key cools down: who is refused, and until when.
func (p *paced) wantCooling(left time.Duration) {
	p.t.Helper()
	ctx := context.Background()
	p.wantHeld("k")
	for policy, onConflict := range map[string]handoff.OnConflict{"Reject": handoff.Reject, "Replace": handoff.Replace, "Skip": handoff.Skip} {
		done, err := p.jobs.Enqueue(ctx, handoff.Unique{Key: "k", OnConflict: onConflict, Cooldown: cooldown}, asynq.NewTask(taskType, nil))
		if onConflict == handoff.Skip {
			if err != nil || !done.Duplicate || done.Task == nil || envelope.Cooling(envelope.Job(done.Task.Queue, done.Task.ID)) != p.status("k").Job {
				p.t.Errorf("Skip: %+v, %v; want a Duplicate of the job that is done", done, err)
			}
			continue
		}
		e, held := errors.AsType[*joblock.Error](err)
		if !held || !errors.Is(err, joblock.ErrHeld) || !strings.Contains(err.Error(), "cools down after job ") || strings.Contains(err.Error(), envelope.CoolingPrefix) || e.Remaining < left-time.Second || e.Remaining > left+time.Second {
			p.t.Errorf("%s: %v; want an ErrHeld for %s because of a cooldown", policy, err, left)
		}
		if _, _, ok := handoff.JobOf(err); ok {
			p.t.Errorf("%s: JobOf finds a job", policy)
		}
	}
	if done, err := p.jobs.Job(ctx, "k"); !errors.Is(err, joblock.ErrNotFound) {
		p.t.Errorf("Job: %+v, %v; want ErrNotFound", done.Task, err)
	}
}

// The key of a job that is done stays reserved for the cooldown, whatever a keeper finds, and is then free by itself.
// Other ends free it at once.
func TestCooldown(t *testing.T) {
	after := func(err error) func(string, int) (time.Duration, error) {
		return func(string, int) (time.Duration, error) { return 10 * time.Second, err }
	}
	for name, tc := range map[string]struct {
		take   func(string, int) (time.Duration, error)
		until  bool // UntilStarted
		opts   []asynq.Option
		cools  bool
		reason string
	}{
		"done":                            {take: after(nil), cools: true},
		"done, with Retention":            {take: after(nil), cools: true, opts: []asynq.Option{asynq.Retention(time.Hour)}},
		"failed for good":                 {take: after(errBoom), opts: []asynq.Option{asynq.MaxRetry(0)}, reason: "job failed"},
		"SkipRetry":                       {take: after(asynq.SkipRetry), reason: "job failed"},
		"revoked":                         {take: after(asynq.RevokeTask), reason: "job revoked"},
		"started, done":                   {take: after(nil), until: true, cools: true},
		"started, failed for good":        {take: after(errBoom), until: true, cools: true, opts: []asynq.Option{asynq.MaxRetry(0)}},
		"started, and started once more":  {take: after(errBoom), until: true, cools: true},
		"done, after one attempt failed":  {take: func(_ string, n int) (time.Duration, error) { return 10 * time.Second, []error{errBoom, nil}[n] }, cools: true},
		"the time of a group of one task": {take: after(nil), cools: true, opts: []asynq.Option{asynq.Group("g")}},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				w, _ := r.keep(r.locks, worker.Config{})
				p := r.paced(tc.take)
				done := p.add(handoff.Unique{Key: "k", Cooldown: cooldown, UntilStarted: tc.until}, "a", tc.opts...)
				if !tc.cools {
					r.until("the key is free", func() bool { return !r.status("k").Locked() })
					r.wantEnded("k", tc.reason)
					p.add(handoff.Unique{Key: "k"}, "b")
					return
				}
				r.until("the key cools down", func() bool { return strings.HasPrefix(r.status("k").Job, envelope.CoolingPrefix) })
				began := time.Now()
				if tc.until {
					r.wantTask(done.Task.ID, "active", 0)
				}
				p.wantCooling(cooldown)
				time.Sleep(cooldown - 5*time.Second)
				p.wantCooling(5 * time.Second)
				r.untilFree("k")
				if n := w.KeeperStats().Foreign; n != 0 {
					t.Errorf("the keeper has looked for %d jobs of queues that do not exist", n)
				}
				if took := time.Since(began); took > cooldown+2*time.Second {
					t.Errorf("the key was free after %s", took)
				}
				p.add(handoff.Unique{Key: "k"}, "b")
			})
		})
	}
}

// Many enqueues with KeepLast and a cooldown: one job runs at once, and the newest when the cooldown is over.
func TestThrottleKeepsTheLast(t *testing.T) {
	paceIn(t, short, func(p *paced) {
		how := handoff.Unique{Key: "k", OnConflict: handoff.KeepLast, Cooldown: time.Minute}
		for _, payload := range []string{"a", "b", "c", "d"} {
			p.add(how, payload)
			time.Sleep(3 * time.Second)
		}
		p.at(200)
		p.want(14, pacedRun{payload: "a"}, pacedRun{payload: "d", at: 60})
		if runs := p.all(); runs[1].at < runs[0].end+60 {
			t.Errorf("runs %+v: the second began within the cooldown of the first", runs)
		}
	})
}

// A worker that dies after the cooldown has begun, and before asynq has the result: the job does not run again, during the
// cooldown or after it.
func TestCrashAfterTheBeginOfACooldown(t *testing.T) {
	for _, onConflict := range []handoff.OnConflict{handoff.Reject, handoff.KeepLast} {
		for name, wait := range map[string]time.Duration{"in the cooldown": 0, "after the cooldown": cooldown + 2*time.Minute} {
			t.Run(name, func(t *testing.T) {
				virtual(t, func(r *rig) {
					ctx, l := context.Background(), r.line()
					done, err := l.jobs.Enqueue(ctx, handoff.Unique{Key: "k", OnConflict: onConflict, Cooldown: cooldown}, asynq.NewTask(taskType, nil))
					if err != nil {
						t.Fatal(err)
					}
					r.crash(done.Task.ID, joblock.Token{})
					env, _, err := envelopekit.Read(r.taskHeaders(done.Task.ID))
					if err != nil {
						t.Fatal(err)
					}
					token := env.Cooldowns[0].Token
					lock, err := r.locks.TryAcquire(ctx, "k", joblock.Owner(core.Token(token).Owner()))
					if onConflict == handoff.Reject {
						lock, err = r.locks.Resume(ctx, token, joblock.ForJob(envelope.Job(queue, done.Task.ID)))
					}
					if err != nil {
						t.Fatal(err)
					}
					if _, err := lock.Park(ctx, joblock.Reserve(cooldown), joblock.ForJob(envelope.Cooling(envelope.Job(queue, done.Task.ID)))); err != nil {
						t.Fatal(err)
					}
					time.Sleep(wait)
					var p probe
					r.serve(service{}, p.handler(succeed))
					r.untilTask(done.Task.ID, "gone")
					r.wantRuns(&p, 0)
				})
			})
		}
	}
}

// A process that dies while it replaces a job leaves both, whose tokens for the key have one owner. The newer job runs
// after the cooldown of the older one, and is not taken for a duplicate.
func TestCooldownAfterAJobThatWasToBeReplaced(t *testing.T) {
	virtual(t, func(r *rig) {
		p := r.paced(short)
		slot, err := (*core.Locker)(r.locks).TryAcquire(context.Background(), "k%next", core.Options{OwnKey: true})
		if err != nil {
			t.Fatal(err)
		}
		next := r.parkLock((*joblock.Lock)(slot), "a")
		id := core.Token(next)
		run, err := joblock.NewToken("k", id.Owner(), id.TTL())
		if err != nil {
			t.Fatal(err)
		}
		env := envelope.Envelope{
			Tokens: []joblock.Token{next, run}, UntilStart: []joblock.Token{next}, FromStart: []joblock.Token{run}, Newest: []joblock.Token{next},
			Cooldowns: []envelope.Cooldown{{Token: run, For: time.Minute}}, Retries: 1,
		}
		r.submit("a", r.sealed([]byte("a"), env), 2)
		r.submit("b", r.sealed([]byte("b"), env), 2)
		p.at(200)
		p.want(14, pacedRun{payload: "a"}, pacedRun{payload: "b", at: 60})
	})
}

// Without an answer from the store at the end of the job the key is free, or cools down, but is not kept for longer.
func TestStoreUnavailableAtTheBeginOfACooldown(t *testing.T) {
	for name, f := range map[string]faultstore.Fault{"not applied": {Mode: faultstore.Refuse}, "applied": {Mode: faultstore.Drop}} {
		t.Run(name, func(t *testing.T) {
			kept(t, func(r *rig) {
				p := r.paced(func(string, int) (time.Duration, error) {
					r.faults.Set(f, faultstore.Park)
					return 0, nil
				})
				done := p.add(handoff.Unique{Key: "k", Cooldown: cooldown}, "a")
				r.untilTask(done.Task.ID, "gone")
				time.Sleep(time.Minute)
				if st := r.status("k"); st.Locked() != (name == "applied") || st.Job != "" && !strings.HasPrefix(st.Job, envelope.CoolingPrefix) && st.Locked() {
					t.Errorf("the key is %+v", st)
				}
				r.faults.Clear(faultstore.Park)
				time.Sleep(cooldown)
				p.add(handoff.Unique{Key: "k"}, "b")
			})
		})
	}
}

// A chain has one cooldown, after its last step.
func TestCooldownAfterAChain(t *testing.T) {
	kept(t, func(r *rig) {
		p := r.paced(short)
		for _, onConflict := range []handoff.OnConflict{handoff.Reject, handoff.KeepLast} {
			u := handoff.Unique{Key: "k", OnConflict: onConflict, Cooldown: cooldown}
			before := len(p.all())
			p.add(handoff.Chain{Under: u, Then: []*asynq.Task{asynq.NewTask(taskType, []byte("b")), asynq.NewTask(taskType, []byte("c"))}}, "a")
			r.until("the key cools down", func() bool {
				st := r.status("k")
				return st.Locked() && strings.HasPrefix(st.Job, envelope.CoolingPrefix)
			})
			if n := len(p.all()) - before; n != 3 {
				t.Errorf("the key cools down after %d steps, want 3", n)
			}
			p.wantCooling(cooldown)
			r.untilFree("k")
		}
	})
}

// An enqueue that dies half-way can leave a job next to the one that it was to replace. If it comes to run only when a
// newer one has started, perhaps because its worker had died too, it does not run.
func TestJobThatANewerOneHasOvertaken(t *testing.T) {
	for name, newer := range map[string]bool{"the newer one has started": true, "the newer one waits": false} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				p := r.paced(short)
				slot, err := (*core.Locker)(r.locks).TryAcquire(context.Background(), "k%next", core.Options{OwnKey: true})
				if err != nil {
					t.Fatal(err)
				}
				next := r.parkLock((*joblock.Lock)(slot), "before")
				if err := r.locks.ForceRelease(context.Background(), "k%next", joblock.Reason("test")); err != nil {
					t.Fatal(err)
				}
				run, err := joblock.NewToken("k", core.Token(next).Owner(), core.Token(next).TTL())
				if err != nil {
					t.Fatal(err)
				}
				how := handoff.Debounce{Key: "k", Wait: 5 * time.Second}
				if p.add(how, "new"); newer {
					p.at(20)
				}
				r.submit("left", r.sealed([]byte("old"), envelope.Envelope{
					Tokens: []joblock.Token{next, run}, UntilStart: []joblock.Token{next}, FromStart: []joblock.Token{run}, Newest: []joblock.Token{next}, Retries: 1,
				}), 2)
				r.untilTask("left", "gone")
				p.at(60)
				want := []pacedRun{{payload: "new", at: 5}}
				if !newer {
					want = []pacedRun{{payload: "old"}, {payload: "new", at: 5}}
				}
				p.want(2, want...)
				r.wantHeldByNone("k", "k%next")
			})
		})
	}
}

func (r *rig) wantHeldByNone(keys ...string) {
	r.t.Helper()
	for _, key := range keys {
		if st := r.status(key); st.Locked() {
			r.t.Errorf("%s is %+v", key, st)
		}
	}
}
