package cli

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

func newEvents(s *server) *cobra.Command {
	var (
		out    output
		q      ops.EventsQuery
		since  string
		kinds  []string
		most   int
		follow bool
	)
	cmd := &cobra.Command{
		Use:   "events [flags] [KEY]",
		Short: "list what has happened to locks and cron jobs, the newest first, or as it happens",
		Long: `Events reads the journal, which programs keep with the package joblock/journal: locks that were lost, forced or waited
for, ticks that failed, and so on. By default programs do not write down what is routine. Redis keeps the latest 10,000
events or as many as the programs have asked for. Without a program that keeps a journal, there are no events; "watch"
shows what happens to locks without one.

With KEY, events lists only what has happened to that key, its permits and its slots. With --follow, events prints
what happens from now on, or from --since on, the oldest first. If Redis no longer has some of these events, an event
of the kind "gap" takes their place. While Redis does not answer, --follow says so once and tries again. INT, TERM and
HUP end it.

Exit codes:
  0      the journal was read, even if it has no such events
  64     wrong usage
  69     Redis did not answer; the list is not complete
  77     Redis refused the login of this user, or the user lacks a permission
  128+n  the signal n ended --follow`,
		Example: `  joblock events --since 1h
  joblock events --kind lost,forced
  joblock events --under export: --follow -o jsonl`,
		Args: atMost(1, "KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				if q.Key = args[0]; q.Key == "" {
					return usage("KEY is empty; without KEY, events lists the events of all keys")
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
			q.Kinds = kinds
			p, err := out.printer(cmd)
			if err != nil {
				return err
			}
			d, err := s.desk()
			if err != nil {
				return err
			}
			defer d.close()
			if follow {
				return untilSignal(cmd.Context(), func(ctx context.Context) error {
					rows, err := followed(ctx, d, q, p.say)
					if err != nil {
						return err
					}
					if most > 0 {
						rows = firstOf(rows, most)
					}
					return printAll(p, eventColumns(p, now, true), rows)
				})
			}
			rows := d.Events(cmd.Context(), q)
			if most > 0 {
				rows = firstOf(rows, most)
			}
			if err := printAll(p, eventColumns(p, now, false), rows); err != nil {
				return err
			}
			if p.rows == 0 && p.forPeople() {
				p.say(`the journal has no such events; it has what programs write into it, while "joblock audit" has what operators did, and "joblock cron history" the runs of a cron job`)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&q.Prefix, "under", "", "only events of keys that begin with `PREFIX`")
	f.StringSliceVar(&kinds, "kind", nil, "only events of these `KINDS`, separated by commas: lost, forced, \"gave up\", \"cron failed\", ...")
	f.StringVar(&q.Scope, "scope", "", "only events of cron jobs of this `SCOPE`")
	f.StringVar(&q.Name, "cron", "", "only events of the cron job `NAME`")
	f.StringVar(&since, "since", "", "only events of the last `TIME`, such as 24h, or since a time (default: all)")
	f.IntVar(&most, "limit", 0, "print at most `N` events (default: all)")
	f.BoolVarP(&follow, "follow", "f", false, "print what happens, as it happens")
	out.flags(f)
	return cmd
}

// followPatience is how long a read of the journal waits for events.
const followPatience = time.Minute

// feedPause is how long --follow waits after Redis did not answer.
const feedPause = time.Second

// followed returns events as they happen, from q.Since or from now on, until ctx ends.
func followed(ctx context.Context, desk ops.Operator, q ops.EventsQuery, talk func(string, ...any)) (iter.Seq2[ops.Event, error], error) {
	from := ops.FromNow
	if !q.Since.IsZero() {
		from = ops.FromStart
	}
	feed, err := desk.Follow(q, from)
	if err != nil {
		return nil, err
	}
	return func(yield func(ops.Event, error) bool) {
		defer feed.Close()
		silent := false
		for first := true; ctx.Err() == nil; first = false {
			patience := followPatience
			if silent {
				patience = 0 // report at once that Redis answers again
			}
			events, err := feed.Next(ctx, patience)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil && (first || !errors.Is(err, joblock.ErrUnavailable)):
				yield(ops.Event{}, err)
				return
			case err != nil && !silent:
				silent = true
				talk("%s; trying again", strings.ReplaceAll(textOf(err), "\n", "; "))
			case err == nil && silent:
				silent = false
				talk("%s answers again", source(desk))
			}
			if err != nil {
				sleep(ctx, feedPause)
			}
			for _, e := range events {
				if !yield(e, nil) {
					return
				}
			}
		}
	}, nil
}

func eventColumns(p *printer, now time.Time, follow bool) []column[ops.Event] {
	key := column[ops.Event]{head: "KEY", text: func(e ops.Event) string { return e.Key }}
	if p.format == "name" {
		return []column[ops.Event]{key}
	}
	return []column[ops.Event]{
		{head: "WHEN", text: func(e ops.Event) string {
			switch {
			case e.At.IsZero():
				return ""
			case follow && p.times == "relative": // a line may be read long after it was printed
				return e.At.Local().Format("15:04:05.000")
			}
			return p.when(e.At.Time, max(0, now.Sub(e.At.Time)))
		}},
		{head: "EVENT", text: func(e ops.Event) string { return e.Kind }, role: func(e ops.Event) role { return eventRole(e.Kind) }},
		{head: "KEY", text: func(e ops.Event) string {
			if e.Name != "" {
				return e.Scope + ":" + e.Name
			}
			return e.Key
		}},
		{head: "WHAT", text: func(e ops.Event) string { return e.Text }},
		{head: "FENCE", wide: true, text: func(e ops.Event) string { return count(e.Fence) }},
		{head: "HOLDER", wide: true, text: func(e ops.Event) string { return e.Holder }},
		{head: "JOB", wide: true, text: func(e ops.Event) string { return e.Job }},
		{head: "SOURCE", wide: true, text: func(e ops.Event) string { return e.Source }},
		{head: "EVENT ID", wide: true, text: func(e ops.Event) string { return e.ID }},
	}
}

func eventRole(kind string) role {
	switch kind {
	case "lost", "cleanup failed", "cron failed", "cron lost", ops.EventDropped, ops.EventGap:
		return bad
	case "acquired", "resumed", "released", "cron done", "cron enqueued":
		return plain
	}
	return warning
}

func newHistory(s *server) *cobra.Command {
	var (
		out   output
		since string
		most  int
	)
	cmd := &cobra.Command{
		Use:   "history [flags] KEY",
		Short: "list what is known of the past of a key, the newest first",
		Long: `History lists what the journal has of KEY, its permits and its slots, and what operators have done to KEY and to the
tasks that had its lock, the newest first. See "events" for the journal, and "audit" for the actions. How the last lock on
KEY began and ended, for instance that a keeper has freed KEY, is listed without a journal, too.

Without --limit, history lists 50 lines, and says on the standard error if there are more. With -o json there is then
"more": true.

Exit codes:
  0   the records were read, even if they have nothing of KEY
  64  wrong usage
  69  Redis did not answer
  77  Redis refused the login of this user, or the user lacks a permission`,
		Example: `  joblock history export:acct-7
  joblock history export:acct-7 --since 24h -o json`,
		Args: exactly("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			now := time.Now()
			from, err := sinceTime(since, now)
			if err != nil {
				return err
			}
			return s.withDesk(cmd, &out, func(ctx context.Context, d *desk, p *printer) error {
				h, err := d.History(ctx, ops.HistoryQuery{Key: args[0], Since: from, Most: most, Actions: true})
				if err != nil {
					return err
				}
				if err := printAll(p, happeningColumns(p, now), rowsIn(h.Items)); err != nil {
					return err
				}
				if !p.forPeople() {
					return nil
				}
				switch {
				case len(h.Items) == 0 && h.From.IsZero():
					p.say("nothing is on record; the journal is empty")
				case len(h.Items) == 0:
					p.say("nothing is on record; the journal begins at %s", h.From.UTC().Format(time.RFC3339))
				case h.More && most < mostHistory:
					p.say("there is more: \"joblock history --limit %d -- %s\" lists older lines, too", mostHistory, ops.Shell(args[0]))
				case h.More:
					p.say("there is more: \"joblock events -- %s\" and \"joblock audit -- %[1]s\" list all", ops.Shell(args[0]))
				}
				if len(h.Items) == 0 && from.IsZero() {
					s.hintOf(ctx, d, p, args[0])
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&since, "since", "", "only what happened in the last `TIME`, such as 24h, or since a time (default: all)")
	cmd.Flags().IntVar(&most, "limit", 50, fmt.Sprintf("print at most `N` lines, from 1 to %d", mostHistory))
	out.flags(cmd.Flags())
	return cmd
}

// mostHistory is the maximum of --limit of "history".
const mostHistory = 1000

func happeningColumns(p *printer, now time.Time) []column[ops.Happening] {
	what := column[ops.Happening]{head: "WHAT", text: func(h ops.Happening) string { return h.Text }}
	if p.format == "name" {
		return []column[ops.Happening]{{head: "EVENT", text: func(h ops.Happening) string { return h.Kind }}}
	}
	return []column[ops.Happening]{
		{head: "WHEN", text: func(h ops.Happening) string { return p.when(h.At.Time, max(0, now.Sub(h.At.Time))) }},
		{head: "EVENT", text: func(h ops.Happening) string { return h.Kind }, role: func(h ops.Happening) role {
			if h.Action != nil {
				return strong
			}
			return eventRole(h.Kind)
		}},
		{head: "BY", text: func(h ops.Happening) string {
			switch {
			case h.Action != nil:
				return h.Action.By
			case h.Event != nil && (h.Kind == "contended" || h.Kind == "gave up"):
				return h.Event.Source // the text names the holder
			case h.Event != nil && h.Event.Holder != "":
				return h.Event.Holder
			case h.Lock != nil && h.Kind != "forced" && h.Kind != "freed":
				return h.Lock.Holder
			}
			return ""
		}},
		what,
	}
}
