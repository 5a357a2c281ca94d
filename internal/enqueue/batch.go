package enqueue

import (
	"context"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
)

// batch collects the requests of several enqueues to the locks' store, so that it gets one call for all locks to park,
// one for all keys to take, and one for all slots to pass on. Each request has a function that gets its answer.
type batch struct {
	d *dispatch // whose turn it is to ask

	locks  core.Locks
	opts   []core.Park
	parked []func(joblock.Token, error)

	takes []take
	took  []func(taken)

	slots   []string                     // that may be free although jobs wait
	asked   map[string]bool              // the keys whose slots are in slots
	waiting map[string]func(slot string) // by job: gets the slot that the job has got
}

// park asks to park lock for the job of b.d.
func (b *batch) park(lock *joblock.Lock, parked func(joblock.Token, error)) {
	b.locks, b.parked = append(b.locks, (*core.Lock)(lock)), append(b.parked, parked)
	b.opts = append(b.opts, core.Park{Reserve: b.d.reserve(), Job: b.d.job})
}

// take asks for the key of t, or a place in its line, for the job of b.d.
func (b *batch) take(t take, took func(taken)) {
	t.Job, t.Reserve, t.Call = b.d.job, b.d.reserve(), b.d.call
	b.takes, b.took = append(b.takes, t), append(b.took, took)
}

// prepare makes the tokens of ds. After an error, some locks of that enqueue may be parked, but its key is not taken. A
// key that is not free is an ErrHeld. The takes are sent in the order of ds, in batches of a bounded size.
func (c *Client) prepare(ctx context.Context, ds ...*dispatch) []error {
	b := &batch{asked: make(map[string]bool), waiting: make(map[string]func(string))}
	for _, d := range ds {
		b.d, d.askErr = d, nil
		d.kind.ask(b)
	}
	if len(b.locks) > 0 {
		tokens, errs := park(ctx, c.locks, b.locks, b.opts)
		for i, parked := range b.parked {
			parked(joblock.Token(tokens[i]), errs[i])
		}
	}
	if len(b.takes) > 0 {
		for i, t := range takeAll(ctx, c.locks, b.takes) {
			b.took[i](t)
		}
	}
	if len(b.slots) > 0 {
		c.passSlotsOn(ctx, b)
	}
	errs := make([]error, len(ds))
	for i, d := range ds {
		errs[i] = d.askErr
	}
	return errs
}

// passSlotsOn gives the free slots to jobs that wait, perhaps to those of b. An error is only logged: a job without a
// slot waits for the next release.
func (c *Client) passSlotsOn(ctx context.Context, b *batch) {
	err := passOn(ctx, c.locks, b.slots, func(slot, job string) {
		if granted := b.waiting[job]; granted != nil {
			granted(slot)
			return
		}
		c.starter.Granted(slot, job)
	})
	if err != nil {
		c.logger.WarnContext(ctx, "handoff: could not look for a free slot of a sequence; the job waits for the next release", "err", err)
	}
}
