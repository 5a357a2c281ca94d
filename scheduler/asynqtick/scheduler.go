package asynqtick

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/spec"
)

// Scheduler replaces asynq.Scheduler, and runs on all nodes at the same time. Each tick enqueues one task, regardless
// of which nodes are up and what their clocks show. To move an application over, replace the call of asynq.NewScheduler
// or asynq.NewSchedulerFromRedisClient. The calls of Register and Run stay as they are:
//
//	s := asynqtick.NewScheduler(locks, &scheduler.Config{Scope: "shop"}, rdb, &asynq.SchedulerOpts{Location: berlin})
//	entryID, err := s.Register("0 3 * * *", asynq.NewTask("report", nil), asynq.MaxRetry(5))
//	...
//	err = s.Run()
//
// All nodes must register the same tasks; the order does not matter. The type, payload and options of a task identify
// its job; the spec does not. A deploy of another spec thus changes the spec of the job: see PeriodicTaskManager, which
// also has the table of the differences from asynq. In addition:
//
//	one task at several specs  is one job with several rules; asynq has an entry for each
//	the same Register twice    is one job, and returns the same ID
//	asynq.Unique               a tick whose task is a duplicate is skipped and counted, not failed. With does the same for
//	                           as long as the task waits and runs, whatever the TTL
//	asynq.TaskID               is the name of the job; tasks have the IDs of their ticks. In place of a TaskID that keeps
//	                           tasks from overlapping, use With and handoff.Unique
//
// A Scheduler is safe for concurrent use. Make a Scheduler with NewScheduler.
type Scheduler struct {
	m    *PeriodicTaskManager
	zone *time.Location
	err  error // of NewScheduler

	// m.applying guards both: a sync of the manager must not undo a Register that it has not seen.
	entries []*asynq.PeriodicTaskConfig
	ids     []string // of entries, in the same order
}

// registered is the provider of a Scheduler's manager.
type registered struct{ r *Scheduler }

func (p registered) GetConfigs() ([]*asynq.PeriodicTaskConfig, error) { return p.r.entries, nil }

// NewScheduler returns a Scheduler whose jobs are in the scope cfg.Scope, which must be set. Give the Scheduler a scope
// of its own: it forgets any job of the scope that no node has. The tasks go to the queues of asynq at rdb, which the
// caller closes. opts may be nil; its Logger and LogLevel are not used. The zone is cfg.Zone, or if that is nil
// opts.Location. All jobs have the options jobOpts.
//
// NewScheduler returns no error, so that it can take the place of asynq's constructors. If rdb is nil, or scheduler.New
// refuses locks or cfg, then Register, Start, Run and Ping return joblock.ErrInvalid.
func NewScheduler(locks *joblock.Locker, cfg *scheduler.Config, rdb redis.UniversalClient, opts *asynq.SchedulerOpts,
	jobOpts ...scheduler.Option) *Scheduler {
	r := new(Scheduler)
	if rdb == nil {
		r.err = invalid("the Redis client is nil")
		return r
	}
	if r.m, r.err = NewPeriodicTaskManager(locks, cfg, asynq.PeriodicTaskManagerOpts{
		PeriodicTaskConfigProvider: registered{r}, RedisUniversalClient: rdb, SchedulerOpts: opts,
	}, jobOpts...); r.err != nil {
		return r
	}
	r.zone = cfg.Zone
	if r.zone == nil && opts != nil {
		r.zone = opts.Location
	}
	r.zone = cmp.Or(r.zone, time.UTC)
	return r
}

// Register registers a task to be enqueued at each tick of cronspec, and returns an ID for Unregister. It sends
// nothing, before and after Start. opts are options of asynq.
//
// Register returns joblock.ErrInvalid, and registers nothing, if task is nil, if cronspec is bad or has no ticks, if an
// asynq.TaskID among opts is no name of a job, or if opts have With and asynq.Unique.
func (r *Scheduler) Register(cronspec string, task *asynq.Task, opts ...asynq.Option) (entryID string, err error) {
	if r.err != nil {
		return "", r.err
	}
	if task == nil {
		return "", invalid("the task is nil")
	}
	parsed, err := spec.Parse(cronspec, r.zone)
	if err != nil {
		return "", invalid("task %q: %s", task.Type(), err)
	}
	if parsed.Next(time.Unix(0, 0)).IsZero() {
		return "", invalid("task %q: spec %q has no ticks", task.Type(), cronspec)
	}
	c := &asynq.PeriodicTaskConfig{Cronspec: cronspec, Task: task, Opts: slices.Clone(opts)}
	name, digest := identify(c)
	id := fmt.Sprintf("%s:%s", name, digestOf(digest, cronspec))

	r.m.applying.Lock()
	defer r.m.applying.Unlock()
	if slices.Contains(r.ids, id) {
		return id, nil
	}
	entries := append(slices.Clip(r.entries), c)
	if failed := r.m.apply(entries); len(failed) > 0 {
		r.m.applyAndLog(r.entries)
		return "", failed[0]
	}
	r.entries, r.ids = entries, append(r.ids, id)
	return id, nil
}

// Unregister removes from this node the entry for which Register has returned entryID. The job's record stays for an
// hour at least, and the job goes on as long as another node has it. If there is no such entry, the error is
// joblock.ErrNotFound.
func (r *Scheduler) Unregister(entryID string) error {
	if r.err != nil {
		return r.err
	}
	r.m.applying.Lock()
	defer r.m.applying.Unlock()
	at := slices.Index(r.ids, entryID)
	if at < 0 {
		return fmt.Errorf("asynqtick: %w: no entry %q", joblock.ErrNotFound, entryID)
	}
	r.ids = slices.Delete(r.ids, at, at+1)
	r.entries = slices.Delete(r.entries, at, at+1)
	r.m.applyAndLog(r.entries)
	return nil
}

// Run starts the Scheduler, waits for SIGTERM or SIGINT, like asynq.Scheduler.Run, and then stops it. Errors are those
// of Start and of scheduler.Scheduler.Run.
func (r *Scheduler) Run() error {
	if r.err != nil {
		return r.err
	}
	return r.m.Run()
}

// Start begins to execute jobs. A Scheduler can be started once.
func (r *Scheduler) Start() error {
	if r.err != nil {
		return r.err
	}
	return r.m.Start()
}

// Shutdown stops the Scheduler, and waits for enqueues under way. Without a Start it does nothing.
func (r *Scheduler) Shutdown() {
	if r.err == nil {
		r.m.Shutdown()
	}
}

// Ping pings asynq's Redis.
func (r *Scheduler) Ping() error {
	if r.err != nil {
		return r.err
	}
	return r.m.tasks.rdb.Ping(context.Background()).Err()
}

// Scheduler returns the Scheduler that has the jobs, to monitor and control them. It is nil if NewScheduler was given
// bad arguments.
func (r *Scheduler) Scheduler() *scheduler.Scheduler {
	if r.err != nil {
		return nil
	}
	return r.m.Scheduler()
}
