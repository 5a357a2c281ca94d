package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock/driver"
)

// steersJobs returns the commands that change tasks.
func steersJobs(s *server) []*cobra.Command {
	return []*cobra.Command{newJobsRun(s), newJobsCancel(s), newJobsArchive(s), newJobsDrop(s), newJobsSkip(s), newJobsAnnotate(s), newJobsPause(s), newJobsResume(s)}
}

// parseJob reads an argument QUEUE/ID.
func parseJob(text string) (queue, id string, err error) {
	queue, id, ok := envelope.ParseJob(text)
	if !ok {
		return "", "", usage("the job is %q, must be QUEUE/ID, as \"joblock jobs ls\" shows it", text)
	}
	return queue, id, nil
}

// jobCodes are the exit codes of the commands that change a task.
const jobCodes = `Exit codes in addition to those of "joblock help":
  1   there is no such task, or another text was typed than asked for: nothing was changed
  75  the task is in another state, or not at --step any more: nothing was changed`

// stepHelp says what the flag --step is for.
const stepHelp = `The step of a task, which "joblock jobs get" and "joblock explain" show, changes whenever the task moves on. With --step,
nothing happens if the task has moved on since you have seen it.`

// stepFlag adds the flag that ties a command to the step that the operator has seen.
func stepFlag(cmd *cobra.Command, step *string) {
	cmd.Flags().StringVar(step, "step", "", "the `STEP` of the task that you mean, as \"joblock jobs get\" shows it")
}

func newJobsRun(s *server) *cobra.Command {
	var who actorFlags
	var step string
	cmd := &cobra.Command{
		Use:   "run QUEUE/ID",
		Short: "run a task again, or now: one that is archived, scheduled, or waits for a retry",
		Long: `Run makes asynq run a task now that is archived, scheduled, or waits for a retry. A job that has halted its sequence
goes on under its lock: if it succeeds, the next one in line starts. Run refuses a task that waits in line: the task
starts when its turn comes, and would go back to waiting if it were run before.

` + stepHelp + "\n\n" + jobCodes,
		Example: `  joblock jobs run webhooks/acme-1 --step archived-4-1795418252 --reason "the customer's server is up again"`,
		Args:    exactly("QUEUE/ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			queue, id, err := parseJob(args[0])
			if err != nil {
				return err
			}
			return s.act(cmd, ops.RunTask{Queue: queue, ID: id, Step: step, Reason: who.why()}, "asynq runs the task %s now", args[0])
		},
	}
	who.flags(cmd)
	stepFlag(cmd, &step)
	return cmd
}

func newJobsCancel(s *server) *cobra.Command {
	var who actorFlags
	var step, then string
	var ask confirmation
	cmd := &cobra.Command{
		Use:   "cancel QUEUE/ID",
		Short: "stop the handler that runs a task; with --then, end the task, too",
		Long: `Cancel asks the handler that runs a task to stop, wherever it runs: in Go its context is cancelled. The attempt then ends as
after a timeout: the task is tried again, or has failed. A handler that ignores the request keeps running.

A task that hangs may hang in its next attempt, too. With --then, cancel waits up to 10 seconds for the handler to
return, and ends the task before another attempt begins: "drop" deletes the task, "archive" keeps it in asynq's
archive, where "joblock jobs run" finds it. A task that succeeds meanwhile is left alone. Before it asks for
confirmation, cancel --then drop shows the payload.

` + stepHelp + " Cancel asks for\nconfirmation, and always acts only at the step that it has shown.\n\n" + jobCodes + `
      with --then also: the handler was asked to stop and has not returned in time, or has snoozed the task, so the task stays`,
		Example: `  joblock jobs cancel exports/41 --reason "hangs in the third party's API"
  joblock jobs cancel exports/41 --then archive --reason "hangs in the third party's API, which is down"`,
		Args: exactly("QUEUE/ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			queue, id, err := parseJob(args[0])
			if err != nil {
				return err
			}
			within := s.timeout
			if cmd.Flags().Changed("then") {
				if err := oneOf("then", then, []string{string(ops.ThenDrop), string(ops.ThenArchive)}); err != nil {
					return err
				}
				within += ops.EndWait
			}
			return s.confirming(cmd, &ask, args[0], within, func(ctx context.Context, d *desk) (string, error) {
				locks, task, err := seen(ctx, d, args[0], ops.ActCancelTask, &step)
				if err != nil {
					return "", err
				}
				text := cancelText(task, ops.Then(then), locks)
				if ops.Then(then) == ops.ThenDrop {
					text += payloadText(ctx, d, args[0])
				}
				return text, nil
			}, func(ctx context.Context, d *desk) error {
				done, err := d.Act(ctx, ops.CancelTask{Queue: queue, ID: id, Step: step, Then: ops.Then(then), Reason: who.why()})
				if err != nil {
					return err
				}
				return ended(cmd, done, args[0])
			})
		},
	}
	who.flags(cmd)
	stepFlag(cmd, &step)
	cmd.Flags().StringVar(&then, "then", "", "`drop|archive` the task when its handler has returned (default: asynq tries it again)")
	ask.flags(cmd)
	return cmd
}

