package handoff

import (
	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/enqueue"
)

// Chain is several jobs that run one after another under one lock: upload, then thumbnail, then notify.
//
//	jobs.Enqueue(ctx, handoff.Chain{
//		Under: handoff.Unique{Key: joblock.Key("video", id)},
//		Then:  []*asynq.Task{thumbnail, notify},
//	}, upload)
//
// The task given to Enqueue is the first step; each step is a task of its own, with its own type, payload, queue and
// retries. When a step is done, its worker hands the locks over to the next step and enqueues that step's task, before
// it returns the result to asynq. So the key is never free in between: all steps run before another job of the key, and
// the key is released when the last step is done. The next step begins after asynq has recorded the previous step as
// done.
//
//	a step                                what follows
//	returns nil                           the next step
//	returns an error, retries left        its own next attempt; retries are not shared
//	has failed for good, its Deadline     the chain ends: the other steps are not enqueued, and the key is released.
//	has passed, or it is archived         Under a Sequence with HaltOnFailure the key stays with the step; when an operator
//	                                      runs it again and it succeeds, the chain goes on
//	returns asynq.RevokeTask              the chain ends, without a failure
//	is deleted                            the chain ends: the keeper frees the key
//	has lost its lock                     as without a chain: worker.Config.OnLockLost decides, and for the next step too
//	                                      if the lock was lost just before the hand-over
//
// A crash at any moment loses no step and changes no order. A step runs again if its worker dies before the locks are
// handed over, or if the locks' store does not answer at that moment. A step that has added steps with worker.Then also
// runs again if its worker dies before the next task is enqueued. Other steps do not run again.
//
// A handler adds steps with worker.Then. worker.Config.MaxHold counts from when the chain got its key, and so bounds
// the retries of all steps together. All workers of the steps need worker.Worker.Middleware. Chains also need a version
// of asynq with an Inspector that the toolkit can enqueue with, such as v0.26; with other versions the Worker logs a
// WARN, and the chain waits.
//
// The tasks of the steps after the first have IDs of the form "chain:2:1a2b3c4d:default:ID", where ID is the ID of the
// first task.
type Chain struct {
	// Under is what all steps run under: a Carry, a Unique, a Debounce or a Sequence. Enqueue returns ErrInvalid for a
	// Unique with UntilStarted, for nil, and for another Chain. A Unique with Replace or KeepLast replaces a chain
	// whose first step waits, but not one whose second step has been enqueued: Replace then returns ErrHeld, and
	// KeepLast waits for the end of the chain.
	Under How

	// Then has the steps after the first: at most 100, with at most 1 MiB of payloads and headers in all, because each
	// task of the chain carries the tasks that follow it. If Then is empty, the Chain does the same as Under alone. Of
	// the options given to asynq.NewTask, these apply to the step: Queue, MaxRetry, Timeout, Deadline and Retention.
	// ProcessIn counts from the end of the previous step; the key stays taken meanwhile. Enqueue returns ErrInvalid for
	// TaskID, Unique and Group, and for Group on the first step.
	Then []*asynq.Task
}

func (c Chain) engine() enqueue.How {
	chain := enqueue.Chain{Then: c.Then}
	if c.Under != nil {
		chain.Under = c.Under.engine()
	}
	return chain
}
