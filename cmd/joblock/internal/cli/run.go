package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/joblock/driver"
)

// graces is how many grace periods a lease must at least have. A lease is renewed after a third, which leaves a third for
// retries of the renewal and a third for the command to end.
const graces = 3

// runOptions holds the flags and the arguments of "run".
type runOptions struct {
	server *server

	key  string
	argv []string // the command; with --shell the text of a shell command

	noWait   bool
	wait     waitFlag
	busyCode int
	limit    int
	ttl      time.Duration
	grace    time.Duration
	maxHold  time.Duration
	holder   string
	repeat   bool
	leave    bool
	report   string
	shell    bool
	quiet    bool
	verbose  bool
}

// waitFlag is a duration such as 1m30s, or a number of seconds such as 90 or 2.5.
type waitFlag struct {
	set bool
	d   time.Duration
}

func (w *waitFlag) String() string {
	if !w.set {
		return ""
	}
	return w.d.String()
}

func (w *waitFlag) Type() string { return "duration" }

func (w *waitFlag) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		seconds, bad := strconv.ParseFloat(text, 64)
		if bad != nil {
			return fmt.Errorf("%q is neither a duration such as 1m30s nor a number of seconds", text)
		}
		d = time.Duration(min(seconds, driver.MaxPeriod.Seconds()) * float64(time.Second))
	}
	if !(d >= 0) {
		return fmt.Errorf("%s must not be negative", text)
	}
	w.set, w.d = true, d
	return nil
}

func newRun(s *server) *cobra.Command {
	o := runOptions{server: s}
	cmd := &cobra.Command{
		Use:   "run [flags] KEY [--] COMMAND [ARGUMENT...]",
		Short: "run a command while it has a lock",
		Long: `Run takes the lock on KEY, runs COMMAND, and releases the lock when COMMAND and all processes that COMMAND has
left behind have ended. With --leave, as with "flock -o", it releases the lock when COMMAND has ended, and leaves a
daemon that COMMAND has started running without the lock.

The lock is renewed while COMMAND runs. COMMAND is stopped, with all that it has started, when its lock ends early:
  Redis cannot be reached, --max-hold   SIGTERM, and SIGKILL --grace later, before the lease ends
  an operator forces the release        SIGKILL at once, with no time to clean up
  Redis has lost the lock               SIGKILL at once

So COMMAND is dead before another holder gets the lock, with three exceptions. After a forced release, the next holder may
begin some instants before COMMAND is dead. A machine or a process may be paused at that moment. And COMMAND may be
only the client of work that runs elsewhere, as with docker run, ssh, systemd-run and kubectl exec: the client dies, and
the work goes on. So run joblock where the work runs:
  docker run IMAGE joblock run KEY -- ...    ssh HOST joblock run KEY -- ...    kubectl exec POD -- joblock run KEY -- ...
  joblock run KEY -- systemd-run --scope ...    (with --scope the work stays a child of joblock)
For what remains, send JOBLOCK_FENCE along to the resource that the lock protects, and let the resource refuse smaller
numbers.

COMMAND has the standard input, the terminal, and these variables:
  JOBLOCK_KEY, JOBLOCK_FENCE, JOBLOCK_TTL_MS, JOBLOCK_HOLDER

INT, TERM, HUP, QUIT, USR1, USR2, WINCH and CONT go to the process group of COMMAND. A second INT or TERM kills
COMMAND and everything that COMMAND has started. While "run" waits for the lock, INT, TERM, HUP and QUIT end the wait.

The exit code is that of COMMAND, or 128+n if the signal n has ended COMMAND. The codes of "run" itself:
  64        wrong usage
  69        Redis did not answer within --timeout, so COMMAND did not run
  75        another holder has the lock (--no-wait), or had it throughout --wait; -E sets another code
  77        Redis refused the login of this user, or the user lacks a permission
  79        the lock was lost, and COMMAND was stopped
  126, 127  COMMAND cannot be executed; there is no such command
  128+n     the signal n ended the wait for the lock`,
		Example: `  joblock run export:acct-7 -- ./export.sh acct-7
  joblock run --wait 10m deploy:shop -- make deploy
  joblock run --no-wait nightly -- ./nightly.sh || test $? = 75
  joblock run --limit 3 geocoder -- ./geocode.py
  joblock run --repeat leader:mailer -- ./mailer`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch len(args) {
			case 0:
				return usage("KEY is missing; see \"joblock run --help\"")
			case 1:
				return usage("COMMAND is missing; see \"joblock run --help\"")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.key, o.argv = args[0], args[1:]
			if o.argv[0] == "--" {
				o.argv = o.argv[1:]
			}
			return run(&o)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // what follows KEY belongs to COMMAND
	f.BoolVarP(&o.noWait, "no-wait", "n", false, "do not wait for the lock")
	f.VarP(&o.wait, "wait", "w", "wait for the lock for at most `DURATION`, such as 90 or 1m30s (default: without bound)")
	f.IntVarP(&o.busyCode, "busy-code", "E", exitBusy, "exit `CODE` if the lock has another holder")
	f.IntVarP(&o.limit, "limit", "l", 0, "let up to `N` commands have KEY at a time; use the same N everywhere")
	f.DurationVar(&o.ttl, "ttl", 30*time.Second, "length of the lease: how long the lock outlives this machine")
	f.DurationVar(&o.grace, "grace", 5*time.Second, "time from SIGTERM to SIGKILL, at most a third of --ttl")
	f.DurationVar(&o.maxHold, "max-hold", 0, "stop COMMAND after about `DURATION` (default: without bound)")
	f.StringVar(&o.holder, "holder", "", "`LABEL` by which people see who has the lock (default host:pid and the name of COMMAND)")
	f.BoolVar(&o.repeat, "repeat", false, "when COMMAND has ended or the lock was lost, stand in line again, until a signal ends joblock")
	f.BoolVarP(&o.leave, "leave", "o", false, "release the lock when COMMAND has ended, although processes that COMMAND has left behind still run")
	f.StringVar(&o.report, "report", "", "write what happened to the lock and to COMMAND into `FILE`, as JSON")
	f.BoolVarP(&o.shell, "command", "c", false, "give COMMAND, a single argument, to /bin/sh -c")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "write only errors to the standard error")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "say who has the lock, and how long the wait took")
	return cmd
}

