package pages

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

// OverviewBody is what the first page shows.
type OverviewBody struct {
	Counts  Counts
	Series  []Series
	From    time.Time // of the series
	Walk    WalkInfo
	Longest []Row // the longest lines
	Oldest  []Row // what is held for longest
	Lost    []Row // orphaned

	Suspects []ops.Job
	Halted   []string // the keys of sequences
	Jobs     int
	JobsWalk WalkInfo

	Cron    []CronSum
	Keeper  *ops.Keeper
	Problem []string // what could not be read
	Doctor  *DoctorSum
}

// Series are the counts of one state over an hour.
type Series struct {
	Name   string
	Now    int
	Href   string
	Values []int
}

// CronSum are the cron jobs of a scope in short.
type CronSum struct {
	Scope   string
	Jobs    int
	Running int
	Trouble []ops.CronJob
	Next    *ops.CronJob
	Pause   *ops.CronPause
}

// DoctorSum is what the doctor has found, in short.
type DoctorSum struct {
	At       time.Time
	Faults   int
	Warnings int
	Notes    int
	First    *ops.Finding
}

const worst = 5

func (h *Handler) overview(ctx context.Context, v *View) (any, error) {
	b := &OverviewBody{}
	w, err := h.locks.look(ctx)
	if err != nil {
		return nil, err
	}
	v.stale("the locks", w.at, w.err)
	ahead := v.ahead()
	b.Walk = infoOf(w, ahead)
	wants := func(r Row) bool { return (!r.Inner() || r.Role == ops.RoleGate) && v.Who.MayUse(r.Key) }
	b.Counts = countsOf(w.rows, wants)
	b.series(h, v, ahead)
	b.worst(w, wants)
	if jobs, err := h.jobs.look(ctx); err != nil {
		b.problem("The jobs could not be read: %s.", err)
	} else {
		v.stale("the jobs", jobs.at, jobs.err)
		b.JobsWalk = infoOf(jobs, ahead)
		b.Halted = haltedOf(jobs.rows, v.Who)
		for _, j := range jobs.rows {
			if !v.Who.MayUse(j.Key) || !v.Who.mayJob(j.Job) {
				continue
			}
			if b.Jobs++; j.Suspect != "" {
				b.Suspects = append(b.Suspects, j)
			}
		}
	}
	for _, scope := range h.cfg.Scopes {
		r, err := h.cronJobs(ctx, scope)
		jobs, err := take(v, "the cron jobs of "+visible(scope), r, err)
		if err != nil {
			b.problem("The cron jobs of the scope "+scope+" could not be read: %s.", err)
			continue
		}
		b.Cron = append(b.Cron, sumCron(scope, jobs))
	}
	if r, err := h.keeper(ctx); err != nil {
		b.problem("The keepers could not be read: %s.", err)
	} else {
		v.stale("the keepers", r.at, r.err)
		b.Keeper = &r.val
	}
	b.Doctor = h.doctorSum(v)
	return b, nil
}

func (b *OverviewBody) problem(format string, err error) {
	b.Problem = append(b.Problem, strings.Replace(format, "%s", plain(err), 1))
}

func (b *OverviewBody) series(h *Handler, v *View, ahead time.Duration) {
	b.Series = []Series{
		{Name: "held", Now: b.Counts.Held, Href: "locks?state=held"},
		{Name: "parked", Now: b.Counts.Parked, Href: "locks?state=parked"},
		{Name: "orphaned", Now: b.Counts.Orphaned, Href: "locks?state=orphaned"},
		{Name: "waiting", Now: b.Counts.Waiting, Href: "locks?waiters=1&sort=waiters"},
	}
	if len(v.Who.Prefixes) > 0 {
		return // the past is that of all keys
	}
	points := h.ring.list()
	if len(points) < 2 {
		return
	}
	b.From = points[0].At.Add(ahead)
	for _, p := range points {
		for i, n := range []int{p.Held, p.Parked, p.Orphaned, p.Waiting} {
			b.Series[i].Values = append(b.Series[i].Values, n)
		}
	}
}

// worst finds the rows that a person should look at first.
func (b *OverviewBody) worst(w *walk[Row], wants func(Row) bool) {
	var lines, held, lost []Row
	for _, r := range w.rows {
		if !wants(r) {
			continue
		}
		if r.Role == ops.RoleGate {
			r.Key, r.Holder = r.Group, "" // the line of a limit
		}
		if r.Waiters > 0 {
			lines = append(lines, r)
		}
		if r.Role == ops.RoleGate {
			continue
		}
		switch r.State {
		case joblock.StateHeld:
			held = append(held, r)
		case joblock.StateOrphaned:
			lost = append(lost, r)
		}
	}
	first := func(rows []Row, compare func(a, b Row) int) []Row {
		slices.SortFunc(rows, func(a, b Row) int {
			if c := compare(a, b); c != 0 {
				return c
			}
			return strings.Compare(a.Key, b.Key)
		})
		return rows[:min(worst, len(rows))]
	}
	b.Longest = first(lines, func(a, b Row) int { return b.Waiters - a.Waiters })
	b.Oldest = first(held, func(a, b Row) int { return a.Since.Compare(b.Since) })
	b.Lost = first(lost, func(a, b Row) int { return a.Since.Compare(b.Since) })
}
