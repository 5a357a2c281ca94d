package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/core"
)

func newPark(s *server) *cobra.Command {
	var o struct {
		tokenFlags
		job     string
		reserve time.Duration
	}
	cmd := &cobra.Command{
		Use:   "park [flags]",
		Short: "reserve a lock for the owner of its token",
		Long: `Park ends the lease of a lock, and reserves the key for --reserve: no work runs under the lock, and no other
caller can take it. Park writes a new token, with which "joblock resume", or Locker.Resume in Go, takes the lock over.
The old token is now good only for repeating this call.

With --job, the key is reserved for a task of asynq. Only a program that resumes the token for that job gets the lock.
Where a keeper runs (package worker), it frees the key if there is no such task a minute later.

With --token-file, the new token takes the place of the old one. Otherwise the new token goes to the standard output.

Exit codes:
  0         the lock is parked
  1         the lock was released, or belongs to another holder
  64        wrong usage; the token cannot be read
  69        Redis did not answer; repeat the call with the same token and the same --job
  77        Redis refused the login of this user, or the user lacks a permission
  79        the lease had already ended; another holder may have the lock`,
		Example: `  joblock park --reserve 1h --token-file "$token" && start-export --account acct-7 <"$token"
  parked=$(printf %s "$token" | joblock park --job default/export-acct-7)`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(true); err != nil {
				return err
			}
			if err := checkJob(o.job); err != nil {
				return err
			}
			if err := checkPeriod("reserve", o.reserve, time.Second); err != nil {
				return err
			}
			return o.with(cmd, func(locks face, t *tokenFile) error {
				if err := t.settled(); err != nil {
					return err
				}
				keepsPipes()
				token, err := locks.park(context.Background(), t.token, o.job, o.reserve)
				if err != nil {
					return err
				}
				if t.path != "" {
					if err := t.write(token); err != nil {
						return &exitError{exitFault, err} // repeating the command returns the same new token
					}
				}
				return o.print(cmd, t, token, tokenReport{
					Key: token.Key(), State: "parked", Fence: core.Token(token).Fence(), ExpiresAt: instant(o.reserve), Job: o.job,
				})
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.job, "job", "", "reserve the key only for the task `QUEUE/ID` of asynq")
	f.DurationVar(&o.reserve, "reserve", time.Hour, "how long the key stays reserved, from 1s to 8784h")
	o.flags(s, f, true, true)
	return cmd
}
