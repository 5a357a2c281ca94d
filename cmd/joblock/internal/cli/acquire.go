package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/limit"
)

// acquireOptions holds the flags and the argument of "acquire".
type acquireOptions struct {
	tokenFlags
	key      string
	noWait   bool
	wait     waitFlag
	busyCode int
	limit    int
	ttl      time.Duration
	holder   string
	quiet    bool
}

func newAcquire(s *server) *cobra.Command {
	var o acquireOptions
	cmd := &cobra.Command{
		Use:   "acquire KEY --ttl DURATION [flags]",
		Short: "take a lock in a script, and get its token",
		Long: `Acquire takes the lock on KEY, and writes the token of the lock. With the token a script renews the lock, releases it,
or hands it over to a job. The token is a secret: a program that has the token has the lock.

Only "joblock renew" renews the lock. After --ttl without a renewal the lock is lost, and another holder may have
it. To run one command under a lock, use "joblock run", which renews the lock and ends the command before the lock is
lost.

With --token-file, the token is written to FILE before Redis is called. After exit code 69, or if joblock was killed,
the same command finds out whether the lock was taken, and takes it only once. If the lock was not taken, FILE may be
left empty, or may be removed. Without --token-file, a lock whose answer was lost is released again, or ends after
--ttl.

KEY is any text without control characters. A % in KEY is followed by two upper-case hexadecimal digits.

Exit codes:
  0         the lock is taken
  64        wrong usage; FILE has a token already
  69        Redis did not answer; whether the lock is taken is unknown
  75        another holder has the lock (--no-wait), or had it throughout --wait; -E sets another code
  77        Redis refused the login of this user, or the user lacks a permission
  128+n     the signal n ended the wait`,
		Example: `  joblock acquire export:acct-7 --ttl 5m --wait 10m --token-file "$token" || exit
  token=$(joblock acquire --no-wait --ttl 1m nightly) || exit 0
  joblock acquire geocoder --limit 3 --ttl 1m --token-file /run/geo.token -o json`,
		Args: exactly("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.key = args[0]
			if err := o.check(); err != nil {
				return err
			}
			return o.run(cmd)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.noWait, "no-wait", "n", false, "do not wait for the lock")
	f.VarP(&o.wait, "wait", "w", "wait for the lock for at most `DURATION`, such as 90 or 1m30s (default: without bound)")
	f.IntVarP(&o.busyCode, "busy-code", "E", exitBusy, "exit `CODE` if the lock has another holder")
	f.IntVarP(&o.limit, "limit", "l", 0, "take one of `N` permits of KEY; use the same N everywhere")
	f.DurationVar(&o.ttl, "ttl", 0, "how long the lock lasts, and again after each renewal: from 1s to 8784h (required)")
	f.StringVar(&o.holder, "holder", "", "`LABEL` by which people see who has the lock (default host:pid of the script)")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "write only errors to the standard error")
	o.flags(s, f, false, true)
	return cmd
}

func (o *acquireOptions) check() error {
	switch {
	case o.ttl == 0:
		return usage("--ttl is missing: how long the lock lasts without \"joblock renew\"; see \"joblock acquire --help\"")
	case o.noWait && o.wait.set:
		return usage("--no-wait and --wait exclude each other")
	case o.busyCode < 0 || o.busyCode > 255:
		return usage("--busy-code is %d, must be from 0 to 255", o.busyCode)
	case o.limit < 0 || o.limit > limit.Max:
		return usage("--limit is %d, must be from 1 to %d", o.limit, limit.Max)
	}
	if err := checkPeriod("ttl", o.ttl, time.Second); err != nil {
		return err
	}
	return o.tokenFlags.check(true)
}

func (o *acquireOptions) run(cmd *cobra.Command) error {
	keepsPipes()
	holder := o.holder
	if holder == "" {
		holder = scriptLabel()
	}
	locks, err := o.server.locks(joblock.Config{
		MaxTTL: driver.MaxPeriod, Holder: holder, Observer: o.talk(cmd), CallTimeout: o.server.callTimeout(),
	})
	if err != nil {
		return err
	}
	defer func() { locks.close(o.server.cleanUp()) }()
	if o.file == "" || o.file == standard {
		return o.once(cmd, locks)
	}
	return o.withFile(cmd, locks)
}

// talk returns an Observer that prints who has the lock, once, unless the user wants no messages.
func (o *acquireOptions) talk(cmd *cobra.Command) event.Observer {
	printed := o.quiet || o.noWait || !term.IsTerminal(2)
	return func(e event.Event) {
		if e.Kind == event.Contended && !printed {
			printed = true
			sayTo(cmd.ErrOrStderr(), visible(fmt.Sprintf("%s: waiting; %s", o.key, holderText(e))))
		}
	}
}

func holderText(e event.Event) string {
	text := "the lock has another holder"
	if e.Holder != "" {
		text = e.Holder + " has the lock"
	}
	if e.Job != "" {
		text += " for job " + e.Job
	}
	return text
}

