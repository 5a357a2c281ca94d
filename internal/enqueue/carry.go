package enqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
)

// Carry is handoff.Carry: locks that the caller holds, and that the job takes over.
type Carry joblock.Locks

func (c Carry) plan(_ context.Context, d *dispatch) (kind, error) {
	locks := joblock.Locks(c)
	return &carry{parking{dispatch: d, locks: locks}}, d.checkLocks(locks)
}

// carry is the kind for a Carry: the job takes over locks that the caller holds.
type carry struct{ parking }

// parking is the part of a kind whose locks the caller holds.
type parking struct {
	*dispatch
	locks  joblock.Locks
	parked joblock.Locks // the locks of the tokens, in the same order
}

func (d *dispatch) checkLocks(locks joblock.Locks) error {
	if len(locks) == 0 || len(locks) > envelope.MaxTokens {
		return badTask("%d locks, must be from 1 to %d", len(locks), envelope.MaxTokens)
	}
	seen := make(map[string]bool, len(locks))
	for _, lock := range locks {
		if err := d.c.checkLock(lock); err != nil {
			return d.wrap(err)
		}
		if seen[lock.Key()] {
			return Invalid(opEnqueue, lock.Key(), "two locks on this key")
		}
		seen[lock.Key()] = true
	}
	return nil
}

func (c *Client) checkLock(lock *joblock.Lock) error {
	if lock == nil {
		return badTask("a lock is nil: if joblock.FromContext returned it, no handoff.Middleware or Guard served the request, " +
			"or its Claim had NoLock, or the context was not the request's; with gin take c.Request.Context(), and with grpc-gateway take the lock " +
			"in the handler, because a gateway in the same process calls no interceptors")
	}
	if !owns(c.locks, lock) {
		return Invalid(opEnqueue, lock.Key(), "the lock does not come from this Client's Locker: the worker could not find it")
	}
	err := lock.Err()
	var e *joblock.Error
	if errors.As(err, &e) && errors.Is(e, joblock.ErrAlreadyReleased) && e.Reason == ReasonRequestOver {
		err = fmt.Errorf("%w; enqueue before the handler returns, or keep the lock with handoff.Keep", err)
	}
	return err
}

func (p *parking) keys() (named, alone []string) {
	for _, lock := range p.locks {
		named = append(named, lock.Key())
	}
	return named, named
}

func (p *parking) ask(b *batch) {
	for _, lock := range p.locks {
		b.park(lock, func(token joblock.Token, err error) {
			switch {
			case err == nil:
				p.parked, p.tokens = append(p.parked, lock), append(p.tokens, token)
			case p.askErr == nil:
				p.askErr = p.wrap(err)
			}
		})
	}
}

// undo gives the locks back to their handles, the last lock first.
func (p *parking) undo(ctx context.Context) error {
	var errs []error
	for _, lock := range slices.Backward(p.parked) {
		errs = append(errs, lock.Reclaim(ctx))
	}
	return errors.Join(errs...)
}

// abandon releases the locks through their handles: a handle knows whether an earlier Reclaim was answered. It skips a
// handle whose token is not that of the enqueue, because the caller has used that handle since.
func (p *parking) abandon(ctx context.Context) error {
	var errs []error
	for i, lock := range p.parked {
		if lock.Token() != p.tokens[i] {
			continue
		}
		err := lock.Reclaim(ctx)
		if err == nil {
			err = lock.Release(ctx, joblock.Reason(reasonNotEnqueued))
		}
		errs = append(errs, ifUnavailable(err))
	}
	return errors.Join(errs...)
}
