package verdict

import (
	"errors"
	"fmt"
	"time"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/joblock"
)

// SnoozeText begins the last error of a task that is snoozed by way of a retry. Another middleware may put text in
// front.
const SnoozeText = "worker: snoozed without charge: "

// Snooze makes the functions set by Configure snooze the task for Delay.
type Snooze struct {
	Err   error
	Delay time.Duration
}

func (e *Snooze) Error() string { return SnoozeText + e.Err.Error() }

func (e *Snooze) Unwrap() error { return e.Err }

// busyPause is the longest pause, before the jitter, if an earlier attempt of the same task has the lock. Most likely
// the locks of that attempt are about to be settled, because the server was shut down or the attempt's time was up. The
// pause does not grow if the earlier attempt runs on, because asynq counts no snoozes, but the cost is small: a running
// attempt makes only its own task come back.
const busyPause = 2 * time.Second

// SnoozeFor returns an error that snoozes the task, or nil if err is no reason to snooze. The reasons are that another
// caller has the lock, that the store did not answer, that the Worker or the Locker was closed, and that this build
// cannot read the record of the lock. most is Config.Snooze.
func SnoozeFor(err error, most time.Duration) *Snooze {
	if snoozed, ok := errors.AsType[*Snooze](err); ok {
		return snoozed
	}
	e, ok := errors.AsType[*joblock.Error](err)
	if !ok {
		return nil
	}
	delay := most
	switch {
	case errors.Is(e, joblock.ErrBusy):
		delay = min(delay, e.Remaining, busyPause)
	case IsBusy(e):
		delay = min(delay, e.Remaining)
	case errors.Is(e, joblock.ErrUnavailable), errors.Is(e, joblock.ErrClosed), IsForeign(e):
	default:
		return nil
	}
	return &Snooze{Err: err, Delay: Jittered(delay)}
}

// Jittered returns d, or a second if d is shorter, plus a random part of up to a quarter: asynq truncates delays to
// whole seconds, and tasks that were snoozed together would otherwise come back together.
func Jittered(d time.Duration) time.Duration {
	d = max(d, time.Second)
	return d + jitter.N(d/4+1)
}

// MovedTo returns an error that snoozes the task if token was refused with joblock.ErrNotOwner because its owner has
// the lock for another job: a handler hands the lock over, or handoff replaces the other job by this attempt's job.
// Otherwise it returns nil. st is the status of the lock.
func MovedTo(token joblock.Token, st joblock.Status) error {
	if !st.Locked() || st.Owner != token.Digest() {
		return nil
	}
	e := &joblock.Error{Key: token.Key(), Holder: st.Holder, Job: st.Job}
	e.Code, e.Remaining = joblock.CodeOf(joblock.ErrHeld), st.Reserved
	if st.State == joblock.StateHeld {
		e.Code, e.Remaining = joblock.CodeOf(joblock.ErrBusy), st.Lease
	}
	return &Error{fmt.Sprintf("the lock is with job %s", st.Job), e}
}

// Turn returns the error that snoozes a task whose turn in the line of key has not come. A task that cannot be snoozed
// by a retry, and waits in place or in the archive, asks again after most.
func (t Tries) Turn(key string, most time.Duration) *Snooze {
	delay := most
	if t.CanSnooze() {
		delay = Jittered(envelope.Wait)
	}
	return &Snooze{fmt.Errorf("%s in the line of key %q", jobline.WaitText, key), delay}
}

// Paused returns the error that snoozes a task because an operator has paused one of its keys; text says which key, and
// until when. left is the time until the pause ends by itself, or 0 if it does not. asynq brings the task back a little
// later than that, if no process has started it. A task that cannot be snoozed by a retry asks again after most.
func (t Tries) Paused(text string, left, most time.Duration) *Snooze {
	delay := most
	if t.CanSnooze() {
		delay = Jittered(envelope.Wait)
		if left > 0 {
			delay = min(delay, left+startsWithin)
		}
	}
	return &Snooze{fmt.Errorf("%s: %s", jobline.PauseText, text), delay}
}

// startsWithin is how long a task waits for the process that starts the jobs of a pause that has ended.
const startsWithin = 10 * time.Second

// Early returns an error that snoozes a task until notBefore.
func Early(notBefore time.Time) *Snooze {
	return &Snooze{fmt.Errorf("%s, %s", jobline.EarlyText, notBefore.Format(time.RFC3339)), time.Until(notBefore)}
}