// want returns the lock that the flags describe.
func (o *acquireOptions) want() want {
	return want{key: o.key, ttl: o.ttl, limit: o.limit, wait: waitOf(o.noWait, o.wait)}
}

// refused returns the error for a lock that could not be taken.
func (o *acquireOptions) refused(err error, signal int) error {
	switch {
	case signal != 0:
		return &exitError{code: exitSignal + signal}
	case codeOf(err) == exitBusy:
		return &exitError{o.busyCode, err}
	}
	return err
}

// once takes the lock, and writes the token to the standard output. If that write fails, it releases the lock.
func (o *acquireOptions) once(cmd *cobra.Command, locks face) error {
	ctx, came, end := interruptible()
	defer end()
	began := time.Now()
	lock, err := locks.acquire(ctx, o.want())
	if err != nil {
		return o.refused(err, came())
	}
	g := ops.Grant{Token: lock.Token(), Fence: lock.Fence(), Lease: time.Until(lock.ExpiresAt()), Prior: lock.Prior()}
	if err := o.tell(cmd, nil, g, began); err != nil {
		return errors.Join(&exitError{exitFault, err}, lock.Release(context.Background()))
	}
	return nil
}

func (o *acquireOptions) tell(cmd *cobra.Command, t *tokenFile, g ops.Grant, began time.Time) error {
	r := reportOf(g)
	waited := time.Since(began).Milliseconds()
	r.WaitedMS = &waited
	return o.print(cmd, t, g.Token, r)
}

// withFile takes the lock with the token in the file, or with a new token that it first writes to the file.
func (o *acquireOptions) withFile(cmd *cobra.Command, locks face) error {
	t, err := openTokenFile(o.file, true, o.server.timeout)
	if err != nil {
		return err
	}
	defer t.close()
	again := !t.token.IsZero()
	if again {
		err = o.same(t)
	} else {
		err = o.begin(t)
	}
	if err != nil {
		return err
	}
	ctx, came, end := interruptible()
	defer end()
	began := time.Now()
	g, err := o.take(ctx, locks, t.token, again)
	if err != nil {
		unknown := codeOf(err) == exitUnavailable
		if came() != 0 {
			unknown = giveUp(locks, t.token, o.limit) != nil
		}
		if !unknown {
			t.drop(false)
		}
		return o.refused(err, came())
	}
	if err := t.write(g.Token); err != nil {
		// The file still has the token that was written before the call, so repeating the command finds the lock.
		return &exitError{exitFault, err}
	}
	return o.tell(cmd, t, g, began)
}

// begin makes a token and writes it to the file. On failure it removes the token from the file.
func (o *acquireOptions) begin(t *tokenFile) error {
	token, err := joblock.NewToken(o.key, core.ByHand+rand.Text(), o.ttl)
	if err != nil {
		t.drop(false)
		return err
	}
	if err := t.write(token, o.pending()...); err != nil {
		t.drop(false)
		return &exitError{exitFault, err}
	}
	return nil
}

func (o *acquireOptions) pending() []string {
	if o.limit > 0 {
		return []string{"acquire", strconv.Itoa(o.limit)}
	}
	return []string{"acquire"}
}

// same returns an error unless the token in the file is from the same command, whose acquire got no answer.
func (o *acquireOptions) same(t *tokenFile) error {
	want := o.pending()
	switch {
	case len(t.pending) == 0 || t.pending[0] != "acquire":
		return usage("the file %s has the token of a lock on %q already; release that lock, or give another file", o.file, t.token.Key())
	case t.token.Key() != o.key:
		return usage("the file %s has the token of a lock on %q, whose acquire was not answered; repeat that command, or give another file", o.file, t.token.Key())
	case core.Token(t.token).TTL() != o.ttl.Truncate(time.Millisecond):
		return usage("the file %s has the token of an acquire that was not answered, with --ttl %s", o.file, core.Token(t.token).TTL())
	case fmt.Sprint(t.pending) != fmt.Sprint(want):
		return usage("the file %s has the token of an acquire that was not answered, with another --limit", o.file)
	}
	return nil
}

func (o *acquireOptions) take(ctx context.Context, locks face, token joblock.Token, again bool) (ops.Grant, error) {
	if again && o.limit > 0 {
		if g, found, err := locks.findPermit(ctx, token, o.limit); found || err != nil {
			return g, err
		}
	}
	return locks.take(ctx, token, o.want())
}

// giveUp releases what an acquire with token may have taken, if its answer was lost. It returns an error only if this
// call gets no answer either.
func giveUp(locks face, token joblock.Token, permits int) error {
	lost := want{key: token.Key(), ttl: core.Token(token).TTL(), limit: permits}
	if err := locks.giveUp(context.Background(), token, lost); errors.Is(err, joblock.ErrUnavailable) {
		return err
	}
	return nil
}
