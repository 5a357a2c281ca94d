package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/worker"
)

// parkFor parks a lock on key for any job, for a day.
func (r *rig) parkFor(key, job string) joblock.Token {
	r.t.Helper()
	lock, err := r.locks.TryAcquire(context.Background(), key)
	if err != nil {
		r.t.Fatalf("acquire %q: %v", key, err)
	}
	token, err := lock.Park(context.Background(), joblock.Reserve(24*time.Hour), joblock.ForJob(job))
	if err != nil {
		r.t.Fatalf("park %q for %s: %v", key, job, err)
	}
	return token
}

// What is no task of a queue that the keeper has met is not its to judge.
func TestKeeperLeavesWhatItDoesNotKnow(t *testing.T) {
	kept(t, func(r *rig) {
		for _, job := range []string{"a batch run", "elsewhere/1", "default", "/1"} {
			r.parkFor("of "+job, job)
		}
		r.parkFor("of no job", "")
		r.enqueue("a", 0, asynq.ProcessIn(10*time.Hour))
		time.Sleep(time.Hour)
		for _, key := range []string{"of a batch run", "of elsewhere/1", "of default", "of /1", "of no job", "key-a"} {
			if st := r.status(key); st.State != joblock.StateParked {
				t.Errorf("lock %q is %s because %q, want it left alone", key, st.State, st.Reason)
			}
		}
	})
}

// Two asynq databases whose tasks have their locks in one store: a keeper that knows
// both frees what neither has.
func TestKeeperOfTwoDatabases(t *testing.T) {
	virtual(t, func(r *rig) {
		other := redistest.MiniClient(r.t, redistest.Mini(r.t))
		inspector, client := asynq.NewInspectorFromRedisClient(other), asynq.NewClientFromRedisClient(other)
		w, _ := r.keep(r.locks, worker.Config{Inspectors: []*asynq.Inspector{inspector}})
		r.enqueue("here", 0, asynq.ProcessIn(10*time.Hour))
		r.park("there", "key-there")
		r.park("nowhere", "key-nowhere")
		if _, err := client.Enqueue(asynq.NewTask(taskType, nil), asynq.TaskID("there"), asynq.ProcessIn(10*time.Hour)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		r.wantFreed("key-nowhere", absent)
		time.Sleep(time.Hour)
		r.wantState("key-here", joblock.StateParked, "here")
		r.wantState("key-there", joblock.StateParked, "there")

		// One that does not answer might have it. It is closed first: the keeper may look in this very instant.
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		if err := r.inspector.DeleteTask(queue, "here"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		r.wantState("key-here", joblock.StateParked, "here")
		if n := w.KeeperStats().Unanswered; n == 0 {
			t.Error("nothing was left for want of an answer")
		}
	})
}

// A lock whose task could not be looked up is checked again soon, even if Every is long.
func TestCheckWithoutAnAnswerIsRepeatedSoon(t *testing.T) {
	virtual(t, func(r *rig) {
		r.enqueue("a", 0, asynq.ProcessIn(10*time.Hour))
		w, _ := r.keep(r.locks, worker.Config{Keeper: worker.KeeperConfig{Interval: 5 * time.Minute}})
		r.mini.SetError("LOADING away for the test")
		time.Sleep(90 * time.Second)
		if n := w.KeeperStats().Unanswered; n == 0 {
			t.Fatal("the lock was not checked")
		}
		r.mini.SetError("")
		if err := r.inspector.DeleteTask(queue, "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(40 * time.Second)
		r.wantFreed("key-a", absent)
	})
}

// While either side does not answer nothing is freed; afterwards everything is as
// it would have been.
func TestKeeperInAnOutage(t *testing.T) {
	for name, down := range map[string]func(r *rig) (up func()){
		"asynq's Redis": func(r *rig) func() {
			r.mini.SetError("LOADING away for the test")
			return func() { r.mini.SetError("") }
		},
		"the locks' store": func(r *rig) func() {
			r.faults.Set(faultstore.Fault{Mode: faultstore.Refuse}, everyCall...)
			return func() { r.faults.Clear() }
		},
		"due":     func(r *rig) func() { return r.drop(faultstore.Due) },
		"inspect": func(r *rig) func() { return r.drop(faultstore.Inspect) },
		"release": func(r *rig) func() { return r.refuse(faultstore.Release) },
		"settle":  func(r *rig) func() { return r.drop(faultstore.Settle) },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				w, _ := r.keep(r.locks, worker.Config{Reserve: time.Hour})
				for i := range 10 {
					r.enqueue(fmt.Sprint("alive-", i), 0, asynq.ProcessIn(10*time.Hour))
					r.enqueue(fmt.Sprint("dead-", i), 0, asynq.ProcessIn(10*time.Hour))
				}
				time.Sleep(5*time.Minute + 100*time.Millisecond) // between two questions for what is due
				for i := range 10 {
					if err := r.inspector.DeleteTask(queue, fmt.Sprint("dead-", i)); err != nil {
						t.Fatal(err)
					}
				}
				up := down(r)
				time.Sleep(3 * time.Minute)
				freed := w.KeeperStats().Freed[absent]
				if name != "settle" && freed != 0 {
					t.Errorf("%d locks were freed in the outage", freed)
				}
				up()
				time.Sleep(2*every + ttl)
				for i := range 10 {
					r.wantState(fmt.Sprint("key-alive-", i), joblock.StateParked, fmt.Sprint("alive-", i))
					r.wantFreed(fmt.Sprint("key-dead-", i), absent)
				}
				if freed := w.KeeperStats().Freed[absent]; freed != 10 {
					t.Errorf("%d locks were freed, want 10", freed)
				}
			})
		})
	}
}

