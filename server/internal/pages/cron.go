package pages

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/ops"
)

// cronJobs reads the cron jobs of a scope. If there is nothing to show yet, it waits for at most the parameter any.
func (h *Handler) cronJobs(ctx context.Context, scope string, any time.Duration) (read[[]ops.CronJob], error) {
	return getAs(ctx, h.cache, "cron "+scope, terms{least: tick, newer: patience, any: any}, func(ctx context.Context) ([]ops.CronJob, error) {
		jobs, err := h.cfg.Desk.CronJobs(ctx, scope)
		if len(jobs) > 0 {
			h.clock(jobs[0].Now)
		}
		return jobs, err
	})
}

// CronHidden is what the pages say about cron jobs if no scope is shown.
type CronHidden struct {
	Pending bool     // the scopes are being read for the first time
	Scopes  []string // the scopes that schedulers have had in the last year
	Failed  string   // why the scopes could not be read
}

const scopesEvery = 10 * time.Second

// hidden finds the existing scopes if no scope is configured, so that operators see that there are some. If there is
// nothing to show yet, it waits for at most the parameter any.
func (h *Handler) hidden(ctx context.Context, v *View, any time.Duration) *CronHidden {
	if len(h.cfg.Scopes) > 0 {
		return nil
	}
	r, err := getAs(ctx, h.cache, "cron scopes", terms{least: scopesEvery, newer: patience, any: any}, h.cfg.Desk.CronScopes)
	if errors.Is(err, errSlow) {
		return &CronHidden{Pending: true}
	}
	scopes, err := take(v, "the scopes of cron jobs", r, err)
	if err != nil {
		return &CronHidden{Failed: plain(err)}
	}
	return &CronHidden{Scopes: scopes}
}

// pauses returns the scopes whose cron jobs are all paused, from the values read last. Every page shows them.
func (h *Handler) pauses() (all []Pause) {
	h.cache.mu.Lock()
	defer h.cache.mu.Unlock()
	for _, scope := range h.cfg.Scopes {
		e := h.cache.m["cron "+scope]
		if e == nil || e.at.IsZero() || time.Since(e.at) > remembered {
			continue
		}
		if p := pauseOf(e.val.([]ops.CronJob)); p != nil {
			all = append(all, Pause{scope, *p})
		}
	}
	return all
}

func pauseOf(jobs []ops.CronJob) *ops.CronPause {
	for _, j := range jobs {
		for _, p := range j.Pauses {
			if p.All {
				return &p
			}
		}
	}
	return nil
}

func sumCron(scope string, jobs []ops.CronJob) CronSum {
	s := CronSum{Scope: scope, Jobs: len(jobs), Pause: pauseOf(jobs)}
	for i := range jobs {
		j := &jobs[i]
		if j.State == ops.CronRunning {
			s.Running++
		}
		if slices.ContainsFunc(j.Pauses, func(p ops.CronPause) bool { return !p.All }) {
			s.Paused++
		}
		if troubled(*j) && len(s.Trouble) < worst {
			s.Trouble = append(s.Trouble, *j)
		}
		if !j.Paused && !j.Next.IsZero() && (s.Next == nil || j.Next.Before(s.Next.Next.Time)) {
			s.Next = j
		}
	}
	return s
}

// troubled reports whether an operator should look at a job. A pause does not count, because an operator chose it.
func troubled(j ops.CronJob) bool {
	return slices.ContainsFunc(j.Troubles, func(t ops.CronTrouble) bool { return t.Code != "paused" })
}

// CronBody is what the list of cron jobs shows.
type CronBody struct {
	Scopes  []CronSum
	Rows    []ops.CronJob
	All     int
	Trouble int
	Next    string
	Name    string
	Only    bool // only jobs with troubles
	State   string
	Scope   string
	Done    *HistoryItem
	States  []string
	Failed  []string // scopes that could not be read, and why
	Hidden  *CronHidden
}

