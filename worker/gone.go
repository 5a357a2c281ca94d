package worker

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// gone decides what to do after Locker.Resume has failed with err for token. It returns a lock that was acquired again,
// or the error that ends the attempt. If both are nil, the task must succeed without a call of the handler.
func (r resumer) gone(ctx context.Context, token joblock.Token, err error) (*core.Lock, error) {
	e, ok := errors.AsType[*joblock.Error](err)
	if !ok || !verdict.IsGone(err) {
		return nil, err
	}
	if errors.Is(err, joblock.ErrNotOwner) {
		sts, err := r.w.locks.Status(ctx, token.Key())
		if err != nil {
			return nil, err
		}
		if lock, mine, err := r.handedOn(ctx, token, sts[0]); mine {
			return lock, err
		}
		if err := verdict.MovedTo(token, sts[0]); err != nil {
			return nil, err
		}
	}
	log := r.log().With("key", token.Key(), "cause", err)
	if e.Ended == driver.EndedDone || errors.Is(err, joblock.ErrNotOwner) && r.cooldown(token) > 0 {
		over, err := r.duplicate(ctx, token)
		if err != nil {
			return nil, err
		}
		if over {
			log.Info("worker: a duplicate delivery of a finished job succeeds without running")
			return nil, nil
		}
	}
	if r.inSequence(token) {
		return r.lineUp(ctx, token)
	}
	policy, level := "reacquire", slog.LevelWarn
	var lock *core.Lock
	first := slices.Contains(r.fromStart, token) // an earlier attempt has not acquired the lock yet
	if first {
		level = slog.LevelDebug
	}
	ended := error(nil)
	if !first && r.members <= 1 { // one lost key must not end the work of the others of a group
		ended = r.w.cfg.OnLockLost(ctx, r.task, err)
	}
	switch {
	case errors.Is(ended, asynq.RevokeTask):
		policy, err = "skip", nil
	case ended != nil:
		policy, err = "fail", ended
	default:
		lock, err = r.reacquire(ctx, token)
		if first && r.supersede(ctx, token, err) {
			lock, err = r.reacquire(ctx, token)
		}
		if err == nil && first {
			r.taken = append(r.taken, token.Key())
		}
	}
	if r.w.snooze(err) != nil {
		level = slog.LevelDebug // each attempt logs this record until the task gets the lock
	}
	log.Log(ctx, level, "worker: the lock is gone", "policy", policy)
	return lock, err
}

// duplicate reports whether this attempt is a duplicate delivery of a job that is done. Call duplicate only if the lock
// of token has ended as driver.EndedDone, or may cool down after this job. If asynq does not answer, the error is joblock.ErrUnavailable.
func (r resumer) duplicate(ctx context.Context, token joblock.Token) (bool, error) {
	sts, err := r.w.locks.Status(ctx, token.Key())
	if err != nil || sts[0].Job != r.job && !r.cooled(token, sts[0]) { // then the handler has handed the lock over to another job
		return false, err
	}
	info, err := r.w.inspector.GetTaskInfo(r.queue, r.id)
	return verdict.Duplicate(token.Key(), info, err)
}

// reacquire acquires the lock of token again under the same owner token, so that later attempts can resume the lock. It
// also parks and resumes the lock: that binds the lock to the job, so that it stays reserved if this process crashes.
func (r resumer) reacquire(ctx context.Context, token joblock.Token) (*core.Lock, error) {
	// OwnKey: the key may be one of the toolkit's keys, for a permit or for a job that waits for another job.
	lock, err := (*core.Locker)(r.w.locks).TryAcquire(ctx, token.Key(), core.Options{
		OwnKey: true, Owner: core.Token(token).Owner(), Shared: true, TTL: core.Token(token).TTL(),
	})
	if err != nil {
		return nil, err
	}
	parked, err := lock.Park(ctx, core.Park{Reserve: r.w.reservation(0), Job: r.job})
	if err != nil {
		return nil, errors.Join(err, r.w.next.ReleaseLocks(ctx, core.Locks{lock}, core.Release{})[0])
	}
	locks, errs := r.resume(ctx, []joblock.Token{joblock.Token(parked)})
	return locks[0], errs[0]
}
