package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
)

func newJobsPause(s *server) *cobra.Command {
	var who actorFlags
	var length time.Duration
	cmd := &cobra.Command{
		Use:   "pause KEY",
		Short: "hold back all jobs of a key, and of the keys below it",
		Long: `Pause holds back all jobs with a lock on KEY or on a key below it, one that begins with KEY and ":". With KEY
tenant:42 these are the jobs of tenant:42 and tenant:42:export, but not those of tenant:421. Unique jobs, jobs of
sequences, jobs that carry locks and tasks of WithoutOverlapping are held back. Running jobs go on, and new jobs can
still be enqueued.

A job that is held back occupies no worker, is charged no retry, and keeps its locks and its place in line. The pause reaches all
workers within a second. It ends with "joblock jobs resume", or by itself after --for. A second pause of KEY replaces the
first. The reason is the note of the pause: "joblock jobs pauses" and "joblock explain" show it.`,
		Example: `  joblock jobs pause provider:acme --reason "acme is down" --for 2h
  joblock jobs pause tenant:42 --reason "restores a backup, ask eva"`,
		Args: exactly("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			until := "until \"joblock jobs resume " + safe(args[0]) + "\""
			if length > 0 {
				until = fmt.Sprintf("for %s, or %s", length, until)
			}
			return s.act(cmd, ops.PauseKey{Key: args[0], For: ops.Millis(length), Reason: who.why()},
				"paused the jobs of %s and of the keys below it, %s", safe(args[0]), until)
		},
	}
	who.flags(cmd)
	cmd.Flags().DurationVar(&length, "for", 0, "end the pause after this time, from 1s to 366 days (default: no end)")
	return cmd
}

func newJobsResume(s *server) *cobra.Command {
	var who actorFlags
	cmd := &cobra.Command{
		Use:   "resume KEY",
		Short: "end the pause of a key: its jobs start",
		Long: `Resume ends the pause of KEY. The jobs that were held back start, in the order in which they came, each as soon as its
own key or limit allows. Pauses of keys above or below KEY stay.

Exit codes in addition to those of "joblock help":
  1   KEY itself is not paused: nothing was changed`,
		Example: `  joblock jobs resume provider:acme --reason "acme is back"`,
		Args:    exactly("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.act(cmd, ops.ResumeKey{Key: args[0], Reason: who.why()}, "the jobs of %s start", safe(args[0]))
		},
	}
	who.flags(cmd)
	return cmd
}

func newJobsPauses(s *server) *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "pauses",
		Short: "list the paused keys: who has paused them, why and until when",
		Long: `Pauses lists the paused keys. HELD BACK is how many jobs wait for the end of the pause so far; jobs behind them in the
lines of their own keys do not count. A pause that has ended is listed as "ends" until its jobs have started.`,
		Example: `  joblock jobs pauses
  joblock jobs pauses -o json`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.withDesk(cmd, &o, func(ctx context.Context, d *desk, p *printer) error {
				set, err := d.Controls(ctx)
				if err != nil {
					return err
				}
				until := func(is ops.Pause) string {
					switch {
					case is.Ended:
						return "ends"
					case is.Until.IsZero():
						return "resumed"
					}
					return is.Until.UTC().Format(time.DateTime)
				}
				if err := printAll(p, []column[ops.Pause]{
					{head: "KEY", text: func(is ops.Pause) string { return is.Key }},
					{head: "SINCE", text: func(is ops.Pause) string { return when(p, set.Now, is.Since) }},
					{head: "UNTIL", text: until},
					{head: "HELD BACK", text: func(is ops.Pause) string { return strconv.Itoa(is.Waiting) }},
					{head: "BY", text: func(is ops.Pause) string { return is.By }},
					{head: "NOTE", text: func(is ops.Pause) string { return is.Note }},
				}, rowsIn(set.Pauses)); err != nil {
					return err
				}
				p.none("no key is paused")
				return nil
			})
		},
	}
	o.flags(cmd.Flags())
	return cmd
}

func newLimits(s *server) *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "limits",
		Short: "show and set the limits that programs name, without a deploy",
		Long: `Limits lists the values that operators have set for named limits, in place of the values in the code: those of
worker.OverlapConfig.LimitName, handoff.Sequence.LimitName and rates. A limit that no operator has set is not listed.`,
		Example: `  joblock limits
  joblock limits set provider-acme 2 --reason "acme throttles us"`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.withDesk(cmd, &o, func(ctx context.Context, d *desk, p *printer) error {
				set, err := d.Controls(ctx)
				if err != nil {
					return err
				}
				if err := printAll(p, []column[ops.Limit]{
					{head: "NAME", text: func(l ops.Limit) string { return l.Name }},
					{head: "VALUE", text: func(l ops.Limit) string { return strconv.Itoa(l.Value) }},
					{head: "SINCE", text: func(l ops.Limit) string { return when(p, set.Now, l.Since) }},
					{head: "BY", text: func(l ops.Limit) string { return l.By }},
					{head: "NOTE", text: func(l ops.Limit) string { return l.Note }},
				}, rowsIn(set.Limits)); err != nil {
					return err
				}
				p.none("no limit is set: each has the value in the code")
				return nil
			})
		},
	}
	o.flags(cmd.Flags())
	cmd.AddCommand(newLimitsSet(s), newLimitsClear(s))
	return cmd
}

func newLimitsSet(s *server) *cobra.Command {
	var who actorFlags
	cmd := &cobra.Command{
		Use:   "set NAME N",
		Short: "set the value of a named limit, from 1 to 1000000",
		Long: `Set sets the value of a limit for all programs that use its name. They use it within a second. Running jobs go on. A
limit on jobs at a time can be at most 256. To start no more jobs at all, pause their key: "joblock jobs pause
--help".`,
		Example: `  joblock limits set provider-acme 2 --reason "acme throttles us"`,
		Args:    exactly("NAME", "N"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil {
				return usage("N is %q, must be a number", args[1])
			}
			return s.act(cmd, ops.SetLimit{Limit: args[0], Value: n, Reason: who.why()}, "the limit %s is %d", safe(args[0]), n)
		},
	}
	who.flags(cmd)
	return cmd
}

func newLimitsClear(s *server) *cobra.Command {
	var who actorFlags
	cmd := &cobra.Command{
		Use:   "clear NAME",
		Short: "remove the value set for a named limit, so that the value in the code applies again",
		Long: `Clear removes the value that an operator has set for a limit. The programs use the value in their code again.

Exit codes in addition to those of "joblock help":
  1   no value is set for NAME: nothing was changed`,
		Example: `  joblock limits clear provider-acme --reason "acme is fast again"`,
		Args:    exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.act(cmd, ops.ClearLimit{Limit: args[0], Reason: who.why()}, "the limit %s has the value in the code again", safe(args[0]))
		},
	}
	who.flags(cmd)
	return cmd
}
