package handoff

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/enqueue"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
)

// How says what lock Enqueue gives a job:
//
//	Carry     locks that the caller holds, and that the job takes over
//	Unique    a key that one job has at a time
//	Debounce  a key whose job runs when no further one was enqueued for a while
//	Sequence  a key whose jobs run one after another
//	Chain     one of these, for several tasks that run one after another
type How interface{ engine() enqueue.How }

// Carry hands locks that the caller holds over to the job, such as the lock of a request, which joblock.FromContext
// returns. Enqueue parks the locks; from then on their handles can do nothing, and a deferred Release frees nothing.
//
// Either the job gets all locks, or the caller keeps those that it still had. After an error lock.Err reports, for each
// lock, who has it; see "The errors of Enqueue" in the package comment. Enqueue returns joblock.ErrInvalid for no lock,
// for more than 64 locks, and for two locks on one key.
func Carry(locks ...*joblock.Lock) How { return carried(locks) }

// carried is the How of Carry.
type carried joblock.Locks

func (c carried) engine() enqueue.How { return enqueue.Carry(c) }

// Unique makes a job the only one of its key, or with Limit one of a few. The key is taken for the job in one step,
// without waiting. From then on other jobs of the key are refused until the job is done, has failed for good or no
// longer exists. The key does not lapse, however long the job waits and however often it is retried. If another job has
// the key, OnConflict decides; the package comment has a table of all cases.
//
// JobOf reads the other job from an ErrHeld. If the key is held for the very TaskID of the call, the error says whether
// the task exists:
//
//	asynq.ErrTaskIDConflict and ErrHeld  the task exists. Unless it has ended, the result with Skip is that task,
//	                                     without an error. Every policy except Skip and Reject replaces the task if it waits
//	ErrHeld alone                        unknown, or the task does not exist: an earlier call is enqueuing the task,
//	                                     or has died while it did. Try again, for two minutes at most where a keeper runs
//
// After ErrUnavailable and ErrLost the new job may exist, alone or in addition to the job that it was to replace. If
// both exist, the older job has the key.
//
// Enqueue returns ErrInvalid if ctx carries the lock on Key, unless the policy is KeepLast or CancelInProgress: behind
// a Middleware that claims the key, hand the lock over with Carry. Enqueue also returns ErrInvalid for the option
// asynq.Unique: asynq's key lapses under a job that waits, and outlasts a job that fails.
type Unique struct {
	// Key is the key that one job has at a time. Build Key with joblock.Key or TaskKey. Enqueue all jobs of a key
	// with the same policy.
	Key string

	// UntilStarted frees the key just before the first call of the handler, instead of when the job is done or has
	// finally failed. A change that happens while the handler runs can then be enqueued as the next job. The handler
	// and the retries run without a lock, and possibly at the same time as the next job. KeepLast avoids such an
	// overlap. If other middleware of the worker can reject tasks, see worker.Worker.Started. Under a
	// worker.WithoutOverlapping on the same key the task fails: choose another key, or KeepLast.
	//
	// Without UntilStarted the handler and all retries run under the lock. asynq.MaxRetry and worker.Config.MaxHold bound
	// how long a job that fails keeps the key: asynq's default of 25 retries takes up to 20.5 days.
	UntilStarted bool

	// OnConflict is what to do when another job has the key. Default Reject.
	OnConflict OnConflict

	// Limit is how many jobs of Key may wait and run at a time, instead of one: from 1 to limit.Max. Each job has a
	// permit of package limit. Give the same Limit for a key everywhere. With a Limit, UntilStarted must be false and
	// OnConflict must be Reject, and Enqueue takes up to two round trips more. EnqueueMany does not support it. 0 means
	// one job, under an ordinary lock: an ordinary lock and a permit do not keep each other out.
	Limit int

	// Cooldown is how long the key stays taken after the job is done: a throttle. Then the key becomes free by itself.
	// With UntilStarted the time counts from the start of the job. From 1 ms to 366 days; 0 means none. With a Limit it
	// must be 0.
	//
	// During the cooldown Reject and Replace return ErrHeld, whose Remaining is the rest of the cooldown and for which
	// JobOf returns no job. Skip returns a Duplicate, with the task of the job that is done or, if asynq no longer has
	// it, a Task that has only its Queue and ID. With KeepLast the newest job waits for the end of the cooldown: the
	// first of many runs at once, and the last of them when the cooldown is over.
	//
	// Only success begins a cooldown. A job that fails for good, returns asynq.RevokeTask, is withdrawn or deleted
	// frees the key at once. With UntilStarted, a job that has started has begun its cooldown, however it ends. If the
	// locks' store does not answer when the job is done, the key may be free without a cooldown.
	Cooldown time.Duration
}