func (h *Handler) cronPage(ctx context.Context, v *View) (any, error) {
	b := &CronBody{
		Name: strings.TrimSpace(one(v.Query, "name")), Only: one(v.Query, "trouble") == "1", State: one(v.Query, "state"), Scope: one(v.Query, "scope"),
		States: []string{string(ops.CronRunning), string(ops.CronIdle), string(ops.CronPaused), string(ops.CronOverdue), string(ops.CronDeserted), string(ops.CronEnded)},
	}
	b.Hidden = h.hidden(ctx, v, patienceNew)
	after := one(v.Query, "after")
	for _, scope := range h.cfg.Scopes {
		r, err := h.cronJobs(ctx, scope, patienceNew)
		jobs, err := take(v, "the cron jobs of "+visible(scope), r, err)
		if err != nil {
			if len(h.cfg.Scopes) == 1 {
				return nil, err
			}
			b.Failed = append(b.Failed, scope+": "+plain(err))
			continue
		}
		b.Scopes = append(b.Scopes, sumCron(scope, jobs))
		if b.Scope != "" && b.Scope != scope {
			continue
		}
		for _, j := range jobs {
			if troubled(j) {
				b.Trouble++
			}
			if !strings.Contains(j.Name, b.Name) || b.Only && !troubled(j) || b.State != "" && string(j.State) != b.State {
				continue
			}
			if b.All++; after != "" && j.Scope+"\x00"+j.Name <= after {
				continue
			}
			if len(b.Rows) < pageRows {
				b.Rows = append(b.Rows, j)
			} else if last := b.Rows[len(b.Rows)-1]; b.Next == "" {
				b.Next = last.Scope + "\x00" + last.Name
			}
		}
	}
	b.Done = h.doneAction(ctx, v, func(e ops.AuditEntry) bool {
		return slices.Contains(h.cfg.Scopes, e.Scope) && (b.Scope == "" || e.Scope == b.Scope) && (e.Key == "" || e.Action == ops.ActCronForget)
	})
	return b, nil
}

// CronJobBody is what the page about one cron job shows.
type CronJobBody struct {
	J       ops.CronJob
	Runs    []RunRow
	Failed  int64        // how many runs failed or were lost, on record or not
	First   *ops.CronRun // the first failed or lost run on record
	Ticks   []ops.CronTick
	NoTicks string
	Nodes   []ops.CronNode
	Done    *HistoryItem
	Asked   bool         // Done is the action "cron trigger"
	Ran     *ops.CronRun // the run that followed the trigger, if it is on record
	WhyNot  string
	Actions []Offer
	History []HistoryItem
}

// More reports whether some failures are no longer on record.
func (b *CronJobBody) More() bool { return b.Failed > int64(b.J.Failures) }

// RunRow is a run, and which older runs are missing from the list below it.
type RunRow struct {
	ops.CronRun
	WellGone   bool // successful runs before this one are not on record, although failures below it are
	FailedGone bool // failed runs before this one are not on record, although successful ones below it are
}

// thinned finds the gaps in a list of runs. Successful and failed runs leave the record separately, so the list may end
// with runs of one kind that were not consecutive. The runs are the newest first. first is the oldest failure. In all,
// allDone runs have succeeded and allFailed have failed.
func thinned(runs []ops.CronRun, allDone, allFailed int64) (rows []RunRow, first *ops.CronRun) {
	well, failed := -1, -1 // the indexes of the oldest successful and the oldest failed run
	var done, bad int64
	for i, run := range runs {
		rows = append(rows, RunRow{CronRun: run})
		switch {
		case run.Well():
			well = i
			done++
		case run.Failed():
			failed, first = i, &runs[i]
			bad++
		}
	}
	last := len(runs) - 1
	if well >= 0 && well < last && done < allDone {
		rows[well].WellGone = true
	}
	if failed >= 0 && failed < last && bad < allFailed {
		rows[failed].FailedGone = true
	}
	return rows, first
}

type cronRead struct {
	job     ops.CronJob
	ticks   []ops.CronTick
	noTicks string
	nodes   []ops.CronNode
}

const ticksShown = 10

