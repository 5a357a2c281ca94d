package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
)

func newAudit(s *server) *cobra.Command {
	var o output
	var since string
	var most int
	cmd := &cobra.Command{
		Use:   "audit [flags] [KEY]",
		Short: "list what operators have done, by whom and why, the newest first",
		Long: `Audit lists what operators have done to locks, to cron jobs and to tasks of asynq, the newest first: "force-release",
"cron pause" and the others, "jobs drop" and the others, and the actions of the lock server. Redis keeps the latest
100,000 records, which is about 50,000 actions, and in addition 10,000 refusals. What programs do by themselves is not
recorded.

With KEY, audit lists only the actions on that lock and on the tasks that carry it, on that cron job (NAME) or on that
task (QUEUE/ID).

--since is a length of time, such as 90m, or a time, such as 2026-11-22, 2026-11-22T14:00 or 2026-11-22T14:00:00Z. A
time without a zone is in UTC. A length of time is counted back from the clock of this machine.

The column OUTCOME is one of:
  done     the action took effect
  refused  nothing was changed: -o wide says why
  asked    the request was passed on, and its outcome was not awaited
  failed   the action began, and failed
  unknown  Redis did not answer, or the outcome is not recorded, or not recorded yet

Exit codes:
  0   the record was read, even if it has no such actions
  64  wrong usage
  69  Redis did not answer; the list is not complete
  77  Redis refused the login of this user, or the user lacks a permission`,
		Example: `  joblock audit
  joblock audit export:acct-7 --since 24h
  joblock audit exports/41 -o json`,
		Args: atMost(1, "KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var q ops.AuditQuery
			if len(args) > 0 {
				if q.Key = args[0]; q.Key == "" {
					return usage("KEY is empty; without KEY, audit lists all actions")
				}
			}
			if most < 0 {
				return usage("--limit is %d, must not be negative", most)
			}
			now := time.Now()
			var err error
			if q.Since, err = sinceTime(since, now); err != nil {
				return err
			}
			p, err := o.printer(cmd)
			if err != nil {
				return err
			}
			return s.with(func(d *desk) error {
				rows := ops.Actions(d.Audit(cmd.Context(), q))
				if most > 0 {
					rows = firstOf(rows, most)
				}
				if err := printAll(p, auditColumns(p, now), rows); err != nil {
					return err
				}
				p.none("nothing is on record")
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&since, "since", "", "only actions of the last `TIME`, such as 24h, or since a time (default: all)")
	cmd.Flags().IntVar(&most, "limit", 0, "print at most `N` actions (default: all)")
	o.flags(cmd.Flags())
	return cmd
}

// sinceTime parses the value of --since: a duration before now, or a time. It returns the zero time for "".
func sinceTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if back, err := time.ParseDuration(text); err == nil {
		if back < 0 {
			return time.Time{}, usage("--since is %s, must not be negative", text)
		}
		return now.Add(-back), nil
	}
	t, err := parseTime("--since", text, time.UTC, false)
	if err != nil {
		return t, usage("--since is %q, must be a length of time such as 90m, or a time such as 2026-11-22T14:00:00Z", text)
	}
	return t, nil
}

func auditColumns(p *printer, now time.Time) []column[ops.AuditEntry] {
	id := column[ops.AuditEntry]{head: "RECORD", wide: true, text: func(e ops.AuditEntry) string { return e.ID }}
	if p.format == "name" {
		return []column[ops.AuditEntry]{id}
	}
	return []column[ops.AuditEntry]{
		{head: "WHEN", text: func(e ops.AuditEntry) string { return p.when(e.At.Time, max(0, now.Sub(e.At.Time))) }},
		{head: "ACTION", text: func(e ops.AuditEntry) string { return e.Action }},
		{head: "KEY", text: func(e ops.AuditEntry) string {
			if e.Key == "" && e.Scope != "" {
				return "all of " + strconv.Quote(e.Scope)
			}
			return e.Key
		}},
		{head: "BY", text: func(e ops.AuditEntry) string { return e.By }},
		{head: "OUTCOME", text: func(e ops.AuditEntry) string { return e.Outcome }, role: func(e ops.AuditEntry) role {
			switch e.Outcome {
			case ops.OutcomeDone:
				return good
			case ops.OutcomeRefused, ops.OutcomeAsked:
				return plain
			case ops.OutcomeFailed:
				return bad
			}
			return warning
		}},
		{head: "HOLDER", text: func(e ops.AuditEntry) string {
			if e.Before == nil || !e.Before.Locked() {
				return ""
			}
			return e.Before.Holder
		}},
		{head: "REASON", text: func(e ops.AuditEntry) string { return e.Reason }},
		{head: "SCOPE", wide: true, text: func(e ops.AuditEntry) string { return e.Scope }},
		{head: "FENCE", wide: true, text: func(e ops.AuditEntry) string { return count(e.Fence) }},
		{head: "IF IDLE", wide: true, text: func(e ops.AuditEntry) string {
			if !e.IfIdle {
				return ""
			}
			return fmt.Sprint(e.IfIdle)
		}},
		{head: "FROM", wide: true, text: func(e ops.AuditEntry) string { return e.From }},
		id,
		{head: "ERROR", wide: true, text: func(e ops.AuditEntry) string { return e.Error }, role: always[ops.AuditEntry](bad)},
	}
}