func (u Unique) engine() enqueue.How {
	return enqueue.Unique{
		Key: u.Key, UntilStarted: u.UntilStarted, OnConflict: enqueue.OnConflict(u.OnConflict), Limit: u.Limit, Cooldown: u.Cooldown,
	}
}

// OnConflict says what Enqueue does when another job has the key of a Unique.
type OnConflict uint8

const (
	// Reject enqueues nothing and returns ErrHeld; JobOf reads the other job from it.
	Reject = OnConflict(enqueue.Reject)

	// Skip enqueues nothing and returns the other job's task, without an error. If a request holds the key and no job
	// does, Skip returns ErrHeld.
	Skip = OnConflict(enqueue.Skip)

	// Replace puts the new job in the place of a job that is pending, scheduled, waiting for a retry or aggregating. The
	// new job may have the same asynq.TaskID. The old task is deleted when the new task is in its queue. A job that
	// runs, or that stands for other keys too, is left alone, as with Reject.
	Replace = OnConflict(enqueue.Replace)

	// KeepLast is for work of which only the latest state matters. While one job runs, retries included, at most one job
	// waits: the newest. A waiting job is snoozed without using up a retry, and replaced as by Replace. The running job
	// has the lock on Key. The waiting job has the lock on another key, Key+"%next", until the worker can take the lock on
	// Key for it. UntilStarted must be false.
	KeepLast = OnConflict(enqueue.KeepLast)

	// CancelInProgress is for work that a newer request makes pointless: the answer to a message that was followed by
	// another one, the build of a commit that was pushed over. It does what KeepLast does, and the new job also ends
	// the running one. The running handler's context ends at once, with cause worker.ErrSuperseded, and the new job
	// starts only when that handler has returned: the two never overlap. A handler that ignores its context keeps the
	// new job waiting. A superseded job is done, whatever its handler returns: no retry, no failure. A job that waits
	// for a retry is superseded without a further attempt. Of many new jobs only the newest runs.
	//
	// With asynq.ProcessIn, ProcessAt or Group the running job goes on until the new one is due. A job that was enqueued
	// with another policy, or that asynq has made of a group, is not ended: the new job waits for it. A new job with another
	// policy, or of a Debounce, also waits.
	CancelInProgress = OnConflict(enqueue.CancelInProgress)
)

