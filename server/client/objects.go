package client

import "github.com/joblock/toolkit/internal/ops"

// Locks.
type (
	// Lock is one key: its state, who has it, its line, its permits and its job.
	Lock = ops.Lock

	// Waiter is a place in the line of a key: of a process that waits in a call, or of a job.
	Waiter = ops.Waiter

	// LocksQuery says which locks Locks shows. Share and Progress are ignored.
	LocksQuery = ops.LocksQuery

	// Permits are the permits of a limit, or the slots of a sequence.
	Permits = ops.Permits

	// HoldStats says how long recent holders had a key.
	HoldStats = ops.HoldStats

	// RecentEvents says which callers were recently refused a key, and which leases ran out.
	RecentEvents = ops.RecentEvents

	// Role says what a key is for.
	Role = ops.Role

	// ReleasedBy says who freed a key, if its owner did not.
	ReleasedBy = ops.ReleasedBy

	// Pulse is what the renewals of a lock show about its holder; see Lock.Pulse.
	Pulse = ops.Pulse
)

// The roles. The toolkit makes the keys of all roles but RoleLock itself.
const (
	RoleLock   Role = ops.RoleLock   // a lock of an application
	RolePermit Role = ops.RolePermit // a permit of a limit
	RoleSlot   Role = ops.RoleSlot   // a slot of a sequence other than the first, whose key is that of the sequence
	RoleNext   Role = ops.RoleNext   // for the job that runs after the present one; see handoff.KeepLast
	RoleGate   Role = ops.RoleGate   // the line of a limit
	RoleSize   Role = ops.RoleSize   // the number of permits of a limit
	RoleLimit  Role = ops.RoleLimit  // in lists of the command line: the key of a limit that has waiters
	RoleKeeper Role = ops.RoleKeeper // a place of a keeper that works, or the line of those that stand by
	RoleCron   Role = ops.RoleCron   // a record of a scheduler
	RoleMark   Role = ops.RoleMark   // the key of a task that is snoozed in asynq's archive
	RoleOther  Role = ops.RoleOther  // any other key of the toolkit
)

// The values of Lock.FreedBy.
const (
	FreedByKeeper  ReleasedBy = ops.FreedByKeeper  // a keeper, because the job had ended
	FreedByProgram ReleasedBy = ops.FreedByProgram // a program that enqueues or runs jobs, because the job had ended or was not enqueued
	FreedByForce   ReleasedBy = ops.FreedByForce   // an operator, or the application by Locker.ForceRelease
)

// The values of Lock.Pulse.
const (
	PulseNone   Pulse = ops.PulseNone   // the lock has no running holder
	PulseFresh  Pulse = ops.PulseFresh  // no renewal is overdue
	PulseLate   Pulse = ops.PulseLate   // a renewal is overdue
	PulseSilent Pulse = ops.PulseSilent // two renewals are overdue: the holder has died, hangs, or is cut off
	PulseNever  Pulse = ops.PulseNever  // like PulseSilent, but the holder has never renewed, so perhaps it does not renew automatically
	PulseByHand Pulse = ops.PulseByHand // the holder renews by hand, if at all: the lease does not say whether it is alive
)

// The values of Permits.Kind.
const (
	PermitsOfLimit    = ops.KindLimit    // a key that is used with package limit, or with worker.OverlapConfig.MaxConcurrent
	PermitsOfSequence = ops.KindSequence // a key whose jobs run several at a time; see handoff.Sequence
)

// What happens to a key, and what an operator may do about it.
type (
	// Explanation says in sentences what happens to a key. Programs read its Frees and Lock.
	Explanation = ops.Explanation

	// Frees says what frees a key without an operator.
	Frees = ops.Frees

	// FreesBy is what frees a key.
	FreesBy = ops.FreesBy

	// Offer proposes an action to an operator, by the action's name, such as ForceRelease{}.Verb(), and its arguments. It
	// may also propose to "wait", to "unpause queue", or to "start a keeper".
	Offer = ops.Offer

	// Args are the arguments of an Offer.
	Args = ops.Args
)

// The values of Frees.By.
const (
	FreesByNothing     FreesBy = ops.ByNothing     // the key stays taken until an operator frees it
	FreesByNone        FreesBy = ops.ByNone        // the key is free
	FreesByHolder      FreesBy = ops.ByHolder      // the holder, at the end of its work; or its lease, if the holder dies
	FreesByReservation FreesBy = ops.ByReservation // the end of the reservation
	FreesByJob         FreesBy = ops.ByJob         // the worker that ends the job of the lock
	FreesByKeeper      FreesBy = ops.ByKeeper      // a check of the keeper
)

