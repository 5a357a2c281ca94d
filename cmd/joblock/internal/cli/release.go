package cli

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/joblock"
)

func newRelease(s *server) *cobra.Command {
	var o struct {
		tokenFlags
		reason string
	}
	cmd := &cobra.Command{
		Use:   "release [flags]",
		Short: "give a lock back by its token",
		Long: `Release frees the lock of a token, and the next in line gets it at once. A parked lock is freed too, unless it has
been resumed. With --token-file, FILE is removed when Redis has answered.

A release with the token from before "joblock park" or "joblock resume" does nothing. So the exit trap of a script
never frees the lock of the job that the script has handed its lock to. A release that is repeated after exit code 69
succeeds if the first one did.

Exit codes:
  0         the lock is free, or the next in line has it
  1         the lock was released before, or belongs to another holder; nothing was freed
  64        wrong usage; the token cannot be read
  69        Redis did not answer; repeat the call, or leave the lock to the end of its lease
  77        Redis refused the login of this user, or the user lacks a permission
  79        the lease had ended before the release: another holder may have had the lock meanwhile`,
		Example: `  trap 'joblock release --token-file "$token"' EXIT
  printf %s "$token" | joblock release --reason "export done"`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(false); err != nil {
				return err
			}
			return o.with(cmd, func(locks face, t *tokenFile) error {
				err := release(locks, t, o.reason)
				if err != nil && codeOf(err) != exitNo && codeOf(err) != exitLost {
					return err
				}
				t.drop(true)
				if err != nil {
					return err
				}
				return o.print(cmd, nil, joblock.Token{}, tokenReport{Key: t.token.Key(), State: "released"})
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.reason, "reason", "", "`TEXT` that people see as the reason, at most 256 bytes")
	o.flags(s, f, true, false)
	return cmd
}

// release releases the lock of t. If the acquire of t got no answer, it releases what that acquire may have taken.
func release(locks face, t *tokenFile, reason string) error {
	if len(t.pending) == 0 || t.pending[0] != "acquire" {
		if err := t.settled(); err != nil {
			return err
		}
		return locks.release(context.Background(), t.token, reason)
	}
	permits := 0
	if len(t.pending) > 1 {
		var err error
		if permits, err = strconv.Atoi(t.pending[1]); err != nil {
			return usage("the second line of the token file is damaged")
		}
	}
	return giveUp(locks, t.token, permits)
}
