package keeper

import (
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/workerstats"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// The reasons with which the keeper frees locks. joblock's Status shows them.
const (
	reasonArchived  = workerstats.KeeperReason + "the task is archived"
	reasonCompleted = workerstats.KeeperReason + "the task is completed"
	reasonAbsent    = workerstats.KeeperReason + "the task does not exist"
	reasonNoQueue   = workerstats.KeeperReason + "the queue was deleted"
	reasonSnoozed   = workerstats.KeeperReason + "the task is back from the archive"
)

// finding is the result of a task's lookup in asynq. Each field's comment names the kinds for which the field is set.
type finding struct {
	kind    findingKind
	state   asynq.TaskState  // ended, alive
	reason  string           // ended, absent: the reason for Status if the lock is freed
	delay   time.Duration    // alive: the time until the task is due
	listed  bool             // alive: the task was in a list of its queue; state, info and in are not set
	again   time.Time        // later, and alive if listed: when the lock is due again
	snoozed bool             // ended: the task is in the archive only for the pause of a snooze
	waits   bool             // alive: the task waits for its turn in line, as far as its header can be believed
	halts   bool             // ended: the task has failed and halts its sequence, whose key is the lock
	carries bool             // ended, if not snoozed: the task carries the current token of the lock
	info    *asynq.TaskInfo  // ended, alive
	in      *asynq.Inspector // ended, alive: the inspector of the database that has the task
}

// findingKind is what a lookup found out about a task. If two databases differ, the higher kind counts.
type findingKind uint8

const (
	unanswered findingKind = iota // no answer
	later                         // the lists of the queue are being read, and have not shown the task so far
	foreign                       // no database of Config.Inspectors has the queue
	absent                        // the queue does not have the task
	ended                         // the task is archived or completed
	alive                         // the task is in any other state
)

// verdict says what the keeper does about a lock without a holder.
type verdict struct {
	action  action
	reason  string        // the action free: the reason for Status
	reserve time.Duration // the action extend: the new reservation, or how long the place lasts, from now
	start   bool          // in addition, start the task: its turn has come
}

type action uint8

const (
	leave       action = iota // change nothing: the lookup had no answer
	leaveOthers               // change nothing: no database of Config.Inspectors has the queue
	postpone                  // change nothing: check the lock when the lists of the queue are read
	keep                      // change nothing: the task lives, or the enqueue may be under way
	extend                    // prolong the reservation: the task lives
	free                      // free the lock: the task has ended or does not exist
	forget                    // stop checking: the task has ended, and the lock has lapsed
	rerun                     // take the task of a mark out of the archive, then free the mark
)

// judge returns the verdict on a lock other than a mark. reserve is Config.Reserve.
func judge(lock joblock.Status, task finding, reserve time.Duration) verdict {
	switch task.kind {
	case unanswered:
		return verdict{action: leave}
	case later:
		return verdict{action: postpone}
	case foreign:
		return verdict{action: leaveOthers}
	case alive:
		if task.waits && neverResumed(lock) {
			return verdict{action: extend, reserve: reserve, start: true}
		}
		return judgeAlive(lock.Reserved, task, reserve)
	}
	if task.halts {
		task.kind, task.delay = alive, 0
		return judge(lock, task, reserve)
	}
	// While the enqueue may be under way, only an ended task that carries the token proves that the lock's job has
	// ended. A snoozed task comes back from the archive.
	proven := task.kind == ended && task.carries && !task.snoozed
	if lock.Locked() && !proven && standing(lock) < envelope.EnqueueGrace {
		return verdict{action: keep}
	}
	return ending(lock, task.reason)
}

// judgeAlive returns the verdict on a lock of a task that is alive. left is how long the lock is still reserved.
func judgeAlive(left time.Duration, task finding, reserve time.Duration) verdict {
	v := verdict{action: keep, reserve: min(task.delay, driver.MaxPeriod/2) + reserve}
	if left <= v.reserve-reserve/2 {
		v.action = extend
	}
	return v
}

// neverResumed reports whether no attempt has run under the lock since its present owner got it. A lock that waited for
// its turn in line is in this state until its task starts.
func neverResumed(lock joblock.Status) bool { return lock.Fence == lock.First }

// judgePlace returns the verdict on the place of a job that waits for a lock. now is the store's time.
func judgePlace(lock joblock.Status, place driver.Place, now time.Time, task finding) verdict {
	switch {
	case task.kind == unanswered, task.kind == foreign, task.kind == later:
		return judge(lock, task, 0)
	case task.kind == alive, task.snoozed:
		if lock.Locked() && place.Until.Sub(now) > envelope.Patience/2 {
			return verdict{action: keep}
		}
		return verdict{action: extend, reserve: envelope.Patience} // if the key is free, Reserve gives it to the first in line
	case now.Sub(place.Since) < envelope.EnqueueGrace:
		return verdict{action: keep}
	}
	return verdict{action: free, reason: task.reason}
}

// judgeMark returns the verdict on a mark without a holder. The mark's process has died or given up.
func judgeMark(lock joblock.Status, task finding) verdict {
	switch {
	case task.kind == unanswered, task.kind == foreign:
		return judge(lock, task, 0)
	case task.snoozed:
		return verdict{action: rerun}
	case task.state == asynq.TaskStateActive && standing(lock) < envelope.EnqueueGrace:
		return verdict{action: keep} // asynq may be about to archive the task
	}
	return ending(lock, reasonSnoozed)
}

// ending returns the verdict on a lock whose job has ended. Freeing a slot that has lapsed gives it to the first job in
// line.
func ending(lock joblock.Status, reason string) verdict {
	if _, slot := driver.LineOf(lock.Key); lock.Locked() || slot {
		return verdict{action: free, reason: reason}
	}
	return verdict{action: forget}
}

// standing returns how long ago the lock was last parked or resumed.
func standing(lock joblock.Status) time.Duration {
	now := lock.Since.Add(lock.Age) // the store's clock, like lock.Changed
	return now.Sub(lock.Changed)
}