// Jobs.
type (
	// Job is a job together with a lock: the lock is bound to the job, or the job waits in the line of the lock's key.
	Job = ops.Job

	// Task is a task as asynq sees it, without its payload.
	Task = ops.Task

	// TaskState is the state of a task: a state of asynq, or one of three more.
	TaskState = ops.TaskState

	// Durations says how long the latest successful attempts of a type of task took.
	Durations = ops.Durations

	// JobsQuery says which jobs Jobs shows. May, Share and Progress are ignored.
	JobsQuery = ops.JobsQuery

	// SequencesQuery says which sequences Sequences shows. Share and Progress are ignored.
	SequencesQuery = ops.SequencesQuery

	// Controls is what operators have set at run time.
	Controls = ops.Controls

	// Pause is a pause of the jobs of a key, and Limit the value of a named limit.
	Pause = ops.Pause
	Limit = ops.Limit

	// Sequence is the line of jobs behind one key.
	Sequence = ops.Sequence

	// SequenceState says whether the jobs of a Sequence go on.
	SequenceState = ops.SequenceState

	// Keeper is what the keepers of jobs' locks report about themselves.
	Keeper = ops.Keeper

	// KeeperPlace is the place of one keeper, with its counts.
	KeeperPlace = ops.KeeperPlace

	// Outboxes is what the relays of outboxes report about themselves.
	Outboxes = ops.Outboxes

	// Outbox is an outbox of module outbox, with the state of its relay.
	Outbox = ops.Outbox

	// OutboxState says how well an Outbox is relayed.
	OutboxState = ops.OutboxState
)

// The values of Outbox.State.
const (
	OutboxWell     OutboxState = ops.OutboxWell     // a relay works, and keeps up
	OutboxBehind   OutboxState = ops.OutboxBehind   // the first row has waited for more than a minute
	OutboxUnread   OutboxState = ops.OutboxUnread   // the database does not answer the relay
	OutboxUnserved OutboxState = ops.OutboxUnserved // no relay has reported for 40 seconds
)

// The values of Task.State, in addition to asynq's own, such as "active" and "archived".
const (
	TaskAbsent  TaskState = ops.TaskAbsent  // asynq has the queue, but not the task
	TaskNoQueue TaskState = ops.TaskNoQueue // no database that the server knows has the queue
	TaskUnknown TaskState = ops.TaskUnknown // asynq did not answer, or was not asked; Task.Problem says why
)

// The values of Sequence.State, the worst first.
const (
	SequenceHalted  SequenceState = ops.SequenceHalted  // the job in front has failed for good, and the others wait until an operator decides
	SequenceStuck   SequenceState = ops.SequenceStuck   // the next job is not started automatically, or not in time
	SequenceWaiting SequenceState = ops.SequenceWaiting // the job in front waits for a worker, for its start time or for its next attempt
	SequenceRunning SequenceState = ops.SequenceRunning // an attempt runs
)

// What the doctor reports.
type (
	// Report is what Doctor returns. A subject that is not in its Checks was not checked.
	Report = ops.Report

	// Probe is one thing that the doctor checked.
	Probe = ops.Probe

	// Finding is one thing that the doctor found.
	Finding = ops.Finding

	// Severity says how much a Finding matters.
	Severity = ops.Severity

	// Safety says whether the servers keep locks safe, as far as the doctor can determine, and why.
	Safety = ops.Safety
)

// The values of Finding.Severity and Probe.Status.
const (
	SeverityWell    Severity = ops.Well    // only of a Probe: nothing has to change
	SeverityNote    Severity = ops.Note    // good to know; nothing has to change
	SeverityWarning Severity = ops.Warning // weakens a promise in an event such as a restart or a fail-over, or delays something
	SeverityFault   Severity = ops.Fault   // breaks locks, jobs or calls in everyday use
)

// The actions of operators, and their results.
type (
	// Action is something that an operator does; see Client.Act. The following types are Actions.
	Action = ops.Action

	ForceRelease  = ops.ForceRelease
	SkipJob       = ops.SkipJob
	RunTask       = ops.RunTask
	CancelTask    = ops.CancelTask
	DropTask      = ops.DropTask
	ArchiveTask   = ops.ArchiveTask
	AnnotateJob   = ops.AnnotateJob
	PauseKey      = ops.PauseKey
	ResumeKey     = ops.ResumeKey
	SetLimit      = ops.SetLimit
	ClearLimit    = ops.ClearLimit
	PauseCron     = ops.PauseCron
	ResumeCron    = ops.ResumeCron
	PauseAllCron  = ops.PauseAllCron
	ResumeAllCron = ops.ResumeAllCron
	TriggerCron   = ops.TriggerCron
	BackfillCron  = ops.BackfillCron
	StopBackfill  = ops.StopBackfill
	ForgetCron    = ops.ForgetCron

	// ActionResult is the result of an action.
	ActionResult = ops.ActionResult

	// Then says what to do with a task whose handler is cancelled.
	Then = ops.Then

	// TaskOutcome is what happened to a task after CancelTask with a Then.
	TaskOutcome = ops.TaskOutcome

	// AuditQuery says which records Audit returns.
	AuditQuery = ops.AuditQuery

	// AuditEntry is a record of an action. An action has one entry from before it began, and another one with its
	// Outcome.
	AuditEntry = ops.AuditEntry
)

