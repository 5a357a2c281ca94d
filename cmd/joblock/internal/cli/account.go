package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/files"
	"github.com/joblock/toolkit/internal/ops"
	lockserver "github.com/joblock/toolkit/server"
)

func newToken() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "make bearer tokens for callers of \"joblock serve\"",
		Long:  `Make bearer tokens, and the accounts that "joblock serve --accounts" reads. A lock has a token of its own: see acquire.`,
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unknown command %q; \"joblock token --help\" lists the commands", args[0])
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(newTokenNew())
	return cmd
}

// accountOptions holds the flags of "token new".
type accountOptions struct {
	name     string
	scopes   []string
	prefixes []string
	queues   []string
	expires  string
	accounts string
	out      string
}

// fileAccount is an account as stored in the accounts file.
type fileAccount struct {
	ID       string     `json:"id"`
	SHA256   string     `json:"sha256"`
	Scopes   []string   `json:"scopes"`
	Prefixes []string   `json:"prefixes,omitempty"`
	Queues   []string   `json:"queues,omitempty"`
	Expires  *time.Time `json:"expires,omitempty"`
}

func newTokenNew() *cobra.Command {
	var o accountOptions
	cmd := &cobra.Command{
		Use:   "new --name NAME --scopes SCOPE,... [flags]",
		Short: "make a bearer token, and the account that goes with it",
		Long: `New makes a bearer token for a caller of "joblock serve", and the account that goes with it. The account has a digest of
the token instead of the token itself. The token is shown once and cannot be shown again.

The token is the first line of the standard output, or goes into the file --out, which is new and which only its owner
can read. The account is the second line: add it to the list in the accounts file. With --accounts, new adds it there
itself. A running server reads the changed file within a second.

Scopes: read (see locks, jobs and cron jobs), lock (take and release locks), enqueue (enqueue tasks with locks), operate
(free locks of others), cron (pause and trigger cron jobs), admin (everything).

Exit codes:
  0   the token was made
  64  wrong usage; the accounts file is invalid, or already has the name
  70  a file could not be written
  75  another joblock process is changing the accounts file`,
		Example: `  joblock token new --name billing --scopes lock,read --prefixes billing: --accounts accounts.json --out billing.token
  joblock token new --name ci --scopes lock --expires 720h`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd, time.Now()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "`NAME` of the account: 1 to 32 lower-case letters, digits and - (required)")
	f.StringSliceVar(&o.scopes, "scopes", nil, "`SCOPE,...` of the account (required)")
	f.StringSliceVar(&o.prefixes, "prefixes", nil, "`PREFIX,...`: only keys that begin with one of these, such as billing: with its colon (default: all keys)")
	f.StringSliceVar(&o.queues, "queues", nil, "`QUEUE,...`: tasks only in these queues of asynq (default: all queues)")
	f.StringVar(&o.expires, "expires", "", "`TIME` at which the rights end: a length of time from now such as 720h, a day, or RFC 3339 (default: never)")
	f.StringVar(&o.accounts, "accounts", "", "add the account to `FILE`, which is created if it does not exist")
	f.StringVar(&o.out, "out", "", "write the token into `FILE`, which must not exist")
	return cmd
}

func (o *accountOptions) run(cmd *cobra.Command, now time.Time) error {
	if o.name == "" || len(o.scopes) == 0 {
		return usage("--name and --scopes are required; see \"joblock token new --help\"")
	}
	expires, err := expiry(o.expires, now)
	if err != nil {
		return err
	}
	token, digest, err := lockserver.NewAccountToken(o.name)
	if err != nil {
		return usage("--name: %w", err)
	}
	account := fileAccount{o.name, digest, o.scopes, o.prefixes, o.queues, expires}
	if err := checkAccounts([]any{account}); err != nil {
		return err
	}
	for _, prefix := range o.prefixes {
		if ops.OpenEnded(prefix) {
			fmt.Fprintf(cmd.ErrOrStderr(), "joblock: the prefix %s covers longer names too, such as the key %s; end it with a separator, such as %s\n",
				ops.Shell(prefix), ops.Shell(prefix+"x:1"), ops.Shell(prefix+":"))
		}
	}
	// The token is written before its account: without the token the account would be useless, and the token cannot be
	// made again.
	if o.out != "" {
		if err := writeNew(o.out, token+"\n"); err != nil {
			return err
		}
	}
	if o.accounts != "" {
		if err := addAccount(o.accounts, account); err != nil {
			if o.out != "" {
				_ = os.Remove(o.out)
			}
			return err
		}
	}
	out := cmd.OutOrStdout()
	if o.out == "" {
		if _, err := fmt.Fprintln(out, token); err != nil {
			return &exitError{exitFault, err}
		}
	}
	if o.accounts == "" {
		line, err := json.Marshal(account)
		if err == nil {
			_, err = fmt.Fprintf(out, "%s\n", line)
		}
		return err
	}
	return nil
}

