package cli

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

func newJobs(s *server) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "show the locks of jobs with the state of their tasks, and steer tasks",
		Long: `Show which jobs have locks or wait for one, joined with what asynq knows of their tasks, and steer these tasks.

The databases of asynq are that of --redis, or those of --asynq.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unknown command %q; \"joblock jobs --help\" lists the commands", args[0])
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(newJobsLs(s), newJobsGet(s), newJobsSequences(s), newJobsRun(s), newJobsCancel(s), newJobsDrop(s), newJobsSkip(s))
	return cmd
}

func newJobsLs(s *server) *cobra.Command {
	var o output
	var q ops.JobsQuery
	var check bool
	var order string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list jobs that have a lock or wait for one; suspects are marked",
		Long: `Ls lists the jobs that have a lock, or wait in the line of one, with the state of their tasks. They come from an index,
without a walk over all keys of Redis. A job with several locks comes several times.

The column LOCK is the state of the lock, or "waits" for a job in line. The column TASK is what asynq says. The column
SUSPECT says why a lock, or a place in line, probably helps nobody: the task is gone or over, and the lock is kept. A
lock that the keeper is about to free is no suspect.

Exit codes besides those of "joblock help":
  1  with --check: there is a suspect`,
		Example: `  joblock jobs ls
  joblock jobs ls --queue exports --sort age -o wide
  joblock jobs ls --suspects --check   # for monitoring`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := o.printer(cmd)
			if err != nil {
				return err
			}
			if !(q.Share >= 0.001 && q.Share <= 1) {
				return usage("--share is %v, must be from 0.001 to 1", q.Share)
			}
			if order != "" {
				if err := oneOf("sort", order, jobOrders); err != nil {
					return err
				}
			}
			return s.with(func(d *desk) error {
				var done atomic.Int64
				q.Progress = func(part float64) { done.Store(int64(100 * part)) }
				p.progress = func() string { return fmt.Sprintf("read %d %% of the index of jobs", done.Load()) }
				suspects := 0
				var rows iter.Seq2[ops.Job, error] = func(yield func(ops.Job, error) bool) {
					for j, err := range d.Jobs(cmd.Context(), q) {
						if j.Suspect != "" {
							suspects++
						}
						if !yield(j, err) {
							return
						}
					}
				}
				if order != "" {
					rows = sorted(rows, func(jobs []ops.Job) { sortJobs(jobs, order) })
				}
				if err := printAll(p, jobRowColumns(p), rows); err != nil {
					return err
				}
				if q.Suspects {
					p.none("no suspect found")
				} else {
					p.none("no job has a lock or waits for one")
				}
				if check && suspects > 0 {
					return &exitError{exitNo, fmt.Errorf("found %s", plural(suspects, "suspect"))}
				}
				return nil
			})
		},
	}
	o.flags(cmd.Flags())
	f := cmd.Flags()
	f.StringVar(&order, "sort", "", "print all jobs at the end, in this `ORDER`: age, next, task, job or key (default: as they are found)")
	f.StringVar(&q.Queue, "queue", "", "only jobs in this `QUEUE` of asynq")
	f.StringVar(&q.Prefix, "key", "", "only keys that begin with `TEXT`")
	f.BoolVar(&q.Suspects, "suspects", false, "only suspects")
	f.Float64Var(&q.Share, "share", defaultShare, "largest part of the time in which Redis works for the list, from 0.001 to 1")
	f.BoolVar(&check, "check", false, "exit with 1 if there is a suspect")
	return cmd
}

// jobOrder are the orders that --sort knows. Each order ends with the job and the key.
var jobOrder = map[string]func(a, b ops.Job) int{
	"job":  func(a, b ops.Job) int { return 0 },
	"key":  func(a, b ops.Job) int { return strings.Compare(a.Key, b.Key) },
	"age":  func(a, b ops.Job) int { return cmp.Compare(ageOf(b), ageOf(a)) },
	"task": func(a, b ops.Job) int { return strings.Compare(string(a.Task.State), string(b.Task.State)) },
	"next": func(a, b ops.Job) int {
		if none := a.Task.NextAt.IsZero(); none != b.Task.NextAt.IsZero() {
			if none {
				return 1
			}
			return -1
		}
		return a.Task.NextAt.Compare(b.Task.NextAt.Time)
	},
}

