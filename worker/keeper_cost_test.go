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

// What a period costs depends on the locks that wait, and on nothing else: two
// commands to asynq for each, a call of the store for a batch of them, and a
// question every second for what is due. Those that somebody holds, and
// those that are over, cost asynq nothing.
func TestCostOfAPeriod(t *testing.T) {
	const waiting, running = 1200, 100
	virtual(t, func(r *rig) {
		for i := range waiting {
			r.enqueue(fmt.Sprint("w", i), 0, asynq.ProcessIn(10*time.Hour))
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
		r.keep(r.locks, worker.Config{Every: every, Reserve: time.Hour})
		time.Sleep(2*time.Minute + time.Second)

		before := map[string]int{}
		for _, call := range everyCall {
			before[call] = r.faults.Calls(call)
		}
		start := count.commands.Load()
		const periods = 10
		time.Sleep(periods * every)
		asynqs := float64(count.commands.Load()-start) / periods
		per := func(call string) float64 { return float64(r.faults.Calls(call)-before[call]) / periods }
		t.Logf("per period: %.0f commands to asynq's Redis, %.1f due, %.1f inspect, %.1f reserve, %.1f settle",
			asynqs, per(faultstore.Due), per(faultstore.Inspect), per(faultstore.Reserve), per(faultstore.Settle))
		// An interval between checks is up to a tenth shorter than a period.
		if asynqs < 2*waiting || asynqs > 2*waiting*1.2 {
			t.Errorf("%.0f commands to asynq's Redis for %d locks in a period, want about %d", asynqs, waiting, 2*waiting)
		}
		for call, most := range map[string]float64{
			faultstore.Due: 20 + 4, faultstore.Inspect: 4, faultstore.Reserve: 1,
			faultstore.Settle: 0, faultstore.Release: 0, faultstore.Park: 0, faultstore.Resume: 0,
		} {
			if got := per(call); got > most {
				t.Errorf("%.1f calls of %s in a period, want at most %.0f", got, call, most)
			}
		}
	})
}

// How long a keeper takes to check once each of so many locks of tasks that wait,
// with a Redis on the same machine, and what it asks for. Run it with -benchtime 1x:
// filling the Redis takes longer than the round.
func BenchmarkKeeper(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := onRedis(b, time.Minute)
			store := faultstore.New(redisstore.New(r.rdb, nil))
			locks, err := joblock.New(store, &joblock.Config{JobGrace: time.Millisecond, Logger: r.log.Text()})
			if err != nil {
				b.Fatal(err)
			}
			defer locks.Close(context.Background())
			r.populate(locks, n)
			count := new(counting)
			r.rdb.AddHook(count)
			calls := store.Calls("")
			w, err := worker.New(locks, r.inspector, &worker.Config{Every: time.Minute, Reserve: 4 * time.Hour, Logger: r.log.Text()})
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			done := make(chan error)
			start, cpu := time.Now(), cpuTime()
			b.ResetTimer()
			go func() { done <- w.Run(ctx) }()
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
