package cli

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

func newCronLs(c *cronServer) *cobra.Command {
	var o output
	var troubled, check bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list jobs: state, next tick, latest run, who has them",
		Long: `Ls lists the jobs of a scope, or of all scopes: those that any node has had in the last year, until "cron forget".

The column STATE is the first of these that applies:
  running   a run has begun and has not ended
  paused    ticks are skipped: "cron get" says who has paused the job, and why
  overdue   a tick has come more than a minute ago, and no node has claimed the tick
  deserted  no node that is up has the job: it was removed, renamed, or its nodes are down
  ended     the spec has no more ticks
  idle      the job waits for its next tick

The column LAST FAILURE has the time at which the latest recorded run that failed or was lost began, even if later runs
succeeded. The column RESULT shows at best "enqueued" for a job that enqueues tasks: how the tasks end is in their queue.
The column TROUBLE has what a person should look at: overrun (a run ignores the end of its context), stuck (at least three
ticks in a row, over at least 10 minutes, were skipped as overlapped), failed, lost or died (the latest run), overdue,
paused, deserted, contested (nodes disagree about the spec, or two definitions alternate), clock (the store's clock was
set back), problem (the job cannot be shown). "cron get" shows more.

Exit codes in addition to those of "joblock help":
  1  with --check: a job has trouble`,
		Example: `  joblock cron ls
  joblock cron ls --scope shop -o wide
  joblock cron ls --troubled --check   # for monitoring`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := o.printer(cmd)
			if err != nil {
				return err
			}
			var jobs []ops.CronJob
			err = c.each(cmd, func(ctx context.Context, cron *cronDesk) error {
				more, err := cron.CronJobs(ctx, cron.scope)
				jobs = append(jobs, more...)
				return err
			})
			if err != nil {
				return err
			}
			many := slices.ContainsFunc(jobs, func(j ops.CronJob) bool { return j.Scope != jobs[0].Scope })
			well := slices.DeleteFunc(slices.Clone(jobs), func(j ops.CronJob) bool { return len(j.Troubles) > 0 })
			if troubled {
				jobs = slices.DeleteFunc(jobs, func(j ops.CronJob) bool { return len(j.Troubles) == 0 })
			}
			if err := printAll(p, jobColumns(p, many), all(jobs)); err != nil {
				return err
			}
			if troubled && len(well) > 0 {
				p.none("none of %s has trouble", plural(len(well), "job"))
			} else {
				p.none("no cron job is on record")
			}
			ill := len(jobs) - len(well)
			if troubled {
				ill = len(jobs)
			}
			if check && ill > 0 {
				return &exitError{exitNo, fmt.Errorf("%s with trouble", plural(ill, "job"))}
			}
			return nil
		},
	}
	o.flags(cmd.Flags())
	cmd.Flags().BoolVar(&troubled, "troubled", false, "only jobs with trouble")
	cmd.Flags().BoolVar(&check, "check", false, "exit with 1 if a job has trouble")
	return cmd
}

func newCronGet(c *cronServer) *cobra.Command {
	var o output
	var check bool
	var runs int
	cmd := &cobra.Command{
		Use:     "get NAME",
		Aliases: []string{"show"},
		Short:   "show a job: spec in words, next tick, latest run, pauses, trouble",
		Long: `Get shows one job, as all nodes of its scope see it. With --check, get is a probe for monitoring. The probe looks at the
latest run. With --runs it looks at failures before that, too, as far as they are on record.

Exit codes in addition to those of "joblock help":
  1  there is no such job
  1  with --check: the job has trouble. The standard error says which: the latest run, or one of --runs, failed or was
     broken off, a tick is overdue, the job is paused, no node has the job, two definitions alternate, or the clock was set back`,
		Example: `  joblock cron get rollup
  joblock cron get rollup --check -o name || page-on-call
  joblock cron get rollup --check --runs 20 -o name`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := o.printer(cmd)
			if err != nil {
				return err
			}
			switch {
			case runs < 1:
				return usage("--runs is %d, must be at least 1", runs)
			case runs > 1 && !check:
				return usage("--runs needs --check")
			}
			return c.one(cmd, func(ctx context.Context, cron *cronDesk) error {
				j, err := cron.CronJob(ctx, cron.scope, args[0])
				if err != nil {
					return err
				}
				if err := printOne(p, oneJobColumns(p), j); err != nil {
					return err
				}
				if check && len(j.Troubles) > 0 {
					return &exitError{exitNo, fmt.Errorf("the job %q has trouble: %s", j.Name, troubleTexts(j))}
				}
				if text := badRuns(j, runs); check && text != "" {
					return &exitError{exitNo, fmt.Errorf("the job %q has trouble: %s", j.Name, text)}
				}
				return nil
			})
		},
	}
	o.flags(cmd.Flags())
	cmd.Flags().BoolVar(&check, "check", false, "exit with 1 if the job has trouble")
	cmd.Flags().IntVar(&runs, "runs", 1, "with --check: look at the latest `N` runs that have ended")
	return cmd
}

