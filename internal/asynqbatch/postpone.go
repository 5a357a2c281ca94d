package asynqbatch

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// postpone does to an archived task what asynq's own script of RunTask does, but puts the task into the list of the tasks
// that wait for a retry. KEYS are the task, and asynq's sets of archived tasks and of retries; ARGV the ID, when the task is
// due, and the task's last error, which asynq keeps in the message.
var postpone = redis.NewScript(`local task = redis.call('HMGET', KEYS[1], 'state', 'msg')
if task[1] ~= 'archived' or not string.find(task[2], ARGV[3], 1, true) or redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then
  return 0
end
redis.call('ZADD', KEYS[3], ARGV[2], ARGV[1])
redis.call('HSET', KEYS[1], 'state', 'retry')
return 1`)

// CanPostpone reports whether Postpone is right for this version of asynq.
func (in *Inspector) CanPostpone() bool { return in.batcher != nil && in.steps != nil }

// Postpone moves a task that was archived with the error lastErr to the tasks that wait for a retry, due at the time in due,
// in one step. asynq has no such call. If the task has another error, is in any other state or does not exist, the error is
// asynq.ErrTaskNotFound. The call shares no pipeline: it is rare, and must not wait for others.
func (in *Inspector) Postpone(queue, id, lastErr string, due time.Time) error {
	if !in.CanPostpone() {
		return fmt.Errorf("asynq has scripts that are not known here")
	}
	fill := func(template string) string {
		return strings.ReplaceAll(strings.ReplaceAll(template, anyQueue, queue), anyID, id)
	}
	sets := fill(in.steps.sets)
	keys := []string{fill(in.steps.task), sets + "archived", sets + "retry"}
	n, err := postpone.Run(context.Background(), in.batcher.UniversalClient, keys, id, due.Unix(), lastErr).Int()
	switch {
	case err != nil:
		return fmt.Errorf("postpone: %w", err)
	case n == 0:
		return asynq.ErrTaskNotFound
	}
	return nil
}