// Sequence is a job in the line of jobs behind one key. The jobs of a sequence run in the order of their enqueues, one
// at a time or up to Limit at a time. If the key is free, the job gets it. Otherwise the job gets the last place in the
// key's line, and its task is scheduled far in the future. When the job's turn comes, the process that gives it the key
// runs the task. A job that waits occupies no worker. The package comment has the rules, including those for asynq's
// options.
//
// Without Lock, Enqueue makes two round trips: one to the locks' store and one to asynq. A job that was not enqueued
// has no place in line. An error matches:
//
//	ErrLineFull and joblock.ErrHeld       MaxWaiting jobs and processes wait: not enqueued
//	asynq.ErrTaskIDConflict               a task with this TaskID exists, in this sequence or not: not enqueued
//	asynq.ErrDuplicateTask                another task has the lock of asynq.Unique: not enqueued
//	joblock.ErrHeld alone                 another call is enqueuing a task with this TaskID into this sequence, or has
//	                                      died while it did, or a worker has died just after it completed such a task: not
//	                                      enqueued; try again, for two minutes at most where a keeper runs
//	joblock.ErrUnavailable                the locks' store has not answered, or it is unknown whether the task exists;
//	                                      see "The errors of Enqueue". The job keeps its place while that is unknown
//	joblock.ErrInvalid                    the arguments are bad
//	with Lock, any error of Carry         lock.Err says who has the lock
type Sequence struct {
	// Key names the sequence. Build Key with joblock.Key. Enqueue all jobs of a Key with the same Sequence.
	Key string

	// Lock, unless nil, is a lock that the caller holds. The job gets this lock as with Carry, and so comes before all
	// jobs that wait. Key is then "" or the key of Lock, and MaxWaiting does not apply.
	Lock *joblock.Lock

	// Limit is how many jobs of the sequence may run at a time, up to 256; 0 means 1. With a Limit above 1, jobs start
	// in the order of the line, and HaltOnFailure must be false. The package comment has more: see Several jobs at a time.
	Limit int

	// LimitName names the limit, so that an operator can set it at run time, with "joblock limits set". Limit is the
	// value until then. Name a resource, like "provider-acme": any number of sequences and other limits may have the
	// same name. A change reaches all processes within a second: with a larger value more jobs start. A smaller value
	// does not stop running jobs, so until the earlier ones have ended, more jobs may run than the value allows. At
	// most 128 bytes; HaltOnFailure must be false.
	LimitName string

	// MaxWaiting bounds the line: if this many jobs and processes wait, no further job is enqueued. 0 means no bound.
	MaxWaiting int

	// HaltOnFailure stops the sequence when the job has failed for good: on the last attempt, or with asynq.SkipRetry, but
	// not with asynq.RevokeTask. The job keeps the key as long as its task is in asynq's archive, and all others wait. The
	// sequence goes on when an operator runs the task again and the job succeeds, or skips the job with "joblock jobs
	// skip", or when the keeper finds that the task was deleted. Without HaltOnFailure the next job starts.
	HaltOnFailure bool
}

func (s Sequence) engine() enqueue.How { return enqueue.Sequence(s) }

// ErrLineFull means that Sequence.MaxWaiting jobs and processes already wait for the key. It also matches
// joblock.ErrHeld.
var ErrLineFull = enqueue.ErrLineFull

// TaskKey returns a key made of the task's type and payload: "unique:<type>:<digest>". The digest is the first half of
// the payload's SHA-256, 32 hexadecimal digits. Payloads are compared byte by byte. Queue, headers and options do not
// count. For one job per queue, put the queue's name in front with joblock.Key. For a nil task TaskKey returns "",
// which Enqueue refuses.
//
// Keys are in logs, metrics and errors. The key does not reveal the payload. "joblock explain" shows the type of
// the task, and the command that shows the payload of the job.
func TaskKey(task *asynq.Task) string {
	if task == nil {
		return ""
	}
	digest := fmt.Sprintf("%x", sha256.Sum256(task.Payload()))
	return joblock.Key(keyspace.Unique, task.Type(), digest[:keyspace.UniqueDigits])
}

// JobOf returns the task of the job that has the lock, according to err, such as an ErrHeld. ok is false if no job has
// the lock. The job has the lock at least for Remaining of the *joblock.Error: the rest of the lease while the job
// runs, and otherwise the rest of the reservation. The worker renews leases, and the keeper prolongs reservations.
func JobOf(err error) (queue, taskID string, ok bool) {
	var e *joblock.Error
	if !errors.As(err, &e) {
		return "", "", false
	}
	return envelope.ParseJob(e.Job)
}