// badRuns returns which of the latest n finished runs failed or were aborted, or "".
func badRuns(j ops.CronJob, n int) string {
	over := slices.DeleteFunc(j.Runs(), func(r ops.CronRun) bool { return r.State == scheduler.Running })
	over = over[:min(n, len(over))]
	var worst []ops.CronRun
	for _, r := range over {
		if runRole(r) == bad {
			worst = append(worst, r)
		}
	}
	if len(worst) == 0 {
		return ""
	}
	last := worst[0]
	text := fmt.Sprintf("%d of its latest %s failed or were broken off; the last of these that of %s, %s on %s", len(worst), plural(len(over), "run"),
		last.Tick.UTC().Format("2006-01-02T15:04:05Z"), last.State, last.Node)
	if last.Error != "" {
		text += ": " + last.Error
	}
	return text
}

// oneJobColumns are the lines of one job.
func oneJobColumns(p *printer) []column[ops.CronJob] {
	return []column[ops.CronJob]{
		{head: "NAME", text: func(j ops.CronJob) string { return j.Name }},
		{head: "SCOPE", text: func(j ops.CronJob) string { return j.Scope }},
		{head: "STATE", text: cronStateText, role: cronStateRole},
		{head: "SPEC", text: func(j ops.CronJob) string { return j.Spec }},
		{head: "RUNS", text: func(j ops.CronJob) string { return j.Words }},
		{head: "POLICIES", text: func(j ops.CronJob) string { return j.Policies }},
		{head: "IN FORCE", text: func(j ops.CronJob) string {
			if j.Since.IsZero() || j.SpecBy == "" {
				return when(p, j.Now, j.Since)
			}
			return when(p, j.Now, j.Since) + ", from node " + j.SpecBy
		}},
		{head: "OTHER SPECS", text: func(j ops.CronJob) string {
			var all []string
			for _, o := range j.OtherSpecs {
				all = append(all, fmt.Sprintf("%s has %s, since %s", o.Node, o.Spec, when(p, j.Now, o.Since)))
			}
			return strings.Join(all, "; ")
		}, role: always[ops.CronJob](warning)},
		{head: "FORMER", text: func(j ops.CronJob) string {
			if len(j.Former) == 0 {
				return ""
			}
			f := j.Former[0]
			return f.Spec + " until " + when(p, j.Now, f.Until)
		}},
		{head: "NODES", text: func(j ops.CronJob) string { return joined(j.Nodes) }},
		{head: "NEXT", text: func(j ops.CronJob) string { return when(p, j.Now, j.Next) }},
		{head: "OVERDUE", text: func(j ops.CronJob) string { return when(p, j.Now, j.Overdue) }, role: always[ops.CronJob](bad)},
		{head: "LATEST", text: func(j ops.CronJob) string {
			return latest(j, func(r ops.CronRun) string {
				return fmt.Sprintf("%s, %s on %s, begun %s", r.Cause, resultText(r, j.Now), r.Node, when(p, j.Now, r.Started))
			})
		}},
		{head: "ERROR", text: func(j ops.CronJob) string { return latest(j, func(r ops.CronRun) string { return r.Error }) }, role: always[ops.CronJob](bad)},
		{head: "LAST FAILURE", text: func(j ops.CronJob) string { return lastFailureText(p, j) }, role: always[ops.CronJob](warning)},
		{head: "FAILING SINCE", text: func(j ops.CronJob) string { return when(p, j.Now, j.FailingSince) }, role: always[ops.CronJob](bad)},
		{head: "RUNNING", text: func(j ops.CronJob) string {
			if len(j.Running) < 2 {
				return ""
			}
			return fmt.Sprint(len(j.Running))
		}},
		{head: "WAITING", text: func(j ops.CronJob) string {
			if j.Waiting == 0 {
				return ""
			}
			return fmt.Sprint(j.Waiting)
		}},
		{head: "RESUMED", text: func(j ops.CronJob) string {
			if j.Resumed == nil || len(j.Pauses) > 0 {
				return ""
			}
			return fmt.Sprintf("%s by %s: %s", when(p, j.Now, j.Resumed.Since), j.Resumed.By, j.Resumed.Reason)
		}},
		{head: "COUNTS", text: func(j ops.CronJob) string { return countsText(j.Counts) }},
		{head: "BACKFILL", text: func(j ops.CronJob) string { return backfillText(j.Backfill, doneWord(j.Counts)) }},
		{head: "TROUBLE", text: troubleTexts, role: always[ops.CronJob](warning)},
	}
}

