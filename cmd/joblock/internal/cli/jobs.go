package cli

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
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
		Short: "show the locks of jobs with the state of their tasks, and control tasks",
		Long: `Show which jobs have locks or wait for one, together with what asynq knows of their tasks, and control these tasks.

The databases of asynq are that of --redis, or those of --asynq.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unknown command %q; \"joblock jobs --help\" lists the commands", args[0])
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(append(steersJobs(s), newJobsLs(s), newJobsGet(s), newJobsSequences(s), newJobsPauses(s))...)
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
		Long: `Ls lists the jobs that have a lock, or wait in the line of one, with the state of their tasks. They come from an
index, without a walk over all keys of Redis. A job with several locks is listed several times.

Columns:
  TASK     what asynq says of the task, or "in line" for a job that waits for its turn
  NEXT     when asynq takes the task; for a job in line its place, for a while counting waiters that have died
  RUNS     how long the present attempt has been running, and how long it may run. "over its time": its handler ignores
           its context. "usually 3 s to 8 s": it has been running for far longer than the latest successful attempts of
           its type, and may hang. --slow shows only these two kinds, and says which attempts it cannot judge: those of
           types with fewer than five known successful attempts
  LOCK     the state of the lock, or "waits"
  FREED BY what frees the key if you do nothing. "its job": a keeper holds the key for the job, however long the job
           lives. "the keeper": the job is over, and the keeper frees the key in that time at the latest. "the end of its
           reservation": no keeper works
  SUSPECT  why a lock, or a place in line, is probably left over: its task is gone or has ended. A lock
           is no suspect while a keeper may still be about to free it: for a minute, because an enqueue may be under
           way, and two of the keeper's periods, by default 2 min in all; and while an attempt still runs, for a minute
           more

Exit codes in addition to those of "joblock help":
  1  with --check: there is a suspect; with --slow: an attempt runs for too long`,
		Example: `  joblock jobs ls
  joblock jobs ls --slow
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
				suspects, slow := 0, 0
				all := q
				all.Slow = false // some of those left out may be slow too
				apart := make(map[string]bool)
				types := make(map[string]bool)
				var rows iter.Seq2[ops.Job, error] = func(yield func(ops.Job, error) bool) {
					for j, err := range d.Jobs(cmd.Context(), all) {
						if q.Slow && err == nil {
							if j.Incomparable() {
								apart[j.Job], types[j.Task.Type] = true, true
							}
							if j.Long == "" && j.Slow == "" {
								continue
							}
							slow++
						}
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
				switch {
				case q.Suspects:
					p.none("no suspect found")
				case q.Slow:
					p.none("no attempt runs for too long")
				default:
					p.none("no job has a lock or waits for one")
				}
				if len(apart) > 0 && p.forPeople() {
					p.say("%s, of the types %s, cannot be judged: too few attempts of these types have succeeded to know what is usual; \"joblock jobs ls --sort runs\" shows how long they have been running",
						plural(len(apart), "attempt"), strings.Join(slices.Sorted(maps.Keys(types)), ", "))
				}
				switch {
				case check && suspects > 0:
					return &exitError{exitNo, fmt.Errorf("found %s", plural(suspects, "suspect"))}
				case check && slow > 0:
					return &exitError{exitNo, fmt.Errorf("found %s that run for too long", plural(slow, "job"))}
				}
				return nil
			})
		},
	}
	o.flags(cmd.Flags())
	f := cmd.Flags()
	f.StringVar(&order, "sort", "", "print all jobs at the end, in this `ORDER`: age, runs, next, task, job or key (default: as they are found)")
	f.StringVar(&q.Queue, "queue", "", "only jobs in this `QUEUE` of asynq")
	f.StringVar(&q.Prefix, "key", "", "only keys that begin with `TEXT`")
	f.BoolVar(&q.Suspects, "suspects", false, "only suspects")
	f.BoolVar(&q.Slow, "slow", false, "only jobs whose attempt runs over its time, or for far longer than usual")
	f.Float64Var(&q.Share, "share", defaultShare, "largest part of Redis's time that the list may take, from 0.001 to 1")
	f.BoolVar(&check, "check", false, "exit with 1 if there is a suspect or, with --slow, any such job")
	return cmd
}

