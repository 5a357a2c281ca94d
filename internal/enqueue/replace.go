package enqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// deletePause is the time between two tries to delete a task, or to park a lock. A task that a worker has just taken
// cannot be deleted before the worker finds its lock busy and snoozes the task.
const deletePause = 50 * time.Millisecond

// replacement puts a new task in the place of a task that waits. It takes the lock with the old task's token, so that
// the old task cannot start, enqueues the new task, deletes the old one, and only then parks the lock for the new task.
// So the lock is the old job's while the old task exists, and after a crash at any step one task runs: the old task
// when the lease has run out, or the new task when the keeper finds that the old task is gone.
//
// Alternatives that don't work: deleting the old task first loses both in a crash, and parking the lock for the new
// task first lets the older payload run last.
type replacement struct {
	c    *Client
	next dispatch // of the new task, with the kind of the enqueue
	lock *joblock.Lock
	old  *asynq.TaskInfo
	rest []joblock.Token // other locks that the old task carries
}

// replace puts the task of u in the place of old. held is the ErrHeld that names old. The results are those of
// tryUnique.
func (u *unique) replace(ctx context.Context, old *asynq.TaskInfo, held *joblock.Error) (Result, again, error) {
	env, err := u.c.envelopeOf(ctx, old)
	if err != nil {
		return Result{}, never, fmt.Errorf("%w; could not read what its task carries: %w", held, err)
	}
	token, rest, ok := splitToken(env.Tokens, held.Key)
	if !ok && held.Job == u.job { // asynq would refuse the task
		return Result{}, never, fmt.Errorf("%w: %w", asynq.ErrTaskIDConflict, held)
	}
	if !ok {
		return Result{}, never, heldWith(held, "the job was not enqueued here: its task does not carry the lock, and cannot be replaced")
	}
	if others := u.standsFor(env); others != "" {
		return Result{}, never, heldWith(held, "the job cannot be replaced, because it stands for more than this key: "+others+". Try again when it has run")
	}
	keys := []string{token.Key()}
	for _, t := range rest {
		keys = append(keys, t.Key()) // their locks end with the old job
	}
	if err := u.mayTouch(old.Queue, keys); err != nil {
		return Result{}, never, err
	}
	lock, err := u.c.locks.Resume(ctx, token, joblock.ForJob(held.Job))
	switch {
	case errors.Is(err, joblock.ErrBusy), lockGone(err):
		return Result{}, taskWaits, held // the old task has started, or another call replaces it
	case err != nil:
		return Result{}, never, err
	}
	u.old = old
	r := &replacement{
		c:    u.c,
		next: dispatch{taskSpec: u.taskSpec, c: u.c, kind: u.kind, tokens: []joblock.Token{lock.Token()}},
		lock: lock, old: old, rest: rest,
	}
	info, err := r.swap(ctx)
	if err != nil {
		return Result{}, never, err
	}
	return Result{Task: info, Replaced: old, Receipt: r.next.receipt()}, never, nil
}

// standsFor returns, in words, what the job with the envelope env stands for beyond the key of u, or "". A call about
// one key must not end such a job, because that would also end work that the call is not about.
func (u Unique) standsFor(env envelope.Envelope) string {
	i := slices.IndexFunc(env.Tokens, func(t joblock.Token) bool { return t.Key() != u.Key && t.Key() != keyspace.Next(u.Key) })
	switch {
	case env.Members > 1:
		return fmt.Sprintf("asynq has aggregated %d tasks of a group into its task", env.Members)
	case env.Sequence != nil:
		return "it is a job of a sequence"
	case env.Chain != nil && env.Chain.Step > 1:
		return fmt.Sprintf("it is step %d of a chain that has begun", env.Chain.Step)
	case i >= 0:
		return fmt.Sprintf("it also has the lock on %.80q", env.Tokens[i].Key())
	}
	return ""
}