// ended prints the outcome for a task whose attempt was cancelled. The error has the code exitBusy if the task still
// exists.
func ended(cmd *cobra.Command, done ops.ActionResult, job string) error {
	switch done.Outcome {
	case ops.TaskOutcomeDropped:
		return acted(cmd, done, "the handler of %s has returned; deleted the task", job)
	case ops.TaskOutcomeArchived:
		return acted(cmd, done, "the handler of %s has returned; archived the task; \"joblock jobs run --reason TEXT -- %s\" runs it later", job, ops.Shell(job))
	case ops.TaskOutcomeOver:
		return acted(cmd, done, "the task %s has ended by itself meanwhile, or was deleted by another operator", job)
	case ops.TaskOutcomeReplaced:
		return cmp.Or(acted(cmd, done, "the handler of %s was asked to stop", job),
			error(&exitError{exitBusy, fmt.Errorf("the task %s was enqueued again meanwhile, and was left alone", job)}))
	case ops.TaskOutcomeRunning:
		return cmp.Or(acted(cmd, done, "the handler of %s was asked to stop", job),
			error(&exitError{exitBusy, fmt.Errorf("the handler has not returned within %s, so the task %s stays; the same command waits again", ops.EndWait, job)}))
	case ops.TaskOutcomeSnoozed:
		return cmp.Or(acted(cmd, done, "the handler of %s has returned", job),
			error(&exitError{exitBusy, fmt.Errorf("the handler has snoozed the task %s, so it was not archived; archive it when it is due again", job)}))
	}
	return acted(cmd, done, "the handler of %s was asked to stop", job)
}

func newJobsDrop(s *server) *cobra.Command {
	var who actorFlags
	var step string
	var ask confirmation
	cmd := &cobra.Command{
		Use:   "drop QUEUE/ID",
		Short: "delete a task that does not run; its lock or its place goes to the next",
		Long: `Drop deletes a task that does not run, with its payload. The keeper then gives its lock, or its place in line, to the
next one, within a minute or so. A task that runs needs "joblock jobs cancel --then drop". To keep the task, "joblock
jobs archive" it. Before it asks for confirmation, drop shows the payload, as "joblock jobs get --payload" does.

` + stepHelp + " Drop asks for\nconfirmation, and always acts only at the step that it has shown.\n\n" + jobCodes,
		Example: `  joblock jobs drop webhooks/acme-7 --reason "sent by hand"`,
		Args:    exactly("QUEUE/ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			queue, id, err := parseJob(args[0])
			if err != nil {
				return err
			}
			return s.confirming(cmd, &ask, args[0], s.timeout, func(ctx context.Context, d *desk) (string, error) {
				locks, task, err := seen(ctx, d, args[0], ops.ActDeleteTask, &step)
				if err != nil {
					return "", err
				}
				text := fmt.Sprintf("This deletes the task %s forever: %s.", args[0], taskText(task))
				if keys := keysOfJob(locks); len(keys) > 0 {
					text += fmt.Sprintf(" A keeper gives %s to the next one; \"joblock explain\" says when.", quoted(keys))
				}
				return text + payloadText(ctx, d, args[0]), nil
			}, func(ctx context.Context, d *desk) error {
				return act(ctx, cmd, d, ops.DropTask{Queue: queue, ID: id, Step: step, Reason: who.why()}, "deleted the task %s", args[0])
			})
		},
	}
	who.flags(cmd)
	stepFlag(cmd, &step)
	ask.flags(cmd)
	return cmd
}

