package cli

import (
	"fmt"
	"iter"
	"slices"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/cmdline"
	"github.com/joblock/toolkit/internal/ops"
)

func newJobsSequences(s *server) *cobra.Command {
	var o output
	var q ops.SequencesQuery
	var check bool
	cmd := &cobra.Command{
		Use:     "sequences [PREFIX]",
		Aliases: []string{"seq"},
		Short:   "list the lines of jobs: which have halted, why, and how to get them going",
		Long: `Sequences lists the keys whose jobs run in order, or those of them that begin with PREFIX: the keys of handoff.Sequence,
and each other key in whose line a job waits. Those that have halted come first, the oldest trouble first. They come from
the index of jobs, without a walk over all keys of Redis.

Columns:
  STATE    halted   the job in front has failed for good, and the others wait for an operator to decide
           stuck    nothing starts the next job by itself, or not in time: -o wide says why
           waiting  the job in front waits for a worker, for its time or for its next attempt
           running  an attempt runs
  SINCE    since when; for a halted sequence, when its job failed
  JOB      the job in front
  WAITERS  how many wait behind it
  ERROR    the last error of the job in front
  COMMAND  what to do next; "joblock jobs skip KEY" goes on without the job that has failed

Exit codes in addition to those of "joblock help":
  1  with --check: a sequence has halted or is stuck`,
		Example: `  joblock jobs sequences
  joblock jobs sequences --halted --check   # for monitoring
  joblock jobs sequences webhooks: -o wide`,
		Args: atMost(1, "PREFIX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				q.Prefix = args[0]
			}
			p, err := o.printer(cmd)
			if err != nil {
				return err
			}
			if !(q.Share >= 0.001 && q.Share <= 1) {
				return usage("--share is %v, must be from 0.001 to 1", q.Share)
			}
			return s.with(func(d *desk) error {
				var done atomic.Int64
				q.Progress = func(part float64) { done.Store(int64(100 * part)) }
				p.progress = func() string { return fmt.Sprintf("read %d %% of the sequences", done.Load()) }
				ill := 0
				var rows iter.Seq2[ops.Sequence, error] = func(yield func(ops.Sequence, error) bool) {
					for seq, err := range d.Sequences(cmd.Context(), q) {
						if seq.State == ops.SequenceHalted || seq.State == ops.SequenceStuck {
							ill++
						}
						if !yield(seq, err) {
							return
						}
					}
				}
				rows = sorted(rows, func(all []ops.Sequence) { slices.SortFunc(all, ops.CompareSequences) })
				if err := printAll(p, sequenceColumns(p), rows); err != nil {
					return err
				}
				if q.Halted {
					p.none("no sequence has halted")
				} else {
					p.none("no job is in a sequence, or waits in a line")
				}
				if check && ill > 0 {
					return &exitError{exitNo, fmt.Errorf("found %s that halted or got stuck", plural(ill, "sequence"))}
				}
				return nil
			})
		},
	}
	o.flags(cmd.Flags())
	f := cmd.Flags()
	f.BoolVar(&q.Halted, "halted", false, "only sequences that have halted")
	f.Float64Var(&q.Share, "share", defaultShare, "largest part of Redis's time that the list may take, from 0.001 to 1")
	f.BoolVar(&check, "check", false, "exit with 1 if a sequence has halted or is stuck")
	return cmd
}

func sequenceColumns(p *printer) []column[ops.Sequence] {
	task := func(text func(ops.Task) string) func(ops.Sequence) string {
		return func(s ops.Sequence) string {
			if s.Task == nil {
				return ""
			}
			return text(*s.Task)
		}
	}
	return []column[ops.Sequence]{
		{head: "KEY", text: func(s ops.Sequence) string { return s.Key }},
		{head: "STATE", text: func(s ops.Sequence) string { return string(s.State) }, role: sequenceRole},
		{head: "SINCE", text: func(s ops.Sequence) string { return when(p, s.Lock.Now, s.Since) }},
		{head: "JOB", text: func(s ops.Sequence) string { return s.Job }},
		{head: "TYPE", wide: true, text: task(func(t ops.Task) string { return t.Type })},
		{head: "TASK", wide: true, text: task(func(t ops.Task) string { return string(t.State) })},
		{head: "ATTEMPT", text: task(attemptText)},
		{head: "RUNNING", wide: true, text: func(s ops.Sequence) string {
			if s.Limit == 0 {
				return fmt.Sprint(s.Running)
			}
			return fmt.Sprintf("%d of %d", s.Running, s.Limit)
		}},
		{head: "WAITERS", text: func(s ops.Sequence) string { return fmt.Sprint(s.Waiting) }},
		{head: "ERROR", text: func(s ops.Sequence) string { return s.Error }, role: always[ops.Sequence](bad)},
		{head: "WHY", wide: true, text: func(s ops.Sequence) string { return s.Why }},
		{head: "COMMAND", text: cmdline.Next},
	}
}

func sequenceRole(s ops.Sequence) role {
	switch s.State {
	case ops.SequenceHalted:
		return bad
	case ops.SequenceStuck:
		return warning
	case ops.SequenceRunning:
		return good
	}
	return plain
}
