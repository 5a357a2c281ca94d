package measure

import (
	"context"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// floored is what any order of jobs costs at least while asynq itself stays as it is: a script when a job starts, which
// takes the key, and a script when asynq has written the end of the job, which frees the key and runs the next task.
// Nothing is checked, renewed, fenced, told or repeated, and a worker's death loses the order. The scripts write asynq's
// keys by their names.
const floored jobMode = "asynq and two bare scripts"

var (
	floorStart = redis.NewScript(`return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])`)

	// floorEnd has the keys of the lock, of the line and of asynq's task. It returns 0 if asynq has not written the end.
	floorEnd = redis.NewScript(`if redis.call('EXISTS', KEYS[3]) == 1 then return 0 end
redis.call('DEL', KEYS[1])
local id = redis.call('LPOP', KEYS[2])
if id and redis.call('ZREM', 'asynq:{default}:scheduled', id) == 1 then
  redis.call('LPUSH', 'asynq:{default}:pending', id)
  redis.call('HSET', 'asynq:{default}:t:' .. id, 'state', 'pending')
end
return 1`)
)

// enqueueFloor is enqueueLines for the mode floored.
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

// floor is the middleware of the mode floored.
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
					return // without a connection the measurement is over
				}
			}
		}()
		return err
	})
}
