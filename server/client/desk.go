package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/server/internal/routes"
)

// Lock returns one key, with its line, its permits and its job. A free key is not an error.
func (c *Client) Lock(ctx context.Context, key string) (Lock, error) {
	return ask(ctx, c, "lock", routes.Lock, routes.KeyQuery{Key: key})
}

// Statuses returns the records of up to 1,000 keys, in the order of keys.
func (c *Client) Statuses(ctx context.Context, keys ...string) ([]Lock, error) {
	got, err := ask(ctx, c, "status", routes.Statuses, routes.StatusesRequest{Keys: keys})
	if err == nil && len(got.Items) != len(keys) {
		err = fmt.Errorf("client: status: %d locks, want %d", len(got.Items), len(keys))
	}
	return got.Items, err
}

// Explain says in sentences what happens to a key.
func (c *Client) Explain(ctx context.Context, key string) (Explanation, error) {
	return ask(ctx, c, "explain", routes.Explain, routes.KeyQuery{Key: key})
}

// Locks walks over locks, page by page. An error ends the walk.
func (c *Client) Locks(ctx context.Context, q LocksQuery) iter.Seq2[Lock, error] {
	return pages(func(at string) (routes.List[Lock], error) {
		return ask(ctx, c, "list", routes.Locks, routes.LocksQuery{LocksQuery: q, Page: routes.Page{Cursor: at, Limit: most}})
	})
}

// most is how many items a server returns at most in one answer.
const most = 1000

// pages walks over a list with a cursor.
func pages[T any](page func(at string) (routes.List[T], error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for at := ""; ; {
			got, err := page(at)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range got.Items {
				if !yield(item, nil) {
					return
				}
			}
			if at = got.Next; at == "" {
				return
			}
		}
	}
}

// ErrMore means that a list is longer than what a server returns in one answer.
var ErrMore = errors.New("client: the list is incomplete: it is longer than one response of the server")

// list walks over a list without a cursor. If the server did not return all of it, the walk ends with ErrMore.
func list[T any](op string, get func() (routes.List[T], error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		got, err := get()
		if err == nil && got.More {
			err = fmt.Errorf("%s: %w", op, ErrMore)
		}
		for _, item := range got.Items {
			if !yield(item, nil) {
				return
			}
		}
		if err != nil {
			var none T
			yield(none, err)
		}
	}
}

// Waiters walks over the line of key, in the order in which it will be served. After 1,000 waiters the walk ends with
// ErrMore.
func (c *Client) Waiters(ctx context.Context, key string) iter.Seq2[Waiter, error] {
	return list("line", func() (routes.List[Waiter], error) {
		return ask(ctx, c, "line", routes.Line, routes.LineQuery{Key: key, First: routes.First{Limit: most}})
	})
}

// Permits returns the permits of a limit, or the slots of a sequence. n is the number of permits, or 0 if the caller does
// not know it.
func (c *Client) Permits(ctx context.Context, key string, n int) (Permits, error) {
	return ask(ctx, c, "permits", routes.Permits, routes.PermitsQuery{Key: key, N: n})
}

// Jobs walks over the jobs that have locks or wait for locks, page by page.
func (c *Client) Jobs(ctx context.Context, q JobsQuery) iter.Seq2[Job, error] {
	return pages(func(at string) (routes.List[Job], error) {
		return ask(ctx, c, "jobs", routes.Jobs, routes.JobsQuery{JobsQuery: q, Page: routes.Page{Cursor: at, Limit: most}})
	})
}

// Sequences walks over the lines of jobs, those that have halted first. The walk ends with ErrMore after 1,000 of them,
// and if the server could not read everything in time.
func (c *Client) Sequences(ctx context.Context, q SequencesQuery) iter.Seq2[Sequence, error] {
	return list("sequences", func() (routes.List[Sequence], error) {
		return ask(ctx, c, "sequences", routes.Sequences, routes.SequencesQuery{SequencesQuery: q, First: routes.First{Limit: most}})
	})
}

