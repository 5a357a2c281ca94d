package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
)

func newPermits(s *server) *cobra.Command {
	var (
		out output
		n   int
	)
	cmd := &cobra.Command{
		Use:   "permits [flags] KEY",
		Short: "list who has the permits of a limit, or the slots of a sequence",
		Long: `Permits lists who has a permit of the limit on KEY ("joblock run --limit", package limit, worker.OverlapConfig.MaxConcurrent), or a slot of
the sequence on KEY whose jobs run several at a time.

Redis enforces no number of permits: each program counts by the number that it was given. Permits shows the number
that a program has recorded last, which program that was, and when. A program records its number when it finds a
permit taken, at most once a minute. If programs use different numbers, the first line says so, as far as Redis shows
it. If Redis has no number, give it with --limit.

The first line says how many permits are taken, and how many wait. With -o json:
  {"v":1, "key", "kind", "n", "n_said", "n_by", "n_since", "n_before", "n_first", "taken", "waiting", "items": [locks], "now"}

Exit codes:
  0   the permits were read, even if none is taken
  1   KEY is not a limit or a sequence with several slots, or has not been used for a while
  64  wrong usage
  69  Redis did not answer
  77  Redis refused the login of this user, or the user lacks a permission`,
		Example: `  joblock permits geocoder
  joblock permits geocoder --limit 5 -o json`,
		Args: exactly("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.withDesk(cmd, &out, func(ctx context.Context, d *desk, p *printer) error {
				permits, err := d.Permits(ctx, args[0], n)
				if err != nil {
					return err
				}
				if permits.Kind == "" {
					s.hintOf(ctx, d, p, args[0])
					return &exitError{exitNo, fmt.Errorf("%s is not a limit or a sequence with several slots, or has not been used for a while", safe(args[0]))}
				}
				if p.format == "json" {
					return printOne(p, nil, permits)
				}
				if p.forPeople() && !p.noHeaders {
					fmt.Fprintf(p.out, "%s\n", visible(permitsText(permits)))
				}
				return printAll(p, permitColumns(p), rowsIn(permits.Permits))
			})
		},
	}
	cmd.Flags().IntVarP(&n, "limit", "l", 0, "how many permits there are, if Redis does not know (default: unknown)")
	out.flags(cmd.Flags())
	return cmd
}

// permitsText returns how many permits are taken, how many callers wait, and which program recorded how many there are.
func permitsText(p ops.Permits) string {
	text := ""
	switch {
	case p.N > 0:
		text = fmt.Sprintf("%d of %d taken", p.Taken, p.N)
	case p.AtLeast > 0:
		text = fmt.Sprintf("%d taken; the number of permits is not known: no program has recorded it in the last day, and number %d is the largest that was used", p.Taken, p.AtLeast)
	default:
		text = fmt.Sprintf("%d taken", p.Taken)
	}
	if p.Waiting > 0 {
		text += fmt.Sprintf(", %d waiting", p.Waiting)
	}
	if p.By != "" {
		text += fmt.Sprintf("; %d was recorded last, by %s, %s ago", p.N, p.By, span(p.Now.Sub(p.Said.Time)))
	}
	if changed := p.Changed(); changed != "" {
		text += "; " + changed
	}
	if doubt := p.Doubt(); doubt != "" {
		text += "; " + doubt
	}
	return text
}

func permitColumns(p *printer) []column[ops.Lock] {
	number := column[ops.Lock]{head: "NUMBER", text: func(l ops.Lock) string { return strconv.Itoa(l.Number) }}
	all := slices.DeleteFunc(lockColumns(p, false), func(c column[ops.Lock]) bool { return c.head == "WAITERS" || c.head == "ROLE" })
	if p.format == "name" {
		return all
	}
	return slices.Insert(all, 0, number)
}