func newJobsArchive(s *server) *cobra.Command {
	var who actorFlags
	var step string
	var ask confirmation
	cmd := &cobra.Command{
		Use:     "archive QUEUE/ID",
		Aliases: []string{"hold"},
		Short:   "move a task that does not run into asynq's archive, to look at it and to run it later",
		Long: `Archive moves a task that does not run from its queue into asynq's archive, with its payload: asynq no longer runs
it by itself. The keeper then gives its lock, or its place in line, to the next one, within a minute or so. "joblock
jobs run" runs the task later: it then takes its lock again, or waits in line again.

A job that has the key of a sequence that halts on failure halts the sequence: no other job runs until "joblock jobs run" or
"joblock jobs skip". asynq deletes archived tasks after 90 days, and the oldest if a queue has more than 10,000. A task that
runs needs "joblock jobs cancel --then archive".

` + stepHelp + " Archive asks for\nconfirmation, and always acts only at the step that it has shown.\n\n" + jobCodes,
		Example: `  joblock jobs archive webhooks/acme-7 --reason "the shop asks us to wait"
  joblock jobs run webhooks/acme-7 --reason "the shop is ready"`,
		Args: exactly("QUEUE/ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			queue, id, err := parseJob(args[0])
			if err != nil {
				return err
			}
			return s.confirming(cmd, &ask, args[0], s.timeout, func(ctx context.Context, d *desk) (string, error) {
				locks, task, err := seen(ctx, d, args[0], ops.ActArchive, &step)
				if err != nil {
					return "", err
				}
				return archiveText(task, locks) + payloadText(ctx, d, args[0]), nil
			}, func(ctx context.Context, d *desk) error {
				return act(ctx, cmd, d, ops.ArchiveTask{Queue: queue, ID: id, Step: step, Reason: who.why()}, "archived the task %s; \"joblock jobs run --reason TEXT -- %s\" runs it later", args[0], ops.Shell(args[0]))
			})
		},
	}
	who.flags(cmd)
	stepFlag(cmd, &step)
	ask.flags(cmd)
	return cmd
}

// archiveText returns what "jobs archive" does to a task that has locks or waits for some.
func archiveText(t ops.Task, locks []ops.Job) string {
	return fmt.Sprintf("This moves the task %s from its queue into asynq's archive, where it can be run later: %s.", t.Job(), taskText(t)) + givenText(t, locks, true)
}

// givenText returns what happens to the locks and places of a task that is deleted or, if kept is true, archived.
func givenText(t ops.Task, locks []ops.Job, kept bool) (text string) {
	var given []ops.Job
	for _, j := range locks {
		if line, _ := driver.LineOf(j.Key); kept && t.Halts && j.Place == nil && line == t.Sequence {
			text += fmt.Sprintf(" The sequence of %q halts with it, until \"joblock jobs run\" or \"joblock jobs skip\".", j.Key)
			continue
		}
		given = append(given, j)
	}
	if len(given) > 0 {
		text += fmt.Sprintf(" Within a minute or so the keeper gives %s to the next one.", quoted(keysOfJob(given)))
	}
	return text
}

// payloadText returns the payload of a task that is about to be removed, as a sentence.
func payloadText(ctx context.Context, d *desk, job string) string {
	var is *exitError
	switch p, err := d.Payload(ctx, job); {
	case errors.As(err, &is):
		return " A lock server does not show its payload."
	case err != nil:
		return fmt.Sprintf(" Its payload could not be read: %s.", err)
	default:
		return " Its payload: " + p.String()
	}
}

func newJobsSkip(s *server) *cobra.Command {
	var who actorFlags
	var fence int64
	var ask confirmation
	cmd := &cobra.Command{
		Use:   "skip KEY",
		Short: "move a sequence on past the job that has failed and halts it",
		Long: `Skip moves the sequence of KEY on past the job that has failed for good and keeps the key: the next job in line gets
the key and starts. The task of the job that has failed stays in asynq's archive. Skip refuses to pass over a job that
has not failed. Skip asks for confirmation, and acts only on the job that it has shown or, with --fence, on the
holding that you have seen.

` + jobCodes,
		Example: `  joblock jobs skip webhooks:acme --reason "event 17 is void"`,
		Args:    exactly("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var seen ops.Lock
			return s.confirming(cmd, &ask, args[0], s.timeout, func(ctx context.Context, d *desk) (text string, err error) {
				if seen, err = d.Lock(ctx, args[0]); err != nil {
					return "", err
				}
				if seen.Job == "" || !seen.Locked() {
					return "", &exitError{exitNo, fmt.Errorf("no job has the key %s", args[0])}
				}
				if cmd.Flags().Changed("fence") && fence != seen.Fence {
					return "", &exitError{exitNo, fmt.Errorf("%s: nothing was changed, because the fence is %d by now, and not %d", safe(args[0]), seen.Fence, fence)}
				}
				return skipText(seen), nil
			}, func(ctx context.Context, d *desk) error {
				return act(ctx, cmd, d, ops.SkipJob{Key: args[0], Fence: seen.Fence, Reason: who.why()}, "the sequence of %s has moved on past %s", args[0], seen.Job)
			})
		},
	}
	who.flags(cmd)
	cmd.Flags().Int64Var(&fence, "fence", 0, "the `FENCE` of the holding that you mean, as \"joblock get\" shows it")
	ask.flags(cmd)
	return cmd
}

