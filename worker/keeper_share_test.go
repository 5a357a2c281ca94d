package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// Several keepers that work share the work: each lock is checked once per period or a little
// more often, by any of them, and none is idle.
func TestKeepersShareTheWork(t *testing.T) {
	virtual(t, func(r *rig) {
		const keepers, periods = 3, 10
		n := testkit.Size[int64](600, 1500)
		pace := r.slow(100 * time.Millisecond)
		var ws []*worker.Worker
		for range keepers {
			w, _ := r.keep(r.newLocker(), worker.Config{Keeper: worker.KeeperConfig{MaxKeepers: keepers, MaxLoad: 1}})
			ws = append(ws, w)
		}
		for i := range n {
			r.enqueue(fmt.Sprint("w", i), 0, asynq.ProcessIn(10*time.Hour))
		}
		time.Sleep(5 * time.Minute)
		before := make([]int64, keepers)
		for i, w := range ws {
			before[i] = w.KeeperStats().Checked
		}
		time.Sleep(periods * every)
		total := int64(0)
		for i, w := range ws {
			checked := w.KeeperStats().Checked - before[i]
			t.Logf("keeper %d: %d checks", i, checked)
			total += checked
		}
		// A lock is due when the keeper that checked the lock has read the page of its task again. If another keeper checks
		// the lock then, the lock is due sooner.
		if total < n*periods || total > 5*n*periods/2 {
			t.Errorf("%d checks of %d locks in %d periods, want from %d to two and a half times as many", total, n, periods, n*periods)
		}
		idle := func(w *worker.Worker) bool { return w.KeeperStats().Checked == before[slices.Index(ws, w)] }
		// Chance decides who asks first, so a keeper may have nothing to do for some periods.
		for end := time.Now().Add(10 * periods * every); time.Now().Before(end); time.Sleep(every) {
			if !slices.ContainsFunc(ws, idle) {
				break
			}
		}
		if slices.ContainsFunc(ws, idle) {
			t.Error("a keeper had nothing to do")
		}
		pace.off()
	})
}

