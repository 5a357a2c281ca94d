package keeper

import (
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// enqueueGrace is how long a lock is kept after its park even if its task does not exist:
// the enqueue comes after the park. By default go-redis gives up on a silent server after
// some twenty seconds, and a server that was frozen applies what it has received before it
// answers a later question.
const enqueueGrace = time.Minute

// Reasons that Status shows for locks freed by the keeper.
const (
	reasonArchived  = "keeper: the task is archived"
	reasonCompleted = "keeper: the task is completed"
	reasonAbsent    = "keeper: the task does not exist"
	reasonNoQueue   = "keeper: the queue was deleted"
	reasonSnoozed   = "keeper: the task is back from the archive"
)

// finding is what asynq says about a task.
type finding struct {
	kind    findingKind
	state   asynq.TaskState // of ended and alive
	reason  string          // of ended and absent: why its lock is to be freed
	delay   time.Duration   // of alive: until it is due
	snoozed bool            // of ended: it is in the archive only for a pause
	carries bool            // of ended: it carries the current token of the lock

	info *asynq.TaskInfo  // of ended
	in   *asynq.Inspector // of ended: whose database has it
}

type findingKind uint8

const (
	unanswered findingKind = iota // nothing is known
	foreign                       // no queue of that name in the asynq databases that are known here
	absent                        // there is no such task
	ended                         // it will not run again by itself
	alive                         // it runs, or will
)

// verdict is what to do about a lock that nobody runs under.
type verdict struct {
	action  action
	reason  string        // of free: for the lock's record
	reserve time.Duration // of extend: for how long from now
}

type action uint8

const (
	leave       action = iota // nothing is known
	leaveOthers               // it is in no asynq database that is known here
	keep                      // its task lives, or may still be on its way
	extend                    // its task lives, and the reservation is to be prolonged
	free                      // its task has ended
	forget                    // lock and task have ended
	rerun                     // of a mark: its task is to be taken out of the archive
)

// judge decides about a lock. reserve is Config.Reserve.
func judge(lock joblock.Status, task finding, reserve time.Duration) verdict {
	switch task.kind {
	case unanswered:
		return verdict{action: leave}
	case foreign:
		return verdict{action: leaveOthers}
	case alive:
		v := verdict{action: keep, reserve: min(task.delay, driver.MaxPeriod/2) + reserve}
		if lock.Reserved <= v.reserve-reserve/2 {
			v.action = extend
		}
		return v
	}
	// A task that is missing, or does not carry the lock, proves nothing while the enqueue
	// may be on its way. Nor does the archive prove that a snoozed task has ended.
	proven := task.kind == ended && task.carries && !task.snoozed
	if lock.Locked() && !proven && standing(lock) < enqueueGrace {
		return verdict{action: keep}
	}
	return ending(lock, task.reason)
}

// judgeMark decides about a mark: a lock that a process holds while it snoozes a task by
// way of asynq's archive. It is called for marks that nobody holds: the process has died or
// has given up.
func judgeMark(lock joblock.Status, task finding) verdict {
	switch {
	case task.kind == unanswered:
		return verdict{action: leave}
	case task.kind == foreign:
		return verdict{action: leaveOthers}
	case task.snoozed:
		return verdict{action: rerun}
	case task.state == asynq.TaskStateActive && standing(lock) < enqueueGrace:
		return verdict{action: keep} // on its way to the archive, for all that is known
	}
	return ending(lock, reasonSnoozed)
}

// ending is the verdict on a lock whose job is over: to free it, or to forget it if it has
// ended by itself.
func ending(lock joblock.Status, reason string) verdict {
	if lock.Locked() {
		return verdict{action: free, reason: reason}
	}
	return verdict{action: forget}
}

// standing returns how long ago a lock was last parked or resumed.
func standing(lock joblock.Status) time.Duration {
	now := lock.Since.Add(lock.Age) // by the same clock
	return now.Sub(lock.Changed)
}
