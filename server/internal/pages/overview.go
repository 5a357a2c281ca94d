package pages

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

// OverviewBody is what the first page shows.
type OverviewBody struct {
	OverviewLocks
	Series []Series
	From   time.Time // when the series begin
	Walk   WalkInfo

	OverviewJobs
	JobsWalk WalkInfo

	Cron    []CronSum
	Hidden  *CronHidden
	Keeper  *ops.Keeper
	Problem []string // what could not be read
	Doctor  *DoctorSum
}

// OverviewLocks is what the first page shows of a walk over all locks. It is computed once for each walk, and shared by
// all callers that may see the same.
type OverviewLocks struct {
	Counts  Counts
	Longest []Row // the longest lines
	Oldest  []Row // the locks held longest
	Lost    []Row // locks that are orphaned, or whose holder is silent
}

// OverviewJobs is what the first page shows of a walk over the jobs.
type OverviewJobs struct {
	Suspects []ops.Job
	Halted   []string  // the keys of the halted sequences
	Over     []ops.Job // jobs that have ended or do not exist, and whose keys a keeper will free
	Jobs     int
}

// Series has the number of locks in one state over an hour.
type Series struct {
	Name   string
	Now    int
	Href   string
	Values []int
}

// CronSum is a summary of the cron jobs of a scope.
type CronSum struct {
	Scope   string
	Pending bool // the jobs are being read for the first time
	Jobs    int
	Running int
	Trouble []ops.CronJob
	Next    *ops.CronJob
	Paused  int // how many jobs are paused individually
	Pause   *ops.CronPause
}

// DoctorSum is a summary of what the doctor has found.
type DoctorSum struct {
	At       time.Time
	Faults   int
	Warnings int
	Notes    int
	First    *FindingRow // the worst finding, apart from the one that decides about Safe
	Safe     ops.Safety
	decides  *ops.Finding // the finding that decides about Safe, or nil
	here     bool         // this is the doctor's page
}

const worst = 5

// overview renders the first page, a summary of everything. All reads begin at once. What is slow is left out until it
// has been read: the cron jobs of a large scope, and the doctor.
func (h *Handler) overview(ctx context.Context, v *View) (any, error) {
	var (
		group     sync.WaitGroup
		w         *walk[Row]
		jobs      *walk[ops.Job]
		crons     = make([]read[[]ops.CronJob], len(h.cfg.Scopes))
		keeper    read[ops.Keeper]
		err       error
		errJobs   error
		errsCron  = make([]error, len(h.cfg.Scopes))
		errKeeper error
	)
	group.Go(func() { w, err = h.locks.look(ctx) })
	group.Go(func() { jobs, errJobs = h.jobs.look(ctx) })
	group.Go(func() { keeper, errKeeper = h.keeper(ctx, patience) })
	for i, scope := range h.cfg.Scopes {
		group.Go(func() { crons[i], errsCron[i] = h.cronJobs(ctx, scope, patience) })
	}
	b := &OverviewBody{Doctor: h.doctorSum(v)}
	group.Wait()
	b.Hidden = h.hidden(ctx, v, patience)
	if err != nil {
		return nil, err
	}
	v.stale("the locks", w.at, w.err)
	ahead := v.ahead()
	b.Walk = infoOf(w, ahead)
	b.OverviewLocks = of(w, "overview "+v.Who.sees(), func() OverviewLocks { return locksFor(v.Who, w.rows) })
	b.series(h, v, ahead)
	if errJobs != nil {
		b.problem("The jobs could not be read: %s.", errJobs)
	} else {
		v.stale("the jobs", jobs.at, jobs.err)
		b.JobsWalk = infoOf(jobs, ahead)
		b.OverviewJobs = of(jobs, "overview "+v.Who.sees(), func() OverviewJobs { return jobsFor(v.Who, jobs.rows) })
	}
	for i, scope := range h.cfg.Scopes {
		if errors.Is(errsCron[i], errSlow) {
			b.Cron = append(b.Cron, CronSum{Scope: scope, Pending: true})
			continue
		}
		list, err := take(v, "the cron jobs of "+visible(scope), crons[i], errsCron[i])
		if err != nil {
			b.problem("The cron jobs of the scope "+scope+" could not be read: %s.", err)
			continue
		}
		b.Cron = append(b.Cron, sumCron(scope, list))
	}
	switch {
	case errKeeper == nil:
		v.stale("the keepers", keeper.at, keeper.err)
		b.Keeper = &keeper.val
	case !errors.Is(errKeeper, errSlow):
		b.problem("The keepers could not be read: %s.", errKeeper)
	}
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
	if !v.Who.AllKeys {
		return // the history is only known for all keys together
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

// locksFor finds the rows that a caller should look at first.
func locksFor(who *Caller, rows []Row) (b OverviewLocks) {
	wants := func(r *Row) bool { return (!r.Inner() || r.Role == ops.RoleGate) && who.MayUse(r.Key) }
	b.Counts = countsOf(rows, wants)
	var lines, held, lost []*Row
	for i := range rows {
		r := &rows[i]
		if !wants(r) {
			continue
		}
		if r.Waiters > 0 {
			lines = append(lines, r)
		}
		switch {
		case r.Role == ops.RoleGate:
		case r.State == joblock.StateHeld:
			if held = append(held, r); r.Silent {
				lost = append(lost, r)
			}
		case r.State == joblock.StateOrphaned:
			lost = append(lost, r)
		}
	}
	first := func(rows []*Row, compare func(a, b *Row) int) (few []Row) {
		slices.SortFunc(rows, func(a, b *Row) int { return cmp.Or(compare(a, b), strings.Compare(a.Key, b.Key)) })
		for _, r := range rows[:min(worst, len(rows))] {
			few = append(few, *r)
		}
		return few
	}
	b.Longest = first(lines, func(a, b *Row) int { return b.Waiters - a.Waiters })
	for i := range b.Longest {
		if r := &b.Longest[i]; r.Role == ops.RoleGate {
			r.Key, r.Holder = r.Group, "" // the row is the line of a limit
		}
	}
	b.Oldest = first(held, func(a, b *Row) int { return a.Since.Compare(b.Since) })
	b.Lost = first(lost, func(a, b *Row) int {
		return cmp.Or(cmp.Compare(lostRank(a), lostRank(b)), a.Since.Compare(b.Since))
	})
	return b
}

// lostRank orders locks whose holders are dead or may be.
func lostRank(r *Row) int {
	switch {
	case r.State == joblock.StateOrphaned:
		return 0
	case r.Never:
		return 2
	}
	return 1
}

// jobsFor counts the jobs that a caller may see, and finds those to look at.
func jobsFor(who *Caller, rows []ops.Job) (b OverviewJobs) {
	b.Halted = haltedOf(rows, who)
	for i := range rows {
		j := &rows[i]
		if !who.MayUse(j.Key) || !who.mayJob(j.Job) {
			continue
		}
		switch b.Jobs++; {
		case j.Suspect != "":
			b.Suspects = append(b.Suspects, *j)
		case j.Place == nil && j.Lock.State != joblock.StateHeld && j.Task.Ended() && !j.Task.Halts:
			b.Over = append(b.Over, *j)
		}
	}
	return b
}
