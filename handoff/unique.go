package handoff

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
)

// Unique makes a job the only one of its key, or with Limit one of a few. With no field but Key set, EnqueueUnique
// refuses other jobs of the key from the enqueue of one job until that job is done. The package comment has a table of
// all cases.
type Unique struct {
	// Key is the key that one job has at a time. Build Key with joblock.Key or TaskKey. Enqueue all jobs of a key
	// with the same policy.
	Key string

	// Until is when the key is free again. Default UntilDone.
	Until Until

	// OnConflict is what to do when another job has the key. Default Reject.
	OnConflict OnConflict

	// Limit lets up to so many jobs of Key wait and run at a time, instead of one: from 1 to limit.Max. Each job has a
	// permit of package limit. Give the same Limit for a key everywhere. With a Limit, Until must be UntilDone and
	// OnConflict must be Reject, and EnqueueUnique takes up to two round trips more. EnqueueMany takes no Limit. 0 means
	// one job, under an ordinary lock, which a permit does not keep out.
	Limit int
}

// Until says when the key of a unique job is free for the next one.
type Until uint8

const (
	// UntilDone keeps the key until the job is done or has finally failed. The handler and all retries run under the
	// lock. asynq.MaxRetry and worker.Config.MaxHold bound how long a job that fails keeps the key: asynq's default of
	// 25 retries takes up to 20.5 days.
	UntilDone Until = iota

	// UntilStarted frees the key just before the first call of the handler. So a change that happens while the
	// handler runs can be enqueued as the next job. The handler and the retries run without a lock, and possibly
	// beside the next job. KeepLast avoids such an overlap. If other middleware of the worker can reject tasks, see
	// worker.Worker.Started. A worker.WithoutOverlapping on the same key fails the task: choose another key, or
	// KeepLast.
	UntilStarted
)

// OnConflict says what EnqueueUnique does when another job has the key.
type OnConflict uint8

const (
	// Reject enqueues nothing and returns ErrHeld; JobOf reads the other job from it.
	Reject OnConflict = iota

	// Skip enqueues nothing and returns the other job's task, without an error. If a request holds the key and no job
	// does, Skip returns ErrHeld.
	Skip

	// Replace puts the new job in the place of a job that is pending, scheduled, waiting for a retry or aggregating. The
	// new job may have the same asynq.TaskID. The old task is deleted when the new task is in its queue. A job that
	// runs, or that stands for other keys too, is left alone, as with Reject.
	Replace

	// KeepLast is for work of which only the latest state counts. While one job runs, retries included, at most one job
	// waits: the newest. A waiting job is snoozed without using up a retry, and replaced as by Replace. The running job
	// has the lock on Key. The waiting job has the lock on another key, Key+"%next", until the worker can take the lock
	// on Key for it. Until must be UntilDone.
	KeepLast
)

// check refuses a Unique that EnqueueUnique does not support.
func (u Unique) check() error {
	const op = "enqueue"
	switch {
	case u.Until > UntilStarted:
		return invalid(op, u.Key, "Unique.Until is %d, must be UntilDone or UntilStarted", u.Until)
	case u.OnConflict > KeepLast:
		return invalid(op, u.Key, "Unique.OnConflict is %d, must be Reject, Skip, Replace or KeepLast", u.OnConflict)
	case u.OnConflict == KeepLast && u.Until == UntilStarted:
		return invalid(op, u.Key, "Unique.Until is UntilStarted, which KeepLast does not support: use Replace")
	case u.Limit < 0 || u.Limit > limit.Max:
		return invalid(op, u.Key, "Unique.Limit is %d, must be from 0 to %d", u.Limit, limit.Max)
	case u.Limit > 0 && (u.Until != UntilDone || u.OnConflict != Reject):
		return invalid(op, u.Key, "Unique.Limit is %d: Unique.Until must then be UntilDone, and Unique.OnConflict must be Reject", u.Limit)
	}
	if detail := keyspace.CheckApplication(u.Key); detail != "" {
		return invalid(op, u.Key, "%s", detail) // TryAcquire would let the key of slot pass
	}
	return nil
}

// slot returns the key of the lock that the job gets at its enqueue.
func (u Unique) slot() string {
	if u.OnConflict == KeepLast && u.Key != "" {
		return keyspace.Next(u.Key)
	}
	return u.Key
}

// replaces reports whether a job that waits is replaced.
func (u Unique) replaces() bool { return u.OnConflict == Replace || u.OnConflict == KeepLast }

// mark writes into env, for the worker, which lock the job has only until its start, and under which lock it runs.
func (u Unique) mark(env *envelope.Envelope, token joblock.Token) error {
	if u.Until == UntilStarted || u.OnConflict == KeepLast {
		env.UntilStart = []joblock.Token{token}
	}
	if u.OnConflict != KeepLast {
		return nil
	}
	run, err := joblock.NewToken(u.Key, door.IdentityOf(token).Owner, door.IdentityOf(token).TTL)
	if err != nil {
		return err
	}
	env.Tokens = append(env.Tokens, run)
	env.FromStart = []joblock.Token{run}
	return nil
}

