package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/joblock/toolkit/internal/cmdline"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// forceOptions holds the flags and the argument of "force-release".
type forceOptions struct {
	output
	server *server
	key    string
	fence  int64
	given  bool // --fence was given
	reason string
	ifIdle bool
	yes    bool
}

func newForceRelease(s *server) *cobra.Command {
	o := forceOptions{server: s}
	cmd := &cobra.Command{
		Use:   "force-release [flags] KEY",
		Short: "free a key that is held, after a look at what will happen",
		Long: `Force-release frees KEY from any holder. The next in line gets the key in the same step. A command under "joblock run"
is killed at once (SIGKILL), with no time to clean up. Any other live holder is not stopped: it notices at its next
renewal, and until then two holders may work at the same time.

If KEY is that of a limit, force-release frees nothing, and shows the command for each permit that is taken.

The fence says which holding you mean. If KEY has another fence by now, nothing is freed: the new holder keeps the
lock. Without --fence, force-release shows who has KEY, and the command with the present fence, and frees nothing.

Before anything is freed, force-release shows who has KEY, and what will happen. On a terminal you then type KEY.
Without a terminal, give --yes. What was done, by whom and why, is recorded in Redis; without the record nothing is
freed.

With --if-idle, KEY is freed only if no work is running under the lock. Use this gentler form for a lock that is
reserved for a job, or whose holder has died.

Exit codes:
  0   the key was freed
  1   nothing was freed: the key is free, has another fence by now, or you have typed another text
  64  wrong usage; --fence or --yes is missing
  69  Redis did not answer; unless the message says that nothing was freed, this is unknown
  75  with --if-idle: work is running under the lock; nothing was freed
  77  Redis refused the login of this user, or the user lacks a permission`,
		Example: `  joblock force-release export:acct-7
  joblock force-release --fence 1763612345678901 --reason "host is gone, INC-7" export:acct-7
  joblock force-release --fence 1763612345678901 --reason "cleanup" --if-idle --yes export:acct-7`,
		Args: exactly("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.key, o.given = args[0], cmd.Flags().Changed("fence")
			return o.run(cmd)
		},
	}
	f := cmd.Flags()
	f.Int64Var(&o.fence, "fence", 0, "the `FENCE` of the holding that you mean, as \"joblock get\" shows it")
	f.StringVar(&o.reason, "reason", "", "`TEXT` for others that says why, from 1 to 256 bytes")
	f.BoolVar(&o.ifIdle, "if-idle", false, "free the key only while no holder runs under the lock")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation")
	o.flags(f)
	return cmd
}

func (o *forceOptions) check(askable bool) error {
	switch {
	case !o.given:
		return nil // the command only shows the lock
	case o.fence < 1 || o.fence > driver.MaxFence:
		return usage("--fence is %d, must be from 1 to %d", o.fence, int64(driver.MaxFence))
	case o.reason == "":
		return usage("--reason is missing: others want to know why; see \"joblock force-release --help\"")
	case len(o.reason) > driver.MaxLabelBytes:
		return usage("--reason has %d bytes, at most %d are allowed", len(o.reason), driver.MaxLabelBytes)
	case !o.yes && !askable:
		return usage("cannot ask, because the standard input or the standard error is not a terminal: give --yes")
	}
	return nil
}

func (o *forceOptions) run(cmd *cobra.Command) error {
	p, err := o.printer(cmd)
	if err != nil {
		return err
	}
	stdin, _ := cmd.InOrStdin().(*os.File)
	askable := stdin != nil && term.IsTerminal(int(stdin.Fd())) && p.talkTTY
	if err := o.check(askable); err != nil {
		return err
	}
	d, err := o.server.desk()
	if err != nil {
		return err
	}
	defer d.close()
	e, err := o.look(cmd.Context(), d)
	if err != nil {
		return err
	}
	if err := o.mayForce(p, e); err != nil {
		return err
	}
	if !o.yes {
		p.say("Type the key to free it:")
		line, err := bufio.NewReader(stdin).ReadString('\n')
		if line = strings.TrimRight(line, "\r\n"); line != o.key && line != safe(o.key) {
			return &exitError{exitNo, errors.Join(errors.New("nothing was freed: that was not the key"), err)}
		}
	}
	return o.force(cmd.Context(), d, p)
}

