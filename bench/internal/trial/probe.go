package trial

import (
	"context"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock/redisstore"
)

// memoryOfConnection returns what a further connection takes of the memory of the locks' server: just after a call, and
// when nobody has used the connection for the time wait.
func (f *Fleet) memoryOfConnection(ctx context.Context, wait time.Duration) (busy, idle float64, err error) {
	const n = 50
	before, err := f.Locks.State(ctx)
	if err != nil {
		return 0, 0, err
	}
	rdb := redis.NewClient(&redis.Options{Addr: f.Locks.Addr(), PoolSize: n})
	defer func() { _ = rdb.Close() }()
	for range n {
		conn := rdb.Conn()
		defer func() { _ = conn.Close() }()
		if err := conn.Ping(ctx).Err(); err != nil {
			return 0, 0, err
		}
	}
	fresh, err := f.Locks.State(ctx)
	if err != nil {
		return 0, 0, err
	}
	pause(ctx, wait)
	after, err := f.Locks.State(ctx)
	return float64(fresh.Memory-before.Memory) / n, float64(after.Memory-before.Memory) / n, err
}

// listMicros returns how long a page of scheduled tasks takes, per task: the median of several pages.
func (f *Fleet) listMicros(context.Context) (float64, error) {
	const pages = 9
	in := asynq.NewInspectorFromRedisClient(f.webs[0].asynqRdb)
	var all []float64
	for range pages {
		start := time.Now()
		tasks, err := in.ListScheduledTasks("default", asynq.PageSize(1000), asynq.Page(1))
		if err != nil {
			return 0, err
		}
		all = append(all, float64(time.Since(start).Microseconds())/float64(len(tasks)))
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
	before, err := f.Locks.Key(ctx, redisstore.DefaultPrefix+key)
	if err != nil {
		return 0, 0, err
	}
	if err := lock.Release(ctx); err != nil {
		return 0, 0, err
	}
	after, err := f.Locks.Key(ctx, redisstore.DefaultPrefix+key)
	return float64(before.Bytes), float64(after.Bytes), err
}

// memoryOfParked returns the memory of a parked lock, with its part of the index.
func (f *Fleet) memoryOfParked(ctx context.Context) (float64, error) {
	record, err := f.Locks.Key(ctx, redisstore.DefaultPrefix+"parked:0")
	if err != nil {
		return 0, err
	}
	index, err := f.Locks.Key(ctx, redisstore.DefaultPrefix)
	return float64(record.Bytes) + float64(index.Bytes)/float64(f.load.Parked), err
}

func (f *Fleet) memoryOfLedger(ctx context.Context) (float64, error) {
	of, err := f.Locks.Key(ctx, redisstore.DefaultPrefix+"%cron:bench:entry0")
	return float64(of.Bytes), err
}
