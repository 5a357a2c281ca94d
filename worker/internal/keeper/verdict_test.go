package keeper

import (
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

const reserve = 10 * time.Minute // Config.Reserve

// lockOf returns a lock that has been as it is for standing, with a reservation of left.
func lockOf(state joblock.State, standing, left time.Duration) joblock.Status {
	changed := time.UnixMicro(1_700_000_000_000_000)
	st := joblock.Status{
		State: state, Reserved: left,
		// Taken a while before it was parked: only the latter counts.
		Since: changed.Add(-time.Hour), Age: time.Hour + standing, Changed: changed,
	}
	if state == joblock.StateFree {
		st.Ended = driver.EndedLapsed
	}
	return st
}

// slotOf has a lock be another slot of a sequence than the first.
func slotOf(st joblock.Status) joblock.Status {
	st.Key = driver.SlotKey("k", 2)
	return st
}

const (
	young = envelope.EnqueueGrace - time.Millisecond
	old   = envelope.EnqueueGrace
)

func TestVerdict(t *testing.T) {
	const parked, orphaned, lapsed = joblock.StateParked, joblock.StateOrphaned, joblock.StateFree
	archived := finding{kind: ended, state: asynq.TaskStateArchived, reason: reasonArchived}
	mine, snoozed := archived, archived
	mine.carries, snoozed.snoozed = true, true
	both := snoozed
	both.carries = true
	completed := finding{kind: ended, state: asynq.TaskStateCompleted, reason: reasonCompleted, carries: true}
	gone := finding{kind: absent, reason: reasonAbsent}
	noQueue := finding{kind: absent, reason: reasonNoQueue}
	lives := func(delay time.Duration) finding {
		return finding{kind: alive, state: asynq.TaskStateScheduled, delay: delay}
	}

	for _, tc := range []struct {
		name string
		lock joblock.Status
		task finding
		want verdict
	}{
		{"no answer", lockOf(parked, old, 0), finding{}, verdict{action: leave}},
		{"no answer, and it has lapsed", lockOf(lapsed, old, 0), finding{}, verdict{action: leave}},
		{"another database's", lockOf(parked, old, 0), finding{kind: foreign}, verdict{action: leaveOthers}},

		{"no task, parked just now", lockOf(parked, young, reserve), gone, verdict{action: keep}},
		{"no task, orphaned just now", lockOf(orphaned, young, reserve), gone, verdict{action: keep}},
		{"no task, parked a minute ago", lockOf(parked, old, reserve), gone, verdict{action: free, reason: reasonAbsent}},
		{"no task, lapsed", lockOf(lapsed, young, 0), gone, verdict{action: forget}},
		{"no task, a slot that has lapsed", slotOf(lockOf(lapsed, young, 0)), gone, verdict{action: free, reason: reasonAbsent}},
		{"no queue, parked just now", lockOf(parked, young, reserve), noQueue, verdict{action: keep}},
		{"no queue", lockOf(parked, old, reserve), noQueue, verdict{action: free, reason: reasonNoQueue}},

		{"archived, carries the lock", lockOf(parked, 0, reserve), mine, verdict{action: free, reason: reasonArchived}},
		{"archived, another's header, just now", lockOf(parked, young, reserve), archived, verdict{action: keep}},
		{"archived, another's header", lockOf(parked, old, reserve), archived, verdict{action: free, reason: reasonArchived}},
		{"archived for a pause, just now", lockOf(parked, young, reserve), snoozed, verdict{action: keep}},
		{"archived for a pause, carries the lock", lockOf(parked, young, reserve), both, verdict{action: keep}},
		{"archived for a pause that does not end", lockOf(parked, old, reserve), snoozed, verdict{action: free, reason: reasonArchived}},
		{"archived, lapsed", lockOf(lapsed, old, 0), mine, verdict{action: forget}},
		{"completed", lockOf(orphaned, 0, reserve), completed, verdict{action: free, reason: reasonCompleted}},

		{"waits, just reserved", lockOf(parked, 0, reserve), lives(0), verdict{action: keep, reserve: reserve}},
		{"waits, half of it is left", lockOf(parked, old, reserve/2+1), lives(0), verdict{action: keep, reserve: reserve}},
		{"waits, less than half is left", lockOf(parked, old, reserve/2), lives(0), verdict{action: extend, reserve: reserve}},
		{"waits, lapsed", lockOf(lapsed, old, 0), lives(0), verdict{action: extend, reserve: reserve}},
		{"due in an hour", lockOf(parked, old, time.Hour+reserve/2+1), lives(time.Hour), verdict{action: keep, reserve: time.Hour + reserve}},
		{"due in an hour, too short", lockOf(parked, old, reserve), lives(time.Hour), verdict{action: extend, reserve: time.Hour + reserve}},
		{"due in ten years", lockOf(parked, old, reserve), lives(10 * driver.MaxPeriod),
			verdict{action: extend, reserve: driver.MaxPeriod/2 + reserve}},
	} {
		if got := judge(tc.lock, tc.task, reserve); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

func TestVerdictOfAMark(t *testing.T) {
	const parked, lapsed = joblock.StateParked, joblock.StateFree
	released := verdict{action: free, reason: reasonSnoozed}
	for _, tc := range []struct {
		name string
		lock joblock.Status
		task finding
		want verdict
	}{
		{"no answer", lockOf(parked, old, 0), finding{}, verdict{action: leave}},
		{"another database's", lockOf(parked, old, 0), finding{kind: foreign}, verdict{action: leaveOthers}},
		{"in the archive", lockOf(parked, 0, 0), finding{kind: ended, state: asynq.TaskStateArchived, snoozed: true}, verdict{action: rerun}},
		{"in the archive for good", lockOf(parked, 0, 0), finding{kind: ended, state: asynq.TaskStateArchived}, released},
		{"on its way to the archive", lockOf(parked, young, 0), finding{kind: alive, state: asynq.TaskStateActive}, verdict{action: keep}},
		{"runs", lockOf(parked, old, 0), finding{kind: alive, state: asynq.TaskStateActive}, released},
		{"waits", lockOf(parked, 0, 0), finding{kind: alive, state: asynq.TaskStatePending}, released},
		{"is gone", lockOf(parked, 0, 0), finding{kind: absent, reason: reasonAbsent}, released},
		{"is gone, lapsed", lockOf(lapsed, 0, 0), finding{kind: absent, reason: reasonAbsent}, verdict{action: forget}},
	} {
		if got := judgeMark(tc.lock, tc.task); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}
