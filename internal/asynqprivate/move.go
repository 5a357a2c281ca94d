package asynqprivate

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/scriptstep"
)

// The digests of the scripts with which asynq looks up and runs a task. The moves below are right for these two scripts
// only. With others, RunScheduled finds no task, so its caller looks the task up first, CanPostpone is false, Reschedule
// is an error, and Ends returns nil.
const (
	lookUpDigest = "1463a65d3fd6698099862e1314658984affe6ed7"
	runDigest    = "2fb646810e3433bbe85fba1a6b407eb3eced7b63"
)

var (
	// runWaiting does what asynq's script does with a task that waits for its time. KEYS are the task, the set of the tasks
	// in its state and the list of pending tasks; ARGV are the ID and the state.
	runWaiting = redis.NewScript(`if redis.call('HGET', KEYS[1], 'state') ~= ARGV[2] or redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then
  return 0
end
redis.call('LPUSH', KEYS[3], ARGV[1])
redis.call('HSET', KEYS[1], 'state', 'pending')
return 1`)

	// postpone does what asynq's script does with an archived task, but puts the task into the set of tasks that wait for
	// a retry. KEYS are the task, the set of archived tasks and the set of retries; ARGV are the ID, when the task is
	// due, and the task's last error, which asynq keeps in the message.
	postpone = redis.NewScript(`local task = redis.call('HMGET', KEYS[1], 'state', 'msg')
if task[1] ~= 'archived' or not string.find(task[2], ARGV[3], 1, true) or redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then
  return 0
end
redis.call('ZADD', KEYS[3], ARGV[2], ARGV[1])
redis.call('HSET', KEYS[1], 'state', 'retry')
return 1`)

	// reschedule gives a task that waits another time. The task is then in the state scheduled, even if it was snoozed:
	// a snoozed task in the state retry is run early, when what it waits for has come. KEYS are the task, the list of
	// pending tasks, and the sets of scheduled tasks and of retries; ARGV are the ID, when the task is due, and "1" if
	// that is now.
	reschedule = redis.NewScript(`local state = redis.call('HGET', KEYS[1], 'state')
local from = state == 'scheduled' and KEYS[3] or state == 'retry' and KEYS[4]
if state == 'pending' then
  if ARGV[3] == '1' then
    return 1
  end
  if redis.call('LREM', KEYS[2], 1, ARGV[1]) == 0 then
    return 0
  end
  redis.call('HDEL', KEYS[1], 'pending_since')
elseif not from or redis.call('ZREM', from, ARGV[1]) == 0 then
  return 0
elseif ARGV[3] == '1' then
  redis.call('LPUSH', KEYS[2], ARGV[1])
  redis.call('HSET', KEYS[1], 'state', 'pending')
  return 1
end
redis.call('ZADD', KEYS[3], ARGV[2], ARGV[1])
redis.call('HSET', KEYS[1], 'state', 'scheduled')
return 1`)
)

// RunScheduled runs a scheduled task, as RunTask does, but in one step, so that no other client can archive the task
// between a lookup and the run. If the task is in any other state or does not exist, RunScheduled does nothing and
// returns asynq.ErrTaskNotFound; GetTaskInfo distinguishes the cases.
func (in *Inspector) RunScheduled(queue, id string) error {
	return in.runWaiting(queue, id, "scheduled")
}

// RunRetry does what RunScheduled does, for a task that waits for a retry.
func (in *Inspector) RunRetry(queue, id string) error { return in.runWaiting(queue, id, "retry") }

func (in *Inspector) runWaiting(queue, id, state string) error {
	if in.moves == nil {
		return asynq.ErrTaskNotFound
	}
	of := in.moves.of(queue, id)
	return in.move("run "+state, runWaiting, []string{of(in.moves.task), of(in.moves.set) + state, of(in.moves.pending)}, id, state)
}

// CanPostpone reports whether Postpone is right for this version of asynq.
func (in *Inspector) CanPostpone() bool { return in.moves != nil }

