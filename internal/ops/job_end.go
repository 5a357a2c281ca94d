package ops

import (
	"fmt"
	"math"
	"time"
)

// farOff is the time span beyond which a date is not useful.
const farOff = 10 * 366 * 24 * time.Hour

// longestDelay returns the longest pause of asynq.DefaultRetryDelayFunc after an attempt, including asynq's random part.
// retried is the number of retries that were charged before the attempt.
func longestDelay(retried int) time.Duration {
	n := float64(retried)
	return time.Duration(math.Min(math.Pow(n, 4)+15+29*(n+1), farOff.Seconds())) * time.Second
}

// endsBy returns the latest time at which the task ends if all its attempts fail, each as late as its timeout and its
// deadline allow, with the pauses of asynq.DefaultRetryDelayFunc. left is how many attempts are left. The time is zero if
// it is more than ten years away or not known: for a task without a timeout, or not in a queue.
func (t Task) endsBy(now time.Time) (at time.Time, left int) {
	attempt := t.Attempt + 1
	switch at = now; t.State {
	case "active":
		attempt = t.Attempt
	case "scheduled", "retry":
		at = latest(now, t.NextAt.Time)
	case "pending":
	default:
		return time.Time{}, 0
	}
	timeout, deadline := t.Timeout.Duration(), t.Deadline.Time
	if now.IsZero() || timeout == 0 && deadline.IsZero() {
		return time.Time{}, 0
	}
	left = max(1, t.Attempts-attempt+1)
	for ; ; attempt++ {
		if !deadline.IsZero() && !at.Before(deadline) {
			return at, left // no attempt begins after the deadline
		}
		begun := at
		if at = begun.Add(timeout); timeout == 0 || !deadline.IsZero() && deadline.Before(at) {
			at = deadline
		}
		if attempt >= t.Attempts {
			return at, left
		}
		if at = at.Add(longestDelay(attempt - 1)); at.Sub(now) > farOff {
			return time.Time{}, left
		}
	}
}

// ifUsual says what the latest end of a job depends on.
const ifUsual = " This assumes that a worker is always free, and that the workers have asynq's default RetryDelayFunc and no MaxHold: joblock cannot see their settings."

// withJobEnds returns f with JobEnds set, if the job of the lock frees the key.
func (s *story) withJobEnds(f Frees) Frees {
	if f.By != ByJob || s.untilStart() {
		return f
	}
	at, left := s.task.endsBy(s.now)
	if left > 0 && len(s.task.next) > 0 {
		at = s.task.chainEndsBy(at)
		f.JobEnds = Time{at}
		f.Text += " The key is free when the last step of its chain is done, or when a step has failed for good."
		if !at.IsZero() {
			f.Text += fmt.Sprintf(" If each step succeeds only at its last attempt, that is at %s at the latest (%s), pauses between attempts included."+ifUsual, s.clock(at), s.until(at))
		}
		return f
	}
	f.JobEnds = Time{at}
	switch {
	case left == 0:
	case at.IsZero():
		f.Text += fmt.Sprintf(" If all %d remaining attempts fail, the job may go on for more than ten years, if the workers use asynq's default RetryDelayFunc.", left)
	case left == 1:
		f.Text += fmt.Sprintf(" One attempt is left: if a worker is free, the job ends by itself at %s at the latest (%s).", s.clock(at), s.until(at))
	default:
		f.Text += fmt.Sprintf(" If all %d remaining attempts fail, the job ends by itself at %s at the latest (%s), pauses between attempts included."+ifUsual, left, s.clock(at), s.until(at))
	}
	return f
}

// asynqTimeout is asynq's default for a task with neither a Timeout nor a Deadline.
const asynqTimeout = 30 * time.Minute

// chainEndsBy returns the latest time at which the last step of the chain ends, if the present step ends at the time at
// and each later step begins when the step before it has ended. It returns zero if that time is not known.
func (t Task) chainEndsBy(at time.Time) time.Time {
	for _, s := range t.next {
		if at.IsZero() {
			break
		}
		if due := s.Due(at); due.After(at) {
			at = due
		}
		step := Task{State: "pending", Attempts: s.Retries + 1, Timeout: Millis(s.Timeout)}
		if s.Deadline != 0 {
			step.Deadline = Time{time.Unix(s.Deadline, 0)}
		} else if s.Timeout == 0 {
			step.Timeout = Millis(asynqTimeout)
		}
		at, _ = step.endsBy(at)
	}
	return at
}
