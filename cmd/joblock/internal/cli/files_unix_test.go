//go:build unix

package cli

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// An option that names a file waits for the writer of a pipe no longer than --timeout, and reads no device.
func TestFilesThatNeverEnd(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	const (
		redis    = "--timeout 100ms --redis redis://127.0.0.1:1 "
		sentinel = "--timeout 100ms --redis redis-sentinel://127.0.0.1:1/m "
		secure   = "--timeout 100ms --redis rediss://127.0.0.1:1 "
	)
	for _, name := range []string{pipe, "/dev/zero", "/dev/full", "/dev/tty"} {
		for _, line := range []string{
			"ls " + redis + "--redis-password-file FILE",
			"ls " + sentinel + "--sentinel-password-file FILE",
			"ls " + secure + "--tls-ca FILE",
			"ls " + secure + "--tls-cert FILE --tls-key FILE",
			"ls --timeout 100ms --server http://127.0.0.1:1 --server-token-file FILE",
			"run " + redis + "--redis-password-file FILE key true",
			"acquire " + redis + "--ttl 1m --token-file FILE key",
			"renew " + redis + "--token-file FILE",
			"park " + redis + "--token-file FILE",
			"resume " + redis + "--token-file FILE",
			"release " + redis + "--token-file FILE",
			"token new --name a --scopes read --accounts FILE",
			"token new --name a --scopes read --out FILE",
		} {
			var out strings.Builder
			code := Main(strings.Fields("joblock "+strings.ReplaceAll(line, "FILE", name)), strings.NewReader(""), &out, &out)
			if code != exitUsage || !strings.Contains(out.String(), name) {
				t.Errorf("%s: %d, %s", line, code, &out)
			}
		}
	}
}