// check returns an error for values out of bounds, and for a COMMAND that does not exist or cannot be executed, so that
// such a run never takes the lock.
func (o *runOptions) check() error {
	if len(o.argv) == 0 {
		return usage("COMMAND is missing; see \"joblock run --help\"")
	}
	switch {
	case o.grace < 0:
		return usage("--grace is %s, must not be negative", o.grace)
	case o.ttl < graces*o.grace:
		return usage("--ttl is %s, must be at least three times --grace, which is %s", o.ttl, o.grace)
	case o.ttl < time.Second:
		return usage("--ttl is %s, must be at least 1s", o.ttl)
	case o.noWait && o.wait.set:
		return usage("--no-wait and --wait exclude each other")
	case o.repeat && (o.noWait || o.wait.set):
		return usage("--repeat waits without bound, so --no-wait and --wait make no sense with it")
	case o.repeat && o.leave:
		return usage("--repeat and --leave exclude each other: each run would leave its processes behind")
	case o.busyCode < 0 || o.busyCode > 255:
		return usage("--busy-code is %d, must be from 0 to 255", o.busyCode)
	case o.limit < 0:
		return usage("--limit is %d, must not be negative", o.limit)
	case o.maxHold < 0 || o.maxHold > driver.MaxPeriod:
		return usage("--max-hold is %s, must be from 0 to %s", o.maxHold, driver.MaxPeriod)
	case o.maxHold > 0 && o.maxHold < o.ttl:
		return usage("--max-hold is %s, must be at least --ttl, which is %s", o.maxHold, o.ttl)
	case o.shell && len(o.argv) > 1:
		return usage("--command takes one argument, not %d", len(o.argv))
	}
	if a, err := o.server.api(os.Getenv); err != nil {
		return err
	} else if a == nil {
		if _, _, err := o.server.target(os.Getenv); err != nil {
			return err
		}
	}
	if o.shell {
		o.argv = []string{"/bin/sh", "-c", o.argv[0]}
	}
	if _, err := lookPath(o.argv[0]); err != nil {
		return err
	}
	return nil
}