func always[T any](r role) func(T) role { return func(T) role { return r } }

func newCronHistory(c *cronServer) *cobra.Command {
	var o output
	var n int
	var failed bool
	cmd := &cobra.Command{
		Use:   "history NAME",
		Short: "list the runs of a job that are on record, the newest first",
		Long: `History lists the runs of a job that are on record, the newest first. The application chooses how many runs the
record keeps, and may keep more of those that failed: scheduler.KeepHistory.`,
		Example: `  joblock cron history rollup
  joblock cron history rollup --failed -o jsonl`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := o.printer(cmd)
			if err != nil {
				return err
			}
			if n < 0 {
				return usage("-n is %d, must not be negative", n)
			}
			return c.one(cmd, func(ctx context.Context, cron *cronDesk) error {
				j, err := cron.CronJob(ctx, cron.scope, args[0])
				if err != nil {
					return err
				}
				runs := j.Runs()
				if failed {
					runs = slices.DeleteFunc(runs, func(r ops.CronRun) bool { return runRole(r) == good })
				}
				if n > 0 {
					runs = runs[:min(n, len(runs))]
				}
				if err := printAll(p, runColumns(p, j), all(runs)); err != nil {
					return err
				}
				if failed {
					p.none("no failed run of %q is on record", j.Name)
				} else {
					p.none("no run of %q is on record", j.Name)
				}
				return nil
			})
		},
	}
	o.flags(cmd.Flags())
	cmd.Flags().IntVarP(&n, "number", "n", 0, "at most `N` runs; 0 for all")
	cmd.Flags().BoolVar(&failed, "failed", false, "only runs that are neither running, done nor enqueued")
	return cmd
}

// runColumns are the columns of runs of the job j.
func runColumns(p *printer, j ops.CronJob) []column[ops.CronRun] {
	return []column[ops.CronRun]{
		{head: "ID", wide: true, text: func(r ops.CronRun) string { return r.ID }},
		{head: "TICK", text: func(r ops.CronRun) string { return r.Tick.UTC().Format("2006-01-02T15:04:05Z") }},
		{head: "CAUSE", text: func(r ops.CronRun) string { return string(r.Cause) }},
		{head: "STATE", text: func(r ops.CronRun) string { return string(r.State) }, role: runRole},
		{head: "STARTED", text: func(r ops.CronRun) string { return when(p, j.Now, r.Started) }},
		{head: "LATE", text: func(r ops.CronRun) string { return span(r.Late.Duration()) }},
		{head: "TOOK", text: func(r ops.CronRun) string {
			if r.Ended.IsZero() {
				return ""
			}
			return span(r.Took.Duration())
		}},
		{head: "NODE", text: func(r ops.CronRun) string { return r.Node }},
		{head: "ATTEMPTS", text: func(r ops.CronRun) string { return fmt.Sprint(max(1, r.Attempts)) }},
		{head: "BROKEN", wide: true, text: func(r ops.CronRun) string { return fmt.Sprint(r.Broken) }},
		{head: "ERROR", text: func(r ops.CronRun) string { return r.Error }, role: always[ops.CronRun](bad)},
	}
}