func (r *rig) drop(call string) func()   { return r.fault(faultstore.Drop, call) }
func (r *rig) refuse(call string) func() { return r.fault(faultstore.Refuse, call) }

func (r *rig) fault(mode faultstore.Mode, call string) func() {
	r.faults.Set(faultstore.Fault{Mode: mode}, call)
	return func() { r.faults.Clear(call) }
}

// A Redis that is silent is asked about a few tasks and not about all: each question
// takes twenty seconds. As soon as it answers again the keeper goes on.
func TestKeeperBeforeASilentRedis(t *testing.T) {
	virtual(t, func(r *rig) {
		for i := range 200 {
			r.enqueue(fmt.Sprint("alive-", i), 0, asynq.ProcessIn(10*time.Hour))
		}
		r.enqueue("dead", 0, asynq.ProcessIn(10*time.Hour))
		own := r.inspector
		hook := r.hang()
		w, _ := r.keep(r.locks, worker.Config{Reserve: time.Hour})
		r.inspector = own
		hook.answer.Store(true)
		time.Sleep(2 * time.Minute)
		hook.answer.Store(false)
		if err := r.inspector.DeleteTask(queue, "dead"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute)
		r.wantState("key-dead", joblock.StateParked, "dead")
		hook.answer.Store(true)
		time.Sleep(40*time.Second + 2*every)
		r.wantFreed("key-dead", absent)
		if n := w.KeeperStats().Freed; len(n) != 1 || n[absent] != 1 {
			t.Errorf("freed %v, want the one", n)
		}
	})
}

// A task that asynq itself cannot read keeps its lock, and delays no other.
func TestKeeperMeetsATaskThatCannotBeRead(t *testing.T) {
	kept(t, func(r *rig) {
		r.enqueue("broken", 0, asynq.ProcessIn(10*time.Hour))
		r.enqueue("dead", 0, asynq.ProcessIn(10*time.Hour))
		if err := r.rdb.HSet(context.Background(), "asynq:{default}:t:broken", "msg", "\xff\xff").Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute)
		if err := r.inspector.DeleteTask(queue, "dead"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(every + time.Millisecond) // and the check itself
		r.wantFreed("key-dead", absent)
		r.wantState("key-broken", joblock.StateParked, "broken")
	})
}

