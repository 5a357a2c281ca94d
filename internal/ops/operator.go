package ops

import (
	"context"
	"iter"
	"time"
)

// Operator shows locks, jobs and cron jobs, and performs an operator's actions on them. A Desk reads the store itself;
// the Client of package server/client uses a lock server. The methods of Desk document what each call returns and costs,
// and its errors.
type Operator interface {
	Lock(ctx context.Context, key string) (Lock, error)
	Statuses(ctx context.Context, keys ...string) ([]Lock, error)
	Locks(ctx context.Context, q LocksQuery) iter.Seq2[Lock, error]
	Waiters(ctx context.Context, key string) iter.Seq2[Waiter, error]
	Permits(ctx context.Context, key string, n int) (Permits, error)
	Explain(ctx context.Context, key string) (Explanation, error)

	Jobs(ctx context.Context, q JobsQuery) iter.Seq2[Job, error]
	Job(ctx context.Context, job string) ([]Job, Task, error)
	Controls(ctx context.Context) (Controls, error)
	Sequences(ctx context.Context, q SequencesQuery) iter.Seq2[Sequence, error]

	CronScopes(ctx context.Context) ([]string, error)
	CronJobs(ctx context.Context, scope string) ([]CronJob, error)
	CronJob(ctx context.Context, scope, name string) (CronJob, error)
	CronNext(ctx context.Context, q CronNextQuery) ([]CronTick, error)
	CronNodes(ctx context.Context, scope string) ([]CronNode, error)
	CronCount(ctx context.Context, r CronRange) (int, error)

	Act(ctx context.Context, a Action) (ActionResult, error)

	Keeper(ctx context.Context) (Keeper, error)
	Outboxes(ctx context.Context) (Outboxes, error)
	Doctor(ctx context.Context) (Report, error)
	Audit(ctx context.Context, q AuditQuery) iter.Seq2[AuditEntry, error]
	Events(ctx context.Context, q EventsQuery) iter.Seq2[Event, error]
	Follow(q EventsQuery, after string) (Feed, error)
	History(ctx context.Context, q HistoryQuery) (History, error)
}

// Feed follows the journal. A Feed must not be used by several goroutines at once. Close it when done.
type Feed interface {
	// Next returns the next events, the oldest first, as soon as there are any. If none comes within atMost, it returns
	// none. If events in between were lost, an Event of kind EventGap takes their place. After an error,
	// joblock.ErrUnavailable or the cause of ctx, Next can be called again and continues at the same place.
	Next(ctx context.Context, atMost time.Duration) ([]Event, error)

	// Position returns the place after the events that Next has returned, or "" if it is not known yet.
	Position() string

	Close()
}

var _ Operator = (*Desk)(nil)
