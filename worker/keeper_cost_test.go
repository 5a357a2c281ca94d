package worker_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/worker"
)

// counting counts the commands of a client.
type counting struct{ commands atomic.Int64 }

func (*counting) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.commands.Add(1)
		return next(ctx, cmd)
	}
}

func (c *counting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.commands.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// What a period costs depends on the locks that wait, and on nothing else: a few pages
// of their queue, three calls of the store for each batch of them, and a question every
// second for what is due. Those that are held, and those that have ended, cost asynq
// nothing. The lock of a deleted task is freed within a period all the same.
func TestCostOfAPeriod(t *testing.T) {
	const waiting, running = 2000, 100 // four batches of the store, two pages of asynq's lists
	virtual(t, func(r *rig) {
		w, _ := r.keep(r.locks, worker.Config{Reserve: time.Hour, Keeper: worker.KeeperConfig{Interval: every}})
		for i := range waiting {
			r.enqueue(fmt.Sprint("w", i), 0, asynq.ProcessIn(10*time.Hour))
			time.Sleep(every / waiting) // they are not due together at first
		}
		for i := range running {
			id := fmt.Sprint("r", i)
			if _, err := r.locks.Resume(context.Background(), r.enqueue(id, 0), joblock.ForJob(envelope.Job(queue, id))); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 500 { // plain locks, of which the keeper knows nothing
			if _, err := r.locks.TryAcquire(context.Background(), fmt.Sprint("plain", i)); err != nil {
				t.Fatal(err)
			}
		}
		count := new(counting)
		r.rdb.AddHook(count)
		time.Sleep(2*time.Minute + time.Second)

		before := map[string]int{}
		for _, call := range everyCall {
			before[call] = r.faults.Calls(call)
		}
		read := r.faults.Items(faultstore.Inspect)
		start, listed, kept := count.commands.Load(), w.KeeperStats().Listed, w.KeeperStats().Kept
		const periods = 10
		time.Sleep(periods * every)
		asynqs := float64(count.commands.Load()-start) / periods
		per := func(call string) float64 { return float64(r.faults.Calls(call)-before[call]) / periods }
		t.Logf("per period: %.0f commands to asynq's Redis, %.1f due, %.1f inspect, %.1f reserve, %.1f settle",
			asynqs, per(faultstore.Due), per(faultstore.Inspect), per(faultstore.Reserve), per(faultstore.Settle))
		// An interval between checks is up to a tenth shorter than a period.
		if asynqs > waiting/250+8 {
			t.Errorf("%.0f commands to asynq's Redis for %d locks in a period, want at most %d", asynqs, waiting, waiting/250+8)
		}
		const batches = (waiting + running) / 500 * 12 / 10
		for call, most := range map[string]float64{
			faultstore.Due: 22 + batches + 2, faultstore.Inspect: batches + 2, faultstore.Settle: batches + 2, faultstore.Reserve: 1,
			faultstore.Release: 0, faultstore.Park: 0, faultstore.Resume: 0,
		} {
			if got := per(call); got > most {
				t.Errorf("%.1f calls of %s in a period, want at most %.0f", got, call, most)
			}
		}
		// A lock whose task is in a list is not read again as long as its reservation is.
		if read := r.faults.Items(faultstore.Inspect) - read; read > waiting*periods/4 {
			t.Errorf("%d locks were read in %d periods, want few", read, periods)
		}
		n := w.KeeperStats()
		if n.Kept-kept < waiting*periods || n.Listed-listed < waiting*periods {
			t.Errorf("%d kept and %d listed in %d periods, want %d or a few more", n.Kept-kept, n.Listed-listed, periods, waiting*periods)
		}
		if n.Asked.Before(time.Now().Add(-time.Second)) || n.Behind {
			t.Errorf("last asked at %s, behind %t; it is %s", n.Asked, n.Behind, time.Now())
		}
		if err := r.inspector.DeleteTask(queue, "w1711"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(every + time.Millisecond)
		r.wantFreed("key-w1711", absent)
		if n := w.KeeperStats().Freed; len(n) != 1 || n[absent] != 1 {
			t.Errorf("freed %v, want the one", n)
		}
	})
}

// What the locks of tasks that are scheduled for next week cost both Redis: a tenth,
// at most, of the three commands per lock and period that a keeper takes that reads each lock
// and looks up each task.
func TestCommandsAtRest(t *testing.T) {
	const locks, periods = 2000, 10
	virtual(t, func(r *rig) {
		count := new(counting)
		r.rdb.AddHook(count)
		for i := range locks {
			r.enqueue(fmt.Sprint("w", i), 0, asynq.ProcessIn(7*24*time.Hour))
		}
		w, _ := r.keep(r.locks, worker.Config{Reserve: time.Hour, Keeper: worker.KeeperConfig{Interval: defaultEvery}})
		// The commands that a redisstore sends: one for a call, and one for each hundred records that are read together.
		commands := func() int64 {
			return count.commands.Load() + int64(r.faults.Calls("")+r.faults.Items(faultstore.Inspect)/100+r.faults.Items(faultstore.Reserve))
		}
		time.Sleep(5 * time.Minute)
		before, kept := commands(), w.KeeperStats().Kept
		time.Sleep(periods * defaultEvery)
		each := float64(commands()-before) / (locks * periods)
		kept = w.KeeperStats().Kept - kept
		t.Logf("%.4f commands per lock and period, %d checks", each, kept)
		if each > 3.0/10/3 { // and a wide margin
			t.Errorf("%.4f commands per lock and period", each)
		}
		if kept < locks*periods || kept > locks*periods*120/100 {
			t.Errorf("%d checks in %d periods, want %d or some more", kept, periods, locks*periods)
		}
	})
}

// The keeper does not use more than its share of asynq's Redis even if the share is too
// small for the locks that wait, and gets through all the same, but later.
func TestShareOfAsynqsRedis(t *testing.T) {
	for _, tt := range []struct {
		name   string
		locks  int
		share  float64
		d      time.Duration // of a command
		rounds int           // that the share is enough for, in twenty periods
		lists  bool
	}{
		{"lookups", 40, 0.1, 300 * time.Millisecond, 10, false},
		{"lookups in a hundredth", 40, 0.01, 30 * time.Millisecond, 10, false},
		{"lists", 3000, 0.1, 500 * time.Millisecond, 4, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				for i := range tt.locks {
					r.enqueue(fmt.Sprint("w", i), 0, asynq.ProcessIn(10*time.Hour))
				}
				time.Sleep(time.Minute)
				own := r.inspector
				pace := r.slow(tt.d)
				w, stop := r.keep(r.locks, worker.Config{Keeper: worker.KeeperConfig{MaxLoad: tt.share}})
				r.inspector = own
				start := time.Now()
				time.Sleep(20 * every)
				stop()
				busy, commands := pace.measured()
				n := w.KeeperStats()
				used := float64(busy) / float64(time.Since(start))
				t.Logf("%d commands were under way for %s, %.4f of the time; %+v", commands, busy, used, n)
				// Twenty periods may end before the rest that belongs to the last calls.
				if used > tt.share*1.1 || used < tt.share/2 {
					t.Errorf("used %.4f of the time, want about %.4f", used, tt.share)
				}
				if least := int64(tt.rounds * tt.locks); n.Kept < least {
					t.Errorf("%d checks in twenty periods, want at least %d", n.Kept, least)
				}
				if lists := n.Listed > 0; lists != tt.lists {
					t.Errorf("%d tasks were listed", n.Listed)
				}
			})
		})
	}
}

