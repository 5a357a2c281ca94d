package asynqtick

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/scheduler/internal/records"
)

// Tasks registers jobs that enqueue one asynq task each, and shows these jobs to asynq's Inspector and to asynqmon.
//
//	tasks := asynqtick.New(s, rdb)
//	err := tasks.Add("digest", "@every 1m", asynq.NewTask("digest", nil), []asynq.Option{asynq.Retention(time.Minute)})
//	...
//	go tasks.Show(ctx, 0)
//	err = s.Run(ctx)
//
// Make one Tasks per Scheduler, with New. A Tasks is safe for concurrent use.
type Tasks struct {
	s         *scheduler.Scheduler
	rdb       redis.UniversalClient
	client    *asynq.Client
	inspector *asynq.Inspector
	hooks     *asynq.SchedulerOpts // nil: none

	mu    sync.Mutex
	tasks map[string]shown // by the name of the job
}

// shown is a task as asynq's Inspector shows it.
type shown struct {
	task *asynq.Task
	opts []string
}

// New returns a Tasks that adds jobs to s. The tasks go to the queues of asynq at rdb. New sends nothing. The caller
// closes rdb.
func New(s *scheduler.Scheduler, rdb redis.UniversalClient) *Tasks {
	return &Tasks{
		s: s, rdb: rdb, client: asynq.NewClientFromRedisClient(rdb), inspector: asynq.NewInspectorFromRedisClient(rdb),
		tasks: make(map[string]shown),
	}
}

// Add registers a job that enqueues task at each tick of spec, as scheduler.Scheduler.Task does with Enqueue or, if
// opts have the option With, with EnqueueWith. Errors are those of Task, and joblock.ErrInvalid for options that do not
// go together. With scheduler.Replace, Add replaces a job that this Scheduler has.
func (t *Tasks) Add(name, spec string, task *asynq.Task, opts []asynq.Option, jobOpts ...scheduler.Option) error {
	own, w, err := split(opts)
	if err != nil {
		return err
	}
	var enqueue func(context.Context, scheduler.Tick) error
	if task != nil && t.rdb != nil {
		send := t.client.EnqueueContext
		if w != nil {
			send = w.enqueue
		}
		enqueue = Once(func(ctx context.Context, tick scheduler.Tick) error { return t.enqueue(ctx, tick, send, task, own) })
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	jobOpts = append(slices.Clip(jobOpts), scheduler.TaskEnds(func(_ context.Context, id string) (bool, error, error) {
		return t.taskEnd(queueOf(own), id)
	}))
	if err := t.s.Task(name, spec, enqueue, jobOpts...); err != nil {
		return err
	}
	entry := shown{task: task}
	for _, opt := range own { // asynq's Inspector cannot read others
		entry.opts = append(entry.opts, opt.String())
	}
	t.tasks[name] = entry
	return nil
}

// Remove removes a job from the Scheduler. See scheduler.Scheduler.Remove.
func (t *Tasks) Remove(name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.tasks, name)
	return t.s.Remove(name)
}

// enqueue enqueues the task of a tick by send, and calls the hooks as asynq.Scheduler does. If the task is already in
// the queue, because another node has enqueued it and died, the hooks after the enqueuing are not called.
func (t *Tasks) enqueue(ctx context.Context, tick scheduler.Tick,
	send func(context.Context, *asynq.Task, ...asynq.Option) (*asynq.TaskInfo, error), task *asynq.Task, opts []asynq.Option) error {
	opts = append(slices.Clip(opts), asynq.TaskID(tick.ID()))
	if t.hooks != nil && t.hooks.PreEnqueueFunc != nil {
		t.hooks.PreEnqueueFunc(task, opts)
	}
	info, err := send(ctx, task, opts...)
	if t.hooks == nil || errors.Is(err, asynq.ErrTaskIDConflict) {
		return err
	}
	if t.hooks.PostEnqueueFunc != nil {
		t.hooks.PostEnqueueFunc(info, err)
	}
	//lint:ignore SA1019 asynq still calls this hook
	if handle := t.hooks.EnqueueErrorHandler; err != nil && handle != nil {
		handle(task, opts, err)
	}
	return err
}

