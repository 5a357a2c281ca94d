package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// The commands acquire, renew, release, park and resume are for scripts. The token of the lock is all that the script
// keeps between two commands. It is a secret, so no flag has it: it is passed in a file, by the standard input and
// output, or by a file descriptor.

// tokenFlags holds the flags of a command that reads or writes a token.
type tokenFlags struct {
	server *server
	file   string
	fd     int
	format string
}

func (f *tokenFlags) flags(s *server, fs *pflag.FlagSet, reads, writes bool) {
	f.server = s
	what := map[bool]string{
		true:  "`FILE` with the token of the lock; the new token takes the place of the old one (default: standard input and output)",
		false: "`FILE` with the token of the lock (default: standard input)",
	}[writes]
	if !reads {
		what = "write the token into `FILE`, which only its owner can read (default: standard output)"
	}
	fs.StringVar(&f.file, "token-file", "", what)
	f.fd = -1
	if reads {
		fs.IntVar(&f.fd, "token-fd", -1, "read the token from the open file descriptor `N`")
	}
	fs.StringVarP(&f.format, "output", "o", "text", "`FORMAT`: text or json; json has the token only with --token-file -")
}

// Where tokens come from and go to.
const standard = "-"

// check returns an error for flags with invalid values. If writes is true, the command has a new token to write.
func (f *tokenFlags) check(writes bool) error {
	switch {
	case f.format != "text" && f.format != "json":
		return usage("--output is %q, must be text or json", f.format)
	case f.fd != -1 && f.file != "":
		return usage("--token-file and --token-fd exclude each other")
	case f.fd < -1 || f.fd == 1 || f.fd == 2:
		return usage("--token-fd is %d, must be 0, or from 3", f.fd)
	case writes && f.format == "json" && f.file == "":
		return usage("the token has no place to go: give --token-file FILE, or --token-file - for a token in the JSON")
	}
	return nil
}

// read returns the token that the command uses, with its file if it has one. The caller must close the result.
func (f *tokenFlags) read(cmd *cobra.Command) (*tokenFile, error) {
	var from io.Reader
	name := "the standard input"
	switch {
	case f.fd > 0:
		file := os.NewFile(uintptr(f.fd), "token")
		if file == nil {
			return nil, usage("--token-fd is %d, which is not an open file", f.fd)
		}
		defer file.Close()
		from, name = file, fmt.Sprintf("the file descriptor %d", f.fd)
	case f.file != "" && f.file != standard:
		t, err := openTokenFile(f.file, false, f.server.timeout)
		if err == nil && t.token.IsZero() {
			t.close()
			return nil, usage("the file %s has no token", f.file)
		}
		return t, err
	default:
		from = cmd.InOrStdin()
		if file, ok := from.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
			return nil, usage("there is no token: give --token-file or --token-fd, or the token on the standard input")
		}
	}
	t := &tokenFile{}
	if err := t.parse(from, name); err != nil {
		return nil, err
	}
	if t.token.IsZero() {
		return nil, usage("%s has no token", name)
	}
	return t, nil
}

// tokenFile is a token, and the file that it is stored in.
//
// The first line of the file is the token. While the outcome of a call is unknown there is a second line, whose first
// word is the command, so that repeating the command finds what the first call has done.
//
//	acquire        the token names a lock that may be taken
//	acquire N      the same for one of N permits; the token has the key of the limit
//	resume NAME    the token is that of the parked lock; see ops.Resume
//
// The file is replaced atomically. Two processes with the same file would share the lock, so a process locks the file
// until it has written the outcome of its call.
type tokenFile struct {
	path    string // "" if there is no file to write to
	made    bool   // this process created the file
	locked  *os.File
	token   joblock.Token // zero: none yet
	pending []string      // the words of the second line
}

// maxTokenFile bounds what is read of a token file. A token has at most 2048 bytes.
const maxTokenFile = 4096

// openTokenFile opens, locks and reads the file. With create, it creates a missing file. A pipe is only read: then the
// result has no path, and the writer has the time patience to finish.
func openTokenFile(path string, create bool, patience time.Duration) (*tokenFile, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		if create {
			return nil, usage("--token-file: %s is not a regular file", path)
		}
		data, err := readFile("--token-file", path, patience)
		if err != nil {
			return nil, err
		}
		t := &tokenFile{}
		return t, t.parse(strings.NewReader(string(data)), "the file "+path)
	}
	path, err := linkedFile("--token-file", path)
	if err != nil {
		return nil, err
	}
	for {
		t, again, err := tryTokenFile(path, create)
		if !again {
			return t, err
		}
	}
}

