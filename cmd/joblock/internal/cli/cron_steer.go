package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler/admin"
)

func newCronPause(c *cronServer) *cobra.Command {
	var who actorFlags
	var everything bool
	var ask confirmation
	cmd := &cobra.Command{
		Use:   "pause NAME... | --all",
		Short: "skip the ticks of jobs until \"cron resume\"",
		Long: `Pause skips the ticks of jobs, from the next tick on. Runs that have begun go on. Ticks that come during the pause
stay skipped. "cron get" shows the reason and who has paused the job.

A job that is already paused keeps its pause; a new --reason replaces the reason of the pause. Without a new reason
nothing is changed or recorded, and pause exits with 0.

With --all, pause skips the ticks of all jobs of the scope, including jobs that are deployed later. Only --all asks
for confirmation: you type the scope, or give --yes.`,
		Example: `  joblock cron pause rollup --reason "migration of the ledger, until 14:00 UTC"
  joblock cron pause --scope shop --all --reason "database is read-only"`,
		Args: namesOrAll(&everything),
		RunE: func(cmd *cobra.Command, names []string) error {
			return c.one(cmd, func(ctx context.Context, cron *cronDesk) error {
				if !everything {
					return eachName(names, func(name string) error {
						ctx, cancel := c.bounded(ctx)
						defer cancel()
						done, err := cron.Act(ctx, ops.PauseCron{Scope: cron.scope, Name: name, Reason: who.why()})
						if err != nil {
							return err
						}
						return reportPause(cmd, done, fmt.Sprintf("%q of scope %q", name, cron.scope), "joblock cron resume "+safe(name))
					})
				}
				jobs, err := cron.CronJobs(ctx, cron.scope)
				if err != nil {
					return err
				}
				text := fmt.Sprintf("This skips the ticks of all jobs of scope %q until \"joblock cron resume --all\": %s now.", cron.scope, plural(len(jobs), "job"))
				if len(jobs) > 0 {
					if i := slices.IndexFunc(jobs[0].Pauses, together); i >= 0 {
						text = fmt.Sprintf("In scope %q %s. A new --reason replaces the reason, and nothing else changes.", cron.scope, jobs[0].Pauses[i])
					}
				}
				if err := ask.confirm(cmd, cron.scope, "%s", text); err != nil {
					return err
				}
				ctx, cancel := c.bounded(ctx)
				defer cancel()
				done, err := cron.Act(ctx, ops.PauseAllCron{Scope: cron.scope, Reason: who.why()})
				if err != nil {
					return err
				}
				return reportPause(cmd, done, fmt.Sprintf("all jobs of scope %q", cron.scope), "joblock cron resume --all")
			})
		},
	}
	who.flags(cmd)
	cmd.Flags().BoolVar(&everything, "all", false, "pause all jobs of the scope, including later ones")
	ask.flags(cmd)
	cmd.Flags().Lookup("yes").Usage = "with --all: do not ask for confirmation; required without a terminal"
	return cmd
}

// reportPause prints the result of a pause; what is paused, and the command end that ends it.
func reportPause(cmd *cobra.Command, done ops.ActionResult, what, end string) error {
	switch {
	case done.Unchanged:
		return tell(cmd, "nothing was changed: %s: %s; \"%s\" ends the pause, and a new --reason replaces the reason", what, done.Was, end)
	case done.Was != nil:
		return acted(cmd, done, "%s: the pause goes on, and its reason is new; it was: %s; \"%s\" ends the pause", what, done.Was, end)
	}
	return acted(cmd, done, "paused %s; \"%s\" ends the pause", what, end)
}