// How long a keeper takes to check once each of so many locks of tasks that wait,
// with a Redis on the same machine, and what it asks for. Run it with -benchtime 1x:
// filling the Redis takes longer than the round.
func BenchmarkKeeper(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := onRedis(b, time.Minute)
			store := faultstore.New(testkit.Must(redisstore.New(r.rdb, nil)))
			locks, err := joblock.New(store, &joblock.Config{JobGrace: time.Millisecond, Logger: r.log.Text()})
			if err != nil {
				b.Fatal(err)
			}
			defer locks.Close(context.Background())
			r.populate(locks, n)
			count := new(counting)
			r.rdb.AddHook(count)
			calls := store.Calls("")
			w, err := worker.New(locks, r.inspector, &worker.Config{Reserve: 4 * time.Hour, Logger: r.log.Text(), Keeper: worker.KeeperConfig{Interval: time.Minute}})
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			done := make(chan error)
			start, cpu := time.Now(), cpuTime()
			b.ResetTimer()
			go func() { done <- w.RunKeeper(ctx) }()
			for w.KeeperStats().Kept < int64(n) {
				time.Sleep(time.Millisecond)
			}
			b.StopTimer()
			b.ReportMetric(time.Since(start).Seconds(), "s/round")
			b.ReportMetric((cpuTime() - cpu).Seconds(), "cpu-s/round")
			b.ReportMetric(float64(count.commands.Load())/float64(n), "asynq-commands/lock")
			b.ReportMetric(float64(store.Calls("")-calls), "store-calls")
			cancel()
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}