// jobOrders are the names of the orders.
var jobOrders = []string{"age", "next", "task", "job", "key"}

func sortJobs(jobs []ops.Job, order string) {
	slices.SortFunc(jobs, func(a, b ops.Job) int {
		return cmp.Or(jobOrder[order](a, b), strings.Compare(a.Job, b.Job), strings.Compare(a.Key, b.Key))
	})
}

// jobRowColumns are the columns of jobs with their locks.
func jobRowColumns(p *printer) []column[ops.Job] {
	return []column[ops.Job]{
		{head: "JOB", text: func(j ops.Job) string { return j.Job }},
		{head: "TYPE", text: func(j ops.Job) string { return j.Task.Type }},
		{head: "TASK", text: func(j ops.Job) string { return string(j.Task.State) }, role: func(j ops.Job) role { return taskRole(j.Task) }},
		{head: "ATTEMPT", text: func(j ops.Job) string { return attemptText(j.Task) }},
		{head: "NEXT", text: func(j ops.Job) string { return nextText(p, j.Task, j.Lock.Now) }},
		{head: "LOCK", text: lockText, role: func(j ops.Job) role {
			if j.Place != nil {
				return plain
			}
			return stateRole(j.Lock)
		}},
		{head: "AGE", text: func(j ops.Job) string { return ageText(j) }},
		{head: "KEY", text: func(j ops.Job) string { return j.Key }},
		{head: "SUSPECT", text: func(j ops.Job) string { return j.Suspect }, role: always[ops.Job](warning)},
		{head: "HOLDER", wide: true, text: func(j ops.Job) string { return j.Lock.Holder }},
		{head: "FENCE", wide: true, text: func(j ops.Job) string { return fmt.Sprint(j.Lock.Fence) }},
		{head: "WAITERS", wide: true, text: func(j ops.Job) string { return fmt.Sprint(j.Lock.Waiters) }},
		{head: "DATABASE", wide: true, text: func(j ops.Job) string { return j.Task.Database }},
		{head: "LAST ERROR", wide: true, text: func(j ops.Job) string { return j.Task.LastError }, role: always[ops.Job](bad)},
	}
}

// lockText is the state of the lock of a job, or "waits".
func lockText(j ops.Job) string {
	if j.Place != nil {
		return "waits"
	}
	return j.Lock.State.String()
}

// ageOf returns for how long a job has had its lock, or has waited in line.
func ageOf(j ops.Job) time.Duration {
	if j.Place != nil {
		return j.Lock.Now.Sub(j.Place.Since.Time)
	}
	return j.Lock.Age.Duration()
}

func ageText(j ops.Job) string { return span(ageOf(j)) }

func attemptText(t ops.Task) string {
	if t.Attempts == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", t.Attempt, t.Attempts)
}

// nextText is when asynq takes a task; a task that waits for its turn is scheduled for a time that means nothing.
func nextText(p *printer, t ops.Task, now ops.Time) string {
	if t.Waits {
		return "its turn"
	}
	return when(p, now, t.NextAt)
}

func taskRole(t ops.Task) role {
	switch t.State {
	case "active", "pending", "completed":
		return good
	case "archived", ops.TaskAbsent, ops.TaskNoQueue, ops.TaskUnknown:
		return bad
	case "retry":
		return warning
	}
	return plain
}

// The type jobReport is what "jobs get" shows: a task, and its locks and places.
type jobReport struct {
	Job   string    `json:"job"`
	Task  ops.Task  `json:"task"`
	Locks []ops.Job `json:"locks"`
}

