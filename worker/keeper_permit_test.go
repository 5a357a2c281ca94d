package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// keepers are processes with a Run each, whose calls to the store can be made to fail.
type keepers struct {
	r      *rig
	ws     []*worker.Worker
	stops  []func()
	faults []*faultstore.Store
}

func (r *rig) keepMany(n int, cfg worker.Config) *keepers {
	k := &keepers{r: r}
	for range n {
		f := faultstore.New(r.faults)
		w, stop := r.keep(r.newLockerOn(f), cfg)
		k.ws, k.stops, k.faults = append(k.ws, w), append(k.stops, stop), append(k.faults, f)
	}
	return k
}

// working returns the indexes of the Workers whose Runs work.
func (k *keepers) working() (found []int) {
	for i, w := range k.ws {
		if w.KeeperStats().Working {
			found = append(found, i)
		}
	}
	return found
}

// Of many Runs, Config.Keepers work, and the others neither claim locks nor ask asynq. When
// one of those that work ends, another takes over: at once, or within one TTL if its process
// was killed.
func TestAsManyKeepersWorkAsConfigured(t *testing.T) {
	for _, n := range []int{1, 2} {
		for _, end := range []string{"stopped", "killed", "closed"} {
			if n == 2 && end != "killed" && !testkit.Whole {
				continue // how a keeper ends is the same thing for one that works alone
			}
			t.Run(fmt.Sprint(n, " ", end), func(t *testing.T) {
				virtual(t, func(r *rig) {
					k := r.keepMany(5, worker.Config{Keeper: worker.KeeperConfig{MaxKeepers: n}})
					for i := range 20 {
						r.enqueue(fmt.Sprint("alive-", i), 0, asynq.ProcessIn(10*time.Hour))
					}
					time.Sleep(5 * time.Minute)
					before := k.working()
					if len(before) != n {
						t.Fatalf("keepers %v work, want %d", before, n)
					}
					checked := int64(0)
					for i, w := range k.ws {
						s := w.KeeperStats()
						checked += s.Checked
						if slices.Contains(before, i) != !s.Asked.IsZero() {
							t.Errorf("keeper %d: %+v, and %v work", i, s, before)
						}
					}
					if checked < 200 || checked > 300 {
						t.Errorf("%d checks of 20 locks in 5 minutes, want about 260", checked)
					}

					old, start, bound := before[0], time.Now(), time.Duration(0)
					switch end {
					case "stopped":
						k.stops[old]()
					case "killed":
						k.faults[old].Set(faultstore.Fault{Mode: faultstore.Hang}, everyCall...)
						bound = ttl
					case "closed":
						if err := k.ws[old].Close(context.Background()); err != nil {
							t.Fatal(err)
						}
					}
					next := k.working()
					for ; len(next) != n || slices.Contains(next, old); next = k.working() {
						if took := time.Since(start); took > bound+time.Second {
							t.Fatalf("after %s keepers %v work", took, next)
						}
						time.Sleep(10 * time.Millisecond)
					}
					if err := r.inspector.DeleteTask(queue, "alive-0"); err != nil {
						t.Fatal(err)
					}
					time.Sleep(every + time.Second)
					r.wantFreed("key-alive-0", absent)
					time.Sleep(3 * reserve)
					for i := 1; i < 20; i++ {
						r.wantState(fmt.Sprint("key-alive-", i), joblock.StateParked, fmt.Sprint("alive-", i))
					}
					k.faults[old].Clear()
				})
			})
		}
	}
}