func newJobsAnnotate(s *server) *cobra.Command {
	return &cobra.Command{
		Use:   "annotate QUEUE/ID NOTE",
		Short: "leave a note about a job, for others who look at it",
		Long: `Annotate records a note of at most 256 bytes about a job, with your name and the time. "joblock explain" of the keys of the
job, its page and "joblock audit" show it. Nothing else changes.

Exit codes in addition to those of "joblock help":
  1   there is no such task: nothing was recorded`,
		Example: `  joblock jobs annotate webhooks/acme-7 "the customer restores a backup until noon; leave it in retry"`,
		Args:    exactly("QUEUE/ID", "NOTE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			queue, id, err := parseJob(args[0])
			if err != nil {
				return err
			}
			return s.act(cmd, ops.AnnotateJob{Queue: queue, ID: id, Reason: args[1]}, "recorded the note about %s", args[0])
		},
	}
}

// cancelText says what "jobs cancel" does to a task that runs.
func cancelText(t ops.Task, then ops.Then, locks []ops.Job) string {
	text := fmt.Sprintf("This asks the handler that runs the task %s to stop: %s. A handler that ignores the request keeps running.", t.Job(), taskText(t))
	switch {
	case then == ops.ThenDrop:
		return text + fmt.Sprintf(" When it has returned, within %s, the task is deleted forever, before another attempt begins.%s", ops.EndWait, givenText(t, locks, false))
	case then == ops.ThenArchive:
		return text + fmt.Sprintf(" When it has returned, within %s, the task goes into asynq's archive before another attempt begins; it can be run later.%s", ops.EndWait, givenText(t, locks, true))
	case t.Attempt >= t.Attempts:
		return text + " This attempt is the last one: after the attempt the task has failed for good."
	}
	return text + fmt.Sprintf(" Attempt %d of %d follows, and may hang again: --then drop or --then archive ends the task before that.", t.Attempt+1, t.Attempts)
}

// skipText says what "jobs skip" does to the sequence of a key.
func skipText(l ops.Lock) string {
	var b strings.Builder
	fmt.Fprintf(&b, "This moves the sequence of %s on past the job %s", l.Key, l.Job)
	if l.Task != nil {
		fmt.Fprintf(&b, " (%s)", taskText(*l.Task))
	}
	if len(l.Line) == 0 {
		return b.String() + ". There are no waiters."
	}
	fmt.Fprintf(&b, ". Next is %s; %d in line.", waiterText(l.Line[0]), l.Waiters)
	return b.String()
}

// act performs an action, and prints what it has done. The context ends after --timeout.
func (s *server) act(cmd *cobra.Command, a ops.Action, format string, args ...any) error {
	return s.with(func(d *desk) error {
		ctx, cancel := context.WithTimeoutCause(cmd.Context(), s.timeout, errSilent)
		defer cancel()
		return act(ctx, cmd, d, a, format, args...)
	})
}

// act performs an action, and prints what it has done.
func act(ctx context.Context, cmd *cobra.Command, d ops.Operator, a ops.Action, format string, args ...any) error {
	done, err := d.Act(ctx, a)
	if err != nil {
		return err
	}
	return acted(cmd, done, format, args...)
}

// confirming calls look, which returns what is about to happen, asks the user, and then calls act with a context that
// ends after within. --timeout does not include the time that the user takes.
func (s *server) confirming(cmd *cobra.Command, ask *confirmation, want string, within time.Duration,
	look func(context.Context, *desk) (string, error), act func(context.Context, *desk) error) error {
	return s.with(func(d *desk) error {
		ctx, cancel := context.WithTimeoutCause(cmd.Context(), s.timeout, errSilent)
		text, err := look(ctx, d)
		cancel()
		if err != nil {
			return err
		}
		if err := ask.confirm(cmd, want, "%s", text); err != nil {
			return err
		}
		ctx, cancel = context.WithTimeoutCause(cmd.Context(), within, errSilent)
		defer cancel()
		return act(ctx, d)
	})
}

// seen returns a task and its locks, if an action is possible at the step, and sets the step to that of the task.
func seen(ctx context.Context, d *desk, job, action string, step *string) ([]ops.Job, ops.Task, error) {
	locks, task, err := d.Job(ctx, job)
	if err == nil {
		err = cmp.Or(task.CheckStep(action, *step), task.Check(action))
	}
	*step = task.Step
	return locks, task, err
}

// keysOfJob returns the keys of the locks and places of a job.
func keysOfJob(locks []ops.Job) (keys []string) {
	for _, j := range locks {
		keys = append(keys, j.Key)
	}
	return keys
}