func newJobsGet(s *server) *cobra.Command {
	var o output
	var check bool
	cmd := &cobra.Command{
		Use:     "get QUEUE/ID",
		Aliases: []string{"show"},
		Short:   "show a task of asynq with its locks and its places in line",
		Long: `Get shows a task of asynq, the locks that are bound to it, and its places in line. The payload of the task is not shown.

Exit codes besides those of "joblock help":
  1  there is neither such a task nor a lock of it; with --check: one of its locks is a suspect, or the task has failed
     for good`,
		Example: `  joblock jobs get exports/41
  joblock jobs get exports/41 -o json`,
		Args: exactly("QUEUE/ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, _, err := parseJob(args[0]); err != nil {
				return err
			}
			return s.withDesk(cmd, &o, func(ctx context.Context, d *desk, p *printer) error {
				locks, task, err := d.Job(ctx, args[0])
				if err != nil {
					return err
				}
				if len(locks) == 0 && (task.State == ops.TaskAbsent || task.State == ops.TaskNoQueue) {
					return &exitError{exitNo, fmt.Errorf("there is neither a task %s nor a lock of it", args[0])}
				}
				r := jobReport{args[0], task, locks}
				if err := printOne(p, jobReportColumns(p), r); err != nil {
					return err
				}
				if i := slices.IndexFunc(locks, func(j ops.Job) bool { return j.Suspect != "" }); check && i >= 0 {
					return &exitError{exitNo, fmt.Errorf("the lock on %s is a suspect: %s", locks[i].Key, locks[i].Suspect)}
				}
				if check && task.State == "archived" && !task.Snoozed {
					return &exitError{exitNo, fmt.Errorf("the task has failed for good: %s", task.LastError)}
				}
				return nil
			})
		},
	}
	o.flags(cmd.Flags())
	cmd.Flags().BoolVar(&check, "check", false, "exit with 1 if a lock is a suspect, or the task has failed for good")
	return cmd
}

// jobReportColumns are the lines of one job.
func jobReportColumns(p *printer) []column[jobReport] {
	at := func(t ops.Time) string { return p.when(t.Time, time.Since(t.Time)) } // asynq writes the clocks of its own processes
	return []column[jobReport]{
		{head: "JOB", text: func(r jobReport) string { return r.Job }},
		{head: "TASK", text: func(r jobReport) string { return taskText(r.Task) }, role: func(r jobReport) role { return taskRole(r.Task) }},
		{head: "DATABASE", wide: true, text: func(r jobReport) string { return r.Task.Database }},
		{head: "NEXT", text: func(r jobReport) string {
			if r.Task.Waits {
				return "its turn"
			}
			return at(r.Task.NextAt)
		}},
		{head: "FAILED", text: func(r jobReport) string { return at(r.Task.LastFailedAt) }},
		{head: "LAST ERROR", text: func(r jobReport) string { return r.Task.LastError }, role: always[jobReport](bad)},
		{head: "COMPLETED", text: func(r jobReport) string { return at(r.Task.CompletedAt) }},
		{head: "DEADLINE", text: func(r jobReport) string { return at(r.Task.Deadline) }},
		{head: "LOCKS", text: func(r jobReport) string {
			var texts []string
			for _, j := range r.Locks {
				texts = append(texts, heldText(j))
			}
			return strings.Join(texts, "; ")
		}},
		{head: "SUSPECT", text: func(r jobReport) string {
			var texts []string
			for _, j := range r.Locks {
				if j.Suspect != "" && !slices.Contains(texts, j.Suspect) {
					texts = append(texts, j.Suspect)
				}
			}
			return strings.Join(texts, " ")
		}, role: always[jobReport](warning)},
	}
}

// heldText says what a job has to do with a key.
func heldText(j ops.Job) string {
	if j.Place != nil {
		return fmt.Sprintf("%s: waits for %s, %d or fewer before it", j.Key, ageText(j), j.Place.Position-1)
	}
	text := fmt.Sprintf("%s: %s for %s", j.Key, j.Lock.State, ageText(j))
	if j.Lock.State == joblock.StateHeld && j.Lock.Holder != "" {
		text += " by " + j.Lock.Holder
	}
	return text
}
