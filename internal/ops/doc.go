// Package ops is the operator's side of the toolkit: it shows locks, jobs and cron jobs, and performs an operator's
// actions on them. The command line, the HTTP API and the pages all show what a Desk returns. The package also has the
// calls with which scripts use locks by token.
//
// # What a Desk shows
//
//	Lock      one key: its state, who has it, its line, its permits or slots, its job as asynq sees the job
//	Statuses  several keys: their records, and nothing else
//	Locks     many keys: those that a LocksQuery names, in the order of a walk
//	Waiters   the line of a key, in the order in which the key will be served
//	Permits   the permits of a limit, or the slots of a sequence, with their number
//	Explain   one key in sentences: who has it and why, what frees it by itself and when, what an operator may do
//	Job, Jobs jobs of asynq and the locks that are bound to them; a suspect has a lock that its job no longer needs
//	Sequences the lines of jobs: which have halted and why, what the job in front does, how many wait
//	Controls  the pauses of keys, with the number of jobs that they hold back, and the values of named limits
//	Keeper    the keepers that work, and what they have found
//	Outboxes  what the relays of module outbox report: how far behind they are, and their errors
//	Doctor    what is wrong with the servers, the keepers, the clocks, the databases and the cron nodes
//	Cron…     the cron jobs of a scope; see package scheduler
//	Audit     what operators have done
//	Events    what has happened to locks and cron jobs, as package joblock/journal has written it; Follow as it happens
//	History   what is known of the past of one key: its events, and the actions on it
//
// The types that a Desk returns are the objects of the JSON output. In JSON a duration is a whole number of
// milliseconds, and the field's name ends in _ms. A time is RFC 3339 with milliseconds, by the store's clock. A fence is
// a number below 2^53. No type has an owner token: Owner is a digest, the one that logs have.
//
// # What reading costs
//
// Lock, Statuses, Waiters, Permits, Explain and Job read only the keys that they are asked for; Explain with
// Config.ExplainActs also reads the latest 500 actions of the record, of a day or so. Jobs, Sequences, and Locks with
// LocksQuery.Jobs, read the index of jobs, whatever else the store has. Reading the index claims no entries, so keepers
// are not affected. All other calls of Locks iterate over all keys of the store; LocksQuery.Share bounds how much the
// walk takes from other clients.
//
// # What an operator may do
//
// An [Action] is data: a type with its arguments, which Act performs. [Verbs] is the table of all of them. Explain and
// Sequences offer actions by their names with their arguments; each user interface has its own words for them.
//
//	ForceRelease frees a key
//	SkipJob      moves a sequence on past the job that has failed and halts it
//	RunTask      makes asynq run a task again, or now
//	CancelTask   cancels the context of the handler that runs a task, and on request then deletes or archives the task
//	DropTask     deletes a task that does not run
//	ArchiveTask  moves a task that does not run into asynq's archive, to be run later
//	PauseKey     holds back the jobs of a key and of the keys below it; ResumeKey ends that
//	SetLimit     sets the value of a named limit; ClearLimit gives it the value in the code again
//	AnnotateJob  leaves a note about a job
//	…Cron        pauses, resumes, triggers, backfills or forgets a cron job
//
// ForceRelease and SkipJob name the holding that the operator has seen, by its fence: if the key has another fence by
// now, both change nothing. An action on a task changes nothing unless the task is in a state that fits. Every action has
// a reason and the name of who acts, and is recorded before it begins; an action that cannot be recorded is refused. A
// second record has the outcome.
//
// # By token
//
// Acquire, Renew, Park, Resume and Release take a joblock.Token and leave no Lock behind, so the caller has to renew the
// lock. Each can be repeated after ErrUnavailable with the same token: the store recognises the call, and returns the
// answer of the first one. A Resume needs a name for that, because several callers may have the token.
//
// AcquireLease and RenewLease are for servers, whose callers are elsewhere. A [Call] makes AcquireLease repeatable by a
// caller that has no token yet, through another process too.
package ops
