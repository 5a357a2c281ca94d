package metrics

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/metric"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/scheduler/admin"
)

// mostJobs is how many cron jobs, of all scopes together, have a label of their own. The remaining jobs of a scope share
// the label metric.Other.
const mostJobs = 500

// shares returns how many jobs of each scope get a label of their own. The parameter jobs has the number of jobs of each
// scope. In a scope with few jobs all of them get one, however many jobs the other scopes have.
func shares(jobs []int) []int {
	own := make([]int, len(jobs))
	order := make([]int, len(jobs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(jobs[a], jobs[b]) })
	left := mostJobs
	for k, i := range order {
		own[i] = min(jobs[i], left/(len(order)-k))
		left -= own[i]
	}
	return own
}

// others combines the cron jobs of a scope that have no label of their own. The counts of a job may restart, and jobs
// come and go, but a counter must only grow, so others sums up the increases from look to look.
type others struct {
	counts admin.Counts
	last   map[string]admin.Counts // of the latest look, by the name of the job
}

// bound leaves mostJobs jobs in the figures of all scopes together: the first jobs of each scope, by name.
func (c *cluster) bound(all []cronFigures) {
	var jobs []int
	for _, f := range all {
		jobs = append(jobs, len(f.jobs))
	}
	for i, own := range shares(jobs) {
		o := c.others[all[i].scope]
		if o == nil {
			o = new(others)
			c.others[all[i].scope] = o
		}
		o.take(&all[i], own)
	}
}

// take replaces all jobs from the index own on by a single one.
func (o *others) take(f *cronFigures, own int) {
	if i := slices.IndexFunc(f.jobs, func(j ops.CronJob) bool { return j.Name == metric.Other }); i >= 0 && i < own && own < len(f.jobs) {
		f.jobs[i], f.jobs[own-1] = f.jobs[own-1], f.jobs[i]
		f.intervals[i], f.intervals[own-1] = f.intervals[own-1], f.intervals[i]
		own-- // a job has the name of the combined one, so it must be a part of it
	}
	last := make(map[string]admin.Counts)
	for _, j := range f.jobs[own:] {
		last[j.Name] = j.Counts
		if before, ok := o.last[j.Name]; ok {
			o.counts = add(o.counts, j.Counts, before)
		}
	}
	o.last = last
	if own == len(f.jobs) {
		return
	}
	f.jobs, f.intervals = together(f.jobs, f.intervals, own, o.counts)
}

// add returns sum plus the increases from before to now. A count that is lower than before has restarted from 0.
func add(sum, now, before admin.Counts) admin.Counts {
	to, from := countsOf(&sum), countsOf(&before)
	for i, n := range countsOf(&now) {
		if *n >= *from[i] {
			*to[i] += *n - *from[i]
		} else {
			*to[i] += *n
		}
	}
	return sum
}

func countsOf(c *admin.Counts) [9]*int64 {
	return [...]*int64{&c.Done, &c.Enqueued, &c.Failed, &c.Cancelled, &c.Lost, &c.TakenOver, &c.Missed, &c.Overlapped, &c.Paused}
}

// together replaces all jobs from the index own on by a single one: the job that has gone longest without success,
// relative to its interval, with the worst values of all these jobs. So an alert on it means that one of these jobs needs
// attention.
func together(jobs []ops.CronJob, intervals []time.Duration, own int, counts admin.Counts) ([]ops.CronJob, []time.Duration) {
	stalest, most := own, time.Duration(0)
	paused, waiting := true, 0
	var next, overdue, disagree, overlaps ops.Time
	var pauses []ops.CronPause
	earlier := func(to *ops.Time, t ops.Time) {
		if !t.IsZero() && (to.IsZero() || t.Before(to.Time)) {
			*to = t
		}
	}
	for i, j := range jobs[own:] {
		if stale := staleness(j, intervals[own+i]); !j.Paused && (paused || stale > most) {
			stalest, most = own+i, stale
		}
		paused = paused && j.Paused
		waiting += j.Waiting
		pauses = append(pauses, j.Pauses...)
		earlier(&next, j.Next)
		earlier(&overdue, j.Overdue)
		earlier(&disagree, j.DisagreeSince)
		earlier(&overlaps, j.OverlapsSince)
	}
	j := jobs[stalest]
	j.Name, j.Counts, j.Paused, j.Waiting, j.Pauses = metric.Other, counts, paused, waiting, pauses
	j.Next, j.Overdue, j.DisagreeSince, j.OverlapsSince = next, overdue, disagree, overlaps
	return append(slices.Clip(jobs[:own]), j), append(slices.Clip(intervals[:own]), intervals[stalest])
}

// staleness returns how much longer than two intervals a job has gone without success, as the alert JoblockCronStale
// measures it.
func staleness(j ops.CronJob, interval time.Duration) time.Duration {
	var success time.Time
	for _, run := range j.Runs() {
		if run.Well() && run.Ended.After(success) {
			success = run.Ended.Time
		}
	}
	if success.IsZero() {
		success = j.Since.Time
	}
	if success.IsZero() || interval == 0 {
		return math.MinInt64 // the alert has nothing to measure
	}
	return j.Now.Sub(success) - 2*interval
}