// A keeper that ends in the middle of a batch, however it ends, delays no lock by more
// than its claim; nothing is freed that should not be.
func TestKeepersTakeTurns(t *testing.T) {
	const claim = 20 * time.Second
	for _, end := range []string{"stopped", "killed", "closed"} {
		t.Run(end, func(t *testing.T) {
			virtual(t, func(r *rig) {
				for i := range 10 {
					r.enqueue(fmt.Sprint("alive-", i), 0, asynq.ProcessIn(10*time.Hour))
					r.enqueue(fmt.Sprint("dead-", i), 0, asynq.ProcessIn(10*time.Hour))
				}
				time.Sleep(2 * time.Minute) // all are due
				f := faultstore.New(r.faults)
				var w *worker.Worker
				var stop func()
				claimed := make(chan struct{}) // and nothing read yet
				hang := faultstore.Fault{Mode: faultstore.Hang, Times: 1, Before: func() {
					if end == "killed" {
						f.Set(faultstore.Fault{Mode: faultstore.Hang}, everyCall...)
					}
					close(claimed)
				}}
				f.Set(faultstore.Fault{Mode: faultstore.Pass, Times: 1, Before: func() { f.Set(hang, faultstore.Inspect) }}, faultstore.Due)
				w, stop = r.keep(r.newLockerOn(f), worker.Config{})
				<-claimed
				start := time.Now()
				for i := range 10 {
					if err := r.inspector.DeleteTask(queue, fmt.Sprint("dead-", i)); err != nil {
						t.Fatal(err)
					}
				}
				r.keep(r.newLocker(), worker.Config{})
				switch end {
				case "stopped":
					stop()
				case "closed":
					if err := w.Close(context.Background()); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(claim - time.Since(start) - time.Second)
				for i := range 10 {
					r.wantState(fmt.Sprint("key-dead-", i), joblock.StateParked, fmt.Sprint("dead-", i))
				}
				time.Sleep(2*time.Second + every/10)
				for i := range 10 {
					r.wantFreed(fmt.Sprint("key-dead-", i), absent)
				}
				time.Sleep(3 * reserve)
				for i := range 10 {
					r.wantState(fmt.Sprint("key-alive-", i), joblock.StateParked, fmt.Sprint("alive-", i))
				}
				f.Clear()
			})
		})
	}
}

// A keeper that comes back long after its claim has ended changes nothing that happened
// since: it frees no lock that was parked again for a job of the same name, and removes no
// entry that was written again.
func TestKeeperThatComesBackLate(t *testing.T) {
	virtual(t, func(r *rig) {
		f := faultstore.New(r.faults)
		w, _ := r.keep(r.newLockerOn(f), worker.Config{Keeper: worker.KeeperConfig{MaxKeepers: 2}})
		tokens := make(map[string]joblock.Token)
		for _, id := range []string{"a", "b", "c"} {
			tokens[id] = r.enqueue(id, 0, asynq.ProcessIn(10*time.Hour))
		}
		remove := func(id string) {
			t.Helper()
			if err := r.inspector.DeleteTask(queue, id); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2*time.Minute + 100*time.Millisecond)
		remove("b")
		remove("c")
		if err := r.locks.Release(context.Background(), tokens["c"], joblock.IfIdle()); err != nil {
			t.Fatal(err)
		}
		// The answer to its next read takes longer than the claim lasts.
		late := make(chan struct{})
		f.Set(faultstore.Fault{Mode: faultstore.Slow, Delay: 2 * time.Minute, Times: 1, Before: func() { close(late) }}, faultstore.Inspect)
		<-late
		read := w.KeeperStats().Checked
		other, _ := r.keep(r.newLocker(), worker.Config{Keeper: worker.KeeperConfig{MaxKeepers: 2}})
		time.Sleep(110 * time.Second)
		r.wantFreed("key-b", absent)
		if n := other.KeeperStats().Over; n != 1 {
			t.Errorf("the other keeper has removed %d entries, want that of c", n)
		}
		r.park("b", "key-b") // its enqueue is under way
		r.enqueue("c", 0, asynq.ProcessIn(10*time.Hour))
		time.Sleep(15 * time.Second)
		if n := w.KeeperStats().Checked - read; n < 3 {
			t.Fatalf("the late keeper has checked %d locks, want all three", n)
		}
		for _, id := range []string{"a", "b", "c"} {
			r.wantState("key-"+id, joblock.StateParked, id)
		}
		time.Sleep(3 * time.Minute)
		remove("c")
		time.Sleep(every + time.Second)
		r.wantFreed("key-c", absent)
		r.wantFreed("key-b", absent) // which was never enqueued
		remove("a")
		time.Sleep(every + time.Second)
		r.wantFreed("key-a", absent)
	})
}

// Run ends promptly, whatever it waits for.
func TestRunEndsWithItsContext(t *testing.T) {
	for _, doing := range []string{"working", "standing by", "working with another", "asking asynq", "reading", "in an outage"} {
		t.Run(doing, func(t *testing.T) {
			virtual(t, func(r *rig) {
				r.enqueue("a", 0, asynq.ProcessIn(10*time.Hour))
				f := faultstore.New(r.faults)
				keepers := 1
				switch doing {
				case "standing by":
					r.keep(r.newLocker(), worker.Config{})
					time.Sleep(time.Second)
				case "working with another":
					keepers = 2
					r.keep(r.newLocker(), worker.Config{Keeper: worker.KeeperConfig{MaxKeepers: keepers}})
					time.Sleep(time.Second)
				case "asking asynq":
					r.hang()
				case "reading":
					f.Set(faultstore.Fault{Mode: faultstore.Pass, Times: 1, Before: func() {
						f.Set(faultstore.Fault{Mode: faultstore.Hang}, faultstore.Inspect)
					}}, faultstore.Due)
				case "in an outage":
					f.Set(faultstore.Fault{Mode: faultstore.Refuse}, everyCall...)
				}
				w := r.newWorker(r.newLockerOn(f), worker.Config{Keeper: worker.KeeperConfig{MaxKeepers: keepers}})
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error)
				go func() { done <- w.RunKeeper(ctx) }()
				time.Sleep(50 * time.Second)
				start := time.Now()
				cancel()
				if err := <-done; err != nil {
					t.Errorf("Run = %v, want nil", err)
				}
				if took := time.Since(start); took > 4*time.Second {
					t.Errorf("Run took %s to end", took)
				}
				f.Clear()
				time.Sleep(time.Minute) // a call whose callers have gone ends by itself
			})
		})
	}
}

