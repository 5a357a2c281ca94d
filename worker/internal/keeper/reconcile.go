package keeper

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
)

// reconcile checks the locks in due, carries out the verdicts, and settles the entries. began is the time before the
// locks were claimed. An error means that asynq or the locks' store did not answer some calls. A call without an answer
// may have changed the lock.
func (k *Keeper) reconcile(ctx context.Context, began time.Time, due []jobs.Entry) error {
	if len(due) == 0 {
		return nil
	}
	n := Stats{Checked: int64(len(due)), Freed: make(map[string]int64)}
	defer k.add(&n)
	known, others := k.sort(began, due)
	over, held, unread, idle, err := k.read(ctx, others, &n)
	if err != nil {
		return err
	}
	asked := k.inspect(ctx, idle)
	if ctx.Err() != nil {
		return context.Cause(ctx) // nothing is written yet
	}
	now := time.Now() // the same time for all, because a store settles equal entries together
	settled := make([]jobs.Settlement, 0, len(due))
	settle := func(e jobs.Entry, again time.Duration) {
		settled = append(settled, jobs.Settlement{Entry: e, Again: again})
	}
	for _, u := range known { // Settled stays as it is
		settle(u.Entry, max(driver.MinPeriod, u.again.Sub(now)))
		if u.later {
			n.Checked--
			k.lag(time.Until(u.again))
		} else {
			n.Kept++
			n.Listed++
		}
	}
	for _, e := range append(held, unread...) {
		e.Settled = false
		settle(e, k.wait(began, now))
	}
	for _, e := range over {
		settle(e, 0)
	}
	var dead []*candidate        // to free
	var short []core.Reservation // to prolong
	var unrun, unsettled error
	n.Over = int64(len(over))
	for i := range idle {
		c := &idle[i]
		switch {
		case c.mark():
			c.verdict = judgeMark(c.lock, c.task)
		case c.place != nil:
			c.verdict = judgePlace(c.lock, *c.place, c.now, c.task)
		default:
			c.verdict = judge(c.lock, c.task, k.cfg.Reserve)
		}
		if c.verdict.action == rerun {
			unrun = errors.Join(unrun, k.rerun(c))
		}
		c.again, c.Settled = k.after(began, now, c), false
		switch c.verdict.action {
		case leave:
			n.Unanswered++
			c.again = min(c.again, claim)
		case postpone:
			n.Checked--
			k.lag(time.Until(c.task.again))
		case leaveOthers:
			n.Foreign++
		case keep:
			n.Kept++
			if c.task.kind == alive && c.place == nil { // so the reservation is long enough
				c.Settled = true
				if c.task.listed {
					k.known.note(c.Entry, now, c.lock.Reserved)
				}
			}
		case extend:
			n.Kept++
			short = append(short, core.Reservation{Key: c.Key, Job: c.Job, For: c.verdict.reserve})
			if c.verdict.start && !k.cfg.DryRun {
				k.cfg.Next.Pushed(c.Key, c.Job)
			}
		case free:
			dead = append(dead, c)
		case forget:
			n.Over++
			c.again = 0
		}
		if c.task.listed {
			n.Listed++
		}
	}
	unfreed := k.free(ctx, dead, &n)
	unreserved := k.reserve(ctx, short, &n)
	if !k.cfg.DryRun {
		for i := range idle {
			settle(idle[i].Entry, idle[i].again)
		}
		unsettled = jobs.Settle(ctx, k.cfg.Locks, settled...)
	}
	return errors.Join(asked, unrun, unfreed, unreserved, unsettled)
}

// read reads the locks in due. over has the entries whose lock was released or belongs to another job now. held has the
// entries whose lock is held. idle has the locks without a holder, and the places of jobs that wait. unread has the
// entries whose record is not readable. read counts the held and the unread locks in n.
func (k *Keeper) read(ctx context.Context, due []jobs.Entry, n *Stats) (over, held, unread []jobs.Entry, idle []candidate, err error) {
	if len(due) == 0 {
		return nil, nil, nil, nil, nil
	}
	keys := make([]string, len(due))
	for i, d := range due {
		keys[i] = d.Key
	}
	locks, err := k.cfg.Locks.Status(ctx, keys...)
	if err != nil {
		n.Unanswered += int64(len(due))
		return nil, nil, nil, nil, err
	}
	list := make([]candidate, len(due))
	var others []*candidate // whose locks are not bound to their jobs, which may wait
	for i, lock := range locks {
		k.known.forget(due[i])
		list[i] = candidate{Entry: due[i], lock: lock}
		if lock.Job != due[i].Job {
			others = append(others, &list[i])
		}
	}
	if err := k.places(ctx, others); err != nil {
		n.Unanswered += int64(len(due))
		return nil, nil, nil, nil, err
	}
	for _, c := range list {
		switch lock := c.lock; {
		case c.place != nil:
			idle = append(idle, c)
		case lock.State == joblock.StateForeign: // perhaps of a newer build, so it is unknown whether the lock has ended
			n.Foreign++
			unread = append(unread, c.Entry)
			k.complain("worker: this build cannot read the record of a task's lock, so the keeper leaves the lock alone: either a newer "+
				"build of the toolkit has written the record, or another program", "job", c.Job, "key", c.Key)
		case lock.Job != c.Job, !lock.Locked() && lock.Ended != driver.EndedLapsed, coolsDown(lock):
			over = append(over, c.Entry)
		case lock.State == joblock.StateHeld:
			n.Held++
			held = append(held, c.Entry)
		default:
			idle = append(idle, c)
		}
	}
	return over, held, unread, idle, nil
}

