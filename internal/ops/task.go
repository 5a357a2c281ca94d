package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/chain"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// TaskState is the state of a task of asynq. There are three states in addition to asynq's own.
type TaskState string

// The states that asynq does not have.
const (
	TaskAbsent  TaskState = "absent"   // asynq has the queue, but not the task
	TaskNoQueue TaskState = "no queue" // no known asynq database has the queue
	TaskUnknown TaskState = "unknown"  // asynq did not answer, or was not queried; Task.Problem says why
)

// Task is a task as asynq sees it, without its payload.
type Task struct {
	Queue    string    `json:"queue,omitempty"`
	ID       string    `json:"id,omitempty"`
	Database string    `json:"database,omitempty"` // the name of asynq's database that has the task
	Type     string    `json:"type,omitempty"`
	State    TaskState `json:"state"`
	Problem  string    `json:"problem,omitempty"` // with TaskUnknown, in a sentence

	// Step identifies where the task stands: its state, its attempt, and when asynq last recorded the end of an attempt.
	// It changes whenever the task moves on; "" if asynq does not show the task.
	Step string `json:"step,omitempty"`

	// Attempt is the number of the running or last attempt, from 1; 0 if none has begun. Attempts is how many attempts
	// the task's options allow.
	Attempt  int `json:"attempt,omitempty"`
	Attempts int `json:"attempts,omitempty"`

	NextAt       Time   `json:"next_at,omitzero"` // when asynq moves a scheduled or retried task to its queue; zero if the task Waits
	LastError    string `json:"last_error,omitempty"`
	LastFailedAt Time   `json:"last_failed_at,omitzero"`
	CompletedAt  Time   `json:"completed_at,omitzero"`
	Deadline     Time   `json:"deadline,omitzero"`
	Timeout      Millis `json:"timeout_ms,omitzero"`
	Group        string `json:"group,omitempty"`

	Crashed bool `json:"crashed,omitempty"` // active, but no process renews asynq's lease: asynq will take the task over
	Paused  bool `json:"paused,omitempty"`  // the queue is paused: asynq begins no attempt
	Waits   bool `json:"waits,omitempty"`   // the task waits for its turn in a line, or was waiting when its turn came
	Snoozed bool `json:"snoozed,omitempty"` // archived, but only for the time of a snooze
	Halts   bool `json:"halts,omitempty"`   // if the task has failed for good, its sequence halts

	// Sequence is the key of the task's sequence, in whose line the task waits for its turn, and Limit is how many of its
	// jobs may run at a time; "" and 0 if the task is in no sequence.
	Sequence string `json:"sequence,omitempty"`
	Limit    int    `json:"limit,omitempty"`

	// Chain says which step of a chain the task is and which steps follow, such as "step 2 of 3, then notify"; "" if the
	// task is in no chain. Steps that a handler adds are counted when they are enqueued.
	Chain string `json:"chain,omitempty"`

	owners []string // digests of the tokens in the task's header, as far as the header is genuine
	keys   []string // the keys of these tokens
	hidden bool     // the caller may not see the task
	// members is how many tasks of a group asynq has aggregated into the task, as far as the header is genuine.
	members int
	next    []chain.Step // the steps that follow in the chain, as far as the header is genuine

	// untilStart has the keys that the job has only until it starts. cooldowns says how long each key stays taken after that, or
	// after the job is done. Both only as far as the header is genuine.
	untilStart []string
	cooldowns  map[string]time.Duration

	// cancels says that the job was enqueued with handoff.CancelInProgress, as far as the header is genuine.
	cancels bool
}

// undone describes the work that is lost if the task is deleted.
func (t *Task) undone() string {
	if t.members > 1 {
		return fmt.Sprintf("The job's work is not done, for any of the %d tasks of a group that asynq has aggregated into it.", t.members)
	}
	return "The job's work is not done."
}

// carries reports whether the header of the task has the token of the lock.
func (t Task) carries(l Lock) bool { return slices.Contains(t.owners, l.Owner) }

// ParseJob is the inverse of Task.Job: it returns the queue and the ID of the task with this name. ok is false for a text
// that names no task.
func ParseJob(job string) (queue, id string, ok bool) { return envelope.ParseJob(job) }

// Job returns the name of the task, as the locks that are bound to the task have it.
func (t Task) Job() string { return envelope.Job(t.Queue, t.ID) }

// Ended reports whether asynq will not run the task again by itself.
func (t Task) Ended() bool {
	return t.State == "archived" && !t.Snoozed || t.State == "completed" || t.State == TaskAbsent
}