// jobOrder has the orders for --sort. Each order ends with the job and the key.
var jobOrder = map[string]func(a, b ops.Job) int{
	"job":  func(a, b ops.Job) int { return 0 },
	"key":  func(a, b ops.Job) int { return strings.Compare(a.Key, b.Key) },
	"age":  func(a, b ops.Job) int { return cmp.Compare(ageOf(b), ageOf(a)) },
	"runs": func(a, b ops.Job) int { return cmp.Compare(b.Ran, a.Ran) },
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
var jobOrders = []string{"age", "runs", "next", "task", "job", "key"}

func sortJobs(jobs []ops.Job, order string) {
	slices.SortFunc(jobs, func(a, b ops.Job) int {
		return cmp.Or(jobOrder[order](a, b), strings.Compare(a.Job, b.Job), strings.Compare(a.Key, b.Key))
	})
}

// jobRowColumns are the columns of a list of jobs with their locks.
func jobRowColumns(p *printer) []column[ops.Job] {
	return []column[ops.Job]{
		{head: "JOB", text: func(j ops.Job) string { return ops.JobName(j.Job) }},
		{head: "TYPE", text: func(j ops.Job) string { return j.Task.Type }},
		{head: "TASK", text: func(j ops.Job) string { return taskState(j.Task) }, role: func(j ops.Job) role { return taskRole(j.Task) }},
		{head: "ATTEMPT", text: func(j ops.Job) string { return attemptText(j.Task) }},
		{head: "NEXT", text: func(j ops.Job) string { return nextText(p, j) }},
		{head: "RUNS", text: runsText, role: func(j ops.Job) role {
			switch {
			case j.Long != "":
				return bad
			case j.Slow != "":
				return warning
			}
			return plain
		}},
		{head: "USUALLY", wide: true, text: func(j ops.Job) string { return durationsText(j.Durations) }},
		{head: "LOCK", text: lockText, role: func(j ops.Job) role {
			if j.Place != nil {
				return plain
			}
			return stateRole(j.Lock)
		}},
		{head: "AGE", text: func(j ops.Job) string { return ageText(j) }},
		{head: "FREED BY", text: func(j ops.Job) string { return freedText(p, j) }},
		{head: "KEY", text: func(j ops.Job) string { return j.Key }},
		{head: "SUSPECT", text: func(j ops.Job) string { return j.Suspect }, role: always[ops.Job](warning)},
		{head: "STEP", wide: true, text: func(j ops.Job) string { return j.Task.Step }},
		{head: "HOLDER", wide: true, text: func(j ops.Job) string { return j.Lock.Holder }},
		{head: "FENCE", wide: true, text: func(j ops.Job) string { return fmt.Sprint(j.Lock.Fence) }},
		{head: "WAITERS", wide: true, text: func(j ops.Job) string { return fmt.Sprint(j.Lock.Waiters) }},
		{head: "DATABASE", wide: true, text: func(j ops.Job) string { return j.Task.Database }},
		{head: "LAST ERROR", wide: true, text: func(j ops.Job) string { return j.Task.LastError }, role: always[ops.Job](bad)},
	}
}

// lockText returns the state of the lock of a job, or "waits".
func lockText(j ops.Job) string {
	if j.Place != nil {
		return "waits"
	}
	return j.Lock.State.String()
}

// freedText returns what frees the key of a job, and when.
func freedText(p *printer, j ops.Job) string {
	text := j.Freed()
	if text != "" && !j.FreedAt.IsZero() {
		text += ", " + when(p, j.Lock.Now, j.FreedAt)
	}
	return text
}

// ageOf returns how long a job has had its lock, or has waited in line.
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

// taskState returns asynq's state of a task, or "in line": a task that waits for its turn is scheduled for a time without
// meaning.
func taskState(t ops.Task) string {
	if t.Waits {
		return "in line"
	}
	return string(t.State)
}

// nextText returns when asynq runs the task of a job, or the place of the job in line.
func nextText(p *printer, j ops.Job) string {
	switch {
	case j.Place != nil && j.Task.Waits:
		return fmt.Sprintf("place %d", j.Place.Position)
	case j.Task.Waits:
		return "its turn"
	}
	return when(p, j.Lock.Now, j.Task.NextAt)
}

// runsText returns how long the present attempt of a job has been running, and how long it may run.
func runsText(j ops.Job) string {
	if j.Ran == 0 {
		return ""
	}
	text := span(j.Ran.Duration())
	if j.Task.Timeout > 0 {
		text += " of " + span(j.Task.Timeout.Duration())
	}
	if j.Long != "" {
		text += ", over its time"
	}
	if j.Slow != "" {
		text += ", usually " + j.Durations.Text()
	}
	return text
}

// durationsText returns how long attempts of a type usually take.
func durationsText(u *ops.Durations) string {
	if u == nil {
		return ""
	}
	return fmt.Sprintf("%s (the latest %d)", u.Text(), u.Count)
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

// jobReport is what "jobs get" shows: a task, and its locks and places.
type jobReport struct {
	Job   string    `json:"job"`
	Task  ops.Task  `json:"task"`
	Locks []ops.Job `json:"locks"`

	Payload *ops.Payload `json:"payload,omitempty"`
}

func newJobsGet(s *server) *cobra.Command {
	var o output
	var check, payload bool
	cmd := &cobra.Command{
		Use:     "get QUEUE/ID",
		Aliases: []string{"show"},
		Short:   "show a task of asynq with its locks and its places in line",
		Long: `Get shows a task of asynq, the locks that are bound to it, and its places in line. With --payload it shows the payload of the task too:
at most 2,000 characters, without tokens of locks, and without values of JSON whose names call them passwords, tokens or
other secrets. Other secrets in a payload are shown. A lock server shows no payload.

Exit codes in addition to those of "joblock help":
  1  there is neither such a task nor a lock of it; with --check: one of its locks is a suspect, or the task has failed
     for good`,
		Example: `  joblock jobs get exports/41
  joblock jobs get exports/41 --payload
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
				r := jobReport{Job: args[0], Task: task, Locks: locks}
				if payload {
					got, err := d.Payload(ctx, args[0])
					if err != nil {
						return err
					}
					r.Payload = &got
				}
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
	cmd.Flags().BoolVar(&payload, "payload", false, "show the payload of the task, too")
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
		{head: "STEP", text: func(r jobReport) string { return r.Task.Step }},
		{head: "NEXT", text: func(r jobReport) string {
			if r.Task.Waits {
				return waitsText(r)
			}
			return at(r.Task.NextAt)
		}},
		{head: "RUNS", text: func(r jobReport) string {
			i := slices.IndexFunc(r.Locks, func(j ops.Job) bool { return j.Ran > 0 })
			if i < 0 {
				return ""
			}
			return runsText(r.Locks[i])
		}},
		{head: "USUALLY", text: func(r jobReport) string {
			if len(r.Locks) == 0 {
				return ""
			}
			text := durationsText(r.Locks[0].Durations)
			switch unknown := slices.ContainsFunc(r.Locks, ops.Job.Incomparable); {
			case unknown && text == "":
				return "not known: no successful attempt of the type is known"
			case unknown:
				return text + ", too few to compare with"
			}
			return text
		}},
		{head: "FAILED", text: func(r jobReport) string { return at(r.Task.LastFailedAt) }},
		{head: "LAST ERROR", text: func(r jobReport) string { return r.Task.LastError }, role: always[jobReport](bad)},
		{head: "COMPLETED", text: func(r jobReport) string { return at(r.Task.CompletedAt) }},
		{head: "DEADLINE", text: func(r jobReport) string { return at(r.Task.Deadline) }},
		{head: "LOCKS", text: func(r jobReport) string {
			var texts []string
			for _, j := range r.Locks {
				texts = append(texts, heldText(p, j))
			}
			return strings.Join(texts, "; ")
		}},
		{head: "PAYLOAD", text: func(r jobReport) string {
			if r.Payload == nil {
				return ""
			}
			return r.Payload.String()
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

// waitsText returns in which line a job waits for its turn.
func waitsText(r jobReport) string {
	for _, j := range r.Locks {
		if j.Place != nil {
			return fmt.Sprintf("waits in line for %s, place %d", safe(j.Key), j.Place.Position)
		}
	}
	return "its turn has come"
}

// heldText returns how a job is related to a key.
func heldText(p *printer, j ops.Job) string {
	if j.Place != nil {
		return fmt.Sprintf("%s: in line for %s, place %d", j.Key, ageText(j), j.Place.Position)
	}
	text := fmt.Sprintf("%s: %s for %s", j.Key, j.Lock.State, ageText(j))
	if j.Lock.State == joblock.StateHeld && j.Lock.Holder != "" {
		text += " by " + j.Lock.Holder
	}
	if freed := freedText(p, j); freed != "" {
		text += ", freed by " + freed
	}
	return text
}