func newCronResume(c *cronServer) *cobra.Command {
	var who actorFlags
	var everything bool
	cmd := &cobra.Command{
		Use:   "resume NAME... | --all",
		Short: "end a pause",
		Long: `Resume ends the pause of jobs, from the next tick on. Ticks that came during the pause stay skipped.

With --all, resume ends the pause that "pause --all" has begun. Jobs that were paused one by one stay paused.

If nothing is paused, resume says so, changes and records nothing, and exits with 0.`,
		Example: `  joblock cron resume rollup
  joblock cron resume --scope shop --all`,
		Args: namesOrAll(&everything),
		RunE: func(cmd *cobra.Command, names []string) error {
			return c.one(cmd, func(ctx context.Context, cron *cronDesk) error {
				if everything {
					ctx, cancel := c.bounded(ctx)
					defer cancel()
					jobs, err := cron.CronJobs(ctx, cron.scope)
					if err != nil {
						return err
					}
					if len(jobs) > 0 && !slices.ContainsFunc(jobs[0].Pauses, together) {
						return tell(cmd, "nothing to resume: scope %q is not paused as a whole%s", cron.scope, alone(jobs))
					}
					done, err := cron.Act(ctx, ops.ResumeAllCron{Scope: cron.scope, Reason: who.why()})
					if err != nil {
						return err
					}
					if done.Unchanged {
						return tell(cmd, "nothing to resume: scope %q is no longer paused as a whole%s", cron.scope, alone(jobs))
					}
					return acted(cmd, done, "resumed all jobs of scope %q, except those that were paused one by one", cron.scope)
				}
				return eachName(names, func(name string) error {
					bounded, cancel := c.bounded(ctx)
					defer cancel()
					j, err := cron.CronJob(bounded, cron.scope, name)
					if err != nil {
						return err
					}
					switch {
					case len(j.Pauses) == 0:
						return tell(cmd, "nothing to resume: %q of scope %q is not paused", name, cron.scope)
					case !slices.ContainsFunc(j.Pauses, func(p ops.CronPause) bool { return !p.All }):
						return tell(cmd, "nothing to resume: %q is paused only with all jobs of scope %q: %s; \"joblock cron resume --all\" ends that", name, cron.scope, j.Pauses[0])
					}
					done, err := cron.Act(bounded, ops.ResumeCron{Scope: cron.scope, Name: name, Reason: who.why()})
					if err != nil {
						return err
					}
					if done.Unchanged {
						return tell(cmd, "nothing to resume: %q of scope %q is not paused any more", name, cron.scope)
					}
					if j, err := cron.CronJob(bounded, cron.scope, name); err == nil && len(j.Pauses) > 0 {
						return acted(cmd, done, "%q is still paused, with all jobs of scope %q: %s", name, cron.scope, j.Pauses[0])
					}
					return acted(cmd, done, "resumed %q of scope %q", name, cron.scope)
				})
			})
		},
	}
	who.flags(cmd)
	cmd.Flags().BoolVar(&everything, "all", false, "end the pause of all jobs of the scope")
	return cmd
}

// together reports whether a pause covers all jobs of a scope.
func together(p ops.CronPause) bool { return p.All }

