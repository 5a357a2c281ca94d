package enqueue

import (
	"context"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/chain"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock/driver"
)

// Chain is handoff.Chain. It has no kind of its own: the first task is enqueued under Under, and its header carries the
// further tasks, which the workers enqueue one after another.
type Chain struct {
	Under How
	Then  []*asynq.Task
}

func (c Chain) plan(ctx context.Context, d *dispatch) (kind, error) {
	var bad error
	switch under := c.Under.(type) {
	case nil:
		return nil, badTask("Chain.Under is nil, must be a Carry, a Unique, a Debounce or a Sequence")
	case Chain:
		return nil, badTask("Chain.Under is a Chain, must be a Carry, a Unique, a Debounce or a Sequence: put all tasks into one Then")
	case Unique:
		if under.UntilStarted && len(c.Then) > 0 {
			bad = Invalid(opEnqueue, under.Key, "Unique.UntilStarted is set, which a Chain does not support: its key would be free when the first task starts")
		}
	}
	if d.grouped && len(c.Then) > 0 {
		bad = badTask("the option asynq.Group and a Chain exclude each other: asynq would make one task of several")
	}
	if bad == nil {
		d.then, bad = readSteps(d.taskSpec, c.Then)
	}
	kind, err := c.Under.plan(ctx, d)
	if bad != nil {
		err = bad
	}
	return kind, err
}

// readSteps reads the tasks that follow the task of first.
func readSteps(first *taskSpec, tasks []*asynq.Task) (steps []chain.Step, err error) {
	for i, task := range tasks {
		s, err := chain.Read(task)
		if err != nil {
			return nil, badTask("Chain.Then[%d]: %s", i, err)
		}
		steps = append(steps, s)
	}
	if err := chain.Check(steps); err != nil {
		return nil, badTask("Chain.Then: %s", err)
	}
	for i, s := range steps {
		link := chain.NewLink(i+2, true, "12345678", first.queue, first.id)
		if job := envelope.Job(s.Queue, link.String()); len(job) > driver.MaxLabelBytes {
			return nil, badTask("Chain.Then[%d]: queue and task ID would have %d bytes, at most %d are allowed: choose a shorter asynq.TaskID for the first task",
				i, len(job), driver.MaxLabelBytes)
		}
	}
	return steps, nil
}