// queueOf returns the queue that the options name, or "". The options of the task itself cannot be read.
func queueOf(opts []asynq.Option) (queue string) {
	for _, opt := range opts {
		if opt.Type() == asynq.QueueOpt {
			queue, _ = opt.Value().(string)
		}
	}
	return queue
}

// taskEnd reports whether the task of a tick has ended: an archived task has failed, and one that is gone has
// succeeded. If queue is "", taskEnd looks in all queues.
func (t *Tasks) taskEnd(queue, id string) (ended bool, failure, err error) {
	queues := []string{queue}
	if queue == "" {
		if queues, err = t.inspector.Queues(); err != nil {
			return false, nil, err
		}
	}
	for _, queue := range queues {
		info, err := t.inspector.GetTaskInfo(queue, id)
		switch {
		case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
			continue
		case err != nil:
			return false, nil, err
		case info.State == asynq.TaskStateArchived:
			return true, errors.New(cmp.Or(info.LastErr, "it was archived")), nil
		}
		return info.State == asynq.TaskStateCompleted, nil, nil
	}
	return true, nil, nil
}

// defaultShow is asynq's own heartbeat of a scheduler.
const defaultShow = 10 * time.Second

// Show shows the jobs to asynq's Inspector until ctx ends: asynq.Inspector.SchedulerEntries returns them, and asynqmon
// has them on the page of schedulers. The ID of an entry is the job's name, Spec is the spec in force, Next is the next
// tick, and Prev the latest tick that a node has executed. A paused job has a zero Next. Show writes every interval, 10
// s by default, and removes the entries at the end. Entries of a node that has died are shown for two intervals at
// most.
//
// Each job is shown once, although several nodes have it: of the nodes that are up, the first by name shows it. A node
// needs a name of its own for that (scheduler.Config.Node).
//
// Show writes what an asynq.Scheduler of version 0.26 writes; asynq's readers skip what they cannot decode. If Redis
// does not answer, Show logs it to scheduler.Config.Logger and goes on. asynq's list of enqueue events stays empty:
// admin.Entry.History has the executions.
func (t *Tasks) Show(ctx context.Context, interval time.Duration) {
	if interval <= 0 {
		interval = defaultShow
	}
	list := newEntryList(t.rdb)
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = list.clear(end) // the entries expire
	}()
	trouble := false
	for pause := min(interval, time.Second); ; pause = interval { // first when the node's jobs are on record
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		err := t.show(ctx, list, 2*interval)
		if err != nil && !trouble && ctx.Err() == nil {
			t.s.Records().Log.Warn("asynqtick: asynq's Inspector does not show the jobs of this node", "err", err)
		}
		trouble = err != nil
	}
}

// show writes the entries of the jobs that this node speaks for: of the nodes that are up and have a job, it is the
// first by name. While nodes come and go, a job may have two such nodes or none for some seconds.
func (t *Tasks) show(ctx context.Context, list *entryList, ttl time.Duration) error {
	recs := t.s.Records()
	up, err := recs.Nodes(ctx)
	if err != nil {
		return err
	}
	t.mu.Lock()
	tasks := maps.Clone(t.tasks)
	t.mu.Unlock()
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(tasks)), func(name string) bool {
		i := slices.IndexFunc(up, func(n records.Node) bool { return n.Has(name) })
		return i < 0 || up[i].Name != recs.By
	})
	if len(names) == 0 {
		return list.clear(ctx)
	}
	entries, err := admin.Of(t.s).Entries(ctx, names...)
	if err != nil {
		return err
	}
	encoded := make([]any, 0, len(entries))
	for _, e := range entries {
		task := tasks[e.Name]
		prev := e.Latest.Tick
		for i := 0; prev.Cause != scheduler.CauseTick && i < len(e.History); i++ {
			prev = e.History[i].Tick
		}
		if prev.Cause != scheduler.CauseTick {
			prev.At = time.Time{}
		}
		encoded = append(encoded, encodeEntry(e.Name, e.Spec, task.task.Type(), task.task.Payload(), task.opts, e.Next, prev.At))
	}
	return list.write(ctx, encoded, ttl)
}