// Postpone moves a task that was archived with the error lastErr to the tasks that wait for a retry at due, in one step.
// If the task has another error, is in any other state or does not exist, the error is asynq.ErrTaskNotFound.
//
// Why: asynq archives a task without retries whatever its error, and has no call that schedules an archived task. Without
// Postpone, such a task waits in the archive, where it may be deleted.
func (in *Inspector) Postpone(queue, id, lastErr string, due time.Time) error {
	if in.moves == nil {
		return errUnknownScripts
	}
	of := in.moves.of(queue, id)
	set := of(in.moves.set)
	return in.move("postpone", postpone, []string{of(in.moves.task), set + "archived", set + "retry"}, id, due.Unix(), lastErr)
}

// Reschedule makes a task that is pending, scheduled or waiting for a retry due at due, in one step; with the zero time
// at once. If the task is in any other state or does not exist, the error is asynq.ErrTaskNotFound. For a pending task,
// the server searches the list of pending tasks.
//
// Why: asynq cannot move a task, and a task that is deleted and enqueued again under its ID may be lost in between.
func (in *Inspector) Reschedule(queue, id string, due time.Time) error {
	if in.moves == nil {
		return errUnknownScripts
	}
	of, now := in.moves.of(queue, id), "0"
	if due.IsZero() {
		now = "1"
	}
	set := of(in.moves.set)
	keys := []string{of(in.moves.task), of(in.moves.pending), set + "scheduled", set + "retry"}
	return in.move("reschedule", reschedule, keys, id, due.Unix(), now)
}

var errUnknownScripts = errors.New("asynq has scripts that are not known here")

func (in *Inspector) move(what string, script *redis.Script, keys []string, args ...any) error {
	n, err := script.Run(context.Background(), in.client, keys, args...).Int()
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", what, err)
	case n == 0:
		return asynq.ErrTaskNotFound
	}
	return nil
}

// moves has templates of asynq's keys: of a task, of the pending tasks of a queue, and the prefix of the keys of tasks by
// state, to which the name of the state is appended.
type moves struct {
	task, pending, set string
	end                *scriptstep.Steps // for Ends
}

// Names in the templates.
const (
	anyQueue = "\x01"
	anyID    = "\x02"
)

// of returns a function that puts queue and id into a template.
func (*moves) of(queue, id string) func(template string) string {
	return strings.NewReplacer(anyQueue, queue, anyID, id).Replace
}

// Unknown is for tests: if true, New returns Inspectors as for a version of asynq whose scripts are not known here.
var Unknown atomic.Bool

func movesOfThisAsynq() *moves {
	if Unknown.Load() {
		return nil
	}
	return movesOnce()
}

// movesOnce asks asynq for its scripts and keys. The result is nil if this version of asynq has other scripts.
var movesOnce = sync.OnceValue(func() *moves {
	look, run := new(recorder), new(recorder)
	_, _ = asynq.NewInspectorFromRedisClient(everyQueue{look}).GetTaskInfo(anyQueue, anyID)
	_ = asynq.NewInspectorFromRedisClient(everyQueue{run}).RunTask(anyQueue, anyID)
	if look.digest() != lookUpDigest || run.digest() != runDigest {
		return nil
	}
	m := &moves{task: run.keys[0], pending: run.keys[1], set: fmt.Sprint(run.args[1])}
	m.end = endOf(m)
	return m
})

// recorder is a client for an Inspector. It keeps the script of the first call, and fails each call.
type recorder struct {
	redis.UniversalClient // nil: an Inspector makes no other calls
	text                  string
	keys                  []string
	args                  []any
}

func (r *recorder) digest() string {
	sum := sha1.Sum([]byte(r.text))
	return hex.EncodeToString(sum[:])
}

func (r *recorder) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(noScript{})
	return cmd
}

func (r *recorder) Eval(ctx context.Context, text string, keys []string, args ...any) *redis.Cmd {
	r.text, r.keys, r.args = text, keys, args
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(redis.ErrClosed)
	return cmd
}

// noScript is the error of a server that does not know a script.
type noScript struct{}

func (noScript) Error() string { return "NOSCRIPT the text of the script is needed" }
func (noScript) RedisError()   {}
