package worker

import (
	"context"
	"errors"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// resumer resumes the locks of an attempt.
type resumer struct{ *carrier }

// duplicate reports whether this attempt is a duplicate delivery of a job that is done. Call duplicate only if the lock
// of token has ended as joblock.EndedDone, or may cool down after this job. If asynq does not answer, the error is joblock.ErrUnavailable.
func (r resumer) duplicate(ctx context.Context, token joblock.Token) (bool, error) {
	sts, err := r.w.locks.Status(ctx, token.Key())
	if err != nil || sts[0].Job != r.job && !r.cooled(token, sts[0]) { // then the handler has handed the lock over to another job
		return false, err
	}
	info, err := r.w.inspector.GetTaskInfo(r.queue, r.id)
	return verdict.Duplicate(token.Key(), info, err)
}

// reacquire acquires the lock of token again under the same owner token, so that later attempts can resume the lock.
// Parked and resumed at once, the lock is bound to the job, and stays reserved for the job if this process crashes.
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
		return nil, errors.Join(err, r.w.next.End(ctx, core.Locks{lock}, core.Release{})[0])
	}
	locks, errs := r.resume(ctx, []joblock.Token{joblock.Token(parked)})
	return locks[0], errs[0]
}
