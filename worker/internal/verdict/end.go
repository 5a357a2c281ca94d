package verdict

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
)

// The reasons with which package worker releases locks. joblock's Status shows the reasons.
const (
	ReasonDone    = "job done"
	ReasonRevoked = "job revoked"

	ReasonSuperseded = "job superseded"

	ReasonFailed  = "job failed"
	ReasonHeld    = "job failed: had its key for longer than Config.MaxHold"
	ReasonGone    = "job gone"
	ReasonSkipped = "job skipped"
	ReasonStarted = "job started"
	ReasonSnoozed = "job snoozed"
	ReasonOver    = "attempt over" // for a lock that the task does not carry: of WithoutOverlapping, or a mark
)

// IsDone reports whether a release for this reason records that the job is done. A duplicate then does not run.
func IsDone(reason string) bool {
	return reason == ReasonDone || reason == ReasonRevoked || reason == ReasonSuperseded
}

// IsFailed reports whether reason is that of a job that has failed for good.
func IsFailed(reason string) bool { return reason == ReasonFailed || reason == ReasonHeld }

// ErrPanicked stands for the result of a handler that panics.
var ErrPanicked = errors.New("the handler panicked")

// Settle says what to do with the locks of an attempt.
type Settle uint8

const (
	Park    Settle = iota // for a retry; the caller finds out its delay, and whether Config.MaxHold allows it
	BackOut               // give back, because the task is snoozed
	Release               // for the reason End.Reason
)

// End is how an attempt ends whose result asynq waits for.
type End struct {
	Settle
	Reason string  // of a Release
	Snooze *Snooze // of a BackOut
	Err    error   // for asynq; not of a Park
}

// EndOf returns how an attempt ends if its handler has returned err, or if err has stopped the attempt before the call
// of the handler.
func (t Tries) EndOf(err error) End {
	snoozed, ok := errors.AsType[*Snooze](err)
	switch {
	case ok: // from WithoutOverlapping, or from AfterLoss
		return End{Settle: BackOut, Snooze: snoozed, Err: err}
	case err == nil:
		return End{Settle: Release, Reason: ReasonDone}
	case IsSuperseded(err):
		return End{Settle: Release, Reason: ReasonSuperseded, Err: err}
	case errors.Is(err, asynq.RevokeTask):
		return End{Settle: Release, Reason: ReasonRevoked, Err: err}
	case errors.Is(err, asynq.SkipRetry), t.Last():
		reason := ReasonFailed
		if _, late := errors.AsType[*HeldTooLong](err); late {
			reason = ReasonHeld
		}
		return End{Settle: Release, Reason: reason, Err: &Final{Err: err, Spent: t.Spent()}}
	}
	return End{Settle: Park}
}

// AfterLoss reports whether the task is snoozed for the delay of a retry because the handler has returned err due to
// the loss of a lock. cause is why the handler's context has ended, and lost has the errors of the attempt's locks. A
// loss by joblock.Config.MaxRenew does not count.
func AfterLoss(err, cause error, lost []error) bool {
	due := errors.Is(err, joblock.ErrLost) || errors.Is(err, context.Canceled) && errors.Is(cause, joblock.ErrLost)
	if !due || errors.Is(err, asynq.SkipRetry) || errors.Is(err, asynq.RevokeTask) {
		return false
	}
	for _, err := range lost {
		if errors.Is(err, joblock.ErrLost) && !errors.Is(err, core.ErrNotRenewed) {
			return true
		}
	}
	return false
}

// Holds returns which key among locks job has had for the longest time, and that time, by the store's clock. The key is ""
// if job has none of locks.
func Holds(job string, locks []joblock.Status) (key string, held time.Duration) {
	for _, st := range locks {
		if st.Locked() && st.Job == job && (key == "" || st.Age > held) {
			key, held = st.Key, st.Age
		}
	}
	return key, held
}

// TooLong returns an error if a job that has had key for the time held, and whose next attempt begins after delay, would
// then have it for longer than most, Config.MaxHold. err is the error of the latest attempt.
func TooLong(key string, held, delay, most time.Duration, err error) *HeldTooLong {
	if most == 0 || key == "" || held+delay <= most {
		return nil
	}
	return &HeldTooLong{fmt.Sprintf("the job has had the key %q for %s, and the next attempt is due in %s: Config.MaxHold is %s",
		key, held.Round(time.Second), delay.Round(time.Second), most), err}
}

// Failure is what the ErrorHandler does with the task of an attempt that no Middleware has settled.
type Failure uint8

const (
	Leave     Failure = iota // asynq does what is right, or writes nothing: its recoverer takes up the task
	FreeLocks                // asynq archives the task, and perhaps no attempt settles its locks
	Archive                  // the task will not run again, but asynq retries it
	MayRunOn                 // a further attempt follows, unless Config.MaxHold or its Deadline forbids it
)

// Failed returns what the ErrorHandler does after an attempt that has failed with err.
func (t Tries) Failed(err error) Failure {
	switch {
	case errors.Is(err, asynq.RevokeTask), errors.Is(err, asynq.SkipRetry):
		return Leave
	case t.Retried >= t.Limit:
		// The deadline had passed when asynq took the task, or the attempt waited too long for asynq's write.
		return FreeLocks
	case errors.Is(err, asynq.ErrLeaseExpired):
		return Leave // asynq has lost its lease on the task and writes nothing
	case t.Last():
		return Archive
	}
	return MayRunOn
}

// RanOutside reports whether err, with which an attempt has failed, is evidence that the task was run without its
// locks: Middleware wraps errors in a Retry. But Middleware may have left these unwrapped: a panic,
// asynq.ErrLeaseExpired, asynq.RevokeTask, an error of joblock, and any error after the attempt's context has ended.
// ended is the error of that context.
func RanOutside(err, ended error) bool {
	_, marked := errors.AsType[*Retry](err)
	return !marked && ended == nil && !asynq.IsPanicError(err) && !errors.Is(err, asynq.ErrLeaseExpired) &&
		!errors.Is(err, asynq.RevokeTask) && joblock.CodeOf(err) == ""
}

func isDeadline(ended error) bool { return errors.Is(ended, context.DeadlineExceeded) }