// lookPath returns the file of the program called name, or an error with exitNotFound or exitNotRunnable.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot):
		return path, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "", &exitError{exitNotFound, fmt.Errorf("%s: no such command", name)}
	}
	return "", &exitError{exitNotRunnable, fmt.Errorf("%s: cannot be executed: %w", name, errors.Unwrap(err))}
}

// label returns the holder's label. The parameter pid is the pid of the process that the user has started.
func (o *runOptions) label(pid int) string {
	if o.holder != "" {
		return o.holder
	}
	text := fmt.Sprintf("%s:%d %s", hostname(), pid, filepath.Base(o.argv[0]))
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, text)
	return strings.ToValidUTF8(text[:min(len(text), driver.MaxLabelBytes)], "")
}

// environ returns the environment of COMMAND: joblock's own without secrets, and variables about the lock.
func (o *runOptions) environ(env []string, lock held, holder string) []string {
	out := make([]string, 0, len(env)+4)
	for _, pair := range env {
		name, value, _ := strings.Cut(pair, "=")
		switch name {
		case "JOBLOCK_KEY", "JOBLOCK_FENCE", "JOBLOCK_TTL_MS", "JOBLOCK_HOLDER", envHolder:
			continue
		case envRedis, envAsynq:
			pair = name + "=" + withoutPassword(value)
		}
		out = append(out, pair)
	}
	return append(out,
		"JOBLOCK_KEY="+o.key,
		"JOBLOCK_FENCE="+strconv.FormatInt(lock.Fence(), 10),
		"JOBLOCK_TTL_MS="+strconv.FormatInt(o.ttl.Milliseconds(), 10),
		"JOBLOCK_HOLDER="+holder,
	)
}

// withoutPassword returns the URL of a Redis without its password, or "" if it is unclear where the password ends.
func withoutPassword(text string) string {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || scheme != "unix" && !passwordIsEncoded(rest) {
		return ""
	}
	if before, query, ok := strings.Cut(rest, "?"); ok && scheme != "unix" {
		values, err := url.ParseQuery(query)
		if err != nil {
			return ""
		}
		if rest = before; values.Get(querySentinelUser) != "" {
			rest += "?" + querySentinelUser + "=" + url.QueryEscape(values.Get(querySentinelUser))
		}
	}
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	at := strings.LastIndex(rest[:end], "@")
	if at < 0 {
		return scheme + "://" + rest
	}
	user, _, _ := strings.Cut(rest[:at], ":")
	if user != "" {
		user += "@"
	}
	return scheme + "://" + user + rest[at+1:]
}

// report is what --report writes. A later version may add fields.
type report struct {
	V        int    `json:"v"` // 1
	Key      string `json:"key"`
	Acquired bool   `json:"acquired"`
	WaitedMS int64  `json:"waited_ms"`
	Fence    int64  `json:"fence,omitempty"`
	Ran      bool   `json:"ran"`              // COMMAND was started
	Exit     int    `json:"exit"`             // the exit code of joblock
	Signal   int    `json:"signal,omitempty"` // the signal that ended COMMAND, or the wait
	Lost     bool   `json:"lost"`
	Reason   string `json:"reason,omitempty"` // why COMMAND did not run, or was stopped
}

func (o *runOptions) writeReport(r report) error {
	if o.report == "" {
		return nil
	}
	text, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(o.report, append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("--report: %w", err)
	}
	return nil
}
