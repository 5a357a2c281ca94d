package ops

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// CronState is the present state of a job.
type CronState string

// The states, in order of precedence.
const (
	CronRunning  CronState = "running"  // a run has begun and not ended
	CronPaused   CronState = "paused"   // ticks are skipped
	CronOverdue  CronState = "overdue"  // a tick has been due for more than a minute, and no node has claimed it
	CronDeserted CronState = "deserted" // no node that is up has the job
	CronEnded    CronState = "ended"    // the spec has no more ticks
	CronIdle     CronState = "idle"     // the job waits for its next tick
)

// The codes of troubles that Doctor looks for.
const (
	troubleFailed = "failed"
	troubleLost   = "lost"
	troubleDied   = "died"

	troubleOverrun = "overrun"
	troubleStuck   = "stuck"

	troubleContested = "contested"
)

// CronTrouble is a problem of a job that an operator should look at.
type CronTrouble struct {
	Code string `json:"code"` // overrun, stuck, failed, flaky, lost, died, overdue, paused, deserted, contested, clock or problem
	Text string `json:"text"` // a sentence without a full stop
}

// String returns a sentence without a full stop.
func (p CronPause) String() string {
	text := "paused"
	if p.All {
		text = "all jobs are paused"
	}
	text += " since " + moment(p.Since.Time)
	if p.By != "" {
		text += " by " + p.By
	}
	if p.Reason == "" {
		return text + " (no reason given)"
	}
	return text + ": " + p.Reason
}

// Runs returns all runs on record, the newest first.
func (j CronJob) Runs() []CronRun {
	var runs []CronRun
	if j.Latest != nil {
		runs = append(runs, *j.Latest)
	}
	for _, run := range slices.Concat(j.Running, j.History) {
		if !slices.Contains(runs, run) {
			runs = append(runs, run)
		}
	}
	slices.SortStableFunc(runs, func(a, b CronRun) int { return b.Started.Compare(a.Started.Time) })
	return runs
}

// cronTime returns the time by the store's clock. A scope that has never had a node has no record to read that time from:
// then the result is the time of this machine.
func (d *Desk) cronTime(ctx context.Context, scope string) (Time, error) {
	views, err := memo.Read(ctx, d.cfg.Locks, keyspace.CronNodes(joblock.Key(scope)))
	if err != nil {
		return Time{}, err
	}
	if now := views[0].Now; !now.IsZero() {
		return Time{now.UTC()}, nil
	}
	return Time{time.Now().UTC()}, nil
}

func stateOf(e admin.Entry) CronState {
	switch running := e.Running; {
	case slices.ContainsFunc(running, func(x admin.Execution) bool { return x.State == scheduler.Running }):
		return CronRunning
	case e.Paused:
		return CronPaused
	case !e.Overdue.IsZero():
		return CronOverdue
	case len(e.Nodes) == 0:
		return CronDeserted
	case e.Next.IsZero() && e.Zone != "":
		return CronEnded
	}
	return CronIdle
}

