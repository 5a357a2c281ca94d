package pages

import (
	"context"
	"iter"

	"github.com/joblock/toolkit/internal/ops"
)

// Desk is the part of an *ops.Desk that the pages use.
type Desk interface {
	Locks(ctx context.Context, q ops.LocksQuery) iter.Seq2[ops.Lock, error]
	Statuses(ctx context.Context, keys ...string) ([]ops.Lock, error)
	Explain(ctx context.Context, key string) (ops.Explanation, error)
	Waiters(ctx context.Context, key string) iter.Seq2[ops.Waiter, error]
	Permits(ctx context.Context, key string, n int) (ops.Permits, error)
	Jobs(ctx context.Context, q ops.JobsQuery) iter.Seq2[ops.Job, error]
	Sequences(ctx context.Context, q ops.SequencesQuery) iter.Seq2[ops.Sequence, error]
	Job(ctx context.Context, job string) ([]ops.Job, ops.Task, error)
	CarriesOnly(ctx context.Context, job string, may func(key string) bool) (bool, error)
	Keeper(ctx context.Context) (ops.Keeper, error)
	Doctor(ctx context.Context) (ops.Checkup, error)
	Audit(ctx context.Context, q ops.AuditQuery) iter.Seq2[ops.AuditEntry, error]
	Actions(ctx context.Context, q ops.AuditQuery) iter.Seq2[ops.AuditEntry, error]

	HasJournal() bool
	Events(ctx context.Context, q ops.EventsQuery) iter.Seq2[ops.Event, error]

	CronJobs(ctx context.Context, scope string) ([]ops.CronJob, error)
	CronJob(ctx context.Context, scope, name string) (ops.CronJob, error)
	CronNext(ctx context.Context, scope, name string, n int) ([]ops.CronTick, error)
	CronNodes(ctx context.Context, scope string) ([]ops.CronNode, error)
	CronScopes(ctx context.Context) ([]string, error)

	Force(ctx context.Context, req ops.ForceRequest) (ops.Forced, error)
	SkipJob(ctx context.Context, who ops.Actor, key string, fence int64) (ops.Acted, error)
	RunTask(ctx context.Context, req ops.TaskRequest) (ops.Acted, error)
	CancelTask(ctx context.Context, req ops.TaskRequest) (ops.Acted, error)
	DeleteTask(ctx context.Context, req ops.TaskRequest) (ops.Acted, error)
	ArchiveTask(ctx context.Context, req ops.TaskRequest) (ops.Acted, error)
	CronPause(ctx context.Context, scope, name string, who ops.Actor) (ops.Acted, error)
	CronResume(ctx context.Context, scope, name string, who ops.Actor) (ops.Acted, error)
	CronTrigger(ctx context.Context, scope, name string, wait bool, who ops.Actor) (ops.Acted, error)
	CronForget(ctx context.Context, scope, name string, who ops.Actor) (ops.Acted, error)
}
