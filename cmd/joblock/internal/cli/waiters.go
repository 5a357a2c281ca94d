package cli

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
)

func newWaiters(s *server) *cobra.Command {
	var (
		out  output
		most int
	)
	cmd := &cobra.Command{
		Use:   "waiters [flags] KEY",
		Short: "list who waits for a key, in order",
		Long: `Waiters lists the line of KEY in the order in which KEY will be served: processes that wait in a call, and jobs that
wait for their turn. If KEY is that of a limit, the line is the line for a permit.

Columns:
  NEXT    place in line, from 1
  SINCE   when the place was taken
  LAPSES  with -o wide: when the place ends if its waiter has died. A waiter that lives renews the place long before. It
          does not say when the turn of a waiter comes.

A waiter that has died keeps its place until LAPSES. Until then the waiters behind it are not served before their turn;
after that it delays them no longer.

If programs keep a journal (package joblock/journal), the output ends with how long the last holders had KEY. From
these times you can estimate when a waiter's turn comes.

Exit codes:
  0   the line was read, even if it is empty
  64  wrong usage
  69  Redis did not answer; the list is not complete
  77  Redis refused the login of this user, or the user lacks a permission`,
		Example: `  joblock waiters export:acct-7
  joblock waiters export:acct-7 --limit 1 -o json`,
		Args: exactly("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if most < 0 {
				return usage("--limit is %d, must not be negative", most)
			}
			return s.withDesk(cmd, &out, func(ctx context.Context, d *desk, p *printer) error {
				lock, err := d.Lock(ctx, args[0])
				if err != nil {
					return err
				}
				now := lock.Now.Time
				if now.IsZero() { // the line of a limit has no record under its own key
					now = time.Now()
				}
				rows := d.Waiters(ctx, args[0])
				if most > 0 {
					rows = firstOf(rows, most)
				}
				if err := printAll(p, waiterColumns(p, now), rows); err != nil {
					return err
				}
				p.none("no waiters for %s", safe(args[0]))
				s.hint(ctx, d, p, lock)
				if pace := lock.Pace(); pace != "" && p.rows > 0 && p.forPeople() {
					p.say("%s", pace)
				}
				return nil
			})
		},
	}
	cmd.Flags().IntVar(&most, "limit", 0, "print at most `N` waiters (default: all)")
	out.flags(cmd.Flags())
	return cmd
}

func waiterColumns(p *printer, now time.Time) []column[ops.Waiter] {
	return []column[ops.Waiter]{
		{head: "NEXT", text: func(w ops.Waiter) string { return strconv.Itoa(w.Position) }},
		{head: "HOLDER", text: func(w ops.Waiter) string { return w.Holder }},
		{head: "JOB", text: func(w ops.Waiter) string { return w.Job }},
		{head: "SINCE", text: func(w ops.Waiter) string { return p.when(w.Since.Time, now.Sub(w.Since.Time)) }},
		{head: "LAPSES", wide: true, text: func(w ops.Waiter) string { return p.when(w.Until.Time, now.Sub(w.Until.Time)) }},
		{head: "CHOSEN", wide: true, text: func(w ops.Waiter) string {
			if w.Chosen {
				return "waits for any permit"
			}
			return ""
		}},
	}
}