func TestRunIsRefused(t *testing.T) {
	virtual(t, func(r *rig) {
		want := func(what string, got, want error) {
			t.Helper()
			if !errors.Is(got, want) {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		ctx := context.Background()
		var none *worker.Worker
		want("a nil Worker", none.RunKeeper(ctx), joblock.ErrInvalid)

		w, stop := r.keep(r.locks, worker.Config{})
		time.Sleep(time.Second)
		want("a second Run", w.RunKeeper(ctx), joblock.ErrInvalid)
		stop()
		done, cancel := context.WithCancel(ctx)
		cancel()
		want("a Run after the first", w.RunKeeper(done), nil)
		if err := w.Close(ctx); err != nil {
			t.Fatal(err)
		}
		want("a closed Worker", w.RunKeeper(ctx), joblock.ErrClosed)

		locks := r.newLocker()
		w = r.newWorker(locks, worker.Config{})
		if err := locks.Close(ctx); err != nil {
			t.Fatal(err)
		}
		want("a closed Locker", w.RunKeeper(ctx), joblock.ErrClosed)
	})
}

// A Locker that is closed under a working keeper ends it.
func TestLockerClosedUnderTheKeeper(t *testing.T) {
	virtual(t, func(r *rig) {
		locks := r.newLocker()
		w := r.newWorker(locks, worker.Config{})
		done := make(chan error, 1)
		go func() { done <- w.RunKeeper(context.Background()) }()
		time.Sleep(time.Minute)
		if err := locks.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, joblock.ErrClosed) {
			t.Errorf("Run = %v, want ErrClosed", err)
		}
	})
}

// A lock with a short reservation does not lapse because its task waits in a queue whose lists
// take long to read.
func TestShortReservationWhileAQueueIsListed(t *testing.T) {
	const n = 400
	virtual(t, func(r *rig) {
		large := make([]byte, 100_000) // a page has few of these tasks
		for i := range n {
			id := fmt.Sprint("w", i)
			task := r.sealed(large, envelope.Envelope{Tokens: r.park(id, "key-"+id)})
			r.submit(id, task, 1, asynq.ProcessIn(10*time.Hour))
		}
		time.Sleep(2 * time.Minute) // all are due
		own := r.inspector
		pace := r.slow(50 * time.Millisecond)
		w, stop := r.keep(r.locks, worker.Config{})
		r.inspector = own
		time.Sleep(time.Second)
		for i := range 5 {
			id := fmt.Sprint("short", i)
			token, err := r.occupy("key-"+id).Park(context.Background(), joblock.Reserve(6*time.Second), joblock.ForJob(envelope.Job(queue, id)))
			if err != nil {
				t.Fatal(err)
			}
			r.submit(id, r.seal(0, token), 1, asynq.ProcessIn(10*time.Hour))
		}
		for second := range 60 {
			time.Sleep(time.Second)
			if second == 3 && !w.KeeperStats().Behind {
				t.Error("checks wait for the lists, and the keeper does not say that it is behind")
			}
			for i := range 5 {
				id := fmt.Sprint("short", i)
				r.wantState("key-"+id, joblock.StateParked, id)
			}
			if t.Failed() {
				break
			}
		}
		t.Logf("%+v", w.KeeperStats())
		stop()
		pace.off()
	})
}

// noLists is a client whose calls for the lists of a queue get no answer, as if a page were too
// much for the link.
type noLists struct{ beforehand }

func (noLists) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		// The scripts of lists have a key and two offsets, and then the prefix of the tasks.
		if args := cmd.Args(); len(args) == 7 && args[6] == "asynq:{default}:t:" {
			return errors.New("i/o timeout")
		}
		return next(ctx, cmd)
	}
}