// populate hands over n locks to tasks that wait.
func (r *rig) populate(locks *joblock.Locker, n int) {
	r.t.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				id := fmt.Sprint("t", i)
				lock, err := locks.TryAcquire(context.Background(), "key-"+id)
				if err == nil {
					var token joblock.Token
					token, err = lock.Park(context.Background(), joblock.Reserve(4*time.Hour), joblock.ForJob(envelope.Job(queue, id)))
					if err == nil {
						headers := map[string]string{envelope.Header: r.header(id, envelope.Envelope{Tokens: []joblock.Token{token}, Retries: 1})}
						_, err = r.client.Enqueue(asynq.NewTaskWithHeaders(taskType, nil, headers), asynq.TaskID(id), asynq.ProcessIn(time.Hour))
					}
				}
				if err != nil {
					r.t.Errorf("populate: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// A queue that only its lists have shown was there: its locks are freed when it is deleted.
func TestQueueThatOnlyListsHaveShown(t *testing.T) {
	const n = 300
	virtual(t, func(r *rig) {
		for i := range n {
			r.enqueue(fmt.Sprint("w", i), 0, asynq.ProcessIn(10*time.Hour))
		}
		time.Sleep(2 * time.Minute) // all are due
		w, _ := r.keep(r.newLocker(), worker.Config{})
		time.Sleep(every / 2)
		if s := w.KeeperStats(); s.Listed != n || s.Checked != n {
			t.Fatalf("%d of %d locks were listed, want all %d", s.Listed, s.Checked, n)
		}
		if err := r.inspector.DeleteQueue(queue, true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * every)
		for i := range n {
			r.wantFreed(fmt.Sprint("key-w", i), "keeper: the queue was deleted")
		}
	})
}

// A keeper whose checks are late says so, even if one batch has all locks that are due.
func TestSlowKeeperIsBehind(t *testing.T) {
	for _, tt := range []struct {
		d      time.Duration // of a command
		behind bool
	}{{0, false}, {2 * time.Second, true}} {
		t.Run(tt.d.String(), func(t *testing.T) {
			virtual(t, func(r *rig) {
				for i := range 300 {
					r.enqueue(fmt.Sprint("w", i), 0)
				}
				time.Sleep(2 * time.Minute) // all are due
				own := r.inspector
				pace := r.slow(tt.d)
				w, stop := r.keep(r.newLocker(), worker.Config{Keeper: worker.KeeperConfig{MaxLoad: 0.5}})
				r.inspector = own
				time.Sleep(5 * every)
				for range 10 {
					time.Sleep(every)
					if s := w.KeeperStats(); s.Behind != tt.behind {
						t.Errorf("behind %t, want %t: %+v", s.Behind, tt.behind, s)
					}
				}
				stop()
				pace.off()
			})
		})
	}
}