// linkedFile returns path or, if path is a symbolic link, the file that the link points to, because replacing a file must
// not replace the link. If that file does not exist, the error is a usage error about flag, because it could not be
// created under the link's name.
func linkedFile(flag, path string) (string, error) {
	if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeSymlink == 0 {
		return path, nil // the error shows when the file is opened
	}
	file, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", usage("%s: %s is a symbolic link that leads to no file: %w", flag, path, err)
	}
	return file, nil
}

// tryTokenFile is openTokenFile for a regular file. again is true if another process has replaced the file in the
// meantime.
func tryTokenFile(path string, create bool) (_ *tokenFile, again bool, err error) {
	t := &tokenFile{path: path}
	t.locked, err = os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) && create {
		t.made = true
		t.locked, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, os.ErrExist) {
			return nil, true, nil
		}
	}
	if err != nil {
		return nil, false, usage("--token-file: %w", err)
	}
	defer func() {
		if err != nil || again {
			t.close()
		}
	}()
	if !lockFile(t.locked) {
		return nil, false, &exitError{exitBusy, fmt.Errorf("--token-file: another joblock process is using the file %s", path)}
	}
	mine, err := t.locked.Stat()
	if err != nil {
		return nil, false, usage("--token-file: %w", err)
	}
	if there, err := os.Stat(path); err != nil || !os.SameFile(mine, there) {
		return nil, true, nil
	}
	if err := private(mine); err != nil {
		return nil, false, usage("--token-file: the file %s %w", path, err)
	}
	return t, false, t.parse(t.locked, "the file "+path)
}

// parse reads the lines of a token file. No error contains the token.
func (t *tokenFile) parse(from io.Reader, name string) error {
	data, err := io.ReadAll(io.LimitReader(from, maxTokenFile+1))
	if err != nil {
		return usage("%s: %w", name, err)
	}
	if len(data) > maxTokenFile {
		return usage("%s has more than %d bytes, which no token has", name, maxTokenFile)
	}
	first, rest, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
	if first == "" {
		return nil
	}
	if t.token, err = joblock.ParseToken(strings.TrimSpace(first)); err != nil {
		return usage("%s has no token: %s", name, textOf(err))
	}
	if t.pending = strings.Fields(rest); len(t.pending) > 2 {
		return usage("%s has more than a token", name)
	}
	return nil
}

// settled returns an error if the outcome of a call with this token is unknown.
func (t *tokenFile) settled() error {
	if len(t.pending) == 0 {
		return nil
	}
	return usage("the answer to \"joblock %s\" with this token is unknown: repeat that command first", t.pending[0])
}

// write replaces the file. After a crash at any time, the file has either the old or the new content.
func (t *tokenFile) write(token joblock.Token, pending ...string) error {
	text, err := token.MarshalText()
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if len(pending) > 0 {
		text = append(text, strings.Join(pending, " ")+"\n"...)
	}
	temp, err := os.CreateTemp(filepath.Dir(t.path), ".joblock-token-*") // for its owner only
	if err != nil {
		return fmt.Errorf("--token-file: %w", err)
	}
	lockFile(temp) // before another process can open the file
	if _, err = temp.Write(text); err == nil {
		err = os.Rename(temp.Name(), t.path)
	}
	if err != nil {
		_ = temp.Close()
		_ = os.Remove(temp.Name())
		return fmt.Errorf("--token-file: %w", err)
	}
	t.close()
	t.locked, t.token, t.pending = temp, token, pending
	return nil
}

// drop removes the token from the file. If this process created the file, or if remove is true, it deletes the file.
func (t *tokenFile) drop(remove bool) {
	if t.path == "" {
		return
	}
	if t.made || remove {
		_ = os.Remove(t.path)
		return
	}
	_ = os.Truncate(t.path, 0)
}

func (t *tokenFile) close() {
	if t.locked != nil {
		_ = t.locked.Close()
	}
}

