package cli

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

func newTop(s *server) *cobra.Command {
	var (
		out      output
		only     lockFilter
		interval time.Duration
		order    string
		most     int
	)
	cmd := &cobra.Command{
		Use:   "top [flags] [PREFIX]",
		Short: "show the locks that need attention, live",
		Long: `Top shows how many locks there are, and the locks themselves: those whose keys begin with PREFIX, or all. To keep the
screen up to date, top walks over the keys in Redis again and again: "joblock ls --help" says what a walk costs. With
--job, top reads a list of the locks of jobs instead, which takes no such walk.

Keys:
  up, down, j, k, pgup, pgdn, home, end   move
  x, enter                                explain the lock at the cursor; esc goes back
  s                                       sort by age, waiters, reserved, state, key
  /                                       show only locks in which a text occurs: in the key, holder, job or state
  p                                       pause, go on
  r                                       look again now
  ?                                       this list
  q, ctrl-c                               end

If the standard input or output is no terminal, or with a format other than table, top looks once and prints what there
is, at most --limit locks of it. With -o json: {"v":1, "at", "locks", "held", "parked", "orphaned", "of_jobs",
"waiting", "lines", "oldest_ms", "items": [locks]}.

Exit codes:
  0      the user has ended top; or top has looked once
  64     wrong usage
  69     Redis did not answer the first look
  77     Redis refused the login of this user, or the user lacks a permission
  128+n  the signal n ended top`,
		Example: `  joblock top
  joblock top export: --sort waiters
  joblock top -o json --limit 5`,
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
			if err := oneOf("sort", order, lockOrders); err != nil {
				return err
			}
			switch {
			case interval < leastInterval:
				return usage("--interval is %s, must be at least %s", interval, leastInterval)
			case most < 1:
				return usage("--limit is %d, must be at least 1", most)
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
			return untilSignal(cmd.Context(), func(ctx context.Context) error {
				if p.format == "table" {
					screen, ok, err := newScreen(cmd.InOrStdin(), cmd.OutOrStdout())
					if err != nil {
						return err
					}
					if ok {
						defer screen.close()
						t := &top{desk: d, only: &only, query: q, interval: interval, timeout: s.timeout, screen: screen}
						t.page = newTopPage(d.name, order, p.colours)
						return t.run(ctx)
					}
				}
				return topOnce(ctx, d, &only, q, order, most, p)
			})
		},
	}
	f := cmd.Flags()
	f.DurationVar(&interval, "interval", 2*time.Second, "shortest time between the beginnings of two looks, at least 100ms")
	f.StringVar(&order, "sort", lockOrders[0], "`ORDER` of the locks: age, waiters, reserved, state or key")
	f.IntVar(&most, "limit", 20, "print at most `N` locks, if top looks only once")
	only.flags(f)
	out.flags(f)
	return cmd
}

// mostListed bounds how many locks of a look are kept. Further locks are only counted.
const mostListed = 200_000

// topLook is the result of one look. All numbers are of the locks that match the filter.
type topLook struct {
	At       ops.Time   `json:"at,omitzero"` // the store's time at the last of the locks; zero if there is none
	Locks    int        `json:"locks"`
	Held     int        `json:"held"`
	Parked   int        `json:"parked"`
	Orphaned int        `json:"orphaned"`
	OfJobs   int        `json:"of_jobs"` // locks that are bound to a job
	Waiting  int        `json:"waiting"` // waiters in all lines
	Lines    int        `json:"lines"`   // locks with waiters
	Oldest   ops.Millis `json:"oldest_ms,omitzero"`
	Items    []ops.Lock `json:"items"`

	done float64 // the completed fraction of the walk
	err  error
}

// add counts l, and keeps l if there is room.
func (t *topLook) add(l ops.Lock) {
	switch l.State {
	case joblock.StateHeld:
		t.Held++
	case joblock.StateParked:
		t.Parked++
	case joblock.StateOrphaned:
		t.Orphaned++
	}
	if l.Role != ops.RoleLimit {
		t.Locks++
	}
	if l.Job != "" {
		t.OfJobs++
	}
	if l.Waiters > 0 {
		t.Lines++
		t.Waiting += l.Waiters
	}
	t.Oldest = max(t.Oldest, l.Age)
	if l.Now.After(t.At.Time) {
		t.At = l.Now
	}
	if len(t.Items) < mostListed {
		t.Items = append(t.Items, l)
	}
}