func newCronNodes(c *cronServer) *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "list the nodes that are up",
		Long: `Nodes lists the processes that execute jobs. A node that was stopped disappears at once, and a node that has died
after 90 seconds.`,
		Example: `  joblock cron nodes --scope shop`,
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := o.printer(cmd)
			if err != nil {
				return err
			}
			var nodes []ops.CronNode
			err = c.each(cmd, func(ctx context.Context, cron *cronDesk) error {
				more, err := cron.CronNodes(ctx, cron.scope)
				nodes = append(nodes, more...)
				return err
			})
			if err != nil {
				return err
			}
			err = printAll(p, []column[ops.CronNode]{
				{head: "NODE", text: func(n ops.CronNode) string { return n.Name }},
				{head: "SCOPE", text: func(n ops.CronNode) string { return n.Scope }},
				{head: "JOBS", text: func(n ops.CronNode) string { return fmt.Sprint(n.Jobs) }},
				{head: "STARTED", text: func(n ops.CronNode) string { return when(p, n.Now, n.Started) }},
				{head: "PROGRAM", text: func(n ops.CronNode) string { return n.Program }},
			}, all(nodes))
			if err == nil {
				p.none("no node is up")
			}
			return err
		},
	}
	o.flags(cmd.Flags())
	return cmd
}

// cronScope is a scope as "cron scopes" shows it.
type cronScope struct {
	Scope string `json:"scope"`
	Nodes int    `json:"nodes"` // the nodes that are up
}

func newCronScopes(c *cronServer) *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:     "scopes",
		Short:   "list the scopes that schedulers have had in the last year",
		Long:    `Scopes lists the scopes that any scheduler has had in the last year with this Redis and this --prefix.`,
		Example: `  joblock cron scopes -o name`,
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := o.printer(cmd)
			if err != nil {
				return err
			}
			var scopes []cronScope
			err = c.all(cmd, func(ctx context.Context, cron *cronDesk) error {
				nodes, err := cron.CronNodes(ctx, cron.scope)
				scopes = append(scopes, cronScope{cron.scope, len(nodes)})
				return err
			})
			if err != nil {
				return err
			}
			err = printAll(p, []column[cronScope]{
				{head: "SCOPE", text: func(s cronScope) string { return s.Scope }},
				{head: "NODES", text: func(s cronScope) string { return fmt.Sprint(s.Nodes) }},
			}, all(scopes))
			if err == nil {
				p.none("no scheduler has run with this Redis and this --prefix in the last year")
			}
			return err
		},
	}
	o.flags(cmd.Flags())
	return cmd
}

// all returns an iterator over rows that have already been read.
func all[T any](rows []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, row := range rows {
			if !yield(row, nil) {
				return
			}
		}
	}
}

// countsText returns how often a job has run, with which results, and which ticks were skipped.
func countsText(c admin.Counts) string {
	var parts []string
	for _, part := range []struct {
		n    int64
		word string
	}{
		{c.Done, "done"}, {c.Enqueued, "enqueued"}, {c.Failed, "failed"}, {c.Cancelled, "cancelled"}, {c.Lost, "lost"}, {c.TakenOver, "taken over"},
		{c.Missed, "missed"}, {c.Overlapped, "overlapped"}, {c.Paused, "skipped in a pause"},
	} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.n, part.word))
		}
	}
	return joined(parts)
}

// doneWord returns the word for runs that succeeded: a job that only enqueues tasks has "enqueued".
func doneWord(c admin.Counts) string {
	if c.Enqueued > 0 && c.Done == 0 {
		return "enqueued"
	}
	return "done"
}

// backfillText returns how far a backfill has progressed. The parameter done is the result of doneWord.
func backfillText(b *ops.CronBackfill, done string) string {
	if b == nil {
		return ""
	}
	text := fmt.Sprintf("%s to %s: ", b.From.UTC().Format("2006-01-02T15:04:05Z"), b.To.UTC().Format("2006-01-02T15:04:05Z"))
	switch {
	case b.Ticks == 0 && b.Ended.IsZero():
		text += "not begun"
	default:
		text += fmt.Sprintf("%d of %d ticks %s, %d failed, %d lost", b.Done, b.Ticks, done, b.Failed, b.Lost)
	}
	if !b.Ended.IsZero() {
		return text + ", ended"
	}
	if b.Stopping {
		text += ", about to stop"
	}
	return text
}

// lastFailureText returns when and how a job last failed, unless the latest run is that failure.
func lastFailureText(p *printer, j ops.CronJob) string {
	f := j.LastFailure
	if f == nil || j.Latest != nil && f.ID == j.Latest.ID && f.Started == j.Latest.Started {
		return ""
	}
	text := fmt.Sprintf("%s on %s, begun %s", f.State, f.Node, when(p, j.Now, f.Started))
	if f.Error != "" {
		text += ": " + f.Error
	}
	if j.Failures > 1 {
		text += fmt.Sprintf("; %d are on record", j.Failures)
	}
	return text
}
