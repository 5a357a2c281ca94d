package cli

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/spf13/cobra"
)

func newResume(s *server) *cobra.Command {
	var o struct {
		tokenFlags
		job     string
		ttl     time.Duration
		reserve time.Duration
		holder  string
	}
	cmd := &cobra.Command{
		Use:   "resume [flags]",
		Short: "take a parked lock over by its token",
		Long: `Resume takes the lock of a token: a lock that "joblock park" or a Go program has parked, or one whose holder has died.
Resume writes a new token. Only "joblock renew" renews the lock.

With --token-file, the new token takes the place of the old one, and a call that is repeated after exit code 69 gets
the lock of the first call. Otherwise the new token goes to the standard output, and a lock whose answer was lost can
be resumed when its lease has ended.

Exit codes:
  0         the lock is taken over
  1         the lock was released, belongs to another holder, or is reserved for another job
  64        wrong usage; the token cannot be read
  69        Redis did not answer; whether the lock is taken over is unknown
  75        another process has resumed the token, and is still running
  77        Redis refused the login of this user, or the user lacks a permission`,
		Example: `  joblock resume --token-file "$token"
  token=$(joblock resume --ttl 5m <parked.token)`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(true); err != nil {
				return err
			}
			if err := checkJob(o.job); err != nil {
				return err
			}
			if err := checkPeriod("ttl", o.ttl, time.Second); err != nil {
				return err
			}
			if err := checkPeriod("reserve", o.reserve, time.Second); err != nil {
				return err
			}
			return o.with(cmd, func(locks face, t *tokenFile) error {
				holder := o.holder
				if holder == "" {
					holder = scriptLabel()
				}
				name, err := resumption(t)
				if err != nil {
					return err
				}
				keepsPipes()
				g, err := locks.resume(context.Background(), t.token, name, takeover{o.job, holder, o.ttl, o.reserve})
				if err != nil {
					if t.path != "" && codeOf(err) != exitUnavailable {
						_ = t.write(t.token) // the token is still valid
					}
					return err
				}
				if t.path != "" {
					if err := t.write(g.Token); err != nil {
						return &exitError{exitFault, err} // repeating the command finds the lock
					}
				}
				r := reportOf(g)
				r.Job = o.job
				return o.print(cmd, t, g.Token, r)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.job, "job", "", "resume as the task `QUEUE/ID` of asynq, for which the key is reserved")
	f.DurationVar(&o.ttl, "ttl", 0, "how long the lock lasts, and again after each renewal: from 1s to 8784h (default: as in \"acquire\")")
	f.DurationVar(&o.reserve, "reserve", 0, "how long the key stays reserved after the lease (default: as the park has set it)")
	f.StringVar(&o.holder, "holder", "", "`LABEL` by which people see who has the lock (default host:pid of the script)")
	o.flags(s, f, true, true)
	return cmd
}

// resumption returns a name for this Resume, after writing the name to the file of t. Without a file the name is "".
func resumption(t *tokenFile) (name string, err error) {
	if t.path == "" {
		return "", t.settled()
	}
	if len(t.pending) == 2 && t.pending[0] == "resume" {
		return t.pending[1], nil
	}
	if err := t.settled(); err != nil {
		return "", err
	}
	name = rand.Text()
	if err := t.write(t.token, "resume", name); err != nil {
		return "", &exitError{exitFault, err}
	}
	return name, nil
}
