//go:build servers

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/worker"
)

// jobType is the type of all tasks.
const jobType = "bench"

// lineJobs is how many jobs each sequence of BenchmarkJobs has.
const lineJobs = 10

// BenchmarkJobs runs jobs that were enqueued before, each of which waits for so long as if for a database: by asynq
// alone, with a lock of their own, and in sequences in which all but the first wait. The two bare scripts are the least
// that an order of jobs takes while asynq stays as it is. asynq's house-keeping counts.
func BenchmarkJobs(b *testing.B) {
	server := redistest.Start(b)
	admin := server.Client(b)
	for _, work := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond} {
		for _, way := range inAnyOrder("asynq", "lock", "sequence", "scripts") {
			b.Run(fmt.Sprintf("work=%s/way=%s", work, way), func(b *testing.B) {
				flush(b, admin)
				k := newJobKit(b, server)
				ctx := bounded(b)
				n, lines := b.N, keysOf("line", b.N/lineJobs+1)
				var err error
				switch way {
				case "asynq", "lock":
					err = k.enqueue(ctx, way, keysOf("job", n))
				case "sequence":
					n = len(lines) * lineJobs
					err = k.enqueueLines(ctx, lines, lineJobs)
				case "scripts":
					n = len(lines) * lineJobs
					err = k.enqueueFloor(ctx, lines, lineJobs)
				}
				if err != nil {
					b.Fatal(err)
				}
				var ran atomic.Int64
				done := make(chan struct{})
				m := newMeter(b, &k.wire, admin)
				m.start()
				k.serve(b, way, asynq.Config{}, func(context.Context, *asynq.Task) error {
					time.Sleep(work)
					if ran.Add(1) == int64(b.N) { // the last lines may be longer than b.N
						close(done)
					}
					return nil
				})
				select {
				case <-done:
				case <-ctx.Done():
					b.Fatalf("%d of %d jobs were run", ran.Load(), n)
				}
				m.stop(b.N)
			})
		}
	}
}

// BenchmarkEnqueue enqueues tasks that no worker runs: in a loop of asynq's own Enqueue, and with a lock on a key of
// their own, one by one and in calls of 1000.
func BenchmarkEnqueue(b *testing.B) {
	server := redistest.Start(b)
	admin := server.Client(b)
	for _, way := range inAnyOrder("asynq", "lock", "many") {
		b.Run("way="+way, func(b *testing.B) {
			flush(b, admin)
			k := newJobKit(b, server)
			if err := k.enqueue(b.Context(), way, keysOf("warm", 20)); err != nil {
				b.Fatal(err)
			}
			keys := keysOf("task", b.N)
			m := newMeter(b, &k.wire, admin)
			m.start()
			if err := k.enqueue(b.Context(), way, keys); err != nil {
				b.Fatal(err)
			}
			m.stop(b.N)
		})
	}
}

// jobKit is an application: asynq and this toolkit on one Redis client.
type jobKit struct {
	wire   wire
	rdb    *redis.Client
	client *asynq.Client
	jobs   *handoff.Client
	worker *worker.Worker
}

func newJobKit(b *testing.B, server *redistest.Server) *jobKit {
	b.Helper()
	k := new(jobKit)
	quiet := slog.New(slog.DiscardHandler)
	k.rdb = redis.NewClient(&redis.Options{Addr: server.Addr(), Dialer: k.wire.Dial})
	k.client = asynq.NewClientFromRedisClient(k.rdb)
	inspector := asynq.NewInspectorFromRedisClient(k.rdb)
	locks, err := joblock.New(testkit.Must(redisstore.New(k.rdb, nil)), &joblock.Config{TTL: leaseTTL, Logger: quiet})
	if err == nil {
		k.jobs, err = handoff.NewClient(locks, k.client, inspector, &handoff.Config{Logger: quiet})
	}
	if err == nil {
		k.worker, err = worker.New(locks, inspector, &worker.Config{Logger: quiet})
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		ctx, cancel := closing()
		defer cancel()
		if err := errors.Join(k.jobs.Close(ctx), k.worker.Close(ctx), locks.Close(ctx), k.rdb.Close()); err != nil {
			b.Error(err)
		}
	})
	return k
}