// A reservation that ran out while no keeper was up is taken up again for a task that
// lives, if the key has had no other holder since.
func TestKeeperTakesUpWhatHasLapsed(t *testing.T) {
	virtual(t, func(r *rig) {
		r.enqueue("a", 0, asynq.ProcessIn(10*time.Hour))
		r.enqueue("taken", 0, asynq.ProcessIn(10*time.Hour))
		r.enqueue("dead", 0, asynq.ProcessIn(10*time.Hour))
		if err := r.inspector.DeleteTask(queue, "dead"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(reserve + time.Minute)
		if r.status("key-a").Locked() {
			t.Fatal("the reservation did not lapse")
		}
		if _, err := r.locks.TryAcquire(context.Background(), "key-taken"); err != nil {
			t.Fatal(err)
		}
		w, _ := r.keep(r.locks, worker.Config{})
		time.Sleep(every / 2) // one check
		r.wantState("key-a", joblock.StateParked, "a")
		if st := r.status("key-taken"); st.State != joblock.StateHeld || st.Job != "" {
			t.Errorf("the lock that another holder took is %+v, want it kept", st)
		}
		if st := r.status("key-dead"); st.Ended != driver.EndedLapsed {
			t.Errorf("the lock of no task is %+v, want lapsed as it was", st)
		}
		if n := w.KeeperStats(); n.Over != 2 || n.Kept != 1 || n.Extended != 1 || len(n.Freed) != 0 {
			t.Errorf("counted %+v, want 2 over, 1 kept and extended, none freed", n)
		}
	})
}

// Who runs under the lock is left alone, whatever happened to the task.
func TestKeeperLeavesTheRunningAlone(t *testing.T) {
	kept(t, func(r *rig) {
		token := r.enqueue("a", 0, asynq.ProcessIn(10*time.Hour))
		lock, err := r.locks.Resume(context.Background(), token, joblock.ForJob(envelope.Job(queue, "a")), joblock.Reserve(reserve))
		if err != nil {
			t.Fatal(err)
		}
		if err := r.inspector.DeleteTask(queue, "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if err := lock.Err(); err != nil {
			t.Errorf("the lock is over: %v", err)
		}
		r.wantState("key-a", joblock.StateHeld, "a")
		(*core.Lock)(lock).StopRenewing()
		time.Sleep(ttl + every + time.Second)
		r.wantFreed("key-a", absent)
	})
}

// A task ID may be used again. What asynq said about the first task of that name is
// no reason to free the lock of the second, which came while it said so.
func TestKeeperFreesWhatItHasLookedAtAndNothingLater(t *testing.T) {
	virtual(t, func(r *rig) {
		token := r.enqueue("a", 0, asynq.ProcessIn(10*time.Hour))
		var deleted atomic.Bool
		again := func() {
			if !deleted.CompareAndSwap(true, false) {
				return
			}
			if err := r.locks.Release(context.Background(), token, joblock.IfIdle(), joblock.Reason("by its owner")); err != nil {
				t.Fatal(err)
			}
			r.enqueue("a", 0, asynq.ProcessIn(10*time.Hour))
		}
		rdb := redistest.MiniClient(r.t, r.mini)
		rdb.AddHook(afterwards{again})
		own := r.inspector
		r.inspector = asynq.NewInspectorFromRedisClient(rdb)
		w, _ := r.keep(r.locks, worker.Config{})
		r.inspector = own
		time.Sleep(2 * time.Minute)
		if err := r.inspector.DeleteTask(queue, "a"); err != nil {
			t.Fatal(err)
		}
		deleted.Store(true)
		time.Sleep(reserve)
		r.wantTask("a", "scheduled", 0)
		r.wantState("key-a", joblock.StateParked, "a")
		if st := r.status("key-a"); st.Fence == core.Token(token).Fence() {
			t.Error("the task was not made a second time")
		}
		if n := w.KeeperStats(); len(n.Freed) != 0 {
			t.Errorf("counted %+v, want none freed", n)
		}
	})
}

// afterwards calls f when Redis has answered a script.
type afterwards struct{ f func() }

func (afterwards) DialHook(next redis.DialHook) redis.DialHook { return next }

func (afterwards) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (a afterwards) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "evalsha" {
			a.f()
		}
		return err
	}
}