func (h *Handler) cronJobPage(ctx context.Context, v *View) (any, error) {
	scope, name := one(v.Query, "scope"), one(v.Query, "name")
	if len(h.cfg.Scopes) == 0 {
		return nil, bad("This server shows no scopes of cron jobs. Its page Cron says which there are.")
	}
	if !slices.Contains(h.cfg.Scopes, scope) {
		return nil, bad("The scope is %q, must be one of: %s.", shorten(visible(scope), 60), strings.Join(h.cfg.Scopes, ", "))
	}
	r, err := get(ctx, h.cache, "cron "+scope+"\x00"+name, tick, func(ctx context.Context) (c cronRead, err error) {
		if c.job, err = h.cfg.Desk.CronJob(ctx, scope, name); err != nil {
			return c, err
		}
		h.clock(c.job.Now)
		if c.ticks, err = h.cfg.Desk.CronNext(ctx, ops.CronNextQuery{Scope: scope, Name: name, N: int(ticksShown)}); err != nil {
			c.noTicks = sentence(err)
		}
		c.nodes, err = h.cfg.Desk.CronNodes(ctx, scope)
		return c, err
	})
	got, err := take(v, "the cron job", r, err)
	if err != nil {
		return nil, err
	}
	b := &CronJobBody{J: got.job, Ticks: got.ticks, NoTicks: got.noTicks, WhyNot: v.WhyNot(v.Who.Cron, "cron")}
	runs := got.job.Runs()
	b.Runs, b.First = thinned(runs, got.job.Counts.Done+got.job.Counts.Enqueued, got.job.Counts.Failed+got.job.Counts.Lost)
	b.Failed = got.job.Counts.Failed + got.job.Counts.Lost
	for _, n := range got.nodes {
		if slices.Contains(got.job.Nodes, n.Name) {
			b.Nodes = append(b.Nodes, n)
		}
	}
	if v.MayCron() {
		for _, do := range cronOffers(got.job) {
			b.Actions = append(b.Actions, Offer{
				Title: ops.VerbOf(do).Title, Href: actURL("do", doOf(do), "scope", scope, "name", name), Offer: ops.Offer{Effect: cronEffect(do, got.job)},
			})
		}
	}
	if v.Who.Cron || v.Who.Admin {
		if tail, err := h.tail(ctx); err == nil {
			for _, e := range tail.val {
				if e.Scope == scope && (e.Key == name || e.Key == "") && len(b.History) < historyRows {
					b.History = append(b.History, itemOf(e))
				}
			}
		}
	}
	b.Done = h.doneAction(ctx, v, func(e ops.AuditEntry) bool { return e.Scope == scope && e.Key == name })
	if b.Asked = b.Done != nil && b.Done.What == ops.ActCronTrigger; b.Asked {
		b.Ran = ranAfter(runs, b.Done.At)
	}
	v.Title = shorten(visible(name), 60)
	return b, nil
}

// ranAfter returns the run that a trigger requested: the first triggered run from the time asked on. Triggers that wait
// at the same time share one run.
func ranAfter(runs []ops.CronRun, asked time.Time) (ran *ops.CronRun) {
	for i, run := range runs { // the newest first
		if run.Triggered() && !run.Tick.Before(asked) {
			ran = &runs[i]
		}
	}
	return ran
}

func cronOffers(j ops.CronJob) []string {
	var all []string
	if slices.ContainsFunc(j.Pauses, func(p ops.CronPause) bool { return !p.All }) {
		all = append(all, ops.ActCronResume)
	} else {
		all = append(all, ops.ActCronPause)
	}
	if len(j.Nodes) > 0 {
		all = append(all, ops.ActCronTrigger)
	} else if j.State != ops.CronRunning {
		all = append(all, ops.ActCronForget)
	}
	return all
}

// cronIdle returns what happens to a cron job, or to all cron jobs of a scope, if the operator does nothing, and when.
func cronIdle(do string, j ops.CronJob) (text string, at time.Time) {
	switch {
	case do == ops.ActCronPauseAll:
		return "The cron jobs of the scope run as before.", at
	case do == ops.ActCronResumeAll:
		return "The cron jobs of the scope stay paused, and their ticks are skipped.", at
	case do == ops.ActCronForget:
		return "The record stays, and runs nothing.", at
	case j.Paused:
		return "The job stays paused, and its ticks are skipped.", at
	case !j.Next.IsZero():
		return "The job runs at its next tick, at", j.Next.Time
	}
	return "", at
}

// cronEffect says what an action does to a cron job.
func cronEffect(do string, j ops.CronJob) string {
	running := ""
	if j.State == ops.CronRunning {
		running = " The job is running now."
	}
	switch do {
	case ops.ActCronPause:
		for _, p := range j.Pauses {
			if !p.All {
				return "The job is " + visible(p.String()) + ". A new reason replaces that reason, and nothing else changes."
			}
		}
		return "From the next tick on, ticks are skipped until the job is resumed. A run that has begun goes on." + running
	case ops.ActCronResume:
		if !slices.ContainsFunc(j.Pauses, func(p ops.CronPause) bool { return !p.All }) {
			return "The job is not paused by itself, so nothing would change."
		}
		return "The next tick runs again. Ticks that came during the pause stay skipped."
	case ops.ActCronTrigger:
		text := "The job runs once, now, on a node that has it"
		if len(j.Nodes) > 0 {
			text += ": " + visible(strings.Join(j.Nodes, ", "))
		}
		text += ". Its ticks do not change."
		if running != "" {
			text += " The job is running now: the new run follows the present one."
		}
		if j.Paused {
			text += " The job is paused, and runs all the same."
		}
		return text
	case ops.ActCronForget:
		return "The record of the job is removed: its history, counts, spec and pause. If a node has the job by then, nothing happens."
	case ops.ActCronPauseAll:
		return "From their next ticks on, all cron jobs of the scope skip their ticks until they are resumed. Runs that have begun go on."
	case ops.ActCronResumeAll:
		return "The ticks of all cron jobs of the scope run again, except of those that are paused one by one. Ticks that came during the pause stay skipped."
	}
	return ""
}
