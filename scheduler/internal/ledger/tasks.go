package ledger

import "slices"

// maxTasks is how many tasks are followed. The oldest are dropped.
const maxTasks = 10

// FollowTask makes the end of the task of d, whose execution is about to end as Enqueued, count for Streak instead of
// the execution itself.
func (l *Ledger) FollowTask(d Due) {
	l.Tasks = append(l.Tasks, d)
	l.Tasks = l.Tasks[max(0, len(l.Tasks)-maxTasks):]
}

// TaskEnded counts the end of a task of l.Tasks.
func (l *Ledger) TaskEnded(d Due, well bool) {
	l.Tasks = slices.DeleteFunc(l.Tasks, func(other Due) bool { return other == d })
	if well {
		l.Streak = 0
	} else {
		l.Streak++
	}
}
