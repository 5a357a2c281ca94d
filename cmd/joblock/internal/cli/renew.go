package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

func newRenew(s *server) *cobra.Command {
	var o struct {
		tokenFlags
		ttl     time.Duration
		reserve time.Duration
	}
	cmd := &cobra.Command{
		Use:   "renew [flags]",
		Short: "make a lock last for another lease",
		Long: `Renew makes the lock of a token last for --ttl from now. The token stays the same.

A script calls "joblock renew" at least every third of the lease, and stops its work unless the exit code is 0 or 69.
After 69 the script repeats the call, as long as the lease that it knows of lasts.

Exit codes:
  0         the lock lasts for --ttl from now
  1         the lock was released, or belongs to another holder; do not touch what the lock protects
  64        wrong usage; the token cannot be read
  69        Redis did not answer; repeat the call
  77        Redis refused the login of this user, or the user lacks a permission
  79        the lease had already ended; another holder may have the lock`,
		Example: `  joblock renew --token-file "$token" || exit
  printf %s "$token" | joblock renew --ttl 10m -o json`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(false); err != nil {
				return err
			}
			if err := checkPeriod("ttl", o.ttl, time.Second); err != nil {
				return err
			}
			if err := checkPeriod("reserve", o.reserve, time.Millisecond); err != nil {
				return err
			}
			return o.with(cmd, func(locks face, t *tokenFile) error {
				if err := t.settled(); err != nil {
					return err
				}
				left, err := locks.renew(context.Background(), t.token, o.ttl, o.reserve)
				if err != nil {
					return err
				}
				r := reportOf(ops.Grant{Token: t.token, Fence: ops.FenceOf(t.token), Lease: left})
				if o.ttl != 0 {
					r.TTLMS = o.ttl.Milliseconds()
				}
				return o.print(cmd, nil, joblock.Token{}, r)
			})
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.ttl, "ttl", 0, "how long the lock lasts from now, from 1s to 8784h (default: as in \"acquire\")")
	f.DurationVar(&o.reserve, "reserve", 0, "how long the key of a job's lock stays reserved for the job after the lease (default: unchanged)")
	o.flags(s, f, true, false)
	return cmd
}

// with calls do with the locks and the token file, and then closes both.
func (f *tokenFlags) with(cmd *cobra.Command, do func(face, *tokenFile) error) error {
	t, err := f.read(cmd)
	if err != nil {
		return err
	}
	defer t.close()
	locks, err := f.server.sessionFor(scriptLabel())
	if err != nil {
		return err
	}
	defer func() { locks.close(f.server.cleanUp()) }()
	return do(locks, t)
}
