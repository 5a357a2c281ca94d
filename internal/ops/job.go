package ops

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Job is a job together with a lock: the lock is bound to the job, or the job waits in the line of the lock's key.
type Job struct {
	Job   string  `json:"job"` // "queue/taskID"
	Key   string  `json:"key"`
	Lock  Lock    `json:"lock"`            // without Line, Permits and Task
	Place *Waiter `json:"place,omitempty"` // not nil if the job waits; Position is then an upper bound
	Task  Task    `json:"task"`

	// FreedBy is what frees the key without intervention; "" if the job waits. FreedAt is the latest time at which the
	// key becomes free for others. It is set only with ByKeeper and ByReservation: the job has ended or does not exist,
	// or no keeper works. Otherwise the key is kept as long as the job lives.
	FreedBy FreesBy `json:"freed_by,omitempty"`
	FreedAt Time    `json:"freed_at,omitzero"`

	// Ran is how long the present attempt has had the lock; 0 if none runs. Long says, in a sentence, that the attempt
	// should have ended because its time is up. Slow says, in a sentence, that it has run for far longer than Durations.
	// Durations is nil if no attempt of the task's type is known.
	Ran       Millis     `json:"ran_ms,omitzero"`
	Long      string     `json:"long,omitempty"`
	Slow      string     `json:"slow,omitempty"`
	Durations *Durations `json:"durations,omitempty"`

	// Suspect says, in a sentence, why the lock or the place in line probably serves no purpose; otherwise "". A lock
	// that a keeper will free at its next check is not a suspect.
	Suspect string `json:"suspect,omitempty"`
}

// JobsQuery says which jobs Desk.Jobs shows. The zero value shows all jobs with locks.
type JobsQuery struct {
	Queue    string `query:"queue"`    // of asynq; "" means all
	Prefix   string `query:"prefix"`   // of the key; "" means all
	Suspects bool   `query:"suspects"` // only those with Job.Suspect
	Slow     bool   `query:"slow"`     // only those with Job.Long or Job.Slow

	// May, unless nil, reports whether the job with this name is shown.
	May func(job string) bool

	Share    float64 // as in LocksQuery; also covers the calls to asynq's Redis
	Progress func(done float64)
}

// Freed says in a few words what frees the key; FreedAt, unless zero, says when. It is "" if the job waits.
func (j Job) Freed() string {
	switch {
	case j.FreedBy == ByJob && j.FreedAt.IsZero():
		return "its job"
	case j.FreedBy == ByKeeper:
		return "the keeper"
	case j.FreedBy == ByHolder:
		return "its holder"
	case j.FreedBy == ByNothing:
		return "nothing"
	case j.FreedBy == "" || j.FreedBy == ByNone:
		return ""
	}
	return "the end of its reservation"
}

// Incomparable reports whether an attempt runs that cannot be judged as slow or not, because fewer than fewDurations attempts
// of its type are known to have succeeded.
func (j Job) Incomparable() bool {
	return j.Ran > 0 && j.Long == "" && (j.Durations == nil || j.Durations.Count < fewDurations)
}

// endGrace is how long a handler may take to return when the time of its attempt is up.
const endGrace = 10 * time.Second

// lookups is how many tasks of a page are looked up concurrently.
const lookups = 8

// Jobs iterates over the jobs that have a lock or wait for one, in no particular order. It reads the index of jobs
// instead of all keys of the store. A job with several locks comes once for each. The walk may miss a lock that changes
// meanwhile, or yield it twice. Errors are those of Locks.
func (d *Desk) Jobs(ctx context.Context, q JobsQuery) iter.Seq2[Job, error] {
	return d.jobs(ctx, q, q.wants)
}

// wants reports whether an entry of the index matches q.
func (q *JobsQuery) wants(l driver.Entry) bool {
	return strings.HasPrefix(l.Key, q.Prefix) && isIn(l.Job, q.Queue) && (q.May == nil || q.May(l.Job))
}

// shows reports whether a job matches q.
func (q *JobsQuery) shows(j Job) bool {
	return (j.Suspect != "" || !q.Suspects) && (j.Long != "" || j.Slow != "" || !q.Slow)
}

// Job returns the locks that are bound to a job, "queue/taskID", and the places of the job in lines. It reads the whole
// index of jobs. If there are none, the result is empty, and the Task says whether asynq has the job. The error matches
// joblock.ErrInvalid for a text that names no task; other errors are those of Locks. With an error, the result has what
// was found before.
func (d *Desk) Job(ctx context.Context, job string) ([]Job, Task, error) {
	if _, _, ok := envelope.ParseJob(job); !ok {
		return nil, Task{}, core.Invalid("job", "", "%.80q names no task; a job is queue/taskID", job)
	}
	all := []Job{}
	task := d.asynq().task(ctx, job)
	for j, err := range d.jobs(ctx, JobsQuery{Share: 1}, func(l driver.Entry) bool { return l.Job == job }) {
		if err != nil {
			return all, task, err
		}
		all = append(all, j)
	}
	return all, task, nil
}

