package asynqbatch

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/beside"
	"github.com/joblock/toolkit/joblock/driver"
)

// The digests of the scripts with which asynq looks a task up and runs a task. The steps below are right for these two
// scripts only. With a later asynq that has others there are no steps, until somebody has read those scripts.
const (
	lookUpDigest = "1463a65d3fd6698099862e1314658984affe6ed7"
	runDigest    = "2fb646810e3433bbe85fba1a6b407eb3eced7b63"
)

// Places of names in the keys that asynq is asked for.
const (
	anyQueue = "\x01"
	anyID    = "\x02"
)

// steps are what comes beside a release: see package beside.
type steps struct {
	beside.Steps
	task, prefix string // templates of asynq's key of a task, and of what its keys of a queue begin with
	sets         string // a template of what its key of the tasks in a state begins with: the name of the state follows
}

var stepsOnce = sync.OnceValue(stepsOf)

// stepsOf asks asynq for its scripts and keys. The result is nil if this version of asynq has others than are known here.
func stepsOf() *steps {
	task, run := new(recorder), new(recorder)
	_, _ = asynq.NewInspectorFromRedisClient(task).GetTaskInfo(anyQueue, anyID)
	_ = asynq.NewInspectorFromRedisClient(run).RunTask(anyQueue, anyID)
	if task.digest() != lookUpDigest || run.digest() != runDigest {
		return nil
	}
	s := &steps{task: task.keys[0], prefix: fmt.Sprint(task.args[2]), sets: fmt.Sprint(run.args[1])}
	// A job that has ended has no task any more, or a completed one. That there is no task says nothing if asynq's keys
	// of the queue are elsewhere, behind a proxy of several servers: but where asynq has written the end, it has counted
	// the job.
	s.Before = `if redis.pcall('EXISTS', first, first, second .. 'processed') ~= 1 -- 2 and 3 if there is a task
    and redis.pcall('HGET', first, 'state') ~= 'completed' then return 'not yet' end`
	// The name of a job is the queue, a slash and the ID. The queue of a name with a percent sign is escaped. What follows
	// is what asynq's script does with a scheduled task, in fewer commands. asynq's key of the task comes first, then that of
	// the pending tasks; its arguments begin with the ID and the prefix.
	s.After = `local queue, id = string.match(job, '^([^/%%]+)/(.+)$')
local task = queue and ` + luaText(run.keys[0]) + `
if not task or redis.call('HGET', task, 'state') ~= 'scheduled' or redis.call('ZREM', ` + luaText(run.args[1]) + ` .. 'scheduled', id) == 0 then
  return false
end
redis.call('LPUSH', ` + luaText(run.keys[1]) + `, id)
redis.call('HSET', task, 'state', 'pending')
return true`
	return s
}

// luaText returns the value as an expression of Lua, with the locals queue and id for the places of their names.
func luaText(v any) string {
	text := strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", `\n`, anyQueue, "' .. queue .. '", anyID, "' .. id .. '").Replace(fmt.Sprint(v))
	return "'" + text + "'"
}

// Ends returns a Releaser for the release of the key of the job with this ID, which has ended, to the next job. In one step,
// the release makes certain that asynq has written the end, and runs the task of the next job if that task is scheduled
// in the same Redis. If asynq has not written the end, the error is beside.ErrNotYet. The result is nil if store does not
// keep its records in the same Redis as in.
func (in *Inspector) Ends(store driver.Store, queue, id string) func(context.Context, []driver.ReleaseRequest) ([]driver.Reply, error) {
	if in.batcher == nil || in.steps == nil || beside.Able == nil || !beside.Able(store, in.batcher.UniversalClient) {
		return nil
	}
	fill := func(template string) string {
		return strings.ReplaceAll(strings.ReplaceAll(template, anyQueue, queue), anyID, id)
	}
	return func(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
		reply, err := beside.Release(ctx, store, reqs[0], &in.steps.Steps, fill(in.steps.task), fill(in.steps.prefix))
		return []driver.Reply{reply}, err
	}
}

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

func (r *recorder) SIsMember(ctx context.Context, key string, member any) *redis.BoolCmd {
	return (*batcher)(nil).SIsMember(ctx, key, member)
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
