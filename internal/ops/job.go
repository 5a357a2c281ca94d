package ops

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Job is a job and a lock: the lock is bound to the job, or the job waits in the line of the key.
type Job struct {
	Job   string  `json:"job"` // "queue/taskID"
	Key   string  `json:"key"`
	Lock  Lock    `json:"lock"`            // without Line, Permits and Task
	Place *Waiter `json:"place,omitempty"` // not nil if the job waits; Position is then "at most that many before", plus 1
	Task  Task    `json:"task"`

	// Suspect says, in a sentence, why the lock or the place probably helps nobody; "" if it does. A lock that a keeper
	// frees with its next check is no suspect.
	Suspect string `json:"suspect,omitempty"`
}

// JobsQuery says which jobs Desk.Jobs shows. The zero value shows all jobs with locks.
type JobsQuery struct {
	Queue    string // of asynq
	Prefix   string // of the key
	Suspects bool   // only those with Job.Suspect

	// May, unless nil, says which jobs are shown, by their names.
	May func(job string) bool

	Share    float64 // as LocksQuery; counts the calls to asynq's Redis too
	Progress func(done float64)
}

// lookups is how many tasks of a page are looked up at a time.
const lookups = 8

// Jobs walks over the jobs that have a lock or wait for one, in no particular order. They are read from the index of
// jobs, without a walk over all keys of the store. A job with several locks comes several times. The walk may miss a lock
// that changes meanwhile, or show such a lock twice. Errors are those of Locks.
func (d *Desk) Jobs(ctx context.Context, q JobsQuery) iter.Seq2[Job, error] {
	return d.jobs(ctx, q, q.wants)
}

// wants reports whether an entry of the index is of interest.
func (q *JobsQuery) wants(l driver.JobLock) bool {
	return strings.HasPrefix(l.Key, q.Prefix) && isIn(l.Job, q.Queue) && (q.May == nil || q.May(l.Job))
}

// Job reads the locks that are bound to a job, "queue/taskID", and the places of the job. It reads all of the index of
// jobs. Without locks and places the result is empty, and the task says whether asynq has the job. The error matches
// joblock.ErrInvalid for a text that names no task; other errors are those of Locks. With an error the result has what was
// found before.
func (d *Desk) Job(ctx context.Context, job string) ([]Job, Task, error) {
	if _, _, ok := envelope.ParseJob(job); !ok {
		return nil, Task{}, door.Invalid("job", "", "%.80q names no task; a job is queue/taskID", job)
	}
	all := []Job{}
	task := d.task(ctx, job)
	for j, err := range d.jobs(ctx, JobsQuery{Share: 1}, func(l driver.JobLock) bool { return l.Job == job }) {
		if err != nil {
			return all, task, err
		}
		all = append(all, j)
	}
	return all, task, nil
}

func (d *Desk) jobs(ctx context.Context, q JobsQuery, wants func(driver.JobLock) bool) iter.Seq2[Job, error] {
	return func(yield func(Job, error) bool) {
		keeper, kerr := d.Keeper(ctx)
		if kerr != nil {
			yield(Job{}, kerr)
			return
		}
		for found, err := range d.pages(ctx, q.Share, q.Progress, wants) {
			if err != nil {
				yield(Job{}, err)
				return
			}
			for _, j := range d.join(ctx, found, keeper) {
				if (j.Suspect != "" || !q.Suspects) && !yield(j, nil) {
					return
				}
			}
		}
	}
}

// The method join looks up the tasks of a page.
func (d *Desk) join(ctx context.Context, found []bound, keeper Keeper) []Job {
	var all []Job
	for _, b := range found {
		l := lockOf(b.record)
		j := Job{Job: b.Job, Key: b.Key, Lock: l}
		switch at := b.record.Place; {
		case l.Job == b.Job && l.Locked():
		case at != nil && at.Job == b.Job:
			j.Place = &Waiter{Position: at.Ahead + 1, Holder: at.Holder, Job: at.Job, Since: Time{at.Since}, Until: Time{at.Until}}
		default:
			continue // an entry of a lock that has ended
		}
		all = append(all, j)
	}
	jobs, tasks := make([]string, len(all)), make([]*Task, len(all))
	for i := range all {
		jobs[i], tasks[i] = all[i].Job, &all[i].Task
	}
	d.lookUpAll(ctx, jobs, tasks)
	for i := range all {
		j := &all[i]
		s := story{Lock: j.Lock, task: j.Task, keeper: keeper, known: true, now: j.Lock.Now.Time}
		j.Suspect = s.suspect(j.Place)
	}
	return all
}

// The method lookUpAll looks up the tasks of jobs, a few at a time.
func (d *Desk) lookUpAll(ctx context.Context, jobs []string, tasks []*Task) {
	var group sync.WaitGroup
	turn := make(chan struct{}, lookups)
	for i := range jobs {
		turn <- struct{}{}
		group.Go(func() {
			*tasks[i] = d.lookUp(ctx, jobs[i])
			<-turn
		})
	}
	group.Wait()
	d.pauses(ctx, tasks...)
}

// The method suspect says why a lock, or a place in line, probably helps nobody. Times that a keeper may take are allowed
// for twice.
func (s *story) suspect(place *Waiter) string {
	t := &s.task
	late := 2 * s.keeper.every()
	if t.State == TaskNoQueue {
		return "No database of asynq that is known here has the queue of the job."
	}
	if !t.Ended() || s.halted() && place == nil {
		return ""
	}
	over := fmt.Sprintf("The task is %s", t.State)
	if place != nil {
		if s.now.Sub(place.Since.Time) < envelope.EnqueueGrace+late {
			return ""
		}
		return over + ", but the job is still in line."
	}
	since := s.Changed.Time
	if !t.CompletedAt.IsZero() {
		since = latest(since, t.CompletedAt.Time)
	}
	if !t.LastFailedAt.IsZero() {
		since = latest(since, t.LastFailedAt.Time)
	}
	age := s.now.Sub(since)
	switch {
	case s.State == joblock.StateHeld && age > overrun+late+time.Minute:
		return over + ", but somebody still runs under the lock."
	case s.State != joblock.StateHeld && s.keeper.Works() == nil:
		return over + ", and no keeper works that would free the lock."
	case s.State != joblock.StateHeld && age > envelope.EnqueueGrace+late:
		return over + ", but no keeper has freed the lock."
	}
	return ""
}