// A dry run says what would be done, and does none of it.
func TestDryRun(t *testing.T) {
	virtual(t, func(r *rig) {
		w, _ := r.keep(r.locks, worker.Config{Keeper: worker.KeeperConfig{DryRun: true}})
		r.enqueue("a", 0, asynq.ProcessIn(10*time.Hour))
		r.enqueue("b", 0, asynq.ProcessIn(10*time.Hour))
		time.Sleep(2 * time.Minute)
		if err := r.inspector.DeleteTask(queue, "a"); err != nil {
			t.Fatal(err)
		}
		before := r.faults.Calls(faultstore.Reserve) + r.faults.Calls(faultstore.Settle)
		time.Sleep(2 * time.Minute)
		r.wantState("key-a", joblock.StateParked, "a")
		time.Sleep(reserve - 4*time.Minute - time.Second)
		for _, key := range []string{"key-a", "key-b"} {
			if st := r.status(key); st.Reserved > 2*time.Second {
				t.Errorf("%s is reserved for another %s: it was extended", key, st.Reserved)
			}
		}
		if n := w.KeeperStats(); n.Freed[absent] == 0 || n.Extended == 0 {
			t.Errorf("counted %+v, want what would be freed and extended", n)
		}
		if n := r.faults.Calls(faultstore.Reserve) + r.faults.Calls(faultstore.Settle) - before; n != 0 {
			t.Errorf("%d calls to change something", n)
		}
		if log := r.log.String(); !strings.Contains(log, "dry_run=true") || !strings.Contains(log, absent) {
			t.Errorf("the log does not say what would be freed:\n%s", log)
		}
	})
}

// A task may move while its queue is listed, and be in none of the pages. Its lock is
// not freed, whatever moves when: only a lookup of the task itself shows that the task
// is gone.
func TestTaskThatMovesWhileItsQueueIsListed(t *testing.T) {
	const n = 1500 // two pages
	id := func(i int) string { return fmt.Sprintf("w%04d", i) }
	for name, move := range map[string]func(r *rig, own *asynq.Inspector, call int){
		// The tasks of the second page move up by as many, and some of them are skipped.
		"from the first page, before the second is read": func(r *rig, own *asynq.Inspector, call int) {
			for i := call * 10; i < call*10+10; i++ {
				if err := own.RunTask(queue, id(i)); err != nil && !errors.Is(err, asynq.ErrTaskNotFound) {
					r.t.Logf("run: %v", err) // it runs already
				}
			}
		},
		// From what is listed last into what has been listed.
		"into a state that was listed before": func(r *rig, _ *asynq.Inspector, call int) {
			ctx, rdb := context.Background(), redistest.MiniClient(r.t, r.mini)
			for i := n - 10*call - 10; i < n-10*call; i++ {
				key := "asynq:{default}:t:" + id(i)
				if rdb.LRem(ctx, "asynq:{default}:pending", 1, id(i)).Val() == 1 {
					rdb.HSet(ctx, key, "state", "scheduled")
					rdb.ZAdd(ctx, "asynq:{default}:scheduled", redis.Z{Member: id(i), Score: float64(time.Now().Add(time.Hour).Unix())})
				} else if rdb.ZRem(ctx, "asynq:{default}:scheduled", id(i)).Val() == 1 {
					rdb.HSet(ctx, key, "state", "pending")
					rdb.LPush(ctx, "asynq:{default}:pending", id(i))
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				for i := range n {
					r.enqueue(id(i), 0, asynq.ProcessIn(10*time.Hour))
				}
				var calls atomic.Int64 // a keeper reads several pages at a time
				rdb, own := redistest.MiniClient(r.t, r.mini), r.inspector
				rdb.AddHook(beforehand{func(cmd redis.Cmder) {
					// The scripts of lists have a key and two offsets, and then the prefix of the tasks.
					if args := cmd.Args(); len(args) == 7 && args[6] == "asynq:{default}:t:" {
						call := int(calls.Add(1) - 1)
						time.Sleep(time.Duration(7*call%5) * time.Millisecond) // so the pages are read in one order, then in another
						move(r, own, call)
					}
				}})
				r.inspector = asynq.NewInspectorFromRedisClient(rdb)
				w, _ := r.keep(r.locks, worker.Config{})
				r.inspector = own
				time.Sleep(15 * every)
				stats := w.KeeperStats()
				t.Logf("%d lists, %+v", calls.Load(), stats)
				if calls.Load() < 20 || stats.Listed < 10*n*9/10 || stats.Listed == stats.Kept {
					t.Error("nothing was listed, or nothing was missing in the lists")
				}
				if len(stats.Freed) != 0 {
					t.Errorf("freed %v", stats.Freed)
				}
				for i := range n {
					r.wantState("key-"+id(i), joblock.StateParked, id(i))
					if t.Failed() {
						return
					}
				}
			})
		})
	}
}