// tokenReport is what the commands print about the lock. A later version may add fields.
type tokenReport struct {
	Key       string `json:"key"`                  // of the lock; with --limit that of the permit
	State     string `json:"state"`                // held, parked or released
	Fence     int64  `json:"fence,omitempty"`      // of the holding, or of the reservation
	TTLMS     int64  `json:"ttl_ms,omitempty"`     // length of the lease
	ExpiresAt string `json:"expires_at,omitempty"` // end of the lease, or of the reservation, by the clock of this machine
	WaitedMS  *int64 `json:"waited_ms,omitempty"`
	Prior     string `json:"prior,omitempty"` // how the holding before this one ended
	Job       string `json:"job,omitempty"`   // the job that the lock is reserved for
	Token     string `json:"token,omitempty"` // a secret; only with --token-file -
}

func reportOf(g ops.Grant) tokenReport {
	return tokenReport{
		Key: g.Token.Key(), State: joblock.StateHeld.String(), Fence: g.Fence, TTLMS: ops.TTLOf(g.Token).Milliseconds(),
		ExpiresAt: instant(g.Lease), Prior: g.Prior.String(),
	}
}

// instant returns the time d from now, formatted as in the JSON output.
func instant(d time.Duration) string {
	return time.Now().Add(d).UTC().Format("2006-01-02T15:04:05.000Z07:00")
}

// print writes r to the standard output. It adds the token if the token is not zero and no file has it.
func (f *tokenFlags) print(cmd *cobra.Command, t *tokenFile, token joblock.Token, r tokenReport) error {
	text := []byte(nil)
	if !token.IsZero() && (t == nil || t.path == "") {
		var err error
		if text, err = token.MarshalText(); err != nil {
			return err
		}
	}
	out := cmd.OutOrStdout()
	if f.format == "json" {
		r.Token = string(text)
		p := printer{output: output{format: "json"}}
		line, err := p.encode(struct {
			V int `json:"v"`
			tokenReport
		}{1, r})
		if err == nil {
			_, err = fmt.Fprintf(out, "%s\n", line)
		}
		return err
	}
	if text == nil {
		return nil
	}
	_, err := fmt.Fprintf(out, "%s\n", text)
	return err
}

// keepsPipes makes a write to a closed pipe an error. By default such a write to the standard output ends the process,
// and the lock that was just taken would stay.
func keepsPipes() { signal.Ignore(syscall.SIGPIPE) }

// interrupts are the signals that end a wait for a lock.
var interrupts = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// interruptible returns a context that is cancelled by end, or by the first of the signals in interrupts. came returns
// the number of that signal, or 0. Later signals are ignored, even after end, so that the exit code says what was done.
func interruptible() (ctx context.Context, came func() int, end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	caught := make(chan os.Signal, 1)
	for _, s := range interrupts {
		if !signal.Ignored(s) {
			signal.Notify(caught, s)
		}
	}
	var number atomic.Int32
	go func() {
		select {
		case s := <-caught:
			if s, ok := s.(syscall.Signal); ok {
				number.Store(int32(s))
			}
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() int { return int(number.Load()) }, cancel
}

// sessionFor opens the locks for a command by token.
func (s *server) sessionFor(holder string) (face, error) {
	return s.locks(joblock.Config{MaxTTL: driver.MaxPeriod, Holder: holder, CallTimeout: s.callTimeout()})
}

// scriptLabel returns the default label of the holder: the machine, and the process that started joblock.
func scriptLabel() string { return hostname() + ":" + strconv.Itoa(os.Getppid()) }

// checkPeriod returns a usage error if the value of the flag with this name is out of bounds. The value 0 means that the
// flag was not given.
func checkPeriod(name string, d, least time.Duration) error {
	if d != 0 && (d < least || d > driver.MaxPeriod) {
		return usage("--%s is %s, must be from %s to %s", name, d, least, driver.MaxPeriod)
	}
	return nil
}

// checkJob returns a usage error for a job that is not QUEUE/ID. The text "" means no job.
func checkJob(job string) error {
	if _, _, ok := envelope.ParseJob(job); job != "" && !ok {
		return usage("--job is %q, must be QUEUE/ID, with a / in the name of the queue written as %%2F and a %% as %%25", job)
	}
	return nil
}
