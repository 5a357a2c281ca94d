package ops

import (
	"context"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/scheduler/spec"
)

// ErrBackfilling is admin.ErrBackfilling.
var ErrBackfilling = admin.ErrBackfilling

// BackfillCron executes the ticks of a past range. ActionResult.Ticks is the number of ticks. Errors are those of
// admin.Admin.Backfill, and ErrNotRecorded.
type BackfillCron struct {
	Scope  string    `query:"scope"`
	Name   string    `path:"name"`
	From   time.Time `json:"from"` // From and To are the first and the last instant that a tick may have
	To     time.Time `json:"to"`
	Reason string    `json:"reason"` // for other operators, from 1 to 256 bytes
}

// Verb implements Action.
func (BackfillCron) Verb() string { return ActCronBackfill }

func (req BackfillCron) perform(ctx context.Context, d *Desk) (ActionResult, error) {
	c := newCronAction(d, req.Verb(), req.Scope, req.Name, req.Reason)
	return c.do(ctx, func(ctx context.Context, a *admin.Admin, acted *ActionResult) (err error) {
		acted.Ticks, err = a.Backfill(ctx, req.Name, req.From, req.To)
		return err
	})
}

// StopBackfill stops the backfill of a cron job before its next tick. Errors are those of admin.Admin.StopBackfill, and
// ErrNotRecorded.
type StopBackfill struct {
	Scope  string `query:"scope"`
	Name   string `path:"name"`
	Reason string `json:"reason"` // for other operators, from 1 to 256 bytes
}

// Verb implements Action.
func (StopBackfill) Verb() string { return ActCronStop }

func (req StopBackfill) perform(ctx context.Context, d *Desk) (ActionResult, error) {
	c := newCronAction(d, req.Verb(), req.Scope, req.Name, req.Reason)
	return c.do(ctx, func(ctx context.Context, a *admin.Admin, _ *ActionResult) error { return a.StopBackfill(ctx, req.Name) })
}

// CronRange is a past range of time of a cron job.
type CronRange struct {
	Scope string    `query:"scope"`
	Name  string    `path:"name"`
	From  time.Time `query:"from"` // From and To are the first and the last instant that a tick may have
	To    time.Time `query:"to"`
}

// CronScopes returns the scopes that any scheduler has had in the last year, sorted. See admin.Scopes.
func (d *Desk) CronScopes(ctx context.Context) ([]string, error) {
	return admin.Scopes(ctx, d.cfg.Locks)
}

// CronCount returns how many ticks BackfillCron would execute. The errors are those of BackfillCron for the same range.
func (d *Desk) CronCount(ctx context.Context, r CronRange) (int, error) {
	name, from, to := r.Name, r.From, r.To
	j, err := d.CronJob(ctx, r.Scope, name)
	if err != nil {
		return 0, err
	}
	refuse := func(format string, args ...any) error {
		return core.Invalid("backfill", name, format, args...)
	}
	switch {
	case from.Unix() < 0:
		return 0, refuse("the range begins at %s, must not begin before 1970", moment(from))
	case to.Before(from):
		return 0, refuse("the range ends at %s, before its begin at %s", moment(to), moment(from))
	case to.After(j.Now.Time):
		return 0, refuse("the range ends at %s, must not end in the future; the store's clock shows %s", moment(to), moment(j.Now.Time))
	}
	parsed, err := spec.Parse(j.Spec, nil)
	if err != nil {
		return 0, refuse("the spec in force cannot be parsed here: %s", err)
	}
	n := 0
	for range parsed.Ticks(from.Add(-1), to) {
		if n++; n > maxBackfill {
			return 0, refuse("%q has more than %d ticks from %s to %s; divide the range", j.Spec, maxBackfill, moment(from), moment(to))
		}
	}
	if n == 0 {
		return 0, refuse("%q has no ticks from %s to %s", j.Spec, moment(from), moment(to))
	}
	return n, nil
}

// maxBackfill is the maximum of CronCount, the same as of Scheduler.Backfill.
const maxBackfill = 10_000
