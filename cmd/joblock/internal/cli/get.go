package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
)

func newGet(s *server) *cobra.Command {
	var (
		out    output
		locked bool
	)
	cmd := &cobra.Command{
		Use:   "get [flags] KEY",
		Short: "show everything about one key",
		Long: `Get shows the lock on KEY: its state, who has it and since when, when its lease was renewed last, its fence, the state of
its job in asynq, how many wait and who is next. "joblock explain" says the same in sentences, and what an operator can do.

RENEWED is when the holder renewed its lease last, and how often that is due: every third of the lease's length. "late"
means that one renewal is overdue, "dead, hangs or cut off" that two are. "by hand" is a script with "joblock acquire", a
client of the lock server, or a program that renews at times of its own choosing: nothing is overdue, and nothing more is known.

A key without a holder is not an error: its state is free, and Redis remembers for a while how the last lock ended.

Exit codes:
  0   the key was read
  1   with --locked: the lock is free or, if KEY is that of a limit, no permit is taken
  64  wrong usage
  69  Redis did not answer
  77  Redis refused the login of this user, or the user lacks a permission`,
		Example: `  joblock get export:acct-7
  joblock get export:acct-7 -o json
  joblock get --locked -o name export:acct-7 || echo free`,
		Args: exactly("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.withDesk(cmd, &out, func(ctx context.Context, d *desk, p *printer) error {
				l, err := d.Lock(ctx, args[0])
				if err != nil {
					return err
				}
				if err := printOne(p, detailColumns(p), l); err != nil {
					return err
				}
				s.hint(ctx, d, p, l)
				if locked && !l.Locked() && (l.Permits == nil || l.Permits.Taken == 0) {
					return &exitError{code: exitNo}
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&locked, "locked", false, "exit with 1 if the lock, or every permit, is free")
	out.flags(cmd.Flags())
	return cmd
}

// detailColumns are the lines about one lock. The first is the key.
func detailColumns(p *printer) []column[ops.Lock] {
	ago := func(l ops.Lock, t time.Time) string { return p.when(t, l.Now.Sub(t)) }
	return []column[ops.Lock]{
		{head: "KEY", text: func(l ops.Lock) string { return l.Key }},
		{head: "ROLE", text: func(l ops.Lock) string {
			if l.Group == "" {
				return string(l.Role)
			}
			return strings.TrimSpace(fmt.Sprintf("%s %s of %s", l.Role, count(l.Number), safe(l.Group)))
		}},
		{head: "STATE", text: func(l ops.Lock) string {
			if !l.Locked() && l.Permits != nil {
				return "none: the key of a " + l.Permits.Kind // stateText would say that the key is free
			}
			return stateText(l)
		}, role: stateRole},
		{head: "HOLDER", text: func(l ops.Lock) string { return l.Holder }},
		{head: "OWNER", text: func(l ops.Lock) string { return l.Owner }},
		{head: "FENCE", text: func(l ops.Lock) string { return count(l.Fence) }},
		{head: "FIRST FENCE", wide: true, text: func(l ops.Lock) string { return count(l.First) }},
		{head: "TAKEN", text: func(l ops.Lock) string { return ago(l, l.Since.Time) }},
		{head: "CHANGED", text: func(l ops.Lock) string {
			if p.format != "wide" && l.Changed.Equal(l.EndedAt.Time) {
				return "" // the line ENDED says that
			}
			return ago(l, l.Changed.Time)
		}},
		{head: "ENDED", text: func(l ops.Lock) string { return ago(l, l.EndedAt.Time) }},
		{head: "RENEWED", text: func(l ops.Lock) string {
			if l.TTL == 0 {
				return ""
			}
			if l.Pulse() == ops.PulseNone { // the holder has ended
				return renewedText(p, l)
			}
			if l.ByHand {
				return renewedText(p, l)
			}
			return fmt.Sprintf("%s; due every %s", renewedText(p, l), span(l.RenewsEvery()))
		}, role: pulseRole},
		{head: "LEASE", wide: true, text: func(l ops.Lock) string {
			if l.TTL == 0 {
				return ""
			}
			return span(l.TTL.Duration())
		}},
		{head: "LEASE ENDS", text: func(l ops.Lock) string { return ago(l, l.ExpiresAt.Time) }},
		{head: "RESERVED UNTIL", text: func(l ops.Lock) string { return ago(l, l.ReservedUntil.Time) }},
		{head: "REASON", text: func(l ops.Lock) string { return l.Reason }},
		{head: "JOB", text: func(l ops.Lock) string { return ops.JobName(l.Job) }},
		{head: "TASK", text: func(l ops.Lock) string {
			if l.Task == nil {
				return ""
			}
			return taskText(*l.Task)
		}},
		{head: "LAST ERROR", text: func(l ops.Lock) string {
			if l.Task == nil {
				return ""
			}
			return l.Task.LastError
		}},
		{head: "WAITERS", text: func(l ops.Lock) string { return strconv.Itoa(l.Waiters) }},
		{head: "NEXT", text: func(l ops.Lock) string {
			if len(l.Line) == 0 {
				return ""
			}
			return waiterText(l.Line[0])
		}},
		{head: "PERMITS", text: func(l ops.Lock) string {
			if l.Permits == nil {
				return ""
			}
			return permitsText(*l.Permits)
		}},
		{head: "RATE", text: func(l ops.Lock) string { return l.Rate }},
		{head: "PROBLEMS", text: func(l ops.Lock) string { return strings.Join(l.Problems, " ") }, role: func(ops.Lock) role { return bad }},
	}
}

// taskText returns what a task is doing, in a few words.
func taskText(t ops.Task) string {
	text := taskState(t)
	if t.Waits && t.Sequence != "" {
		text += " for " + safe(t.Sequence)
	}
	if t.Type != "" {
		text = t.Type + ", " + text
	}
	if t.Chain != "" {
		text += ", " + t.Chain
	}
	if t.Attempt > 0 {
		text += fmt.Sprintf(", attempt %d of %d", t.Attempt, t.Attempts)
	}
	for _, is := range []struct {
		so   bool
		word string
	}{{t.Crashed, "its process is gone"}, {t.Paused, "its queue is paused"}, {t.Snoozed, "snoozed"}} {
		if is.so {
			text += ", " + is.word
		}
	}
	if t.Problem != "" {
		text += ": " + t.Problem
	}
	return text
}

// waiterText returns the name of a waiter: of a job or of a process.
func waiterText(w ops.Waiter) string {
	if w.Job != "" {
		return "job " + w.Job
	}
	return w.Holder
}
