package moving

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// Work is what happens under a lock.
type Work func(ctx context.Context) error

// ErrBusy is the application's error if it does not get the lock.
var ErrBusy = errors.New("busy")

// UniqueBefore enqueues a task with asynq.Unique.
func UniqueBefore(ctx context.Context, client *asynq.Client, task *asynq.Task) error {
	_, err := client.EnqueueContext(ctx, task, asynq.Unique(time.Hour))
	if errors.Is(err, asynq.ErrDuplicateTask) {
		return nil
	}
	return err
}

// RedislockBefore works under a lock of bsm/redislock, with the refreshing that its README recommends for long work.
func RedislockBefore(ctx context.Context, rdb *redis.Client, key string, work Work) error {
	lock, err := redislock.New(rdb).Obtain(ctx, key, 30*time.Second, &redislock.Options{
		RetryStrategy: redislock.LimitRetry(redislock.LinearBackoff(100*time.Millisecond), 50),
	})
	if err != nil {
		return err
	}
	defer lock.Release(context.WithoutCancel(ctx))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for {
			select {
			case <-time.After(10 * time.Second):
				if err := lock.Refresh(ctx, 30*time.Second, nil); err != nil {
					cancel()
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return work(ctx)
}

// RedsyncBefore works under a lock of redsync.
func RedsyncBefore(ctx context.Context, rdb *redis.Client, key string, work Work) error {
	mutex := redsync.New(goredis.NewPool(rdb)).NewMutex(key, redsync.WithExpiry(5*time.Minute))
	if err := mutex.LockContext(ctx); err != nil {
		return err
	}
	defer mutex.UnlockContext(context.WithoutCancel(ctx))
	return work(ctx)
}

// SetNXBefore works under a handmade lock. It has two faults: if the work takes longer than ten minutes, the DEL frees
// the next holder's lock; and a crash blocks the key for ten minutes.
func SetNXBefore(ctx context.Context, rdb *redis.Client, key string, work Work) error {
	ok, err := rdb.SetNX(ctx, key, "1", 10*time.Minute).Result()
	if err != nil {
		return err
	}
	if !ok {
		return ErrBusy
	}
	defer rdb.Del(context.WithoutCancel(ctx), key)
	return work(ctx)
}

// HandOverBefore takes a lock in a request, and has the job release it: with the owner's token in the payload, as with
// Laravel's Cache::lock and restoreLock. If the job waits for longer than the TTL, the lock expires unnoticed.
func HandOverBefore(ctx context.Context, rdb *redis.Client, client *asynq.Client, key, owner string) error {
	ok, err := rdb.SetNX(ctx, key, owner, time.Hour).Result()
	if err != nil {
		return err
	}
	if !ok {
		return ErrBusy
	}
	_, err = client.EnqueueContext(ctx, asynq.NewTask("export", []byte(key+" "+owner)))
	return err // and the lock stays for an hour, if there is no task
}

// ReleaseBefore runs at the end of the job that HandOverBefore enqueues.
func ReleaseBefore(ctx context.Context, rdb *redis.Client, key, owner string) error {
	const script = `if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`
	return rdb.Eval(ctx, script, []string{key}, owner).Err()
}