// TaskKey returns a key made of the task's type and payload: "unique:<type>:<digest>". The digest is the first half of the
// payload's SHA-256, 32 hexadecimal digits. Payloads are compared byte by byte. Queue, headers and options do not count. For
// one job per queue, put the queue's name in front with joblock.Key. For a nil task TaskKey returns "", which EnqueueUnique
// refuses.
//
// Keys are in logs, metrics and errors, so nothing of the payload is in them to read. "joblock explain" says of which type
// of task a key is, and by which command to see the payload of its job.
func TaskKey(task *asynq.Task) string {
	if task == nil {
		return ""
	}
	digest := fmt.Sprintf("%x", sha256.Sum256(task.Payload()))
	return joblock.Key(keyspace.Unique, task.Type(), digest[:keyspace.UniqueDigits])
}

// JobOf returns the task of the job that has the lock, according to err, such as an ErrHeld. ok is false if no job has
// the lock. The job has the lock at least for Remaining of the *joblock.Error: the rest of the lease while the job
// runs, and else the rest of the reservation. The worker renews leases, and the keeper prolongs reservations.
func JobOf(err error) (queue, taskID string, ok bool) {
	var e *joblock.Error
	if !errors.As(err, &e) {
		return "", "", false
	}
	return envelope.ParseJob(e.Job)
}

// Enqueued is the result of EnqueueUnique and EnqueueInSequence. Withdraw takes the job back.
type Enqueued struct {
	// Task is the new task or, with Duplicate, the task of the other job, which has the key. Task lacks the header, as the
	// result of Enqueue does. After an error Task is nil.
	Task *asynq.TaskInfo

	// Duplicate is true if nothing was enqueued, because of policy Skip.
	Duplicate bool

	// Replaced is the task that was deleted for the new task, because of policy Replace or KeepLast. Replaced is nil
	// if no task was deleted. Replaced lacks the header, too.
	Replaced *asynq.TaskInfo

	// Waits is true if the job waits in the line of its sequence, behind Ahead others at most. Task then shows a
	// task that is scheduled in a day.
	Waits bool
	Ahead int

	made *receipt // for Withdraw; nil if nothing was enqueued
}

// EnqueueUnique tries again while the conflict is likely to end soon: another call has taken the key and is about to
// enqueue its job, or the other job is being replaced. The pauses double; all pauses together, a round, are a third of a
// second. While other calls are replacing the job, further tries follow, one after each laterPause or so.
const (
	uniquePause = 5 * time.Millisecond
	uniqueTries = 7
	uniqueRound = (1<<(uniqueTries-1) - 1) * uniquePause
	laterPause  = 40 * time.Millisecond
)

// EnqueueUnique enqueues task as the only job of u.Key. EnqueueUnique takes the key for the job in one step, without
// waiting for the key, and then enqueues task with the key's token. The key does not lapse, however long the job waits
// and however often it is retried. The key is free when the job is done, has finally failed or no longer exists.
//
// If another job has the key, u.OnConflict decides; the package comment has a table of all cases.
//
// Errors are those of Enqueue and of joblock's TryAcquire, such as ErrHeld, from which JobOf reads the other job. If the
// key is held for the very TaskID of the call, the error tells whether the task exists:
//
//	asynq.ErrTaskIDConflict and ErrHeld  the task exists. If the task is not over, the result with Skip is that task,
//	                                     without an error. Replace and KeepLast replace the task if it waits
//	ErrHeld alone                        nobody knows, or the task does not exist: an earlier call is enqueuing the task,
//	                                     or has died while it did. Try again, for two minutes at most where a keeper runs
//
// After
// an error the caller holds nothing, and there is no new job. The exceptions are ErrUnavailable and ErrLost: then the
// new job may exist, alone or in addition to the job that it was to replace. If both exist, the older job has the key. A
// call with a context that carries the lock on u.Key is ErrInvalid, unless the policy is KeepLast: behind a Middleware
// that claims the key, hand the lock over with Enqueue. The option asynq.Unique is ErrInvalid: asynq's key lapses under a job that waits, and outlasts a job that fails.
//
// EnqueueUnique returns at most three seconds after the end of ctx, or nine if it replaces a job. For many tasks see
// EnqueueMany.
func (c *Client) EnqueueUnique(ctx context.Context, u Unique, task *asynq.Task, opts ...asynq.Option) (Enqueued, error) {
	h, err := c.uniqueHandover(u, task, opts)
	if err == nil {
		err = h.checkCarried(ctx)
	}
	if err != nil {
		return Enqueued{}, err
	}
	if u.Limit > 0 {
		return h.runLimited(ctx)
	}
	return h.run(ctx)
}

