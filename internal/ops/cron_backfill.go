package ops

import (
	"context"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/scheduler/spec"
)

// ErrBackfilling is that of package admin.
var ErrBackfilling = admin.ErrBackfilling

// CronBackfill executes the ticks of a range of the past, and returns their number. Errors are those of
// admin.Admin.Backfill, and ErrNotRecorded.
func (d *Desk) CronBackfill(ctx context.Context, scope, name string, from, to time.Time, who Actor) (n int, acted Acted, err error) {
	acted, err = d.cron(ctx, "cron backfill", scope, name, who, func(ctx context.Context, a *admin.Admin, _ *Acted) (err error) {
		n, err = a.Backfill(ctx, name, from, to)
		return err
	})
	return n, acted, err
}

// CronStopBackfill ends the backfill of a cron job before its next tick. Errors are those of
// admin.Admin.StopBackfill, and ErrNotRecorded.
func (d *Desk) CronStopBackfill(ctx context.Context, scope, name string, who Actor) (Acted, error) {
	return d.cron(ctx, "cron stop backfill", scope, name, who, func(ctx context.Context, a *admin.Admin, _ *Acted) error {
		return a.StopBackfill(ctx, name)
	})
}

// CronScopes returns the scopes that any scheduler has had in the last year, sorted. See admin.Scopes.
func (d *Desk) CronScopes(ctx context.Context) ([]string, error) {
	return admin.Scopes(ctx, d.cfg.Locks)
}

// CronCount returns how many ticks CronBackfill would execute. The errors are those of CronBackfill for the same range.
func (d *Desk) CronCount(ctx context.Context, scope, name string, from, to time.Time) (int, error) {
	j, err := d.CronJob(ctx, scope, name)
	if err != nil {
		return 0, err
	}
	refuse := func(format string, args ...any) error {
		return door.Invalid("backfill", name, format, args...)
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

// maxBackfill bounds CronCount, as admin.Admin.Backfill is bounded.
const maxBackfill = 10_000