// A lock whose task is in a list is not read in each round. But a lock that was parked again,
// with a shorter reservation, is, and does not lapse.
func TestLockParkedAgainWhileItsTaskIsListed(t *testing.T) {
	virtual(t, func(r *rig) {
		const n = 300
		var tokens []joblock.Token
		for i := range n {
			tokens = append(tokens, r.enqueue(fmt.Sprint("w", i), 0, asynq.ProcessIn(10*time.Hour)))
		}
		w, _ := r.keep(r.locks, worker.Config{Reserve: time.Hour})
		time.Sleep(5 * time.Minute)
		before := r.faults.Items(faultstore.Inspect)
		time.Sleep(5 * every)
		if read := r.faults.Items(faultstore.Inspect) - before; read > n || w.KeeperStats().Listed < 10*n {
			t.Errorf("%d locks were read in 5 periods, and %+v; this proves nothing", read, w.KeeperStats())
		}
		ctx, job := context.Background(), joblock.ForJob(envelope.Job(queue, "w7"))
		lock, err := r.locks.Resume(ctx, tokens[7], job)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := lock.Park(ctx, job, joblock.Reserve(5*every)); err != nil {
			t.Fatal(err)
		}
		for range 20 * 60 {
			time.Sleep(time.Second)
			r.wantState("key-w7", joblock.StateParked, "w7")
		}
	})
}

// beforehand calls f before Redis gets a command.
type beforehand struct{ f func(redis.Cmder) }

func (beforehand) DialHook(next redis.DialHook) redis.DialHook { return next }

func (beforehand) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (b beforehand) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		b.f(cmd)
		return next(ctx, cmd)
	}
}

// The call with which a keeper prolongs a reservation arrives very late: the reservation has ended, the task too, and
// another keeper has removed the lock's entry. The lock that the call brings back is found again, and freed.
func TestReservationThatComesLate(t *testing.T) {
	virtual(t, func(r *rig) {
		f := faultstore.New(r.faults)
		frozen := faultstore.Fault{Mode: faultstore.Stray, Delay: reserve + 4*time.Minute, Times: 1}
		f.Set(frozen, faultstore.Reserve)
		_, stop := r.keep(r.newLockerOn(f), worker.Config{Reserve: 4 * reserve}) // so the first check prolongs the reservation
		r.enqueue("a", 0, asynq.ProcessIn(10*time.Hour))
		for f.Calls(faultstore.Reserve) == 0 {
			time.Sleep(time.Second)
		}
		late := time.Now().Add(reserve + 4*time.Minute)
		stop()
		if err := r.inspector.DeleteTask(queue, "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(reserve + time.Minute)
		if st := r.status("key-a"); st.Locked() || st.Ended != driver.EndedLapsed {
			t.Fatalf("%+v, want a lock that has lapsed", st)
		}
		other, _ := r.keep(r.newLocker(), worker.Config{})
		time.Sleep(time.Minute)
		if n := other.KeeperStats().Over; n != 1 {
			t.Fatalf("%+v, want the entry removed", other.KeeperStats())
		}
		time.Sleep(time.Until(late) + time.Second)
		r.wantState("key-a", joblock.StateParked, "a")
		time.Sleep(time.Minute + every)
		r.wantFreed("key-a", absent)
		f.Clear()
	})
}