// troubles returns the problems that an operator should look at, the worst first.
func troubles(e admin.Entry) (all []CronTrouble) {
	add := func(code, format string, args ...any) {
		all = append(all, CronTrouble{code, fmt.Sprintf(format, args...)})
	}
	if e.Problem != "" {
		add("problem", "the job cannot be shown: %s", e.Problem)
	}
	if !e.Overdue.IsZero() {
		add("overdue", "the tick of %s was claimed by no node", moment(e.Overdue))
	}
	for _, x := range e.Running {
		if x.Overrun.IsZero() {
			continue
		}
		because := ""
		if x.Error != "" {
			because = ": " + x.Error
		}
		add(troubleOverrun, "the run of %s on %s goes on, although its context has ended before %s%s", moment(x.Tick.At), x.Node, moment(x.Overrun), because)
	}
	if e.Stuck {
		add(troubleStuck, "the last %d ticks were skipped as overlapped, the first of them that of %s: %s", e.Overlaps, moment(e.OverlapsSince), inTheWay(e))
	}
	last := latestResult(e)
	switch last.State {
	case scheduler.Failed:
		text := fmt.Sprintf("the run of %s failed on %s: %s", moment(last.Tick.At), last.Node, last.Error)
		if n, first := failedInARow(e); n > 1 {
			text += fmt.Sprintf("; the last %d runs on record failed, the first of them that of %s", n, moment(first.Tick.At))
		}
		if n, of, times, _ := failedLately(e); times >= flakyFrom { // there are successful runs in between
			text += fmt.Sprintf("; %d of the last %d runs failed", n, of)
		}
		add(troubleFailed, "%s", text)
	case scheduler.Lost:
		add(troubleLost, "the run of %s was broken off, and no node executes the tick again", moment(last.Tick.At))
	case scheduler.Died, scheduler.Interrupted:
		if runsNow(e, last.Tick) {
			break
		}
		add(troubleDied, "the run of %s was broken off on %s, and no node has taken the tick over yet", moment(last.Tick.At), last.Node)
	default:
		if n, of, times, latest := failedLately(e); times >= flakyFrom {
			add("flaky", "%d of the last %d runs failed, the latest of them that of %s: %s", n, of, moment(latest.Tick.At), latest.Error)
		}
	}
	for _, p := range e.Pauses {
		add("paused", "%s", CronPause{Time{p.At}, p.By, p.Note, p.All})
	}
	if len(e.Nodes) == 0 {
		add("deserted", "no node that is up has the job: it was removed, renamed, or its nodes are down")
	}
	switch {
	case e.Contested && len(e.OtherSpecs) > 0:
		o := e.OtherSpecs[0]
		text := CronOtherSpec{o.Node, o.Spec, Time{o.Since}}.String()
		if n := len(e.OtherSpecs) - 1; n > 0 {
			text += fmt.Sprintf("; %d more have another spec as well", n)
		}
		add(troubleContested, "%s", text)
	case e.Contested:
		add(troubleContested, "two definitions of the job take turns: probably two applications share the scope")
	}
	if e.Behind > 0 {
		add("clock", "the store's clock is %s behind the job's latest tick: ticks wait until %s", e.Behind.Round(time.Second), moment(e.Next))
	}
	return all
}

// inTheWay returns a phrase with what the ticks of a stuck job overlap with.
func inTheWay(e admin.Entry) string {
	if len(e.Running) > 0 {
		x := e.Running[0]
		return fmt.Sprintf("the run of %s on %s has not ended", moment(x.Tick.At), x.Node)
	}
	return e.Latest.Error
}

// latestResult returns the newest execution that has ended or was aborted.
func latestResult(e admin.Entry) admin.Execution {
	for x := range results(e) {
		return x
	}
	return admin.Execution{}
}

// runsNow reports whether a node executes the tick now: after a drain or a death, another node may have taken it over.
func runsNow(e admin.Entry, tick scheduler.Tick) bool {
	return slices.ContainsFunc(append([]admin.Execution{e.Latest}, e.Running...), func(x admin.Execution) bool {
		return x.State == scheduler.Running && x.Tick.ID() == tick.ID()
	})
}

// failedInARow returns how many of the newest results are consecutive failures, and the oldest of these failures.
func failedInARow(e admin.Entry) (n int, first admin.Execution) {
	for x := range results(e) {
		if x.State != scheduler.Failed {
			break
		}
		n, first = n+1, x
	}
	return n, first
}

const (
	// flakyOf is how many of the newest results are checked for failures. If the job began to fail at least flakyFrom
	// times among them, with successes in between, that is a trouble even if the newest run succeeded. A single failure,
	// or several in a row, no longer count once a run has succeeded.
	flakyOf   = 10
	flakyFrom = 2
)

// failedLately counts the failures among the newest results: n failures among of results, in times separate series.
// latest is the newest failure.
func failedLately(e admin.Entry) (n, of, times int, latest admin.Execution) {
	well := true
	for x := range results(e) {
		if of == flakyOf {
			break
		}
		of++
		failed := x.State == scheduler.Failed
		if failed {
			if n++; n == 1 {
				latest = x
			}
			if well {
				times++
			}
		}
		well = !failed
	}
	return n, of, times, latest
}

// results iterates over the recorded executions that have ended or were aborted, the newest first.
func results(e admin.Entry) iter.Seq[admin.Execution] {
	return func(yield func(admin.Execution) bool) {
		for _, x := range append([]admin.Execution{e.Latest}, e.History...) {
			if x.State != "" && x.State != scheduler.Running && !yield(x) {
				return
			}
		}
	}
}
