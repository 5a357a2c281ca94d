//go:build unix

package server

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A file of accounts may come through a pipe. A file that never ends, or is none, is an error.
func TestAccountsThatAreNoFile(t *testing.T) {
	const text = `{"accounts": [{"id": "a", "sha256": "` +
		`0000000000000000000000000000000000000000000000000000000000000000", "scopes": ["read"]}]}`
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() { wrote <- os.WriteFile(pipe, []byte(text), 0) }()
	if _, err := OpenAccounts(pipe, nil); err != nil {
		t.Errorf("a pipe with accounts: %v", err)
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/dev/zero", "/dev/full", os.DevNull, filepath.Dir(pipe)} {
		if _, err := OpenAccounts(name, nil); err == nil || !strings.Contains(err.Error(), "regular file") {
			t.Errorf("%s: %v, want an error that says what it is", name, err)
		}
	}
}
