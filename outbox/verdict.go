package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/enqueue"
	"github.com/joblock/toolkit/joblock"
)

// verdict is what the relay does with a row after the enqueue of its task.
type verdict uint8

const (
	sent    verdict = iota // asynq has the task, or the task of the other job with handoff.Skip
	lookUp                 // asynq has a task of this name: is it the row's?
	waits                  // another job has the key, or the line is full: the row is tried again, and later rows of its key wait
	away                   // Redis has not answered: as waits, without a charge
	unclear                // an error that is not known: as waits, until the row has been tried maxAttempts times
	refused                // asynq or package handoff will never accept the task
)

// maxAttempts is how often the relay tries a row that fails with an error of an unknown kind. With the pauses, that
// takes a quarter of an hour.
const maxAttempts = 20

// judge returns the verdict for the error of an enqueue.
func judge(err error) verdict {
	switch {
	case err == nil, errors.Is(err, enqueue.ErrRepeated):
		return sent
	case errors.Is(err, asynq.ErrTaskIDConflict), errors.Is(err, asynq.ErrDuplicateTask):
		return lookUp
	case errors.Is(err, joblock.ErrUnavailable), errors.Is(err, handoff.ErrNotSent), errors.Is(err, joblock.ErrClosed),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, joblock.ErrLost):
		return away
	case errors.Is(err, joblock.ErrInvalid):
		return refused
	case errors.Is(err, joblock.ErrHeld), errors.Is(err, joblock.ErrBusy):
		return waits
	}
	return unclear
}

// pause returns how long a row waits after attempts earlier tries.
func (v verdict) pause(attempts int) time.Duration {
	longest := 5 * time.Second
	if v == unclear {
		longest = time.Minute
	}
	return min(longest, 100*time.Millisecond<<min(attempts, 16))
}
