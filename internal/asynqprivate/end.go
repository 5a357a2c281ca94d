package asynqprivate

import (
	"context"
	"fmt"
	"strings"

	"github.com/joblock/toolkit/internal/scriptstep"
	"github.com/joblock/toolkit/joblock/driver"
)

// Ends returns a function that releases the key of the job with this ID, which has ended, to the next job. In the same
// step, the release verifies that asynq has recorded the end, and runs the task of the next job if that task is scheduled
// in the same Redis. If asynq has not recorded the end, the error is scriptstep.ErrNotYet. Ends returns nil if store does not
// keep its records in the same Redis as in, or if the scripts of this version of asynq are not known here.
//
// Why: without Ends a job of a sequence makes two more calls, a lookup and a run, which reduces the rate of jobs that do
// nothing to three quarters, with 20 keys in one Redis.
func (in *Inspector) Ends(store driver.Store, queue, id string) func(context.Context, []driver.ReleaseRequest) ([]driver.Reply, error) {
	s, able := store.(scriptstep.Store)
	if in.moves == nil || !able || !s.SameServer(in.client) {
		return nil
	}
	of := in.moves.of(queue, id)
	return func(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
		reply, err := s.ReleaseWithSteps(ctx, reqs[0], in.moves.end, of(in.moves.task), of(in.moves.set))
		return []driver.Reply{reply}, err
	}
}

// endOf returns the steps to run with the release: see scriptstep.Steps.
func endOf(m *moves) *scriptstep.Steps {
	return &scriptstep.Steps{
		// A job that has ended has no task any more, or a completed one. A missing task proves nothing if a proxy keeps
		// asynq's keys of the queue on another server. But the server on which asynq has recorded the end also has
		// asynq's count of processed jobs.
		Before: `if redis.pcall('EXISTS', first, first, second .. 'processed') ~= 1 -- 2 and 3 if there is a task
    and redis.pcall('HGET', first, 'state') ~= 'completed' then return 'not yet' end`,
		// The script does what runWaiting does with a scheduled task. The name of a job is the queue, a slash and the
		// ID. The queue of a name with a percent sign is escaped.
		After: `local queue, id = string.match(job, '^([^/%%]+)/(.+)$')
local task = queue and ` + luaText(m.task) + `
if not task or redis.call('HGET', task, 'state') ~= 'scheduled' or redis.call('ZREM', ` + luaText(m.set) + ` .. 'scheduled', id) == 0 then
  return false
end
redis.call('LPUSH', ` + luaText(m.pending) + `, id)
redis.call('HSET', task, 'state', 'pending')
return true`,
	}
}

// luaText returns a template as a Lua expression, with the locals queue and id in place of anyQueue and anyID.
func luaText(template string) string {
	text := strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", `\n`, anyQueue, "' .. queue .. '", anyID, "' .. id .. '").Replace(template)
	return fmt.Sprintf("'%s'", text)
}
