package cli

import (
	"context"
	"strings"
	"time"
	_ "time/tzdata" // operators' machines and small containers may lack a time zone database

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
)

func newCronNext(c *cronServer) *cobra.Command {
	var o output
	var n int
	var zone, after string
	var byName bool
	cmd := &cobra.Command{
		Use:   "next NAME|SPEC",
		Short: "list the next ticks of a job, or of a spec that no job has yet",
		Long: `Next lists the next ticks of a job, by the spec in force. If the job is paused, next says by whom and why: its ticks
are skipped unless the job is resumed first. With a spec instead of a name, next lists the ticks of a spec that is not
deployed yet, and doesn't connect to Redis. The column NOTE says what a pause or a clock change does to a tick.

The argument is a spec if it begins with "@", "CRON_TZ=" or "TZ=", or if it has five words or more. With --name it is
the name of a job in any case.

Times are those of the spec's zone. The syntax of specs is in the documentation of package scheduler/spec.`,
		Example: `  joblock cron next rollup
  joblock cron next '30 2 * * *' --zone Europe/Berlin --after 2027-03-27
  joblock cron next 'CRON_TZ=Europe/Berlin 0 3 * * 5L' -n 12 -o json`,
		Args: exactly("NAME or SPEC"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := o.printer(cmd)
			if err != nil {
				return err
			}
			if byName || !looksLikeSpec(args[0]) {
				if zone != "" || after != "" {
					return usage("--zone and --after need a SPEC; %q is taken for the name of a job", args[0])
				}
				return c.one(cmd, func(ctx context.Context, cron *cronDesk) error {
					j, err := cron.CronJob(ctx, cron.scope, args[0])
					if err != nil {
						return err
					}
					ticks, err := cron.CronNext(ctx, ops.CronNextQuery{Scope: cron.scope, Name: args[0], N: n})
					if err != nil {
						return err
					}
					for _, pause := range j.Pauses {
						p.say("%s; \"joblock cron resume\" ends that", pause)
					}
					return printTicks(p, j.Words, ticks, j.Now.Time)
				})
			}
			now, in := time.Now(), time.UTC
			from := now
			if zone != "" {
				if in, err = time.LoadLocation(zone); err != nil {
					return usage("--zone is %q, must be in the time zone database, like Europe/Berlin", zone)
				}
			}
			if after != "" {
				if from, err = parseTime("--after", after, in, false); err != nil {
					return err
				}
			}
			plan, err := ops.CronPreview(args[0], in, from, n)
			if err != nil {
				return usage("%w", err)
			}
			if plan.Warning != "" {
				p.say("warning: %s", plan.Warning)
			}
			return printTicks(p, plan.Words, plan.Ticks, now)
		},
	}
	o.flags(cmd.Flags())
	f := cmd.Flags()
	f.IntVarP(&n, "number", "n", 10, "number of ticks, from 1 to 1000")
	f.StringVar(&zone, "zone", "", "read SPEC in this time `ZONE`, unless SPEC begins with a zone (default UTC)")
	f.StringVar(&after, "after", "", "list the ticks of SPEC after `TIME`: 2027-03-27, 2027-03-27T02:00 or RFC 3339 (default now)")
	f.BoolVar(&byName, "name", false, "the argument is the name of a job")
	return cmd
}

// looksLikeSpec reports whether the argument of "cron next" looks like a spec rather than a name.
func looksLikeSpec(text string) bool {
	trimmed := strings.TrimSpace(text)
	for _, begin := range []string{"@", "CRON_TZ=", "TZ="} {
		if strings.HasPrefix(trimmed, begin) {
			return true
		}
	}
	return len(strings.Fields(text)) >= 5
}

// printTicks prints upcoming ticks and, to the standard error, what the spec means.
func printTicks(p *printer, words string, ticks []ops.CronTick, now time.Time) error {
	if words != "" {
		p.say("%s", words)
	}
	if len(ticks) == 0 {
		p.say("no more ticks")
	}
	return printAll(p, []column[ops.CronTick]{
		{head: "TICK", text: func(t ops.CronTick) string { return t.At.Format("Mon 2006-01-02 15:04:05 MST") }},
		{head: "UTC", text: func(t ops.CronTick) string { return t.At.UTC().Format("2006-01-02T15:04:05Z") }},
		{head: "WHEN", text: func(t ops.CronTick) string { return p.when(t.At, now.Sub(t.At)) }},
		{head: "NOTE", text: func(t ops.CronTick) string {
			switch {
			case t.Paused && t.Note != "":
				return "skipped while the job is paused; " + t.Note
			case t.Paused:
				return "skipped while the job is paused"
			}
			return t.Note
		}, role: always[ops.CronTick](warning)},
	}, all(ticks))
}

// parseTime reads a time that a user has typed: a day, a time of a day in a zone, or RFC 3339. A day means its first
// instant, or with endOfDay its last second.
func parseTime(flag, text string, zone *time.Location, endOfDay bool) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04"} {
		if t, err := time.ParseInLocation(layout, text, zone); err == nil {
			return t, nil
		}
	}
	t, err := time.ParseInLocation("2006-01-02", text, zone)
	if err != nil {
		return t, usage("%s is %q, must be like 2027-03-27, 2027-03-27T02:00 or 2027-03-27T02:00:00Z", flag, text)
	}
	if endOfDay {
		t = t.AddDate(0, 0, 1).Add(-time.Second)
	}
	return t, nil
}
