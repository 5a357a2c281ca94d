//go:build unix

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file with a secret that others can read is refused, if its owner calls, and root is warned.
func TestSecretThatOthersCanRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	owner := os.Geteuid()
	for _, as := range []int{0, 1000} {
		if owner == 0 {
			if err := os.Chown(file, as, -1); err != nil {
				t.Fatal(err)
			}
		} else if as = owner; as == 0 {
			continue
		}
		for mode, open := range map[os.FileMode]bool{0o600: false, 0o400: false, 0o644: true, 0o640: true, 0o606: true, 0o666: true} {
			if err := os.Chmod(file, mode); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(file)
			if err != nil {
				t.Fatal(err)
			}
			if why, refused := exposed(info, as); (why != "") != open || refused != (open && as != 0) {
				t.Errorf("mode %#o for user %d: %q, refused %t", mode, as, why, refused)
			}
			if why, refused := exposed(info, as+1); why != "" || refused {
				t.Errorf("mode %#o of another user's file: %q, refused %t", mode, why, refused)
			}
		}
	}
}

// No command takes a password on the command line, also one that asks no database of asynq.
func TestNoPasswordOfAsynqOnTheCommandLine(t *testing.T) {
	for _, args := range [][]string{
		{"run", "key", "true"}, {"acquire", "key", "--ttl", "1m"}, {"ls"}, {"ping"}, {"doctor"}, {"jobs", "ls"},
	} {
		var out strings.Builder
		args = append([]string{"joblock", args[0], "--redis", "redis://127.0.0.1:1", "--asynq", "redis://:geheim@127.0.0.1:1"}, args[1:]...)
		if args[1] == "jobs" {
			args = []string{"joblock", "jobs", "ls", "--redis", "redis://127.0.0.1:1", "--asynq", "redis://:geheim@127.0.0.1:1"}
		}
		code := Main(args, strings.NewReader(""), &out, &out)
		if code != exitUsage || !strings.Contains(out.String(), "$JOBLOCK_ASYNQ") || strings.Contains(out.String(), "geheim") {
			t.Errorf("%q: %d, %s", args[1:], code, &out)
		}
	}
}
