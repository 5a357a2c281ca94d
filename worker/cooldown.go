package worker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
)

// cooldown returns how long the lock of token stays reserved after the end of the job, or after its start for a lock in
// untilStart; 0 if there is no cooldown.
func (c *carrier) cooldown(token joblock.Token) time.Duration {
	i := slices.IndexFunc(c.cooldowns, func(d envelope.Cooldown) bool { return d.Token.Key() == token.Key() })
	if i < 0 {
		return 0
	}
	return c.cooldowns[i].For
}

// coolDown parks those of locks that have a cooldown after the job, which is done, and returns the others. Only time
// ends a cooldown: the lock is parked for a name that no task has. coolDown also returns a lock that could not be
// parked, so that the caller frees it without a cooldown.
func (c *carrier) coolDown(ctx context.Context, locks core.Locks) (others core.Locks) {
	for _, lock := range locks {
		cools := c.cooldown(joblock.Token(lock.Token()))
		if cools == 0 || c.cool(ctx, lock, cools) != nil {
			others = append(others, lock)
		}
	}
	return others
}

func (c *carrier) cool(ctx context.Context, lock *core.Lock, cools time.Duration) error {
	_, err := lock.Park(context.WithoutCancel(ctx), core.Park{Reserve: cools, Job: envelope.Cooling(c.job)})
	c.report(lock, "cool down", err)
	return err
}

// startCooling begins the cooldown of a lock that the task has until it starts. The error is the error of Resume, which
// is joblock.ErrNotOwner if the lock cools down already, because of an earlier attempt; or joblock.ErrUnavailable if
// the store did not answer. Other errors are logged.
func (c *carrier) startCooling(ctx context.Context, token joblock.Token) error {
	locks, errs := c.resume(ctx, []joblock.Token{token})
	if errs[0] != nil {
		return errs[0]
	}
	err := c.cool(ctx, locks[0], c.cooldown(token))
	if errors.Is(err, joblock.ErrUnavailable) {
		locks[0].StopRenewing() // the next attempt finds the lock busy, orphaned or cooling down
		return err
	}
	return nil
}

// cooled reports whether the lock with the status st cools down after this job, or has cooled down and has had no owner
// since.
func (c *carrier) cooled(token joblock.Token, st joblock.Status) bool {
	return st.Owner == token.Digest() && st.Job == envelope.Cooling(c.job)
}
