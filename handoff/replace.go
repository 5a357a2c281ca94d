package handoff

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// deletePause lies between two tries to delete a task. A task that a worker has just taken cannot be deleted before
// the worker finds its lock busy and snoozes the task.
const deletePause = 50 * time.Millisecond

// replacement puts a new task in the place of a task that waits. First it takes the lock with the old task's token, so
// that the old task cannot start. Then it enqueues the new task and deletes the old task. Only then it parks the lock
// for the new task. So the lock is the old job's while the old task exists. After a crash at any step one task runs:
// the old task when the lease has run out, or the new task when the keeper finds that the old task is gone.
//
// The roads not taken: to delete the old task first loses both in a crash, and to park the lock for the new task first
// lets the older payload run last.
type replacement struct {
	c    *Client
	next dispatch // of the new task
	lock *joblock.Lock
	old  *asynq.TaskInfo
	rest []joblock.Token // other locks that the old task carries
}

// replace puts the task of spec in the place of the task old. The parameter held is the ErrHeld that names old. The
// results are those of tryUnique.
func (c *Client) replace(ctx context.Context, u Unique, spec *taskSpec, old *asynq.TaskInfo, held *joblock.Error) (done Enqueued, again bool, err error) {
	token, rest, ok, err := c.tokenIn(ctx, old, held.Key)
	switch {
	case err != nil:
		return Enqueued{}, false, fmt.Errorf("%w; and what its task carries could not be read: %w", held, err)
	case !ok:
		return Enqueued{}, false, foreign(held, "the job was not enqueued here: its task does not carry the lock, and cannot be replaced")
	}
	keys := []string{token.Key()}
	for _, t := range rest {
		keys = append(keys, t.Key()) // their locks end with the old job
	}
	if err := door.MayTouch(ctx, old.Queue, keys); err != nil {
		return Enqueued{}, false, err
	}
	lock, err := c.locks.Resume(ctx, token, joblock.ForJob(held.Job))
	switch {
	case errors.Is(err, joblock.ErrBusy), lockGone(err):
		return Enqueued{}, true, held // the old task has started, or somebody else replaces it
	case err != nil:
		return Enqueued{}, false, err
	}
	r := &replacement{
		c:    c,
		next: dispatch{taskSpec: spec, c: c, unique: u, tokens: []joblock.Token{lock.Token()}},
		lock: lock, old: old, rest: rest,
	}
	info, err := r.swap(ctx)
	if err != nil {
		return Enqueued{}, false, err
	}
	return Enqueued{Task: info, Replaced: old}, false, nil
}

func (r *replacement) swap(ctx context.Context) (*asynq.TaskInfo, error) {
	info, err := r.enqueueNext(ctx)
	if err == nil {
		err = r.deleteOld(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, r.giveBack(ctx))
	}
	if err := r.parkFor(ctx, r.next.job, r.next.delay()+r.c.reserve); err != nil {
		return nil, fmt.Errorf("handoff: %s was enqueued in place of %s, but the lock could not be parked for it: %w",
			r.next.job, r.oldJob(), err)
	}
	r.releaseRest(ctx)
	return info, nil
}

func (r *replacement) enqueueNext(ctx context.Context) (*asynq.TaskInfo, error) {
	if err := r.next.seal(ctx); err != nil {
		return nil, err
	}
	if info := r.next.send(ctx); info != nil {
		return info, nil
	}
	dctx, cancel := settling(ctx)
	defer cancel()
	info, _, err := r.next.settle(ctx, dctx)
	return info, err
}

// releaseRest frees the other locks of the old task, unless somebody else has them by now.
func (r *replacement) releaseRest(ctx context.Context) {
	ctx, cancel := settling(ctx)
	defer cancel()
	for _, token := range r.rest {
		err := r.c.locks.Release(ctx, token, joblock.IfIdle(), joblock.Reason(reasonReplaced), joblock.ForJob(r.oldJob()))
		if joblock.CodeOf(err) != "" && !lockGone(err) {
			r.c.logger.WarnContext(ctx, "handoff: a lock of a replaced job could not be released, it is left to its reservation",
				"job", r.oldJob(), "key", token.Key(), "err", err)
		}
	}
}

func (r *replacement) oldJob() string { return envelope.Job(r.old.Queue, r.old.ID) }

// deleteOld deletes the old task. If the old task certainly was not deleted, deleteOld deletes the new one, which
// cannot have started: the lock is the old job's.
func (r *replacement) deleteOld(ctx context.Context) error {
	certain, err := true, r.lock.Err()
	if err == nil {
		certain, err = r.c.deleteTask(ctx, r.old.Queue, r.old.ID)
	}
	if err == nil {
		return nil
	}
	err = r.next.wrap(fmt.Errorf("%s could not be deleted: %w", r.oldJob(), err))
	if certain {
		_, nerr := r.c.deleteTask(ctx, r.next.queue, r.next.id)
		if nerr == nil {
			return err
		}
		err = errors.Join(err, nerr)
	}
	return own(&joblock.Error{
		Code: joblock.CodeOf(joblock.ErrUnavailable), Op: "enqueue", Key: r.lock.Key(), Job: r.next.job,
		Detail: "the new task is in its queue, but the old one may still exist", Err: err,
	})
}

// giveBack parks the lock for the old job again, until Config.Reserve after the old job is due.
func (r *replacement) giveBack(ctx context.Context) error {
	wait := min(max(0, time.Until(r.old.NextProcessAt)), driver.MaxPeriod-r.c.reserve)
	if err := r.parkFor(ctx, r.oldJob(), wait+r.c.reserve); err != nil {
		return fmt.Errorf("and the lock could not be given back to %s: %w", r.oldJob(), err)
	}
	return nil
}

// parkFor parks the lock for job. If that fails, parkFor ends the renewal, and the reservation for the old job
// stands.
func (r *replacement) parkFor(ctx context.Context, job string, reserve time.Duration) error {
	dctx, cancel := settling(ctx)
	defer cancel()
	var last error
	for {
		_, err := r.lock.Park(dctx, joblock.Reserve(reserve), joblock.ForJob(job))
		if err == nil {
			return nil
		}
		if last != nil && dctx.Err() != nil {
			err = last // the time was up before this call could ask the store
		}
		last = err
		time.Sleep(deletePause)
		if !errors.Is(err, joblock.ErrUnavailable) || dctx.Err() != nil {
			r.lock.StopRenewing()
			return err
		}
	}
}

// deleteTask deletes a task. It tries for half of settleFor; the other half is for the last answer. A task that does
// not exist counts as deleted: the reply to an earlier try may have been lost. The result certain is false if a try
// had no answer: the task may then be deleted later.
func (c *Client) deleteTask(ctx context.Context, queue, id string) (certain bool, err error) {
	ctx, cancel := settling(ctx)
	defer cancel()
	certain = true
	for giveUp := time.Now().Add(settleFor / 2); ; {
		_, err := ask(ctx, func() (struct{}, error) { return struct{}{}, c.inspector.DeleteTask(queue, id) })
		if err == nil || isGone(err) {
			return true, nil
		}
		// FAILED_PRECONDITION: the task is active. asynq exports no error for this case.
		certain = certain && strings.Contains(err.Error(), "FAILED_PRECONDITION")
		if !time.Now().Before(giveUp) {
			return certain, err
		}
		time.Sleep(deletePause)
	}
}

// lockGone reports whether err says that the lock does not exist any more, or is somebody else's.
func lockGone(err error) bool {
	return errors.Is(err, joblock.ErrNotFound) || errors.Is(err, joblock.ErrNotOwner) || errors.Is(err, joblock.ErrAlreadyReleased)
}