// coolsDown reports whether lock is reserved for the cooldown after a job, which time alone ends.
func coolsDown(lock joblock.Status) bool {
	_, cools := envelope.ParseCooling(lock.Job)
	return cools
}

// places reads the locks in list again, with the places of their jobs.
func (k *Keeper) places(ctx context.Context, list []*candidate) error {
	if len(list) == 0 {
		return nil
	}
	req := driver.InspectRequest{Keys: make([]string, len(list)), Places: make([]string, len(list))}
	for i, c := range list {
		req.Keys[i], req.Places[i] = c.Key, core.PlaceOf(c.Job)
	}
	records, err := (*core.Locker)(k.cfg.Locks).Inspect(ctx, "keep", "", req)
	if err != nil {
		return err
	}
	for i, c := range list {
		c.lock, c.now = joblock.Status(core.StatusOf(records[i])), records[i].Now
		if at := records[i].Place; at != nil && at.Job == c.Job && c.lock.Job != c.Job {
			c.place = at
		}
	}
	return nil
}

// rerun takes the task of the mark c out of asynq's archive, and sets c.verdict so that the keeper frees the
// mark. After an error, the mark stays for a later check.
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
	k.cfg.Logger.Info("worker: the keeper took a snoozed task out of asynq's archive", "job", c.Job)
	return nil
}

// reserve prolongs the reservations in short and counts the results in n.
func (k *Keeper) reserve(ctx context.Context, short []core.Reservation, n *Stats) (failed error) {
	if k.cfg.DryRun {
		n.Extended = int64(len(short))
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, err := range k.cfg.Next.Reserve(ctx, short...) {
		switch {
		case err == nil, errors.Is(err, joblock.ErrHeld): // with ErrHeld the place of a job that waits was prolonged
			n.Extended++
		case errors.Is(err, joblock.ErrNotOwner), errors.Is(err, joblock.ErrNotFound), errors.Is(err, joblock.ErrAlreadyReleased):
			// The lock ended after the keeper had read the lock.
		default:
			n.Unanswered++
			failed = err
		}
	}
	return failed
}

// free frees the locks in dead, and sets candidate.again of each freed lock to 0. A lock stays if an attempt has
// resumed it, or a caller acquired it, after the keeper's read.
func (k *Keeper) free(ctx context.Context, dead []*candidate, n *Stats) (failed error) {
	errs := make([]error, len(dead))
	if !k.cfg.DryRun {
		releases := make([]core.JobRelease, len(dead))
		for i, c := range dead {
			releases[i] = core.JobRelease{Key: c.Key, Job: c.Job, Fence: c.lock.Fence, Reason: c.verdict.reason}
		}
		if errs = k.cfg.Next.Free(ctx, releases...); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	for i, c := range dead {
		switch err := errs[i]; {
		case err == nil:
			n.Freed[c.verdict.reason]++
			c.again = 0
			k.cfg.Logger.Info("worker: the keeper freed the lock of a task",
				"job", c.Job, "key", c.Key, "fence", c.lock.Fence, "reason", c.verdict.reason, "dry_run", k.cfg.DryRun)
			if c.place == nil {
				k.logNeverResumed(c)
			}
		case errors.Is(err, joblock.ErrBusy), errors.Is(err, joblock.ErrNotOwner), errors.Is(err, joblock.ErrNotFound):
			// The lock was resumed or ended after the keeper had read it, or is a slot that had lapsed.
			if !c.lock.Locked() {
				c.again = 0
			}
		default:
			n.Unanswered++
			failed = err
		}
	}
	return failed
}

// manyNeverResumed is how many tasks may leave asynq with their locks parked before that is logged: an operator may
// occasionally delete a task.
const manyNeverResumed = 3

// logNeverResumed logs, once, that tasks have run without their locks. The evidence is a freed lock that no attempt has
// resumed. A completed task is proof; a task that asynq does not have may also have been deleted by an operator, so
// there must be several.
func (k *Keeper) logNeverResumed(c *candidate) {
	// The label of a lock that an attempt has resumed has the number of the attempt, even after the attempt has parked
	// it.
	if c.lock.State != joblock.StateParked || strings.Contains(c.lock.Holder, " attempt ") {
		return
	}
	switch c.verdict.reason {
	case reasonCompleted:
		if k.neverResumed.Swap(manyNeverResumed) < manyNeverResumed {
			k.cfg.Logger.Warn("worker: a task was completed without the lock that it carries: a server's mux lacks Use(w.Middleware)",
				"job", c.Job, "key", c.Key)
		}
	case reasonAbsent:
		if k.neverResumed.Add(1) == manyNeverResumed {
			k.cfg.Logger.Warn("worker: several tasks have left asynq while their locks were parked; if they were not deleted on purpose, "+
				"a server whose mux lacks Use(w.Middleware) ran them without their locks",
				"tasks", manyNeverResumed, "latest_job", c.Job, "key", c.Key)
		}
	}
}

// after returns how long, from now on, the lock of c waits for its next check, if the check began at began.
func (k *Keeper) after(began, now time.Time, c *candidate) time.Duration {
	if !c.task.again.IsZero() {
		return max(driver.MinPeriod, c.task.again.Sub(now))
	}
	return k.wait(began, now)
}