// alone returns which jobs are paused individually.
func alone(jobs []ops.CronJob) string {
	var names []string
	for _, j := range jobs {
		if len(j.Pauses) > 0 {
			names = append(names, j.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("; %s %s paused one by one: %s", plural(len(names), "job"), map[bool]string{true: "is", false: "are"}[len(names) == 1], quoted(names))
}

func newCronTrigger(c *cronServer) *cobra.Command {
	var o output
	var who actorFlags
	var wait bool
	var within time.Duration
	cmd := &cobra.Command{
		Use:   "trigger NAME",
		Short: "run a job once, now; with --wait, follow the run to its end",
		Long: `Trigger makes a node that has the job run it once, within scheduler.Config.Sync (10 s by default), even while the job
is paused. The ticks of the job do not change. If the job is running, the new run follows the running one. Triggers
that wait at the same time lead to one run.

Without --wait, trigger only asks: the run has not begun when trigger returns. With --wait, trigger waits for the end
of the run and prints the run; the run of a job that enqueues a task ends before its task does. After --wait, or with
--server, "joblock audit" says how the run has ended: "done" or "failed", or "asked" if it has enqueued a task. A lock
server follows at most 100 runs at a time, each for at most a day, and none after it is stopped. In all other cases
the audit says "asked", and "joblock cron get" shows how the run has ended.

Exit codes in addition to those of "joblock help":
  1    there is no such job; with --wait: the run has ended, and its state is neither "done" nor "enqueued"
  75   with --wait: the run has not ended within --within; the trigger stays
  130  with --wait: Ctrl-C has ended the wait; the trigger stays`,
		Example: `  joblock cron trigger rollup
  joblock cron trigger rollup --wait --within 10m`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := o.printer(cmd)
			if err != nil {
				return err
			}
			if within <= 0 {
				return usage("--within is %s, must be positive", within)
			}
			name := args[0]
			return c.one(cmd, func(ctx context.Context, cron *cronDesk) error {
				j, err := cron.CronJob(ctx, cron.scope, name)
				if err != nil {
					return err
				}
				if len(j.Nodes) == 0 {
					p.say("no node that is up has the job: the trigger waits for one")
				}
				if !wait {
					ctx, cancel := c.bounded(ctx)
					defer cancel()
					return act(ctx, cmd, cron, ops.TriggerCron{Scope: cron.scope, Name: name, Reason: who.why()}, "asked for a run of %q of scope %q; it has not begun yet: %s; \"joblock cron get --scope %s -- %s\" shows it",
						name, cron.scope, soon(j), ops.Shell(cron.scope), ops.Shell(name))
				}
				late := fmt.Errorf("the run of %q has not ended within %s; the trigger stays", name, within)
				ctx, cancel := context.WithTimeoutCause(ctx, within, &exitError{exitBusy, late})
				defer cancel()
				done, err := cron.Act(ctx, ops.TriggerCron{Scope: cron.scope, Name: name, Wait: true, Reason: who.why()})
				if err != nil {
					return err
				}
				run := *done.Run
				for _, problem := range done.Problems {
					p.say("%s", problem)
				}
				j.Now = run.Ended
				if err := printOne(p, runColumns(p, j), run); err != nil {
					return err
				}
				if !run.Well() {
					return &exitError{exitNo, fmt.Errorf("the run of %q has ended as %s: %s", name, run.State, run.Error)}
				}
				return nil
			})
		},
	}
	o.flags(cmd.Flags())
	who.flags(cmd)
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "wait for the end of the run")
	cmd.Flags().DurationVar(&within, "within", time.Hour, "how long --wait waits")
	return cmd
}

// soon returns when a triggered run begins.
func soon(j ops.CronJob) string {
	switch {
	case len(j.Nodes) == 0:
		return "it begins when a node is up that has the job"
	case j.State == ops.CronRunning:
		return "it begins after the run that is under way"
	}
	return "it begins within about 10 s (scheduler.Config.Sync)"
}

func newCronForget(c *cronServer) *cobra.Command {
	var who actorFlags
	var ask confirmation
	cmd := &cobra.Command{
		Use:   "forget NAME",
		Short: "remove the record of a job that no node has any more",
		Long: `Forget removes the history, counts, spec and pause of a job that no node has any more. If the job is deployed again
later, it is a new job, whose ticks count from then on.

Exit codes in addition to those of "joblock help":
  1   there is no such job, or another name was typed
  75  a node that is up has the job, or the job is being executed: nothing was removed`,
		Example: `  joblock cron forget old-rollup
  joblock cron forget old-rollup --yes   # in scripts`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			return c.one(cmd, func(ctx context.Context, cron *cronDesk) error {
				j, err := cron.CronJob(ctx, cron.scope, name)
				if err != nil {
					return err
				}
				if len(j.Nodes) > 0 {
					return &exitError{exitBusy, fmt.Errorf("the job %q is on %s; remove it there first", name, quoted(j.Nodes))}
				}
				if err := ask.confirm(cmd, name, "This removes the job %q of scope %q: the spec %q, %s on record, and the counts (%s).",
					name, cron.scope, j.Spec, plural(len(j.Runs()), "run"), countsText(j.Counts)); err != nil {
					return err
				}
				ctx, cancel := c.bounded(ctx)
				defer cancel()
				return act(ctx, cmd, cron, ops.ForgetCron{Scope: cron.scope, Name: name, Reason: who.why()}, "forgot %q of scope %q", name, cron.scope)
			})
		},
	}
	who.flags(cmd)
	ask.flags(cmd)
	return cmd
}

