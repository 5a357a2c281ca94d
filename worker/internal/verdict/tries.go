package verdict

import "github.com/joblock/toolkit/internal/envelope"

// Tries says where an attempt is in the retries of its task.
type Tries struct {
	Retried    int  // the retries charged before this attempt
	Budget     int  // the MaxRetry of the task's author
	Limit      int  // the MaxRetry in asynq: Budget, plus 1 if the task has a spare retry
	Configured bool // Configure was called
}

// Budget returns the MaxRetry that the author of a task has asked for. env is the task's envelope, and limit its
// MaxRetry in asynq.
func Budget(env envelope.Envelope, limit int) int {
	if env.Retries >= 0 && env.Retries < limit {
		return env.Retries
	}
	return limit // there is no spare retry
}

// Last reports whether the task's author allows no attempt after this one.
func (t Tries) Last() bool { return t.Retried >= t.Budget }

// Spent reports whether the author's last attempt has ended: this attempt is the spare retry, or a rerun.
func (t Tries) Spent() bool { return t.Retried > t.Budget }

// CanSnooze reports whether the task can be snoozed by a retry: one is left in asynq, which may be the spare retry.
func (t Tries) CanSnooze() bool { return t.Configured && t.Retried < t.Limit }

// CanSnoozeByArchive reports whether the task can be snoozed by way of asynq's archive. A task that carries locks must
// also be a rerun after the spare retry: the keeper frees the locks of a task that is in the archive for a minute.
func (t Tries) CanSnoozeByArchive(carries bool) bool {
	return t.Configured && t.Retried >= t.Limit && (!carries || t.Spent())
}