// Job returns the locks of a job, "queue/taskID", its places in line, and its task.
func (c *Client) Job(ctx context.Context, job string) ([]Job, Task, error) {
	queue, id, ok := ops.ParseJob(job)
	if !ok || queue == "" {
		return nil, Task{}, core.Invalid("job", "", "%.80q names no task; a job is queue/taskID", job)
	}
	got, err := ask(ctx, c, "job", routes.Job, routes.JobQuery{Queue: queue, ID: id})
	if err == nil && got.More {
		err = fmt.Errorf("job: %w", ErrMore)
	}
	return got.Items, got.Task, err
}

// Controls returns what operators have set: the pauses of keys, and the values of named limits.
func (c *Client) Controls(ctx context.Context) (Controls, error) {
	return ask(ctx, c, "controls", routes.Controls, routes.Empty{})
}

// Keeper returns what the keepers of jobs' locks report of themselves.
func (c *Client) Keeper(ctx context.Context) (Keeper, error) {
	return ask(ctx, c, "keeper", routes.Keeper, routes.Empty{})
}

// Outboxes returns what the relays of outboxes report of themselves.
func (c *Client) Outboxes(ctx context.Context) (Outboxes, error) {
	return ask(ctx, c, "outboxes", routes.Outboxes, routes.Empty{})
}

// Doctor returns whether the servers keep locks safe, what endangers locks, jobs and cron jobs, the worst first, and what
// is well. The error ErrMore means that not everything was checked.
func (c *Client) Doctor(ctx context.Context) (Report, error) {
	got, err := ask(ctx, c, "doctor", routes.Doctor, routes.Empty{})
	if err == nil && got.More {
		err = fmt.Errorf("doctor: %w", ErrMore)
	}
	return got.Report, err
}

// Audit walks over the records of operators' actions, the newest first. After 1,000 records the walk ends with ErrMore.
// An action has two records; see AuditEntry.
func (c *Client) Audit(ctx context.Context, q AuditQuery) iter.Seq2[AuditEntry, error] {
	return list("audit", func() (routes.List[AuditEntry], error) {
		return ask(ctx, c, "audit", routes.Audit, routes.AuditQuery{AuditQuery: q, First: routes.First{Limit: most}})
	})
}

// Events walks over past events, the newest first, page by page. An error ends the walk.
func (c *Client) Events(ctx context.Context, q EventsQuery) iter.Seq2[Event, error] {
	return pages(func(at string) (routes.List[Event], error) {
		q := q
		q.Before = at
		return ask(ctx, c, "events", routes.Events, routes.EventsQuery{EventsQuery: q, Limit: most})
	})
}

// History returns what is known of the past of a key: events and, for callers with the scope admin, operators' actions.
func (c *Client) History(ctx context.Context, q HistoryQuery) (History, error) {
	return ask(ctx, c, "history", routes.History, routes.HistoryQuery{HistoryQuery: q})
}

// Act performs an operator's action. The action's type documents what it does. The server records the action under the
// caller's name. Errors match ErrNotRecorded, after which nothing was changed; joblock.ErrInvalid; and
// joblock.ErrUnavailable, after which the action may have taken effect. In addition, errors match
//
//	on a key      joblock.ErrNotOwner if the fence has changed, joblock.ErrNotFound, joblock.ErrBusy with IfIdle
//	on a task     ErrTaskNotFound, ErrTaskState
//	on cron jobs  ErrCronNotFound, and ErrBackfilling while a backfill has not ended
//
// A CancelTask with a Then waits up to ten more seconds for the handler to return. A TriggerCron with Wait waits until
// the run has ended: ActionResult.Run is the run, in whatever State it ended. If no node executes the job, the wait does
// not end, so give ctx a deadline. If ctx ends, the error is the cause of ctx, and the trigger stays. A temporary outage
// of the server does not end the wait.
func (c *Client) Act(ctx context.Context, a Action) (ActionResult, error) {
	row := routes.Of(a)
	if row == nil {
		return ActionResult{}, core.Invalid("act", "", "the action is a %T, must be one of the Action types", a)
	}
	trigger, waits := a.(TriggerCron)
	if waits = waits && trigger.Wait; waits {
		return c.trigger(ctx, row, trigger)
	}
	return perform(ctx, c, row, a)
}