func newCronBackfill(c *cronServer) *cobra.Command {
	var o output
	var who actorFlags
	var from, to string
	var stop, wait bool
	var within time.Duration
	var ask confirmation
	cmd := &cobra.Command{
		Use:   "backfill NAME --from TIME --to TIME [--wait] | --wait | --stop",
		Short: "run the ticks of a range of the past; with --wait, follow them to the end",
		Long: `Backfill makes the nodes run each tick of a range of the past once, one after the other, the oldest first, whether the
tick was run before or not: at most 10,000 ticks. Ticks that are due go first. A job has one backfill at a time. "cron
get" shows how far it has come.

A time is like 2026-11-22, 2026-11-22T14:00 or 2026-11-22T14:00:00Z. A time without a zone is in the zone of the job's
spec. If --to is a day, the range includes that day.

With --wait, backfill waits for the end of the backfill and prints how it went. Without --from and --to, it waits for the
backfill that the job has.

Exit codes in addition to those of "joblock help":
  1    there is no such job, or another name was typed; with --wait: the job has no backfill, or not all ticks of the
       range are done
  75   the job has a backfill that has not ended; with --wait: the backfill has not ended within --within, and goes on
  130  with --wait: Ctrl-C has ended the wait; the backfill goes on`,
		Example: `  joblock cron backfill rollup --from 2026-11-20 --to 2026-11-22 --wait
  joblock cron backfill rollup --stop`,
		Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			ranged := from != ""
			switch {
			case (from == "") != (to == ""), !ranged && !stop && !wait:
				return usage("backfill needs --from and --to, or --wait, or --stop")
			case stop && (ranged || wait):
				return usage("--stop excludes --from, --to and --wait")
			case within <= 0:
				return usage("--within is %s, must be positive", within)
			}
			p, err := o.printer(cmd)
			if err != nil {
				return err
			}
			return c.one(cmd, func(ctx context.Context, cron *cronDesk) error {
				if stop {
					ctx, cancel := c.bounded(ctx)
					defer cancel()
					return act(ctx, cmd, cron, ops.StopBackfill{Scope: cron.scope, Name: name, Reason: who.why()}, "the backfill of %q ends before its next tick", name)
				}
				j, err := cron.CronJob(ctx, cron.scope, name)
				if err != nil {
					return err
				}
				if !ranged {
					return c.follow(ctx, cron, p, j, within)
				}
				zone, err := time.LoadLocation(j.Zone)
				if err != nil {
					return fmt.Errorf("the zone of the spec %q is not known here: %w", j.Spec, err)
				}
				begin, err := parseTime("--from", from, zone, false)
				if err != nil {
					return err
				}
				end, err := parseTime("--to", to, zone, true)
				if err != nil {
					return err
				}
				n, err := cron.CronCount(ctx, ops.CronRange{Scope: cron.scope, Name: name, From: begin, To: end})
				if err != nil {
					return err
				}
				if err := ask.confirm(cmd, name, "This runs the job %q of scope %q for %s of %q, from %s to %s, one after the other.",
					name, cron.scope, plural(n, "tick"), j.Spec, begin.Format(time.RFC3339), end.Format(time.RFC3339)); err != nil {
					return err
				}
				bounded, cancel := c.bounded(ctx)
				defer cancel()
				done, err := cron.Act(bounded, ops.BackfillCron{Scope: cron.scope, Name: name, From: begin, To: end, Reason: who.why()})
				if err != nil {
					if errors.Is(err, admin.ErrBackfilling) {
						err = &exitError{exitBusy, err}
					}
					return err
				}
				if err := acted(cmd, done, "%s of %q will run; \"joblock cron get --scope %s -- %s\" shows how far the backfill has come", plural(n, "tick"), name, ops.Shell(cron.scope), ops.Shell(name)); err != nil || !wait {
					return err
				}
				if j, err = cron.CronJob(bounded, cron.scope, name); err != nil {
					return err
				}
				return c.follow(ctx, cron, p, j, within)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "", "`TIME` at which the range begins")
	f.StringVar(&to, "to", "", "`TIME` at which the range ends; in the past")
	who.flags(cmd)
	f.BoolVar(&stop, "stop", false, "end the job's backfill before its next tick")
	f.BoolVarP(&wait, "wait", "w", false, "wait for the end of the backfill")
	f.DurationVar(&within, "within", time.Hour, "how long --wait waits")
	o.flags(f)
	ask.flags(cmd)
	return cmd
}

// followPause is the interval at which --wait checks a backfill.
const followPause = 300 * time.Millisecond

// follow waits until the backfill of j has ended, and prints it. A temporary outage of Redis does not end the wait.
func (c *cronServer) follow(ctx context.Context, cron *cronDesk, p *printer, j ops.CronJob, within time.Duration) error {
	if j.Backfill == nil {
		return &exitError{exitNo, fmt.Errorf("the job %q has no backfill", j.Name)}
	}
	number, over := j.Backfill.Number, time.After(within)
	for silent := false; j.Backfill.Ended.IsZero(); {
		select {
		case <-over:
			return &exitError{exitBusy, fmt.Errorf("the backfill of %q has not ended within %s, and goes on: %s", j.Name, within, backfillText(j.Backfill, doneWord(j.Counts)))}
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(followPause):
		}
		bounded, cancel := context.WithTimeoutCause(ctx, c.timeout, errSilent)
		now, err := cron.CronJob(bounded, cron.scope, j.Name)
		cancel()
		switch {
		case errors.Is(err, joblock.ErrUnavailable):
			if text, _, ok := c.unanswered(err); ok && !silent {
				p.say("%s; trying again", text)
			}
			silent = true
			continue
		case err != nil:
			return err
		case now.Backfill == nil || now.Backfill.Number != number:
			return &exitError{exitNo, fmt.Errorf("the outcome of the backfill of %q is unknown: the job was forgotten, or has another backfill by now", j.Name)}
		}
		j, silent = now, false
	}
	b := *j.Backfill
	if err := printOne(p, backfillColumns(p, j), b); err != nil {
		return err
	}
	if b.Done < b.Ticks {
		return &exitError{exitNo, fmt.Errorf("the backfill of %q has ended with %d of %s done", j.Name, b.Done, plural(b.Ticks, "tick"))}
	}
	return nil
}

// backfillColumns are the lines of a backfill of j.
func backfillColumns(p *printer, j ops.CronJob) []column[ops.CronBackfill] {
	at := func(t ops.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }
	return []column[ops.CronBackfill]{
		{head: "JOB", text: func(ops.CronBackfill) string { return j.Name }},
		{head: "FROM", text: func(b ops.CronBackfill) string { return at(b.From) }},
		{head: "TO", text: func(b ops.CronBackfill) string { return at(b.To) }},
		{head: "TICKS", text: func(b ops.CronBackfill) string { return fmt.Sprint(b.Ticks) }},
		{head: "DONE", text: func(b ops.CronBackfill) string { return fmt.Sprint(b.Done) }},
		{head: "FAILED", text: func(b ops.CronBackfill) string { return count(b.Failed) }, role: always[ops.CronBackfill](bad)},
		{head: "LOST", text: func(b ops.CronBackfill) string { return count(b.Lost) }, role: always[ops.CronBackfill](bad)},
		{head: "ASKED", text: func(b ops.CronBackfill) string { return when(p, j.Now, b.Asked) }},
		{head: "ENDED", text: func(b ops.CronBackfill) string { return when(p, j.Now, b.Ended) }},
	}
}

// namesOrAll checks that a command has names, or the flag --all.
func namesOrAll(everything *bool) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case *everything && len(args) > 0:
			return usage("--all and the name %q exclude each other", args[0])
		case !*everything && len(args) == 0:
			return usage("NAME is missing; see \"%s --help\"", cmd.CommandPath())
		}
		return nil
	}
}

// eachName calls f with each name, even after an error. It returns all errors joined, with the exit code of the first.
func eachName(names []string, f func(name string) error) error {
	var errs []error
	for _, name := range names {
		if err := f(name); err != nil {
			errs = append(errs, err)
			if errors.Is(err, joblock.ErrUnavailable) {
				break // the next name would wait for the same server
			}
		}
	}
	if len(errs) < 2 {
		return errors.Join(errs...)
	}
	return &exitError{codeOf(errs[0]), errors.Join(errs...)}
}
