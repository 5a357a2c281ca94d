package ops

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
)

// databases are the asynq databases that a Desk has.
type databases []Database

// asynq returns the asynq databases of the Desk.
func (d *Desk) asynq() databases { return d.cfg.Databases }

// task looks up the task of a job in all databases. It does not fail: Task.Problem says what is not known.
func (dbs databases) task(ctx context.Context, job string) Task {
	t := dbs.lookUp(ctx, job)
	dbs.pauses(ctx, &t)
	return t
}

// pauses sets Paused of the tasks. It queries each queue only once, because such a query costs asynq's Redis more than
// one about a task. If a query fails, Paused stays false.
func (dbs databases) pauses(ctx context.Context, tasks ...*Task) {
	type queue struct{ database, name string }
	of := make(map[queue][]*Task)
	for _, t := range tasks {
		of[queue{t.Database, t.Queue}] = append(of[queue{t.Database, t.Queue}], t)
	}
	for _, db := range dbs {
		for q, tasks := range of {
			if q.database != db.Name || q.name == "" {
				continue
			}
			info, err := call(ctx, func() (*asynq.QueueInfo, error) { return db.Asynq.GetQueueInfo(q.name) })
			for _, t := range tasks {
				t.Paused = err == nil && info.Paused
			}
		}
	}
}

// lookUp is task, but does not set Paused.
func (dbs databases) lookUp(ctx context.Context, job string) Task {
	t, _ := dbs.find(ctx, job)
	return t
}

// find is lookUp, and also returns asynq's TaskInfo, or nil.
func (dbs databases) find(ctx context.Context, job string) (Task, *asynq.TaskInfo) {
	t, info := dbs.findAny(ctx, job)
	if t.hidden || viewerOf(ctx).MaySee(t) {
		return t, info
	}
	return Task{Queue: t.Queue, ID: t.ID, State: TaskUnknown, Problem: "The caller may not see the task: it carries no lock that the caller may use.", hidden: true}, nil
}

// findAny is find without the check that the caller may see the locks that the task carries.
func (dbs databases) findAny(ctx context.Context, job string) (Task, *asynq.TaskInfo) {
	queue, id, ok := envelope.ParseJob(job)
	if !ok {
		return Task{State: TaskUnknown, Problem: "The job is not a task of asynq."}, nil
	}
	t := Task{Queue: queue, ID: id, State: TaskNoQueue}
	if may := viewerOf(ctx).Queue; may != nil && !may(queue) {
		t.State, t.Problem, t.hidden = TaskUnknown, "The caller may not see tasks of its queue.", true
		return t, nil
	}
	if len(dbs) == 0 {
		t.State, t.Problem = TaskUnknown, "No database of asynq is known here."
		return t, nil
	}
	var failed error
	var is *asynq.TaskInfo
	for _, db := range dbs {
		info, err := call(ctx, func() (*asynq.TaskInfo, error) { return db.Asynq.GetTaskInfo(queue, id) })
		switch {
		case err == nil:
			found := taskOf(db, info)
			if !found.Ended() || t.State == TaskNoQueue || t.State == TaskAbsent {
				t, is = found, info
			}
			if !found.Ended() {
				return t, is
			}
		case errors.Is(err, asynq.ErrTaskNotFound):
			if t.State == TaskNoQueue {
				t.State = TaskAbsent
			}
		case errors.Is(err, asynq.ErrQueueNotFound):
		default:
			failed = fmt.Errorf("%s: %w", db.Name, err)
		}
	}
	if failed != nil {
		return Task{Queue: queue, ID: id, State: TaskUnknown, Problem: fmt.Sprintf("looking the task up in asynq failed: %s.", failed)}, nil
	}
	return t, is
}

// limitOf returns how many jobs of the sequence of job may run at a time, or 0 if it is not known.
func (dbs databases) limitOf(ctx context.Context, job string) int {
	if job == "" || len(dbs) == 0 {
		return 0
	}
	return dbs.task(ctx, job).Limit
}

// lookUpAll looks up the tasks of jobs, at most the constant lookups at a time.
func (dbs databases) lookUpAll(ctx context.Context, jobs []string, tasks []*Task) {
	var group sync.WaitGroup
	turn := make(chan struct{}, lookups)
	for i := range jobs {
		turn <- struct{}{}
		group.Go(func() {
			*tasks[i] = dbs.lookUp(ctx, jobs[i])
			<-turn
		})
	}
	group.Wait()
	dbs.pauses(ctx, tasks...)
}

// checkAlone returns the error with which a cancel refuses a task while another task with the same ID runs: asynq cancels
// by ID in all queues of the database, and the other task may belong to another caller.
func (dbs databases) checkAlone(ctx context.Context, action string, t Task) error {
	unread := func(err error) error { return refusal(action, t.Job(), joblock.ErrUnavailable, "asynq: "+err.Error()) }
	for _, db := range dbs {
		if db.Name != t.Database {
			continue
		}
		queues, err := call(ctx, db.Asynq.Queues)
		if err != nil {
			return unread(err)
		}
		for _, queue := range queues {
			if queue == t.Queue {
				continue
			}
			info, err := call(ctx, func() (*asynq.TaskInfo, error) { return db.Asynq.GetTaskInfo(queue, t.ID) })
			switch {
			case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
			case err != nil:
				return unread(err)
			case info.State == asynq.TaskStateActive:
				return refusal(action, t.Job(), joblock.ErrBusy, "a task of another queue has the same ID and runs, and asynq cancels by the ID alone: it would be cancelled too")
			}
		}
	}
	return nil
}

// inspectors returns the inspectors of type *asynq.Inspector, which can start a task. Keepers start the tasks of the
// other databases.
func (dbs databases) inspectors() (all []*asynq.Inspector) {
	for _, db := range dbs {
		if in, ok := db.Asynq.(*asynq.Inspector); ok {
			all = append(all, in)
		}
	}
	return all
}

// call calls f, which takes no context, and returns when ctx ends even if f has not returned. The timeouts of f's Redis
// client end f then.
func call[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type answer struct {
		val T
		err error
	}
	done := make(chan answer, 1)
	go func() {
		val, err := f()
		done <- answer{val, err}
	}()
	select {
	case a := <-done:
		return a.val, a.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}
