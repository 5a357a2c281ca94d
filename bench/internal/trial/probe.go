package trial

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock/redisstore"
)

// memoryOfConnection returns what a further connection takes of the memory of the locks' server: just after a call, and
// when nobody has used the connection for the time wait.
func (f *Fleet) memoryOfConnection(ctx context.Context, wait time.Duration) (busy, idle float64, err error) {
	const n = 50
	before, err := f.Locks[0].State(ctx)
	if err != nil {
		return 0, 0, err
	}
	rdb := redis.NewClient(&redis.Options{Addr: f.Locks[0].Addr(), PoolSize: n})
	defer func() { _ = rdb.Close() }()
	for range n {
		conn := rdb.Conn()
		defer func() { _ = conn.Close() }()
		if err := conn.Ping(ctx).Err(); err != nil {
			return 0, 0, err
		}
	}
	fresh, err := f.Locks[0].State(ctx)
	if err != nil {
		return 0, 0, err
	}
	pause(ctx, wait)
	after, err := f.Locks[0].State(ctx)
	return float64(fresh.Memory-before.Memory) / n, float64(after.Memory-before.Memory) / n, err
}

// listMicros returns how long a keeper's calls for pages of scheduled tasks take, per task: the median of several calls.
// As a keeper does, it asks for several pages at a time.
func (f *Fleet) listMicros(context.Context) (float64, error) {
	const rounds, together = 9, 4
	in := asynq.NewInspectorFromRedisClient(f.webs[0].asynqRdb)
	var all []float64
	for range rounds {
		var tasks [together]int
		var errs [together]error
		var calls sync.WaitGroup
		start := time.Now()
		for i := range together {
			calls.Go(func() {
				page, err := in.ListScheduledTasks("default", asynq.PageSize(1000), asynq.Page(i+1))
				tasks[i], errs[i] = len(page), err
			})
		}
		calls.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			return 0, err
		}
		n := tasks[0] + tasks[1] + tasks[2] + tasks[3]
		all = append(all, float64(time.Since(start).Microseconds())/float64(n))
	}
	return median(all), nil
}

// memoryOfLock returns the memory of a lock that is held, and of one that was released.
func (f *Fleet) memoryOfLock(ctx context.Context) (held, released float64, err error) {
	const key = "held:0000"
	lock, err := f.webs[0].locks.TryAcquire(ctx, key)
	if err != nil {
		return 0, 0, err
	}
	before, err := f.Locks[0].Key(ctx, redisstore.DefaultPrefix+key)
	if err != nil {
		return 0, 0, err
	}
	if err := lock.Release(ctx); err != nil {
		return 0, 0, err
	}
	after, err := f.Locks[0].Key(ctx, redisstore.DefaultPrefix+key)
	return float64(before.Bytes), float64(after.Bytes), err
}

// memoryOfParked returns the memory of a parked lock, with its part of the index.
func (f *Fleet) memoryOfParked(ctx context.Context) (float64, error) {
	record, err := f.Locks[0].Key(ctx, redisstore.DefaultPrefix+"parked:0")
	if err != nil {
		return 0, err
	}
	index, err := f.Locks[0].Key(ctx, redisstore.DefaultPrefix)
	return float64(record.Bytes) + float64(index.Bytes)/float64(f.load.Parked), err
}

func (f *Fleet) memoryOfLedger(ctx context.Context) (float64, error) {
	of, err := f.Locks[0].Key(ctx, redisstore.DefaultPrefix+"%cron:bench:entry0")
	return float64(of.Bytes), err
}