func perform(ctx context.Context, c *Client, row *routes.Row, a Action) (done ActionResult, err error) {
	one, err := callOf(a.Verb(), row, a)
	if err == nil {
		one.into = &done
		_, err = c.do(ctx, one)
	}
	return done, err
}

// trigger triggers a cron job, and waits for the end of the run.
func (c *Client) trigger(ctx context.Context, row *routes.Row, a TriggerCron) (ActionResult, error) {
	var before CronJob
	var err error
	if a.Name != "" {
		before, err = c.CronJob(ctx, a.Scope, a.Name)
	}
	if err != nil {
		return ActionResult{}, err
	}
	done, err := perform(ctx, c, row, a)
	if err != nil {
		return done, err
	}
	for wait := firstLook; pause(ctx, wait); wait = min(2*wait, lastLook) {
		j, err := c.CronJob(ctx, a.Scope, a.Name)
		if err != nil && ctx.Err() == nil && !next(err, true) && !rateLimited(err) {
			return done, err
		}
		if run := triggered(j, before.Now); err == nil && run != nil {
			done.Run = run
			return done, nil
		}
	}
	return done, context.Cause(ctx)
}

// firstLook is the first, and lastLook the longest, pause of trigger between two looks.
const firstLook, lastLook = 50 * time.Millisecond, time.Second

// CronScopes returns the scopes of cron jobs that the server shows.
func (c *Client) CronScopes(ctx context.Context) ([]string, error) {
	got, err := ask(ctx, c, "cron scopes", routes.CronScopes, routes.Empty{})
	return got.Items, err
}

// CronJobs returns the cron jobs of a scope. If the server has only one scope, the scope "" stands for it, here and in
// all following calls.
func (c *Client) CronJobs(ctx context.Context, scope string) ([]CronJob, error) {
	got, err := ask(ctx, c, "cron", routes.CronJobs, routes.ScopeQuery{Scope: scope})
	return got.Items, err
}

// CronJob returns one cron job.
func (c *Client) CronJob(ctx context.Context, scope, name string) (CronJob, error) {
	return ask(ctx, c, "cron", routes.CronJob, routes.CronQuery{Scope: scope, Name: name})
}

// CronNext returns the next ticks of a cron job.
func (c *Client) CronNext(ctx context.Context, q CronNextQuery) ([]CronTick, error) {
	got, err := ask(ctx, c, "cron next", routes.CronNext, q)
	return got.Items, err
}

// CronNodes returns the nodes of a scope that are up.
func (c *Client) CronNodes(ctx context.Context, scope string) ([]CronNode, error) {
	got, err := ask(ctx, c, "cron nodes", routes.CronNodes, routes.ScopeQuery{Scope: scope})
	return got.Items, err
}

// CronPreviewQuery says which ticks CronPreview returns.
type CronPreviewQuery struct {
	Spec string
	Zone string // "" means UTC
	N    int    // how many ticks, from 1 to 1,000; 0 means the default of the server, 10
}

// CronPreview returns the next ticks of a spec, which need not be the spec of a cron job.
func (c *Client) CronPreview(ctx context.Context, q CronPreviewQuery) (CronPlan, error) {
	return ask(ctx, c, "cron preview", routes.CronPreview, routes.CronPreviewQuery(q))
}

// triggered returns the run of a trigger that was requested at the time since or later, if it has ended; otherwise nil.
func triggered(j CronJob, since Time) (first *CronRun) {
	for _, r := range j.Runs() {
		if r.Cause == "trigger" && !r.Tick.Before(since.Time) && (first == nil || r.Tick.Before(first.Tick.Time)) {
			first = &r
		}
	}
	if first == nil || first.Ended.IsZero() {
		return nil
	}
	return first
}

// CronCount returns how many ticks BackfillCron would execute. The errors are those of BackfillCron for the same range.
func (c *Client) CronCount(ctx context.Context, req CronRange) (int, error) {
	got, err := ask(ctx, c, "cron backfill", routes.CronCount, req)
	return got.Ticks, err
}