func (d *Desk) jobs(ctx context.Context, q JobsQuery, wants func(driver.Entry) bool) iter.Seq2[Job, error] {
	return func(yield func(Job, error) bool) {
		keeper, kerr := d.Keeper(ctx)
		if kerr != nil {
			yield(Job{}, kerr)
			return
		}
		for found, err := range d.index().pages(ctx, q.Share, q.Progress, wants) {
			if err != nil {
				yield(Job{}, err)
				return
			}
			for _, j := range join(ctx, d.asynq(), found, keeper) {
				if q.shows(j) && !yield(j, nil) {
					return
				}
			}
		}
	}
}

// join returns the jobs of a page, with their tasks looked up.
func join(ctx context.Context, dbs databases, found []bound, keeper Keeper) []Job {
	var all []Job
	for _, b := range found {
		l := lockOf(b.record)
		j := Job{Job: b.Job, Key: b.Key, Lock: l}
		switch at := b.record.Place; {
		case l.Job == b.Job && l.Locked():
		case at != nil && at.Job == b.Job:
			j.Place = &Waiter{Position: at.Ahead + 1, Holder: at.Holder, Job: at.Job, Since: Time{at.Since}, Until: Time{at.Until}}
		default:
			continue // the entry's lock has ended
		}
		all = append(all, j)
	}
	jobs, tasks := make([]string, len(all)), make([]*Task, len(all))
	for i := range all {
		jobs[i], tasks[i] = all[i].Job, &all[i].Task
	}
	dbs.lookUpAll(ctx, jobs, tasks)
	for i := range all {
		j := &all[i]
		s := story{Lock: j.Lock, task: j.Task, keeper: keeper, known: true, now: j.Lock.Now.Time}
		j.Suspect, j.Durations = s.suspect(j.Place), keeper.durations(j.Task.Type)
		if j.Place == nil {
			j.Ran, j.Long, j.Slow = Millis(s.ran()), s.long(), s.slower()
			f := s.frees()
			j.FreedBy, j.FreedAt = f.By, f.Latest
		}
	}
	return all
}

// ran returns how long the present attempt has had the lock, 0 if none runs.
func (s *story) ran() time.Duration {
	if s.task.State != "active" || s.task.Crashed || s.State != joblock.StateHeld && s.State != joblock.StateOrphaned {
		return 0
	}
	return max(0, s.now.Sub(s.Changed.Time))
}

// timeUp returns when the time of the present attempt is up; zero if no attempt runs, or if its time is unlimited.
func (s *story) timeUp() (at time.Time) {
	t := &s.task
	if s.ran() > 0 && t.Timeout > 0 {
		at = s.Changed.Add(t.Timeout.Duration())
	}
	if s.ran() > 0 && !t.Deadline.IsZero() && (at.IsZero() || t.Deadline.Before(at)) {
		at = t.Deadline.Time
	}
	return at
}

// long returns a sentence if the present attempt should have ended, or "".
func (s *story) long() string {
	up := s.timeUp()
	if up.IsZero() || s.now.Sub(up) < endGrace {
		return ""
	}
	text := fmt.Sprintf("The attempt has run for %s, and its time was up %s ago: its handler ignores its context.", length(s.ran()), length(s.now.Sub(up)))
	if s.State == joblock.StateOrphaned {
		text += " Its worker renews the lock no longer."
	}
	return text
}

// suspect returns a sentence that says why a lock, or a place in line, probably serves no purpose, or "". It allows a
// keeper twice its interval.
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
		patience := envelope.EnqueueGrace + late
		if s.now.Sub(place.Since.Time) < patience {
			return ""
		}
		return over + fmt.Sprintf(", but the job is still in line: a keeper takes it out within %s.", length(patience))
	}
	since := s.Changed.Time
	if !t.CompletedAt.IsZero() {
		since = latest(since, t.CompletedAt.Time)
	}
	if !t.LastFailedAt.IsZero() {
		since = latest(since, t.LastFailedAt.Time)
	}
	age, held, kept := s.now.Sub(since), overrun+late+time.Minute, envelope.EnqueueGrace+late
	switch {
	case s.State == joblock.StateHeld && age > held:
		return over + fmt.Sprintf(", but a holder still runs under the lock, %s later; %s are enough for that.", length(age), length(held))
	case s.State != joblock.StateHeld && s.keeper.Works() == nil:
		return over + ", and no keeper works to free the lock."
	case s.State != joblock.StateHeld && age > kept:
		return over + fmt.Sprintf(", but no keeper has freed the lock, %s later; %s are enough for that.", length(age), length(kept))
	}
	return ""
}
