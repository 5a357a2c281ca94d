package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/scheduler"
)

// envScope is the environment variable that stands for --scope.
const envScope = "JOBLOCK_SCOPE"

// cronServer holds the flags that select a scheduler's jobs.
type cronServer struct {
	*server
	scope string
}

// cronDesk is a desk with the scope of the jobs.
type cronDesk struct {
	*desk
	scope string
}

func newCron(s *server) *cobra.Command {
	c := &cronServer{server: s}
	cmd := &cobra.Command{
		Use:   "cron",
		Short: "see and control cron jobs",
		Long: `See and control the jobs of package scheduler, from any machine that reaches the Redis of the locks.

A scope is the name that an application has given to its jobs: scheduler.Config.Scope. "joblock cron scopes" lists the
scopes. Without --scope and $` + envScope + `, "ls" and "nodes" show all scopes, and the other commands use the only scope that exists.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unknown command %q; \"joblock cron --help\" lists the commands", args[0])
			}
			return cmd.Help()
		},
	}
	cmd.PersistentFlags().StringVarP(&c.scope, "scope", "s", "", "`SCOPE` of the jobs (default $"+envScope+")")
	cmd.AddCommand(newCronLs(c), newCronGet(c), newCronNext(c), newCronHistory(c), newCronNodes(c), newCronScopes(c),
		newCronPause(c), newCronResume(c), newCronTrigger(c), newCronForget(c), newCronBackfill(c))
	return cmd
}

// named returns the scope from the flag or the environment, or "".
func (c *cronServer) named() string { return cmp.Or(c.scope, os.Getenv(envScope)) }

// one calls f with the named scope or, if none is named, with the only scope that exists.
func (c *cronServer) one(cmd *cobra.Command, f func(context.Context, *cronDesk) error) error {
	return c.with(func(d *desk) error {
		ctx := cmd.Context()
		scope := c.named()
		if scope == "" {
			scopes, err := d.CronScopes(ctx)
			switch {
			case err != nil:
				return err
			case len(scopes) == 0:
				return &exitError{exitNo, errors.New("no scheduler has run with this Redis and this --prefix in the last year")}
			case len(scopes) > 1:
				return usage("--scope is missing; the scopes are %s", quoted(scopes))
			}
			scope = scopes[0]
		}
		return f(ctx, &cronDesk{d, scope})
	})
}

// each calls f with the named scope or, if none is named, with each scope.
func (c *cronServer) each(cmd *cobra.Command, f func(context.Context, *cronDesk) error) error {
	if c.named() != "" {
		return c.one(cmd, f)
	}
	return c.all(cmd, f)
}

func (c *cronServer) all(cmd *cobra.Command, f func(context.Context, *cronDesk) error) error {
	return c.with(func(d *desk) error {
		scopes, err := d.CronScopes(cmd.Context())
		if err != nil {
			return err
		}
		for _, scope := range scopes {
			if err := f(cmd.Context(), &cronDesk{d, scope}); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *server) with(f func(*desk) error) error {
	d, err := s.desk()
	if err != nil {
		return err
	}
	defer d.close()
	return f(d)
}

// bounded returns a context for steps that wait for other processes: --timeout bounds each call, and twice --timeout all
// of them together.
func (s *server) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, 2*s.timeout, &exitError{exitUnavailable, fmt.Errorf(
		"not done within %s: Redis does not answer, or another process has locked the record of pauses and triggers for that long; "+
			"whether the call takes effect is unknown", 2*s.timeout)})
}

// quoted returns texts in quotes, separated by commas, at most ten of them.
func quoted(texts []string) string {
	const most = 10
	more := len(texts) - most
	var all []string
	for _, text := range texts[:min(len(texts), most)] {
		all = append(all, fmt.Sprintf("%q", text))
	}
	if more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, ", ")
}

// jobColumns are the columns of jobs in a list.
func jobColumns(p *printer, manyScopes bool) []column[ops.CronJob] {
	c := []column[ops.CronJob]{
		{head: "NAME", text: func(j ops.CronJob) string { return j.Name }},
		{head: "SCOPE", wide: !manyScopes, text: func(j ops.CronJob) string { return j.Scope }},
		{head: "STATE", text: cronStateText, role: cronStateRole},
		{head: "NEXT", text: func(j ops.CronJob) string { return when(p, j.Now, j.Next) }},
		{head: "LATEST", text: func(j ops.CronJob) string {
			return latest(j, func(r ops.CronRun) string { return when(p, j.Now, r.Started) })
		}},
		{head: "RESULT", text: func(j ops.CronJob) string {
			return latest(j, func(r ops.CronRun) string { return resultText(r, j.Now) })
		},
			role: func(j ops.CronJob) role {
				if j.Latest == nil {
					return plain
				}
				return runRole(*j.Latest)
			}},
		{head: "NODES", text: func(j ops.CronJob) string { return fmt.Sprint(len(j.Nodes)) }},
		{head: "SPEC", text: func(j ops.CronJob) string { return j.Spec }},
		{head: "TROUBLE", text: troubleCodes, role: func(ops.CronJob) role { return warning }},
		{head: "LAST FAILURE", text: func(j ops.CronJob) string {
			if j.LastFailure == nil {
				return ""
			}
			return when(p, j.Now, j.LastFailure.Started)
		}, role: always[ops.CronJob](warning)},
		{head: "RUNS", wide: true, text: func(j ops.CronJob) string { return j.Words }},
		{head: "DONE", wide: true, text: func(j ops.CronJob) string { return fmt.Sprint(j.Counts.Done) }},
		{head: "ENQUEUED", wide: true, text: func(j ops.CronJob) string { return fmt.Sprint(j.Counts.Enqueued) }},
		{head: "FAILED", wide: true, text: func(j ops.CronJob) string { return fmt.Sprint(j.Counts.Failed) }},
		{head: "MISSED", wide: true, text: func(j ops.CronJob) string { return fmt.Sprint(j.Counts.Missed) }},
		{head: "OVERLAPPED", wide: true, text: func(j ops.CronJob) string { return fmt.Sprint(j.Counts.Overlapped) }},
	}
	return c
}

func joined(texts []string) string { return strings.Join(texts, ", ") }

// plural returns a number with its noun: "1 job", "2 jobs".
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// when formats an instant for a table, relative to now; both must be by the same clock.
func when(p *printer, now, t ops.Time) string { return p.when(t.Time, now.Sub(t.Time)) }

func latest(j ops.CronJob, text func(ops.CronRun) string) string {
	if j.Latest == nil {
		return ""
	}
	return text(*j.Latest)
}

func cronStateText(j ops.CronJob) string { return string(j.State) }

func cronStateRole(j ops.CronJob) role {
	switch j.State {
	case ops.CronRunning:
		return good
	case ops.CronPaused, ops.CronDeserted:
		return warning
	case ops.CronOverdue:
		return bad
	}
	return plain
}

// resultText returns how a run ended, such as "done in 4.2s", or how long it has been running.
func resultText(r ops.CronRun, now ops.Time) string {
	if r.Ended.IsZero() {
		if r.State == scheduler.Running {
			return "running for " + span(now.Sub(r.Started.Time))
		}
		return string(r.State)
	}
	return string(r.State) + " in " + span(r.Took.Duration())
}

func runRole(r ops.CronRun) role {
	switch r.State {
	case scheduler.Done, scheduler.Enqueued, scheduler.Running:
		return good
	case scheduler.Failed, scheduler.Lost, scheduler.Died:
		return bad
	}
	return warning
}

func troubleCodes(j ops.CronJob) string {
	var codes []string
	for _, t := range j.Troubles {
		codes = append(codes, t.Code)
	}
	return strings.Join(slices.Compact(codes), ", ")
}

func troubleTexts(j ops.CronJob) string {
	var texts []string
	for _, t := range j.Troubles {
		texts = append(texts, t.Text)
	}
	return strings.Join(texts, "; ")
}
