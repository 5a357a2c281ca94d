package cli

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
)

const (
	// leastInterval is the shortest interval between two looks.
	leastInterval = 100 * time.Millisecond

	// mostWatched is how many keys "watch" accepts, because each is read at every look.
	mostWatched = 100

	// mostKnown bounds how many keys a watch under a prefix remembers.
	mostKnown = 500_000

	// mostMissing is how many keys that a walk did not find are looked up individually after each walk.
	mostMissing = 100
)

func newWatch(s *server) *cobra.Command {
	var (
		out  output
		only lockFilter
		o    watchOptions
	)
	cmd := &cobra.Command{
		Use:   "watch [flags] [KEY...]",
		Short: "show what happens to locks, as it happens",
		Long: `Watch looks at each KEY again and again, and prints a line when the state, the fence or the holder has changed. With
--under, watch looks at all keys that begin with a prefix, and without any KEY at all keys. Then each look is a walk
over all keys in Redis, and "joblock ls --help" says what such a walk costs; --job takes no such walk.

Between two looks several things can happen to a key: watch shows the last of them. A new fence shows that another
holder has had the lock meanwhile. For each KEY the first line says how the key is now.

Changes:
  taken, resumed              a holder acquired the lock; a job or a token resumed it
  parked                      the lock was handed over to a job or a token; nothing runs under the lock at present
  released, done              the owner has released the lock; because the job is done
  forced, freed               an operator has freed the key; a keeper or a program has, because its job has ended
  orphaned, lapsed            the lock was not renewed: it is kept for its job; it has ended
  gone                        the lock has ended, and Redis has forgotten how
  foreign, changed            another program has written the value; anything else
  now                         the first look

While Redis does not answer, watch says so once and tries again. INT, TERM and HUP end the watch.

Exit codes:
  0      KEY is in the state of --until; or --for is over, and there is no --until
  1      --for is over, and KEY is not in the state of --until
  64     wrong usage
  69     Redis did not answer the first look
  77     Redis refused the login of this user, or the user lacks a permission
  128+n  the signal n ended the watch`,
		Example: `  joblock watch export:acct-7
  joblock watch --until free --for 10m export:acct-7 && echo free
  joblock watch --under export: -o jsonl
  joblock watch --job --state orphaned`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.keys = args
			q, err := only.query(o.under)
			if err != nil {
				return err
			}
			if err := o.check(cmd); err != nil {
				return err
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
			o.query = q
			return untilSignal(cmd.Context(), func(ctx context.Context) error {
				w := &watch{watchOptions: o, desk: d, talk: p.say}
				if err := printAll(p, changeColumns(p), w.changes(ctx)); err != nil {
					return err
				}
				return w.verdict(ctx)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.under, "under", "", "watch all keys that begin with `PREFIX`")
	f.DurationVar(&o.interval, "interval", time.Second, "shortest time between the beginnings of two looks, at least 100ms")
	f.DurationVar(&o.during, "for", 0, "end after `DURATION` (default: at a signal)")
	f.StringVar(&o.until, "until", "", "end with 0 when the only KEY is in this `STATE`: free, held, parked or orphaned")
	only.flags(f)
	out.flags(f)
	return cmd
}

// watchOptions holds the flags and the arguments of "watch".
type watchOptions struct {
	keys     []string
	under    string
	query    ops.LocksQuery
	interval time.Duration
	during   time.Duration
	until    string
}

// walkFlags are the flags that apply only to a walk.
var walkFlags = []string{"contains", "state", "job", "queue", "older", "waiters", "own", "share"}

func (o *watchOptions) check(cmd *cobra.Command) error {
	switch {
	case o.interval < leastInterval:
		return usage("--interval is %s, must be at least %s", o.interval, leastInterval)
	case o.during < 0:
		return usage("--for is %s, must not be negative", o.during)
	case len(o.keys) > mostWatched:
		return usage("there are %d KEYs, at most %d can be watched; --under watches all keys with a prefix", len(o.keys), mostWatched)
	case len(o.keys) > 0 && cmd.Flags().Changed("under"):
		return usage("--under and KEY exclude each other")
	}
	if _, ok := lockStates[o.until]; o.until != "" && !ok {
		return usage("--until is %q, must be one of free, held, parked, orphaned", o.until)
	}
	if o.until != "" && len(o.keys) != 1 {
		return usage("--until needs exactly one KEY, there are %d", len(o.keys))
	}
	for _, name := range walkFlags {
		if len(o.keys) > 0 && cmd.Flags().Changed(name) {
			return usage("--%s makes no sense with KEY; --under watches all keys with a prefix", name)
		}
	}
	return nil
}

// watch is one run of "watch".
type watch struct {
	watchOptions
	desk ops.Operator
	talk func(format string, args ...any)

	known  map[string]ops.Lock // the keys as of the previous look
	came   bool                // the key has reached the state of --until
	silent bool                // the previous look got no answer
}

// changes yields what happens until ctx ends, --for has passed, or the key has reached the state of --until. The first
// look at named keys yields a change for each; the first walk yields none. An error of the first look ends the iteration.
func (w *watch) changes(ctx context.Context) iter.Seq2[keyChange, error] {
	return func(yield func(keyChange, error) bool) {
		if w.during > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, w.during, errWatched)
			defer cancel()
		}
		for first := true; ; first = false {
			began := time.Now()
			more, err := w.look(ctx, first, yield)
			switch {
			case first && err != nil && context.Cause(ctx) == errWatched:
				yield(keyChange{}, &exitError{exitUnavailable, errors.New("no answer from Redis within --for")})
				return
			case ctx.Err() != nil || !more && err == nil:
				return
			case err != nil && (first || codeOf(err) != exitUnavailable):
				yield(keyChange{}, err)
				return
			case err != nil && !w.silent:
				w.silent = true
				w.talk("%s; trying again", textOf(err))
			case err == nil && w.silent:
				w.silent = false
				w.talk("%s answers again", source(w.desk))
			case err == nil && first && len(w.keys) == 0:
				w.talk("watching; there are %d keys now", len(w.known))
			}
			if !sleep(ctx, w.interval-time.Since(began)) {
				return
			}
		}
	}
}

var errWatched = errors.New("--for is over")

// sleep returns true after d, or false when ctx ends.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(max(d, 0))
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// look looks at all watched keys once, and reports whether to continue. After an error, the keys that were not read keep
// their previous state.
func (w *watch) look(ctx context.Context, first bool, yield func(keyChange, error) bool) (more bool, err error) {
	next := make(map[string]ops.Lock, len(w.known))
	see := func(l ops.Lock) bool {
		next[l.Key] = brief(l)
		return w.see(l, first, yield)
	}
	if len(w.keys) > 0 {
		locks, err := w.desk.Statuses(ctx, w.keys...)
		if err != nil {
			return true, err
		}
		for _, l := range locks {
			if !see(l) {
				return false, nil
			}
		}
		w.known = next
		return !w.came, nil
	}
	q := w.query
	q.Ended = true // shows how locks end, and locks that were taken and released between two looks
	for l, err := range w.desk.Locks(ctx, q) {
		if err != nil {
			return true, err
		}
		if len(next) >= mostKnown {
			return true, usage("there are more than %d keys to watch; --under and --job narrow the watch", mostKnown)
		}
		if !see(l) {
			return false, nil
		}
	}
	missing := slices.DeleteFunc(slices.Sorted(maps.Keys(w.known)), func(key string) bool { _, found := next[key]; return found })
	for _, key := range missing[min(len(missing), mostMissing):] {
		next[key] = w.known[key] // it is looked up after a later walk
	}
	if missing = missing[:min(len(missing), mostMissing)]; len(missing) > 0 {
		locks, err := w.desk.Statuses(ctx, missing...)
		if err != nil {
			return true, err
		}
		for _, l := range locks {
			if !see(l) {
				return false, nil
			}
			if !l.Locked() || w.query.OlderThan > 0 || w.query.Waiters > 0 || len(w.query.States) > 0 {
				delete(next, l.Key) // not what the walk looks for, so remembered only while the walk finds it
			}
		}
	}
	w.known = next
	return !w.came, nil
}

// see compares l with the previous state of its key, and yields the change, if there is one. It reports whether to
// continue.
func (w *watch) see(l ops.Lock, first bool, yield func(keyChange, error) bool) bool {
	was, known := w.known[l.Key]
	kind := changeNow
	switch {
	case first && len(w.keys) == 0:
		kind = ""
	case !first:
		kind = kindOf(was, l)
	}
	if w.until != "" && l.State == lockStates[w.until] {
		w.came = true
	}
	if kind == "" {
		return !w.came
	}
	at := l.Now
	if at.IsZero() {
		at.Time = time.Now() // a key without a record has no time
	}
	c := keyChange{At: at, Kind: kind, Key: l.Key, Lock: l}
	if known {
		c.Was = &was
	}
	return yield(c, nil) && !w.came
}

// brief returns only the fields of l that are needed to notice the next change.
func brief(l ops.Lock) ops.Lock {
	return ops.Lock{
		Key: l.Key, State: l.State, Owner: l.Owner, Holder: l.Holder, Job: l.Job, Fence: l.Fence, First: l.First,
		Since: l.Since, Changed: l.Changed, Ended: l.Ended, Reason: l.Reason, FreedBy: l.FreedBy,
	}
}

// verdict returns the error for the exit code of a watch that has ended.
func (w *watch) verdict(ctx context.Context) error {
	if w.until == "" || w.came || context.Cause(ctx) != nil {
		return nil
	}
	return &exitError{exitNo, fmt.Errorf("--for has passed, and %s is not %s", safe(w.keys[0]), w.until)}
}

// untilSignal calls f with a context that is cancelled at INT, TERM or HUP. After a signal the error has the code 128+n.
func untilSignal(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(caught)
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case got := <-caught:
			n, _ := got.(syscall.Signal)
			cancel(&exitError{code: exitSignal + int(n)})
		case <-over:
		}
	}()
	err := f(ctx)
	var ended *exitError
	if cause := context.Cause(ctx); errors.As(cause, &ended) {
		return ended
	}
	return err
}
