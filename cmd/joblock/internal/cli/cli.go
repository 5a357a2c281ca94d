// Package cli has the commands of the command line. The comment of cmd/joblock describes the commands.
package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Main runs the command in args, whose first element is the name of the program, and returns the exit code.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var s server
	root := newRoot(&s)
	root.SetArgs(args[1:])
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(context.Background())
	code := codeOf(err)
	if e, silent := err.(*exitError); err != nil && !(silent && e.err == nil) {
		fmt.Fprintf(stderr, "joblock: %s\n", visible(s.textOf(cmd, err)))
	}
	return code
}

func newRoot(s *server) *cobra.Command {
	root := &cobra.Command{
		Use:   "joblock",
		Short: "locks in Redis for scripts, and for people on call",
		Long: `Locks in Redis for shell scripts, for programs in other languages, and for people on call.

Data goes to the standard output, everything else to the standard error.

Exit codes:
  0         yes, done
  1         Redis has answered, and the answer is no
  64        wrong usage
  69        Redis did not answer; whether the call took effect is unknown
  70        a fault of joblock itself
  75        another holder has the lock; the same call may succeed later
  77        Redis refused the login of this user, or the user lacks a permission
  79        the lock was lost: the lease had ended; with "run", before the command had ended
  126, 127  run: the command cannot be executed; there is no such command
  128+n     the signal n ended the command, or ended the wait for the lock`,
		Args:          cobra.ArbitraryArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unknown command %q; \"joblock help\" lists the commands", args[0])
			}
			return cmd.Help()
		},
	}
	s.flags(root.PersistentFlags())
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%w; see \"%s --help\"", err, cmd.CommandPath())
	})
	root.AddCommand(newRun(s), newAcquire(s), newRenew(s), newRelease(s), newPark(s), newResume(s),
		newLs(s), newGet(s), newExplain(s), newWaiters(s), newPermits(s), newWatch(s), newTop(s), newEvents(s), newHistory(s), newForceRelease(s), newAudit(s),
		newCron(s), newJobs(s), newLimits(s), newOutbox(s), newDoctor(s), newPing(s), newDemo(s), newServe(s), newToken(), newExport(), newVersion())
	root.InitDefaultCompletionCmd()
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, cmd := range root.Commands() {
			if slices.Contains(strings.Fields(g.commands), cmd.Name()) {
				cmd.GroupID = g.title
			}
		}
	}
	return root
}

// groups are the groups of commands, as the help lists them. The other commands come last.
var groups = []struct{ title, commands string }{
	{`For people on call; begin with "explain KEY", "ls" or "doctor"`, "explain ls get waiters permits watch top jobs limits cron outbox doctor audit force-release"},
	{"For scripts", "run acquire renew release park resume"},
}

// exactly returns a check for this number of arguments. The error uses their names.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usage("%s is missing; see \"%s --help\"", names[len(args)], cmd.CommandPath())
		}
		if len(args) > len(names) {
			return usage("there is one argument too many: %q; see \"%s --help\"", args[len(names)], cmd.CommandPath())
		}
		return nil
	}
}

// atMost returns a check for at most n arguments. The error uses their names.
func atMost(n int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return usage("there is one argument too many: %q; %s is all; see \"%s --help\"", args[n], names, cmd.CommandPath())
		}
		return nil
	}
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the version",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version())
			return err
		},
	}
}

// version returns "joblock", the version of the module, the revision that it was built from if that is known, and the
// version of Go.
func version() string {
	text := "joblock (unknown build)"
	if info, ok := debug.ReadBuildInfo(); ok {
		text = "joblock " + info.Main.Version
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				text += " " + s.Value
			}
		}
		text += " " + info.GoVersion
	}
	return text
}

// hostname returns the name of this machine, for labels.
func hostname() string {
	if host, err := os.Hostname(); err == nil {
		return host
	}
	return "unknown-host"
}
