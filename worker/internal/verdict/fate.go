package verdict

import (
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/joblock"
)

// Fate is what the Inspector's answer says about the task of an attempt that has ended.
type Fate struct {
	Written bool          // asynq has written the task's next state
	Over    string        // the reason for the release of its locks, or "" if the task runs again, or if that is not known
	Delay   time.Duration // until the task runs again
}

// FateOf returns the fate of a task whose context has ended, from the answer info and err of the Inspector. While asynq
// shows the task as active, it has not written its next state. If asynq does not answer, the task may run again at
// once.
//
// archive is "", or the last error of a task in the state retry that this Worker is about to archive: if this was the
// last attempt, or if the task is Expired. Such a task will not run.
func FateOf(info *asynq.TaskInfo, err error, archive string, last bool) Fate {
	switch {
	case NoTask(err):
		return Fate{Written: true, Over: ReasonGone}
	case err != nil, jobline.InArchive(info):
		return Fate{Written: true}
	case info.State == asynq.TaskStateArchived,
		archive != "" && info.State == asynq.TaskStateRetry && info.LastErr == archive && (last || Expired(info)):
		return Fate{Written: true, Over: ReasonFailed}
	case info.State == asynq.TaskStateCompleted:
		return Fate{Written: true, Over: ReasonGone}
	case info.State == asynq.TaskStateActive:
		return Fate{}
	}
	return Fate{Written: true, Delay: max(0, time.Until(info.NextProcessAt))}
}

// FateInOrder is FateOf for the task of a sequence. header is the header of the attempt: a task with the same ID and
// another header is another task. While asynq does not answer, nothing counts as written.
func FateInOrder(info *asynq.TaskInfo, err error, header string) Fate {
	switch {
	case err != nil && !NoTask(err):
		return Fate{}
	case err == nil && info.State != asynq.TaskStateActive && info.Headers[envelope.Header] != header:
		return Fate{Written: true, Over: ReasonGone} // another task with the same ID
	}
	return FateOf(info, err, "", false)
}

// Expired reports whether the Deadline of the task has passed, or will have when the task is due. asynq then calls no handler
// for the task, however many retries are left.
func Expired(info *asynq.TaskInfo) bool {
	begin := time.Now()
	if info.NextProcessAt.After(begin) {
		begin = info.NextProcessAt
	}
	return !info.Deadline.IsZero() && !begin.Before(info.Deadline)
}

// Move is what to do with a task that asynq is about to move.
type Move uint8

const (
	LookAgain Move = iota
	GiveUp         // the task is elsewhere, and needs no action
	Now
)

// ArchiveNow decides whether a task that will not run again can be archived: when asynq shows it in the state retry
// with the last error text. If mayRetry is set, only the task's Deadline keeps it from running.
func ArchiveNow(info *asynq.TaskInfo, err error, text string, mayRetry bool) Move {
	switch {
	case NoTask(err):
		return GiveUp
	case err != nil:
		return LookAgain
	case info.State == asynq.TaskStateActive && (!mayRetry || !info.Deadline.IsZero()):
		return LookAgain
	case mayRetry && !Expired(info):
		return GiveUp
	case info.State == asynq.TaskStateRetry && info.LastErr == text:
		return Now
	}
	return GiveUp
}

// RunSnoozed decides whether a snoozed task can be run before the end of its pause, because a key is free. A task in
// any other state, or with any other error, has been run meanwhile, or is back after its pause.
func RunSnoozed(info *asynq.TaskInfo, err error) Move {
	switch {
	case err != nil:
		return GiveUp
	case info.State == asynq.TaskStateActive, jobline.InArchive(info):
		return LookAgain // asynq has not written the snooze yet
	case info.State == asynq.TaskStateRetry && (strings.Contains(info.LastErr, SnoozeText) || strings.Contains(info.LastErr, jobline.ArchiveText)):
		return Now
	}
	return GiveUp
}

// LeaveArchive decides whether a task that is snoozed by way of the archive can be taken out of it. kept is the last
// error that asynq records, which another middleware may have changed, or "" before that.
func LeaveArchive(info *asynq.TaskInfo, err error, kept string) Move {
	switch {
	case NoTask(err):
		return GiveUp
	case err != nil:
		return LookAgain
	case jobline.InArchive(info), info.State == asynq.TaskStateArchived && kept != "" && info.LastErr == kept:
		return Now
	case info.State == asynq.TaskStateActive:
		return LookAgain
	}
	return GiveUp // the task was run there
}

// PrevEnded reports whether asynq has recorded the end of the previous step of a chain. info is the task with the ID of
// that step. owner is the digest of the chain's owner: a task without a token of owner is another task that has got the
// ID since.
func PrevEnded(info *asynq.TaskInfo, owner string) bool {
	switch {
	case info.State == asynq.TaskStateCompleted, info.State == asynq.TaskStateArchived && !jobline.InArchive(info):
		return true
	}
	env, ok := envelope.Peek(envelope.Task{Job: envelope.Job(info.Queue, info.ID), Type: info.Type, Headers: info.Headers})
	return !ok || !slices.ContainsFunc(env.Tokens, func(t joblock.Token) bool { return t.Digest() == owner })
}
