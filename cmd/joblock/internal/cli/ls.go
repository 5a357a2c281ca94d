package cli

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

func newLs(s *server) *cobra.Command {
	var (
		out   output
		only  lockFilter
		ended bool
		order string
		most  int
	)
	cmd := &cobra.Command{
		Use:   "ls [flags] [PREFIX]",
		Short: "list locks",
		Long: `Ls lists the locks that are held: all, or those whose keys begin with PREFIX. With --contains a text may stand anywhere
in the key: then all locks under PREFIX are read, and not only those that are printed.

Redis has no list of all locks. So ls looks at every key in Redis, including those of other applications, a few at a
time, with pauses in between: see --share. Locks are printed as they are found, in no order. A lock that changes
meanwhile may be missing, or be printed twice. With --job, ls reads a list of the locks of jobs instead, which takes
no such walk.

Columns:
  SINCE    when the lock was taken
  ENDED    with --ended or --state free: when the lock on a free key ended
  LEASE    what is left of the holder's lease, which a live holder renews; "-" if no work runs under the lock
  RESERVED time until others can get the lock, unless it is renewed or released first: the end of the lease or,
           for the lock of a job or a token, the end of its reservation
  WAITERS  how many wait in line, for a while counting those that have died; waiters for a limit are counted once, in a
           row for the limit, whose STATE is "limit"

States:
  held      a process has the lock, and keeps renewing it
  parked    the lock belongs to a job or a token, under which nothing runs at present
  orphaned  the holder's process has died or does not renew; the lock still belongs to its job
  free      the key has no holder

Exit codes:
  0   the list is complete, even if it is empty
  64  wrong usage
  69  Redis did not answer; the list is not complete
  77  Redis refused the login of this user, or the user lacks a permission`,
		Example: `  joblock ls
  joblock ls export: --older 1h
  joblock ls --contains acct-7
  joblock ls --state orphaned,parked --sort age
  joblock ls --waiters 10 -o json
  joblock ls --job --queue exports -o name`,
		Args: atMost(1, "PREFIX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix := ""
			if len(args) > 0 {
				prefix = args[0]
			}
			q, err := only.query(prefix)
			if err != nil {
				return err
			}
			q.Ended = ended
			if order != "" {
				if err := oneOf("sort", order, lockOrders); err != nil {
					return err
				}
			}
			if most < 0 {
				return usage("--limit is %d, must not be negative", most)
			}
			p, err := out.printer(cmd)
			if err != nil {
				return err
			}
			d, err := s.desk()
			if err != nil {
				return err
			}
			defer d.close()
			rows := only.peoples(walked(cmd.Context(), d, only.inner(q), p))
			if order != "" {
				rows = sorted(rows, func(locks []ops.Lock) { sortLocks(locks, order) })
			}
			if most > 0 {
				rows = firstOf(rows, most)
			}
			if err := printAll(p, lockColumns(p, ended || slices.Contains(q.States, joblock.StateFree)), rows); err != nil {
				return err
			}
			switch {
			case p.rows > 0 || !p.forPeople():
			case prefix == "" && q.Contains == "":
				p.say("no lock found at %s", s.where(d))
			case q.Contains != "":
				p.say("no lock found whose key begins with %q and contains %s, at %s", safe(prefix), safe(q.Contains), s.where(d))
			default:
				p.say("no lock found whose key begins with %s, at %s", safe(prefix), s.where(d))
				s.like(cmd.Context(), d, p, prefix, true)
			}
			return nil
		},
	}
	f := cmd.Flags()
	only.flags(f)
	f.BoolVar(&ended, "ended", false, "also keys that are free and that Redis still remembers, with how the last lock ended")
	f.StringVar(&order, "sort", "", "print all locks at the end, in this `ORDER`: age, waiters, reserved, state or key (default: as they are found)")
	f.IntVar(&most, "limit", 0, "print at most `N` locks (default: all)")
	out.flags(f)
	return cmd
}

// walked returns the locks that match q. The printer shows the progress of the walk.
func walked(ctx context.Context, d ops.Operator, q ops.LocksQuery, p *printer) iter.Seq2[ops.Lock, error] {
	var done, found atomic.Int64
	q.Progress = func(part float64) { done.Store(int64(part * 100)) }
	p.progress = func() string {
		return fmt.Sprintf("%d%% of the keys in Redis looked at, %d locks found", done.Load(), found.Load())
	}
	return func(yield func(ops.Lock, error) bool) {
		for l, err := range d.Locks(ctx, q) {
			found.Add(1)
			if !yield(l, err) {
				return
			}
		}
	}
}

// sorted returns rows in the order of sort, after reading all of them.
func sorted[T any](rows iter.Seq2[T, error], sort func([]T)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var all []T
		for l, err := range rows {
			if err != nil {
				yield(l, err)
				return
			}
			all = append(all, l)
		}
		sort(all)
		for _, l := range all {
			if !yield(l, nil) {
				return
			}
		}
	}
}

// firstOf returns the first n of rows. It reads no more rows.
func firstOf[T any](rows iter.Seq2[T, error], n int) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		left := n
		for row, err := range rows {
			left--
			if !yield(row, err) || left == 0 {
				return
			}
		}
	}
}
