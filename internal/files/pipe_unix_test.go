//go:build unix

package files_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/files"
)

// A pipe is read until its writers have closed it, and never beyond the patience of the caller.
func TestReadPipe(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := files.Read(name, 100, 0); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("without patience: %v", err)
	}
	if _, _, err := files.Read(name, 100, 50*time.Millisecond); err == nil || !strings.Contains(err.Error(), "within 50ms") {
		t.Errorf("without a writer: %v", err)
	}

	silent, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := files.Read(name, 100, 50*time.Millisecond); err == nil || !strings.Contains(err.Error(), "within 50ms") {
		t.Errorf("a writer that neither writes nor closes: %v", err)
	}
	if err := silent.Close(); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		most int
		want string
	}{{8, "one\ntwo\n"}, {7, ""}} {
		wrote := make(chan error, 1)
		go func() {
			w, err := os.OpenFile(name, os.O_WRONLY, 0) // waits for the reader
			if err == nil {
				_, err = w.WriteString("one\n")
			}
			if err == nil {
				_, err = w.WriteString("two\n")
			}
			if err == nil {
				err = w.Close()
			}
			wrote <- err
		}()
		text, _, err := files.Read(name, c.most, time.Minute)
		if string(text) != c.want || (err == nil) != (c.want != "") {
			t.Errorf("at most %d bytes: %q, %v", c.most, text, err)
		}
		if err := <-wrote; err != nil {
			t.Error(err)
		}
	}
}

func TestReadDevice(t *testing.T) {
	for _, name := range []string{"/dev/zero", "/dev/full", "/dev/tty", "/dev/random"} {
		if _, err := os.Stat(name); err != nil {
			continue
		}
		if _, _, err := files.Read(name, 100, time.Minute); err == nil {
			t.Errorf("%s was read", name)
		}
	}
}