// look reads the key, within --timeout.
func (o *forceOptions) look(ctx context.Context, d *desk) (ops.Explanation, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.server.timeout, errSilent)
	defer cancel()
	return d.Explain(ctx, o.key)
}

// mayForce prints the state of the key and what a forced release will do. It returns an error if the key must not be
// freed.
func (o *forceOptions) mayForce(p *printer, e ops.Explanation) error {
	l := e.Lock
	for _, text := range e.Text {
		p.say("%s", text)
	}
	if !l.Locked() {
		for _, a := range e.Actions {
			if text := cmdline.Of(a); text != "" {
				p.say("%s\n  %s", a.Effect, text)
			}
		}
		if len(e.Actions) > 0 {
			return &exitError{exitNo, fmt.Errorf("%s: nothing was freed, because a %s has no holder of its own: free one of the keys above", safe(o.key), l.Permits.Kind)}
		}
		return &exitError{exitNo, fmt.Errorf("%s: nothing was freed, because the key is free", safe(o.key))}
	}
	force, found := forceAction(e)
	if !o.given {
		p.say("What frees it: %s", e.Frees.Text)
		if !found {
			return usage("--fence is missing: %d is the present fence", l.Fence)
		}
		return usage("--fence is missing; to free this lock:\n  %s", cmdline.Of(force))
	}
	if l.Fence != o.fence {
		return &exitError{exitNo, fmt.Errorf("%s: nothing was freed, because the fence is %d by now, and not %d", safe(o.key), l.Fence, o.fence)}
	}
	if o.ifIdle && l.State == joblock.StateHeld {
		return &exitError{exitBusy, fmt.Errorf("%s: nothing was freed, because a holder runs under the lock", safe(o.key))}
	}
	p.say("What will happen: %s", force.Effect)
	if force.Danger != "" {
		p.say("Danger: %s", force.Danger)
	}
	return nil
}

// forceAction returns the action of e that is a forced release, if there is one.
func forceAction(e ops.Explanation) (ops.Offer, bool) {
	i := slices.IndexFunc(e.Actions, func(a ops.Offer) bool { return a.Name == ops.ActForce || a.Name == ops.ActFreeIdle })
	if i < 0 {
		return ops.Offer{}, false
	}
	return e.Actions[i], true
}

func (o *forceOptions) force(ctx context.Context, d *desk, p *printer) error {
	ctx, cancel := context.WithTimeoutCause(ctx, o.server.timeout, errSilent)
	defer cancel()
	done, err := d.Act(ctx, ops.ForceRelease{Key: o.key, Fence: o.fence, IfIdle: o.ifIdle, Reason: o.reason})
	for _, text := range done.Problems {
		p.say("%s", text)
	}
	switch {
	case errors.Is(err, ops.ErrNotRecorded) && codeOf(err) == exitFault:
		code := exitUnavailable
		if ops.Denied(err) {
			code = exitDenied
		}
		return &exitError{code, err}
	case err != nil:
		return err
	}
	return printOne(p, []column[ops.ActionResult]{
		{head: "KEY", text: func(f ops.ActionResult) string { return f.Before.Key }},
		{head: "FREED FROM", text: func(f ops.ActionResult) string { return f.Before.Holder }},
		{head: "JOB", text: func(f ops.ActionResult) string { return f.Before.Job }},
		{head: "FENCE", text: func(f ops.ActionResult) string { return fmt.Sprint(f.Before.Fence) }},
		{head: "NOW", text: func(f ops.ActionResult) string { return f.After.State.String() }},
		{head: "HOLDER NOW", text: func(f ops.ActionResult) string {
			if !f.After.Locked() {
				return ""
			}
			return f.After.Holder
		}},
		{head: "RECORD", text: func(f ops.ActionResult) string { return f.Audit }},
	}, done)
}

// whoami returns the name of the user for the record of actions. Under sudo, that is the user who called sudo.
func whoami() string {
	name := os.Getenv("USER")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if sudo := os.Getenv("SUDO_USER"); sudo != "" && os.Geteuid() == 0 {
		name = sudo + " as " + name
	}
	return cmp.Or(name, "unknown user")
}