// swap enqueues the new task, deletes the old one, and parks the lock for the new one.
//
// asynq refuses a second task with the ID of a task that exists, so if the new task has the ID of the old one, a
// stand-in with an ID of its own replaces the old task first, and the new task then replaces the stand-in.
func (r *replacement) swap(ctx context.Context) (*asynq.TaskInfo, error) {
	replaced, sameID := r.oldJob(), r.next.job == r.oldJob()
	if sameID {
		next := r.next
		r.next.taskSpec = next.standIn()
		info, err := r.exchange(ctx)
		if err != nil {
			return nil, err
		}
		r.old, r.next = info, next
	}
	info, err := r.exchange(ctx)
	if sameID && err != nil {
		err = own(&joblock.Error{
			Code: joblock.CodeOf(joblock.ErrUnavailable), Op: "enqueue", Key: r.lock.Key(), Job: r.next.job,
			Detail: "the old task is deleted, and the new one waits as " + r.oldJob() + ", because it could not be put under its own ID", Err: err,
		})
	}
	if err != nil {
		return nil, err
	}
	if err := r.c.parkFor(ctx, r.lock, r.next.job, r.next.delay()+r.c.reserve); err != nil {
		return nil, fmt.Errorf("handoff: %s was enqueued in place of %s, but the lock could not be parked for it: %w",
			r.next.job, replaced, err)
	}
	r.releaseRest(ctx, replaced)
	return info, nil
}

// exchange enqueues the new task and deletes the old one. After an error the lock is parked for the old task.
func (r *replacement) exchange(ctx context.Context) (*asynq.TaskInfo, error) {
	info, err := r.enqueueNext(ctx)
	if err == nil {
		err = r.deleteOld(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, r.giveBack(ctx))
	}
	return info, nil
}

// standInDelay is how much later than its task a stand-in is due, so that no worker takes it meanwhile.
const standInDelay = time.Minute

// standIn returns the task of s with an ID of its own, due a little later. If the process dies while the stand-in
// exists, it runs in place of the task.
func (s *taskSpec) standIn() *taskSpec {
	in := *s
	in.id = newTaskID()
	in.job = envelope.Job(in.queue, in.id)
	in.at = time.Now().Add(s.delay() + standInDelay)
	in.opts = append(slices.Clip(s.opts), asynq.ProcessAt(in.at))
	return &in
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
	info, _, err := r.next.resolve(ctx, dctx)
	return info, err
}

// releaseRest frees the other locks of the replaced job, unless other owners have them by now.
func (r *replacement) releaseRest(ctx context.Context, replaced string) {
	ctx, cancel := settling(ctx)
	defer cancel()
	for _, token := range r.rest {
		err := r.c.starter.Release(ctx, []core.Token{core.Token(token)}, core.Release{IfIdle: true, Job: replaced, Reason: reasonReplaced})[0]
		if joblock.CodeOf(err) != "" && !lockGone(err) {
			r.c.logger.WarnContext(ctx, "handoff: could not release a lock of a replaced job; it stays until its reservation ends",
				"job", replaced, "key", token.Key(), "err", err)
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
	if err := r.c.parkFor(ctx, r.lock, r.oldJob(), r.c.reserveFor(r.old)); err != nil {
		return fmt.Errorf("and the lock could not be given back to %s: %w", r.oldJob(), err)
	}
	return nil
}

// reserveFor returns how long a lock is reserved for the job of a task that exists.
func (c *Client) reserveFor(task *asynq.TaskInfo) time.Duration {
	return min(max(0, time.Until(task.NextProcessAt)), driver.MaxPeriod-c.reserve) + c.reserve
}

// parkFor parks lock for job. If that fails, parkFor stops renewing, and the reservation for the job that had the lock
// before remains.
func (c *Client) parkFor(ctx context.Context, lock *joblock.Lock, job string, reserve time.Duration) error {
	dctx, cancel := settling(ctx)
	defer cancel()
	var last error
	for {
		_, err := lock.Park(dctx, joblock.Reserve(reserve), joblock.ForJob(job))
		if err == nil {
			return nil
		}
		if last != nil && dctx.Err() != nil {
			err = last // the deadline passed before this call reached the store
		}
		last = err
		time.Sleep(deletePause)
		if !errors.Is(err, joblock.ErrUnavailable) || dctx.Err() != nil {
			(*core.Lock)(lock).StopRenewing()
			return err
		}
	}
}

// deleteTask deletes a task. It retries for half of settleFor; the other half is for the last answer. A task that does
// not exist counts as deleted, because the reply to an earlier try may have been lost. certain is false if a try had no
// answer: the task may then be deleted later.
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