// Where lists get no answer and lookups do, locks are checked all the same.
func TestListsWithoutAnAnswer(t *testing.T) {
	const n = 300
	virtual(t, func(r *rig) {
		for i := range n {
			r.enqueue(fmt.Sprint("w", i), 0, asynq.ProcessIn(10*time.Hour))
		}
		time.Sleep(2 * time.Minute) // all are due
		rdb, own := redistest.MiniClient(r.t, r.mini), r.inspector
		rdb.AddHook(noLists{})
		r.inspector = asynq.NewInspectorFromRedisClient(rdb)
		w, _ := r.keep(r.locks, worker.Config{})
		r.inspector = own
		time.Sleep(2 * every)
		if err := r.inspector.DeleteTask(queue, "w7"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(every + every/2)
		r.wantFreed("key-w7", absent)
		if s := w.KeeperStats(); s.Listed != 0 || s.Kept < 2*n {
			t.Errorf("%+v", s)
		}
		if !strings.Contains(r.log.String(), "could not read the lists of a queue") {
			t.Error("the log does not say that lists have no answer")
		}
	})
}

// The lock of a deleted task is freed within a period even if the lists of its queue take most of a period: it is looked
// up when the page that would have it has been read, and not after the other pages.
func TestLocksAreFreedPageByPage(t *testing.T) {
	const n = 400
	virtual(t, func(r *rig) {
		large := make([]byte, 100_000) // a page has few of these tasks
		for i := range n {
			id := fmt.Sprint("w", i)
			r.submit(id, r.sealed(large, envelope.Envelope{Tokens: r.park(id, "key-"+id)}), 1, asynq.ProcessIn(10*time.Hour))
		}
		own := r.inspector
		pace := r.slow(50 * time.Millisecond) // so all pages take 10 s, at a tenth of the time
		keepers := r.keepMany(2, worker.Config{})
		r.inspector = own
		time.Sleep(3 * time.Minute)
		deleted := make(map[string]time.Time)
		gone := make(map[string]bool)
		watch := func(d time.Duration) (longest time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				for id, at := range deleted {
					if !r.status("key-" + id).Locked() {
						longest = max(longest, time.Since(at))
						delete(deleted, id)
					}
				}
			}
			return longest
		}
		remove := func(from, to int) (longest time.Duration) {
			for i := from; i < to; i++ {
				id := fmt.Sprint("w", i*37%n)
				if err := own.DeleteTask(queue, id); err != nil {
					t.Fatal(err)
				}
				deleted[id], gone[id] = time.Now(), true
				longest = max(longest, watch(7*time.Second)) // so that the lookups take no large part of the share
			}
			return longest
		}
		took := max(remove(0, 20), watch(2*every))
		t.Logf("freed within %s", took)
		if took > every+200*time.Millisecond || len(deleted) > 0 {
			t.Errorf("a lock was freed %s after its task, want at most %s; %d are not freed", took, every, len(deleted))
		}
		took = remove(20, 30)
		killed := keepers.working()[0]
		keepers.faults[killed].Set(faultstore.Fault{Mode: faultstore.Hang}, everyCall...)
		const most = every + 10*time.Second + 3*10*time.Second/2 // as the package comment promises, for lists of 10 s
		took = max(took, remove(30, 40), watch(2*most))
		t.Logf("freed within %s, around the death of a keeper", took)
		if took > most || len(deleted) > 0 {
			t.Errorf("a lock was freed %s after its task, want at most %s; %d are not freed", took, most, len(deleted))
		}
		for i := range n {
			if id := fmt.Sprint("w", i); !gone[id] {
				r.wantState("key-"+id, joblock.StateParked, id)
			}
		}
		keepers.faults[killed].Clear()
		pace.off()
	})
}