// serve runs tasks with do until the end of the benchmark.
func (k *jobKit) serve(b *testing.B, way string, cfg asynq.Config, do asynq.HandlerFunc) {
	b.Helper()
	cfg.Logger = silence{}
	cfg.Concurrency = cmp.Or(cfg.Concurrency, 10)
	cfg.TaskCheckInterval = 20 * time.Millisecond // and so long may the end of the server take
	mux := asynq.NewServeMux()
	mux.HandleFunc(jobType, do)
	switch way {
	case "asynq":
	case "scripts":
		mux.Use(k.floor)
	default:
		mux.Use(k.worker.Middleware)
		cfg = k.worker.Configure(cfg)
	}
	server := asynq.NewServerFromRedisClient(k.rdb, cfg)
	if err := server.Start(mux); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(server.Shutdown)
}

// silence is an asynq.Logger that logs nothing.
type silence struct{}

func (silence) Debug(...any)      {}
func (silence) Info(...any)       {}
func (silence) Warn(...any)       {}
func (silence) Error(...any)      {}
func (silence) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// enqueue enqueues a job for each key.
func (k *jobKit) enqueue(ctx context.Context, way string, keys []string) error {
	task := asynq.NewTask(jobType, nil)
	switch way {
	case "many":
		var items []handoff.Item
		for _, key := range keys {
			items = append(items, handoff.Item{Task: task, How: handoff.Unique{Key: key}})
		}
		return k.enqueueMany(ctx, items)
	case "lock":
		for _, key := range keys {
			if _, err := k.jobs.Enqueue(ctx, handoff.Unique{Key: key}, task); err != nil {
				return err
			}
		}
	default:
		for range keys {
			if _, err := k.client.EnqueueContext(ctx, task); err != nil {
				return err
			}
		}
	}
	return nil
}

// enqueueLines enqueues so many jobs in the sequence of each key, in turns.
func (k *jobKit) enqueueLines(ctx context.Context, keys []string, each int) error {
	var items []handoff.Item
	for range each {
		for _, key := range keys {
			items = append(items, handoff.Item{Task: asynq.NewTask(jobType, []byte(key)), How: handoff.Sequence{Key: key}})
		}
	}
	return k.enqueueMany(ctx, items)
}

func (k *jobKit) enqueueMany(ctx context.Context, items []handoff.Item) error {
	for part := range slices.Chunk(items, 1000) {
		results, err := k.jobs.EnqueueMany(ctx, part)
		for _, r := range results {
			err = errors.Join(err, r.Err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// The floor of an order of jobs: a script when a job starts, which takes the key, and a script when asynq has written
// the job's end, which frees the key and runs the next task. Nothing is checked, renewed, fenced or repeated, and the
// death of a worker loses the order. The scripts know the names of asynq's keys.
var (
	floorStart = redis.NewScript(`return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])`)

	// floorEnd has the keys of the lock, of the line and of asynq's task. It returns 0 if asynq has not recorded the end.
	floorEnd = redis.NewScript(`if redis.call('EXISTS', KEYS[3]) == 1 then return 0 end
redis.call('DEL', KEYS[1])
local id = redis.call('LPOP', KEYS[2])
if id and redis.call('ZREM', 'asynq:{default}:scheduled', id) == 1 then
  redis.call('LPUSH', 'asynq:{default}:pending', id)
  redis.call('HSET', 'asynq:{default}:t:' .. id, 'state', 'pending')
end
return 1`)
)

// enqueueFloor is enqueueLines for the two bare scripts.
func (k *jobKit) enqueueFloor(ctx context.Context, keys []string, each int) error {
	for i := range each {
		pipe := k.rdb.Pipeline()
		for _, key := range keys {
			id := fmt.Sprintf("%s-%d", key, i)
			opts := []asynq.Option{asynq.TaskID(id)}
			if i > 0 {
				opts = append(opts, asynq.ProcessIn(24*time.Hour))
				pipe.RPush(ctx, "floor:line:"+key, id)
			}
			if _, err := k.client.EnqueueContext(ctx, asynq.NewTask(jobType, []byte(key)), opts...); err != nil {
				return err
			}
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// floor is the middleware of the two bare scripts.
func (k *jobKit) floor(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		key := string(task.Payload())
		if err := floorStart.Run(ctx, k.rdb, []string{"floor:lock:" + key}, id, leaseTTL.Milliseconds()).Err(); err != nil {
			return err
		}
		err := next.ProcessTask(ctx, task)
		go func() {
			<-ctx.Done() // asynq ends the context just after its write
			keys := []string{"floor:lock:" + key, "floor:line:" + key, "asynq:{default}:t:" + id}
			for {
				written, err := floorEnd.Run(context.Background(), k.rdb, keys).Int()
				if err != nil || written == 1 {
					return // without a connection the benchmark is over
				}
			}
		}()
		return err
	})
}