// CancelTask.Then: what to do with the task. "" leaves it to asynq, which retries it or fails it for good.
const (
	ThenDrop    Then = ops.ThenDrop    // it is deleted
	ThenArchive Then = ops.ThenArchive // it is kept in asynq's archive, to be run later
)

// The values of ActionResult.Outcome, after CancelTask with a Then.
const (
	TaskOutcomeDropped  TaskOutcome = ops.TaskOutcomeDropped
	TaskOutcomeArchived TaskOutcome = ops.TaskOutcomeArchived
	TaskOutcomeOver     TaskOutcome = ops.TaskOutcomeOver     // it has succeeded meanwhile, or another caller has deleted it
	TaskOutcomeReplaced TaskOutcome = ops.TaskOutcomeReplaced // it has been enqueued again meanwhile, and was left alone
	TaskOutcomeRunning  TaskOutcome = ops.TaskOutcomeRunning  // its handler has not returned within ten seconds, so the task stays
	TaskOutcomeSnoozed  TaskOutcome = ops.TaskOutcomeSnoozed  // its handler has returned a snooze, so the task will run again
)

// The values of AuditEntry.Outcome.
const (
	OutcomeDone    = ops.OutcomeDone
	OutcomeAsked   = ops.OutcomeAsked   // it was requested from another process, and its result is unknown
	OutcomeFailed  = ops.OutcomeFailed  // it began and failed
	OutcomeRefused = ops.OutcomeRefused // nothing was changed
	OutcomeUnknown = ops.OutcomeUnknown // the store did not answer
)

// Cron jobs.
type (
	// CronJob is a cron job in the whole cluster.
	CronJob = ops.CronJob

	// CronNextQuery says which ticks CronNext returns.
	CronNextQuery = ops.CronNextQuery

	// CronRange is a past range of time of a cron job.
	CronRange = ops.CronRange

	// CronState is what a cron job does now.
	CronState = ops.CronState

	// CronTrouble is a problem of a cron job that an operator should look at.
	CronTrouble = ops.CronTrouble

	// CronSpec is a spec that was in force until a time.
	CronSpec = ops.CronSpec

	// CronOtherSpec is a node that is up and has a spec other than the one in force.
	CronOtherSpec = ops.CronOtherSpec

	// CronPause is a pause of a cron job, or of all cron jobs of the scope.
	CronPause = ops.CronPause

	// CronRun is an execution of a cron job.
	CronRun = ops.CronRun

	// CronBackfill is the progress of a backfill of a cron job.
	CronBackfill = ops.CronBackfill

	// CronTick is a future tick.
	CronTick = ops.CronTick

	// CronPlan is what a spec means.
	CronPlan = ops.CronPlan

	// CronNode is a node of a scope that is up.
	CronNode = ops.CronNode
)

// The values of CronJob.State. The first that applies counts.
const (
	CronRunning  CronState = ops.CronRunning  // a run has begun and has not ended
	CronPaused   CronState = ops.CronPaused   // ticks are skipped
	CronOverdue  CronState = ops.CronOverdue  // a tick was due more than a minute ago, and no node has claimed it
	CronDeserted CronState = ops.CronDeserted // no node that is up has the job
	CronEnded    CronState = ops.CronEnded    // the spec has no more ticks
	CronIdle     CronState = ops.CronIdle     // the job waits for its next tick
)

// Events, and the history of a key.
type (
	// Event is something that has happened to a lock or to a cron job.
	Event = ops.Event

	// EventsQuery says which events Events and Follow show.
	EventsQuery = ops.EventsQuery

	// Feed follows the journal.
	Feed = ops.Feed

	// HistoryQuery says which part of the history of a key History returns. The server decides about Actions.
	HistoryQuery = ops.HistoryQuery

	// History is what is known of the past of a key.
	History = ops.History

	// Happening is an Event, an action of an operator, or what only the key's record shows.
	Happening = ops.Happening
)

// The values of Event.Kind that no process has recorded.
const (
	EventDropped = ops.EventDropped // stands for events that a process could not write
	EventGap     = ops.EventGap     // only from a Feed: older events are no longer in the journal
)

// Values.
type (
	// Time is an instant by the store's clock. In JSON it is RFC 3339 in UTC, with milliseconds.
	Time = ops.Time

	// Millis is a duration. In JSON it is a whole number of milliseconds.
	Millis = ops.Millis
)
