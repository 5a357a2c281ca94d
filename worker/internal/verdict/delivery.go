package verdict

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// A delivery of the spare retry, which must not run, looks like a rerun, which must run, so the process in which the
// author's last attempt ended archives the task at once. After a crash no process does: asynq delivers the task again,
// and its locks show that no process has settled the last attempt.

// MayBounce reports whether a delivery may be one that must not run. mayNotCharge means that the server has an
// IsFailure, so that asynq may not have charged a crash.
func (t Tries) MayBounce(mayNotCharge bool) bool {
	return t.Spent() || t.Last() && t.Retried < t.Limit && mayNotCharge
}

// Bounce returns nil if the delivery must run, and otherwise the error with which asynq archives the task: the author's
// last attempt has ended, and no operator has run the archived task again. Call MayBounce first. last is the last error
// of the task. charged says whether asynq charges a crash, and unsettled whether no process has settled the previous
// attempt; see Unsettled. They are called only if the answer depends on them.
func (t Tries) Bounce(last string, charged, unsettled func() bool) *Final {
	crashed := last == asynq.ErrLeaseExpired.Error()
	switch {
	case strings.HasPrefix(last, jobline.SpentText), strings.Contains(last, jobline.ArchiveText):
		return nil // an operator has run the archived task
	case !t.Spent():
		if !crashed || charged() {
			return nil
		}
	case !t.Configured:
		// The task was not archived.
	case !crashed, !unsettled():
		return nil
	}
	if crashed {
		return &Final{Err: asynq.ErrLeaseExpired, Spent: true} // for errors.Is
	}
	return &Final{Err: errors.New(last), Spent: true, Reported: true}
}

// Unsettled reports whether the last attempt of a task has crashed and left a lock of the task behind. locks are the
// states of the task's locks, in the order of tokens. The answer is false if a rerun of the archived task has crashed: a
// rerun acquires the locks again, so they are not those of the enqueue. If the handler released a lock early, the two
// cannot be distinguished, and Unsettled returns true.
func Unsettled(job string, tokens []joblock.Token, locks []joblock.Status) bool {
	for i, lock := range locks {
		if lock.State == joblock.StateForeign {
			return true // the record cannot be read here, and the task must not run once more than its author allows
		}
		token := tokens[i]
		fence := core.Token(token).Fence()
		anew := fence != 0 && lock.First > fence
		unsettled := (lock.Locked() || lock.Ended == driver.EndedLapsed) && !anew
		if lock.Job == job && lock.Owner == token.Digest() && (unsettled || lock.Ended == driver.EndedReleased) {
			return true
		}
	}
	return false
}

// TooLate reports whether the attempt of a task with InLine was ended by the task's Deadline before a handler ran, while
// asynq has retries left for the task. last is the last error of the task, which is read only if it matters.
func (t Tries) TooLate(ended error, last func() string) bool {
	if t.Last() || !isDeadline(ended) {
		return false
	}
	text := last()
	return strings.Contains(text, jobline.WaitText) || text == asynq.ErrLeaseExpired.Error()
}

// Duplicate reports whether a delivery of a job that is done is a duplicate. key is the key of the lock whose record
// says that the job is done. info and err are the Inspector's answer about the task. If asynq does not answer, the
// error is joblock.ErrUnavailable.
func Duplicate(key string, info *asynq.TaskInfo, err error) (bool, error) {
	switch {
	case NoTask(err):
		return true, nil
	case err != nil:
		return false, noAnswer(key, err)
	}
	return info.CompletedAt.IsZero(), nil // with a completion time: an operator has run a completed task again
}

// HasRun reports whether the handler of a task has been called before: this is a retry, or an operator has run the task
// again. The arguments and the error are those of Duplicate.
func HasRun(key string, info *asynq.TaskInfo, err error) (bool, error) {
	switch {
	case NoTask(err):
		return false, nil
	case err != nil:
		return false, noAnswer(key, err)
	}
	waited := info.LastErr == "" || info.LastErr == asynq.ErrLeaseExpired.Error() ||
		strings.Contains(info.LastErr, SnoozeText) || strings.Contains(info.LastErr, jobline.ArchiveText)
	return !waited || !info.CompletedAt.IsZero(), nil
}

func noAnswer(key string, err error) error {
	return &Error{
		fmt.Sprintf("cannot ask asynq for the task: %s", err),
		&joblock.Error{Code: joblock.CodeOf(joblock.ErrUnavailable), Key: key, Err: err},
	}
}