// A queue is deleted with its tasks, and then the process of the keeper that works ends. The next keeper has never looked
// for a task of that queue, and frees the locks all the same: it knew the queue while it stood by.
func TestQueueThatWasDeletedBeforeTheKeeperWorked(t *testing.T) {
	virtual(t, func(r *rig) {
		k := r.keepMany(2, worker.Config{})
		r.enqueue("a", 0, asynq.ProcessIn(10*time.Hour))
		time.Sleep(2 * time.Minute)
		working := k.working()
		if len(working) != 1 {
			t.Fatalf("keepers %v work", working)
		}
		k.faults[working[0]].Set(faultstore.Fault{Mode: faultstore.Hang}, everyCall...) // its process dies
		if err := r.inspector.DeleteQueue(queue, true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(ttl + every + time.Second)
		r.wantFreed("key-a", "keeper: the queue was deleted")
		k.faults[working[0]].Clear()
	})
}

// A keeper that takes over need not read the locks that the dead keeper has just found to be reserved for long. After a
// longer time without any keeper, each lock is read.
func TestLocksThatTheDeadKeeperHasRead(t *testing.T) {
	const n = 3000 // some batches; the first are read before the lists are
	for _, pause := range []time.Duration{0, 5 * time.Minute} {
		t.Run(pause.String(), func(t *testing.T) {
			virtual(t, func(r *rig) {
				for i := range n {
					r.enqueue(fmt.Sprint("w", i), 0, asynq.ProcessIn(10*time.Hour))
				}
				_, stop := r.keep(r.newLocker(), worker.Config{Reserve: 2 * time.Hour})
				time.Sleep(4 * time.Minute)
				stop()
				time.Sleep(pause)
				before := r.faults.Items(faultstore.Inspect)
				w, _ := r.keep(r.newLocker(), worker.Config{Reserve: 2 * time.Hour})
				time.Sleep(time.Minute)
				read := r.faults.Items(faultstore.Inspect) - before
				if s := w.KeeperStats(); s.Listed < n {
					t.Fatalf("%+v; this proves nothing", s)
				}
				if pause == 0 && read > n/2 || pause > 0 && read < n {
					t.Errorf("%d of %d locks were read", read, n)
				}
			})
		})
	}
}

// Runs that change nothing take no place from those that do.
func TestDryRunTakesNoPlace(t *testing.T) {
	virtual(t, func(r *rig) {
		dry := r.keepMany(2, worker.Config{Keeper: worker.KeeperConfig{DryRun: true}})
		time.Sleep(time.Second)
		real := r.keepMany(2, worker.Config{})
		time.Sleep(time.Second)
		if d, n := dry.working(), real.working(); len(d) != 1 || len(n) != 1 {
			t.Errorf("keepers %v work without changes, and %v with changes; want one each", d, n)
		}
	})
}

// A Run that asynq's Redis does not answer gives its place to another process, which may
// have better luck, and lines up again. Where there is no other, it tries again for as long
// as the outage lasts, without a storm of calls.
func TestKeeperThatGetsNoAnswersGivesItsPlaceAway(t *testing.T) {
	for _, alone := range []bool{false, true} {
		for _, how := range []string{"refused", "silent"} {
			t.Run(fmt.Sprintf("%s, alone %t", how, alone), func(t *testing.T) {
				virtual(t, func(r *rig) {
					own := r.inspector
					r.enqueue("alive", 0, asynq.ProcessIn(10*time.Hour))
					r.enqueue("dead", 0, asynq.ProcessIn(10*time.Hour))
					hook := new(silent)
					if how == "silent" {
						hook = r.hang()
					} else {
						rdb := redistest.MiniClient(t, r.mini)
						if err := rdb.Close(); err != nil {
							t.Fatal(err)
						}
						r.inspector = asynq.NewInspectorFromRedisClient(rdb)
					}
					f := faultstore.New(r.faults)
					cut, _ := r.keep(r.newLockerOn(f), worker.Config{})
					r.inspector = own
					time.Sleep(time.Minute) // the locks become due
					var other *worker.Worker
					if !alone {
						other, _ = r.keep(r.newLocker(), worker.Config{})
					}
					time.Sleep(time.Second)
					if err := r.inspector.DeleteTask(queue, "dead"); err != nil {
						t.Fatal(err)
					}
					before := f.Calls("")
					const minutes = 5
					time.Sleep(minutes * time.Minute)
					calls := f.Calls("") - before
					t.Logf("%d calls to the store", calls)
					// With these short leases, standing by takes some 40 calls a minute, and working some 70.
					if calls > minutes*200 {
						t.Errorf("%d calls to the store in %d minutes", calls, minutes)
					}
					if alone {
						r.wantState("key-dead", joblock.StateParked, "dead")
						hook.answer.Store(true)
						if how == "silent" {
							time.Sleep(time.Minute)
							r.wantFreed("key-dead", absent)
						}
						return
					}
					if !other.KeeperStats().Working || cut.KeeperStats().Working {
						t.Error("the keeper without answers still works")
					}
					r.wantFreed("key-dead", absent)
					r.wantState("key-alive", joblock.StateParked, "alive")
					hook.answer.Store(true)
				})
			})
		}
	}
}

// What it costs to stand by: some calls a minute, however many stand by. The first in line asks more often.
func TestCostOfStandingBy(t *testing.T) {
	virtual(t, func(r *rig) {
		r.ttl = 30 * time.Second // the default
		const n = 20
		k := r.keepMany(n, worker.Config{})
		time.Sleep(5 * time.Minute)
		at := k.working()
		if len(at) != 1 {
			t.Fatalf("keepers %v work", at)
		}
		before := make([]int, n)
		for i, f := range k.faults {
			before[i] = f.Calls("")
		}
		const minutes = 60
		time.Sleep(minutes * time.Minute)
		least, most, total := 1e9, 0.0, 0.0
		for i, f := range k.faults {
			calls := float64(f.Calls("")-before[i]) / minutes
			if i == at[0] {
				t.Logf("working: %.1f calls a minute", calls)
				continue
			}
			least, most, total = min(least, calls), max(most, calls), total+calls
		}
		t.Logf("standing by: %.1f calls a minute and process, from %.1f to %.1f", total/(n-1), least, most)
		if mean := total / (n - 1); mean > 20 || most > 60 {
			t.Errorf("%.1f calls a minute to stand by, %.1f for the first in line", mean, most)
		}
	})
}

// What is at the keepers' own keys may be anything.
func TestKeepersPlaceIsNoLock(t *testing.T) {
	r := onRedis(t, time.Second)
	if err := r.rdb.Set(context.Background(), "joblock:"+keyspace.Permit(keyspace.Keepers, 1), "a stranger's", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := r.newWorker(r.locks, worker.Config{}).RunKeeper(context.Background()); !errors.Is(err, joblock.ErrInvalid) {
		t.Errorf("RunKeeper = %v, want ErrInvalid", err)
	}
}
