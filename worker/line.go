package worker

import (
	"context"
	"errors"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// The functions of this file find and give up the place that a job has in the line of a key, or its slot: see Sequences
// in the package comment.

// mostSlots returns how many slots the sequence has, now or at the enqueue of the job.
func (c *carrier) mostSlots(ctx context.Context) int {
	if named, ok := c.named(); ok {
		return max(named.limit(ctx), c.sequence.Limit)
	}
	return c.sequence.Limit
}

// findSlot looks among the first limit slots of the sequence for one that is the job's, and returns the token of that
// slot. If limit is below 2, findSlot makes no call.
func (c *carrier) findSlot(ctx context.Context, limit int) (slot joblock.Token, found bool, err error) {
	if limit < 2 {
		return slot, false, nil
	}
	got, err := c.slots(ctx, 1, limit)
	if err != nil || len(got) == 0 {
		return slot, false, err
	}
	return joblock.Token(core.Token(c.sequence.Token).OfSlot(got[0].Key)), true, nil
}

// slots returns which of the slots first to last of the sequence are the job's.
func (c *carrier) slots(ctx context.Context, first, last int) ([]joblock.Status, error) {
	key, _ := driver.LineOf(c.sequence.Token.Key())
	return jobline.SlotsOf(ctx, c.w.locks, c.sequence.Token, c.job, jobline.SlotKeys(key, first, last))
}

// leaveLine gives up the place of the job in the line of token's key, or that key if it is parked for the job. It
// returns false if the job had neither. If the store does not answer, leaveLine logs a warning and returns true: the
// keeper gives up the place or the key when the task has ended.
func (a *attempt) leaveLine(ctx context.Context, token joblock.Token, reason string) bool {
	err := a.w.next.Free(ctx, core.JobRelease{Key: token.Key(), Job: a.job, Reason: reason})[0]
	if errors.Is(err, joblock.ErrUnavailable) {
		a.log().Warn("worker: could not take a job out of the line of its sequence", "key", token.Key(), "err", err)
	}
	return err == nil || errors.Is(err, joblock.ErrUnavailable)
}
