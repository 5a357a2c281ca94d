package verdict

import (
	"errors"
	"time"

	"github.com/joblock/toolkit/joblock"
)

// IsBusy reports whether err says that another caller has the key.
func IsBusy(err error) bool {
	return errors.Is(err, joblock.ErrHeld) || errors.Is(err, joblock.ErrTimeout)
}

// IfBusy is the policy for a task whose key is still busy after the wait in place.
type IfBusy uint8

const (
	SnoozeIfBusy IfBusy = iota
	DropIfBusy
	FailIfBusy
)

// Busy is what a WithoutOverlapping does about a task that has not got its key.
type Busy uint8

const (
	FailTask    Busy = iota // the attempt fails with the error
	DropTask                // the task succeeds without a call of the handler
	SnoozeTask              // by a retry
	ArchiveTask             // snoozed by way of the archive
	OutOfTime               // the attempt fails: no time is left for a further wait
	WaitOn                  // in place
)

// Refused is a call for a key that has failed.
type Refused struct {
	Err     error
	Snooze  *Snooze // what SnoozeFor returns for Err
	IfBusy  IfBusy
	Late    bool // no time is left for waits in place
	Tries   Tries
	Carries bool // the task may carry locks
}

// Next returns what to do.
func (r Refused) Next() Busy {
	_, waits := errors.AsType[*Snooze](r.Err) // in a line, or for the end of a pause
	switch busy := IsBusy(r.Err); {
	case busy && r.IfBusy == DropIfBusy:
		return DropTask
	case busy && r.IfBusy == FailIfBusy, r.Snooze == nil:
		return FailTask
	case r.Tries.CanSnooze():
		return SnoozeTask
	case r.Tries.CanSnoozeByArchive(r.Carries) && (busy || waits || r.Late):
		return ArchiveTask
	case r.Late:
		return OutOfTime
	}
	return WaitOn
}

const (
	defaultMaxWait = 3 * time.Second

	// shortWait is how long a task waits in place if the allowed number of tasks already wait, and if locks are held for
	// short times.
	shortWait = 500 * time.Millisecond

	// calledWait replaces shortWait for a task that the Worker has called: at any time there are few, each near the front
	// of the line.
	calledWait = 1500 * time.Millisecond

	// waitShare is the part of the time until its deadline that a task may wait in place. The part is small, because it is
	// unknown how long the task will run, and running out of time is worse than being snoozed.
	waitShare = 0.1

	// lastShare replaces waitShare for a task that should be snoozed when its key is busy, but cannot be snoozed.
	lastShare = 0.5
)

// Wait has the bounds of a wait in place for a busy key.
type Wait struct {
	IfBusy    IfBusy
	CanSnooze bool          // directly, or by way of the archive
	MaxWait   time.Duration // 0 for the default, negative for no wait
	Called    bool          // the task was called because its turn is near
	Brisk     bool          // locks are held for short times
}

// stuck reports whether the task can neither be snoozed, dropped nor failed.
func (w Wait) stuck() bool { return w.IfBusy == SnoozeIfBusy && !w.CanSnooze }

// Longest returns how much of the time left until its deadline the task may wait, so that enough is left for its run,
// and in any case for the snooze.
func (w Wait) Longest(left time.Duration) time.Duration {
	if w.stuck() {
		return time.Duration(lastShare * float64(left))
	}
	return time.Duration(waitShare * float64(left))
}

// InPlace returns how long the task waits now; longest is what is left of Longest. enter reports whether one more task
// may wait for long, and counts it; InPlace calls it at most once.
func (w Wait) InPlace(longest time.Duration, enter func() bool) time.Duration {
	switch {
	case w.stuck():
		return longest
	case w.MaxWait != 0:
		return min(longest, max(0, w.MaxWait))
	case w.IfBusy != SnoozeIfBusy || longest <= 0:
		return 0
	case enter():
		return min(longest, defaultMaxWait)
	case w.Called && w.Brisk:
		return min(longest, calledWait)
	case w.Brisk:
		return min(longest, shortWait)
	}
	return 0
}