// topOnce looks once, and prints the result.
func topOnce(ctx context.Context, d ops.Operator, only *lockFilter, q ops.LocksQuery, order string, most int, p *printer) error {
	look := topLook{Items: []ops.Lock{}}
	for l, err := range only.peoples(d.Locks(ctx, only.inner(q))) {
		if err != nil {
			return err
		}
		look.add(l)
	}
	sortLocks(look.Items, order)
	look.Items = look.Items[:min(len(look.Items), most)]
	if p.format == "json" {
		return printOne(p, nil, look)
	}
	if p.forPeople() && !p.noHeaders {
		p.out.WriteString(look.summary() + "\n")
	}
	return printAll(p, lockColumns(p, slices.Contains(q.States, joblock.StateFree)), rowsIn(look.Items))
}

// top is one run of "top" on a terminal.
type top struct {
	desk     ops.Operator
	only     *lockFilter
	query    ops.LocksQuery
	interval time.Duration
	timeout  time.Duration // for the explanation of a lock
	screen   *screen
	page     *topPage
}

const (
	// redrawPause is how long a change of the screen's size may go unnoticed.
	redrawPause = 200 * time.Millisecond

	// partPause is how often a walk that takes longer shows what it has found so far.
	partPause = 500 * time.Millisecond
)

// run shows the page until the user ends it.
func (t *top) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	looks, again, explanations := make(chan topLook), make(chan struct{}, 1), make(chan explained)
	go t.looks(ctx, looks, again)
	tick := time.NewTicker(redrawPause)
	defer tick.Stop()
	first := true
	for {
		columns, lines := t.screen.size()
		t.page.resize(columns, lines)
		if err := t.screen.draw(t.page.draw(time.Now())); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case look := <-looks:
			if first && look.err != nil {
				return look.err
			}
			first = first && look.done < 1
			t.page.look(look, time.Now())
		case e := <-explanations:
			t.page.explain(e)
		case <-tick.C:
		case key, ok := <-t.screen.keys:
			if !ok {
				return errHungUp
			}
			switch act, lock := t.page.press(key); act {
			case actEnd:
				return nil
			case actLook:
				select {
				case again <- struct{}{}:
				default:
				}
			case actExplain:
				go func() {
					select {
					case explanations <- t.explain(ctx, lock):
					case <-ctx.Done():
					}
				}()
			}
		}
	}
}

// errHungUp ends top with the exit code of SIGHUP, when the terminal is gone.
var errHungUp = &exitError{code: exitSignal + 1}

// looks looks repeatedly and sends what it finds. While the page is paused, no look begins.
func (t *top) looks(ctx context.Context, looks chan<- topLook, again <-chan struct{}) {
	send := func(l topLook) bool {
		select {
		case looks <- l:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for {
		began := time.Now()
		if !t.lookOnce(ctx, send) {
			return
		}
		wait := time.NewTimer(t.interval - time.Since(began))
		select {
		case <-wait.C:
		case <-again:
		case <-ctx.Done():
		}
		wait.Stop()
		if !t.page.paused.wait(ctx) {
			return
		}
	}
}

// lookOnce sends one look and, meanwhile, what the look has found so far. It reports whether to continue.
func (t *top) lookOnce(ctx context.Context, send func(topLook) bool) bool {
	var look topLook
	q, shown := t.only.inner(t.query), time.Now()
	q.Progress = func(done float64) { look.done = min(done, 0.999) }
	for l, err := range t.only.peoples(t.desk.Locks(ctx, q)) {
		if err != nil {
			if errors.Is(err, context.Canceled) {
				return false
			}
			look.err = err
			return send(look)
		}
		look.add(l)
		if time.Since(shown) >= partPause {
			part := look
			part.Items = append([]ops.Lock(nil), look.Items...)
			if !send(part) {
				return false
			}
			shown = time.Now()
		}
	}
	look.done = 1
	return send(look)
}

// explained is the explanation of a lock that the user has asked for.
type explained struct {
	key  string
	text []string // paragraphs
}

func (t *top) explain(ctx context.Context, key string) explained {
	ctx, cancel := context.WithTimeoutCause(ctx, t.timeout, errSilent)
	defer cancel()
	e, err := t.desk.Explain(ctx, key)
	if err != nil {
		return explained{key, []string{textOf(err)}}
	}
	return explained{key, explanationText(e)}
}