// runLimited is run for a job that is one of Unique.Limit: the job gets a permit, as if a request had taken the permit.
func (h *handover) runLimited(ctx context.Context) (Enqueued, error) {
	if err := h.c.ready(ctx, "enqueue"); err != nil { // before a permit is taken
		return Enqueued{}, h.wrap(err)
	}
	permit, err := limit.New(h.c.locks, h.unique.Limit).TryAcquire(ctx, h.unique.Key)
	if err != nil {
		return Enqueued{}, h.wrap(err)
	}
	h.locks = joblock.Locks{permit}
	done, err := h.run(ctx)
	if err == nil || permit.Err() != nil { // the job has the permit, or may have it
		return done, err
	}
	permit.StopRenewing()
	dctx, cancel := settling(ctx)
	defer cancel()
	if failed := permit.Release(dctx); failed != nil {
		err = fmt.Errorf("%w; the permit is free when its lease ends: %w", err, failed)
	}
	return done, err
}

func (c *Client) uniqueHandover(u Unique, task *asynq.Task, opts []asynq.Option) (*handover, error) {
	h, err := c.newHandover(task, opts, func(spec *taskSpec) error {
		err := u.check()
		if err == nil && spec.unique {
			err = badTask("the option asynq.Unique and EnqueueUnique are two kinds of uniqueness, use one")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	h.unique = u
	return h, nil
}

// checkCarried refuses a unique job whose key the caller has itself, because ctx carries the lock on the key, or all
// permits of the key: each call would be ErrHeld because of its own caller.
func (h *handover) checkCarried(ctx context.Context) error {
	u, most, carried := h.unique, max(1, h.unique.Limit), 0
	for _, lock := range joblock.LocksFromContext(ctx) {
		key := lock.Key()
		if u.Limit > 0 {
			key, _ = keyspace.Limit(key)
		}
		if key == u.slot() && door.Of(h.c.locks).Owns(lock) && lock.Err() == nil {
			carried++
		}
	}
	if carried < most {
		return nil
	}
	err := invalid("enqueue", u.Key, "the request or job that enqueues has this lock itself, so the new job cannot get it: hand "+
		"the lock over with Enqueue, claim another key or none (Claim.NoLock) for the request, or in the handler of a job use KeepLast")
	h.c.logger.ErrorContext(ctx, "handoff: a job was not enqueued, because its caller has the lock on its key", "key", u.Key, "err", err)
	return err
}

// enqueueUnique enqueues the task of h as the only job of its key. The parameter err is the result of Client.prepare.
func (h *handover) enqueueUnique(ctx context.Context, err error) (Enqueued, error) {
	if err != nil {
		giveUp, late := h.takeTurn(ctx)
		if late != nil {
			return Enqueued{}, late
		}
		defer giveUp()
	}
	for try, pause := 1, uniquePause; ; try, pause = try+1, 2*pause {
		done, again, failed := h.tryUnique(ctx, err)
		if failed == nil || again == never {
			return done, failed
		}
		if try >= uniqueTries {
			switch contended, cerr := h.isContended(ctx, again); {
			case cerr != nil:
				return done, fmt.Errorf("%w; and whether other calls are replacing its job could not be read: %w", failed, cerr)
			case !contended:
				return done, failed
			case !time.Now().Before(h.contendUntil):
				var held *joblock.Error
				if errors.As(failed, &held) {
					failed = h.contended(held)
				}
				return done, failed
			}
			pause = laterPause/2 + rand.N(laterPause)
		}
		if cause := sleep.For(ctx, pause); cause != nil {
			return Enqueued{}, h.wrap(cause)
		}
		err = h.c.prepare(ctx, h)[0]
	}
}

// again says whether another try may succeed where a try has met a conflict.
type again uint8

const (
	never   again = iota
	soon          // in a moment, or not at all
	active        // as soon, and the job's task is active
	changes       // for as long as other calls are replacing the job, or are about to enqueue it
	waits         // likewise, and the job's task waits: a lease on its lock is that of another call
)

// isContended reports whether the conflict is one with other calls that also replace the job. Then the lock has just
// changed hands, or is held although its task waits. A call that is alone meets neither for long.
func (h *handover) isContended(ctx context.Context, met again) (bool, error) {
	if !h.unique.replaces() || met == soon {
		return false, nil
	}
	sts, err := h.c.locks.Status(ctx, h.unique.slot())
	if err != nil {
		return false, err
	}
	st, recent := sts[0], settleFor
	if met == active {
		recent = uniqueRound // a job that has run for longer is not being replaced
	}
	return !st.Locked() || st.Now.Sub(st.Changed) < recent || met == waits && st.State == joblock.StateHeld, nil
}

// tryUnique is one try of enqueueUnique. The second result says whether another try may succeed.
func (h *handover) tryUnique(ctx context.Context, err error) (done Enqueued, _ again, _ error) {
	var held *joblock.Error
	switch {
	case err == nil:
		done.Task, err = h.enqueue(ctx, nil)
		return done, never, err
	case errors.As(err, &held) && errors.Is(held, joblock.ErrHeld):
		return h.conflict(ctx, held)
	}
	return Enqueued{}, never, err
}