// expiry parses the value of --expires. It returns nil for "".
func expiry(text string, now time.Time) (*time.Time, error) {
	if text == "" {
		return nil, nil
	}
	at := now
	if d, err := time.ParseDuration(text); err == nil {
		at = now.Add(d)
	} else if at, err = parseTime("--expires", text, time.UTC, false); err != nil {
		return nil, usage("--expires is %q, must be a length of time such as 720h, a day such as 2027-01-31, or RFC 3339", text)
	}
	if !at.After(now) {
		return nil, usage("--expires is %q, must be in the future", text)
	}
	at = at.UTC().Truncate(time.Second)
	return &at, nil
}

// writeNew writes a file that must not exist yet, with mode 0600.
func writeNew(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return usage("--out: the file %s already exists", path)
	}
	if err != nil {
		return usage("--out: %w", err)
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(path)
		return &exitError{exitFault, fmt.Errorf("--out: %w", err)}
	}
	return nil
}

// maxAccountsFile is how many bytes of a file of accounts are read, the same as by the server.
const maxAccountsFile = 8 << 20

// addAccount adds an account to a file of accounts. The file is replaced atomically.
func addAccount(path string, account fileAccount) (err error) {
	if path, err = linkedFile("--accounts", path); err != nil {
		return err
	}
	lock, made, err := lockAccounts(path)
	if err != nil {
		return err
	}
	defer lock.Close()
	defer func() {
		if made && err != nil {
			_ = os.Remove(path)
		}
	}()
	text, _, err := files.Read(path, maxAccountsFile, 0)
	if err != nil {
		return usage("--accounts: %w", err)
	}
	var file struct {
		Accounts []any `json:"accounts"`
	}
	if len(bytes.TrimSpace(text)) > 0 {
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.DisallowUnknownFields()
		dec.UseNumber()
		if err := dec.Decode(&file); err != nil {
			return usage("--accounts: %s: %w", path, err)
		}
	}
	file.Accounts = append(file.Accounts, account)
	return writeAccounts(path, file)
}

// lockAccounts opens or creates the file, and locks it against other processes that add accounts.
func lockAccounts(path string) (lock *os.File, made bool, err error) {
	for {
		lock, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if made = err == nil; errors.Is(err, fs.ErrExist) {
			lock, err = os.OpenFile(path, os.O_RDWR, 0)
		}
		if errors.Is(err, fs.ErrNotExist) && isDir(filepath.Dir(path)) {
			continue // another process removed the file
		}
		if err != nil {
			return nil, false, usage("--accounts: %w", err)
		}
		if !lockFile(lock) {
			_ = lock.Close()
			return nil, false, &exitError{exitBusy, fmt.Errorf("--accounts: another joblock process is changing the file %s", path)}
		}
		mine, err := lock.Stat()
		there, gone := os.Stat(path)
		if err == nil && gone == nil && os.SameFile(mine, there) {
			return lock, made, nil
		}
		_ = lock.Close() // another process replaced the file
	}
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// writeAccounts checks the accounts, and replaces the file at path. It keeps the file's mode.
func writeAccounts(path string, file any) error {
	text, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return usage("--accounts: %w", err)
	}
	temp, err := os.CreateTemp(filepath.Dir(path), ".joblock-accounts-*")
	if err != nil {
		return &exitError{exitFault, fmt.Errorf("--accounts: %w", err)}
	}
	defer os.Remove(temp.Name())
	_, err = temp.Write(append(text, '\n'))
	if err = errors.Join(err, temp.Chmod(info.Mode().Perm()), temp.Sync(), temp.Close()); err != nil {
		return &exitError{exitFault, fmt.Errorf("--accounts: %w", err)}
	}
	if _, err := lockserver.OpenAccounts(temp.Name(), slog.New(slog.DiscardHandler)); err != nil {
		return usage("--accounts: %s", strings.ReplaceAll(err.Error(), temp.Name(), path))
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return &exitError{exitFault, fmt.Errorf("--accounts: %w", err)}
	}
	return nil
}

// checkAccounts returns a usage error for accounts that a server would refuse.
func checkAccounts(accounts []any) error {
	dir, err := os.MkdirTemp("", "joblock-accounts-")
	if err != nil {
		return &exitError{exitFault, err}
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "accounts.json")
	text, err := json.Marshal(map[string]any{"accounts": accounts})
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		return &exitError{exitFault, err}
	}
	if _, err := lockserver.OpenAccounts(path, slog.New(slog.DiscardHandler)); err != nil {
		_, reason, _ := strings.Cut(err.Error(), path+": ")
		return usage("%s", reason)
	}
	return nil
}
