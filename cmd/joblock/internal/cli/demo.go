package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/cmd/joblock/internal/demo"
	"github.com/joblock/toolkit/internal/keyspace"
)

func newDemo(s *server) *cobra.Command {
	port := 0
	cmd := &cobra.Command{
		Use:   "demo [flags]",
		Short: "run a Redis with locks, waiters and jobs, to try commands on",
		Long: `Demo runs a small company in this process: an embedded Redis with locks, lines of waiters, permits, jobs of asynq
and cron jobs. It needs no service, and all of it is gone when demo ends. Ctrl-C ends demo.

Demo prints a line for the shell in another terminal. Then every command can be tried there. These locks are worth a
look:
  deploy:shop       has a holder and a waiter, who take turns
  report:monthly    its holder has died; the lock is free when the lease ends
  import:prices     is reserved for a job that does not exist; the keeper frees it
  geocoder          three permits for five callers
  export:acct-3     its job fails once; export:acct-5: its job always fails
  webhooks:shop-2   a line of jobs that grows
  stuck:invoices    its job does not end
  reindex:catalog   hangs every two minutes, until its lock is forced

"joblock cron ls" has cron jobs, of which "rates" fails now and then; "joblock events" and "joblock audit" show what
happens, and what was done about it.

Only this machine can reach the Redis, which has no password.

Exit codes:
  0   a signal has ended demo
  64  wrong usage
  70  the demo did not start, or parts of it did not end`,
		Example: `  joblock demo
  joblock demo --port 6399`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.url != "" || s.prefix != keyspace.DefaultPrefix {
				return usage("demo has a Redis of its own, so --redis and --prefix make no sense with it")
			}
			if port < 0 || port > 65535 {
				return usage("--port is %d, must be from 1 to 65535, or 0 for a free one", port)
			}
			ctx, _, end := interruptible()
			defer end()
			err := demo.Run(ctx, port, func(url string) {
				fmt.Fprintf(cmd.OutOrStdout(), "export %s=%s\n", envRedis, url)
				fmt.Fprintf(cmd.ErrOrStderr(), "joblock: the demo is running; paste the line above into the shell of another terminal, and try \"joblock help\" there; Ctrl-C ends the demo\n")
			})
			if err != nil {
				return &exitError{exitFault, fmt.Errorf("demo: %w", err)}
			}
			return nil
		},
	}
	cmd.Flags().IntVar(&port, "port", 0, "port of the Redis on 127.0.0.1 (default: a free one)")
	return cmd
}