// Carried returns the keys of the locks that the task of job carries, according to a genuine header, which only a program
// that can read the locks' store can have written. A lock that is bound to the job is no evidence, because the lock's own
// holder binds it. The result is empty if there is no such task, or its header is missing, forged or of another store.
//
// The error matches joblock.ErrUnavailable if asynq or the store did not answer, or if only a newer build can read the header.
func (d *Desk) Carried(ctx context.Context, job string) ([]string, error) {
	const op = "read task"
	t, info := d.asynq().findAny(ctx, job)
	switch {
	case t.State == TaskUnknown && len(d.cfg.Databases) > 0:
		return nil, refusal(op, job, joblock.ErrUnavailable, t.Problem)
	case info == nil:
		return nil, nil
	}
	env, ok, err := envelope.Open(ctx, d.in.Ring().Open, envelope.Task{Job: t.Job(), Type: info.Type, Headers: info.Headers})
	var distrust *envelope.Distrust
	switch {
	case !ok, errors.As(err, &distrust), err == nil && env.Elsewhere:
		return nil, nil
	case err != nil:
		return nil, refusal(op, job, joblock.ErrUnavailable, err.Error())
	}
	var keys []string
	for _, token := range env.Tokens {
		keys = append(keys, token.Key())
	}
	return keys, nil
}

// CarriesOnly reports whether the task of job carries locks, and only locks on keys for which may returns true: see
// Carried.
func (d *Desk) CarriesOnly(ctx context.Context, job string, may func(key string) bool) (bool, error) {
	keys, err := d.Carried(ctx, job)
	return len(keys) > 0 && !slices.ContainsFunc(keys, func(key string) bool { return !may(key) }), err
}

// taskOf returns the Task of info, which is in db.
func taskOf(db Database, info *asynq.TaskInfo) Task {
	t := Task{
		Queue: info.Queue, ID: info.ID, Database: db.Name, Type: info.Type, State: TaskState(info.State.String()),
		Attempts: info.MaxRetry + 1, LastError: info.LastErr, LastFailedAt: Time{info.LastFailedAt},
		CompletedAt: Time{info.CompletedAt}, Deadline: Time{info.Deadline}, Timeout: Millis(info.Timeout), Group: info.Group,
		Crashed: info.IsOrphaned, Snoozed: jobline.InArchive(info),
	}
	t.Waits = jobline.Waits(envelope.MayWait(info.Headers), info)
	if env, ok := envelope.Peek(envelope.Task{Job: t.Job(), Type: info.Type, Headers: info.Headers}); ok {
		for _, token := range env.Tokens {
			t.owners, t.keys = append(t.owners, token.Digest()), append(t.keys, token.Key())
		}
		for _, token := range env.UntilStart {
			t.untilStart = append(t.untilStart, token.Key())
		}
		t.cooldowns = make(map[string]time.Duration, len(env.Cooldowns))
		for _, c := range env.Cooldowns {
			t.cooldowns[c.Token.Key()] = c.For
		}
		if env.Chain != nil {
			t.Chain, t.next = chainText(env.Chain), env.Chain.Next
		}
		t.members, t.cancels = env.Members, env.Cancel
		if env.Retries >= 0 {
			t.Attempts = env.Retries + 1
		}
		if env.Sequence != nil {
			t.Halts, t.Limit = env.Sequence.Halt, max(1, env.Sequence.Limit)
			t.Sequence, _ = driver.LineOf(env.Sequence.Token.Key())
		}
	}
	switch info.State {
	case asynq.TaskStateActive:
		t.Attempt = info.Retried + 1
	case asynq.TaskStateScheduled, asynq.TaskStateRetry:
		t.Attempt, t.NextAt = info.Retried, Time{info.NextProcessAt}
	default:
		t.Attempt = info.Retried
		if info.State == asynq.TaskStateCompleted || info.State == asynq.TaskStateArchived && failedForGood(info, t.Attempts) {
			t.Attempt++ // asynq does not count the attempt that ended the task as a retry
		}
	}
	t.Attempt = min(t.Attempt, max(t.Attempts, info.Retried))
	t.Step = fmt.Sprintf("%s-%d", t.State, t.Attempt)
	if end := latest(info.LastFailedAt, info.CompletedAt); !end.IsZero() {
		t.Step += fmt.Sprintf("-%d", end.Unix())
	}
	if t.Waits {
		t.NextAt = Time{} // asynq's time is a day away, and means nothing
		if strings.Contains(t.LastError, jobline.WaitText) {
			t.LastError, t.LastFailedAt = "", Time{} // the task has not failed: it was sent back to wait
		}
	}
	return t
}

// chainShown is how many of the steps that follow are named.
const chainShown = 3

// chainText returns Task.Chain.
func chainText(c *chain.Chain) string {
	text := fmt.Sprintf("step %d of %d", c.Step, c.Step+len(c.Next))
	for i, step := range c.Next {
		if i == chainShown {
			return text + fmt.Sprintf(" and %d more", len(c.Next)-i)
		}
		text += ", then " + visible(step.Type)
	}
	return text
}

// failedForGood reports whether an attempt archived the task: the last one that the task's options allow, or one that
// failed with asynq.SkipRetry. Otherwise another client archived the task. asynq does not record which: a task that
// another client archived while only its last attempt was left counts as failed.
func failedForGood(info *asynq.TaskInfo, attempts int) bool {
	return !info.LastFailedAt.IsZero() &&
		(info.Retried == 0 || info.Retried+1 >= attempts || strings.Contains(info.LastErr, asynq.SkipRetry.Error()))
}
