package keeper

import (
	"context"
	"errors"
	"fmt"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
)

// candidate is a lock that nobody runs under, and what was found out about its task.
type candidate struct {
	jobs.Entry
	lock    joblock.Status // read before the task was asked about
	task    finding
	verdict verdict
}

// mark reports whether the lock is a mark: see judgeMark.
func (c *candidate) mark() bool { return c.Key == keyspace.Again(c.Job) }

// reconcile decides about each of due, and acts. An error means that some were left alone
// because there was no answer.
func (k *Keeper) reconcile(ctx context.Context, due []jobs.Entry) error {
	if len(due) == 0 {
		return nil
	}
	n := Stats{Checked: int64(len(due)), Freed: make(map[string]int64)}
	defer k.add(&n)
	over, idle, err := k.read(ctx, due, &n)
	if err != nil {
		return err
	}
	asked := k.inspect(ctx, idle)
	if ctx.Err() != nil {
		return context.Cause(ctx) // before anything is written
	}
	var dead []candidate
	var short []jobs.Reservation
	var unrun error
	for _, c := range idle {
		if c.mark() {
			c.verdict = judgeMark(c.lock, c.task)
		} else {
			c.verdict = judge(c.lock, c.task, k.cfg.Reserve)
		}
		if c.verdict.action == rerun {
			unrun = errors.Join(unrun, k.rerun(&c))
		}
		switch c.verdict.action {
		case leave:
			n.Unanswered++
		case leaveOthers:
			n.Foreign++
		case keep:
			n.Kept++
		case extend:
			n.Kept++
			short = append(short, jobs.Reservation{Key: c.Key, Job: c.Job, For: c.verdict.reserve})
		case free:
			dead = append(dead, c)
		case forget:
			over = append(over, c.Entry)
		}
	}
	freed, unfreed := k.free(ctx, dead, &n)
	n.Over = int64(len(over))
	return errors.Join(asked, unrun, unfreed, k.reserve(ctx, short, &n), k.forget(ctx, append(over, freed...)))
}

// read sorts due: over are entries whose lock has been released or is another job's, idle
// are locks that nobody runs under. The others are held, and renewed by their holders.
func (k *Keeper) read(ctx context.Context, due []jobs.Entry, n *Stats) (over []jobs.Entry, idle []candidate, err error) {
	keys := make([]string, len(due))
	for i, d := range due {
		keys[i] = d.Key
	}
	locks, err := k.cfg.Locks.Status(ctx, keys...)
	if err != nil {
		n.Unanswered += int64(len(due))
		return nil, nil, err
	}
	for i, lock := range locks {
		switch {
		case lock.Job != due[i].Job, !lock.Locked() && lock.Ended != joblock.EndedLapsed:
			over = append(over, due[i])
		case lock.State == joblock.StateHeld:
			n.Held++
		default:
			idle = append(idle, candidate{Entry: due[i], lock: lock})
		}
	}
	return over, idle, nil
}

// rerun runs the task of a mark: it is in asynq's archive, and the process that snoozed it
// has died. Then the mark is freed; without an answer it stays for the next check.
func (k *Keeper) rerun(c *candidate) error {
	c.verdict = ending(c.lock, reasonSnoozed)
	if k.cfg.DryRun {
		return nil
	}
	queue, id, _ := envelope.ParseJob(c.Job)
	if err := c.task.in.RunTask(queue, id); err != nil {
		c.verdict = verdict{action: leave}
		return fmt.Errorf("run task %s again: %w", c.Job, err)
	}
	k.cfg.Logger.Info("worker: the keeper has run a snoozed task again", "job", c.Job)
	return nil
}

// reserve prolongs the reservations in short, and counts in n how that went.
func (k *Keeper) reserve(ctx context.Context, short []jobs.Reservation, n *Stats) (failed error) {
	if k.cfg.DryRun {
		n.Extended = int64(len(short))
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, err := range jobs.Reserve(ctx, k.cfg.Locks, short...) {
		switch {
		case err == nil:
			n.Extended++
		case errors.Is(err, joblock.ErrNotOwner), errors.Is(err, joblock.ErrNotFound), errors.Is(err, joblock.ErrAlreadyReleased):
			// It has ended since it was read.
		default:
			n.Unanswered++
			failed = err
		}
	}
	return failed
}

// free frees the locks of dead, each only if nobody has taken it since it was read. It
// returns the entries whose locks are free now.
func (k *Keeper) free(ctx context.Context, dead []candidate, n *Stats) (freed []jobs.Entry, failed error) {
	errs := make([]error, len(dead))
	if !k.cfg.DryRun {
		releases := make([]jobs.Release, len(dead))
		for i, c := range dead {
			releases[i] = jobs.Release{Key: c.Key, Job: c.Job, Fence: c.lock.Fence, Reason: c.verdict.reason}
		}
		if errs = jobs.Free(ctx, k.cfg.Locks, releases...); ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	for i, c := range dead {
		switch err := errs[i]; {
		case err == nil:
			n.Freed[c.verdict.reason]++
			freed = append(freed, c.Entry)
			k.cfg.Logger.Info("worker: the keeper has freed the lock of a task",
				"job", c.Job, "key", c.Key, "fence", c.lock.Fence, "reason", c.verdict.reason, "dry_run", k.cfg.DryRun)
			k.tellNeverResumed(c)
		case errors.Is(err, joblock.ErrBusy), errors.Is(err, joblock.ErrNotOwner), errors.Is(err, joblock.ErrNotFound):
			// It was taken up, or has ended, since it was read.
		default:
			n.Unanswered++
			failed = err
		}
	}
	return freed, failed
}

// tellNeverResumed logs, once, that a freed lock was never resumed after its park: its task
// was deleted by hand, or has run without the lock.
func (k *Keeper) tellNeverResumed(c candidate) {
	reason := c.verdict.reason
	if c.lock.State != joblock.StateParked || reason != reasonAbsent && reason != reasonCompleted || k.toldNeverResumed.Swap(true) {
		return
	}
	k.cfg.Logger.Warn("worker: a task is gone that has left its lock parked; if nobody has deleted it, it was run without the lock, "+
		"by a server whose mux lacks Use(w.Middleware)",
		"job", c.Job, "key", c.Key)
}

// forget ends the checks of entries.
func (k *Keeper) forget(ctx context.Context, entries []jobs.Entry) error {
	if k.cfg.DryRun || len(entries) == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return jobs.Forget(ctx, k.cfg.Locks, entries...)
}
