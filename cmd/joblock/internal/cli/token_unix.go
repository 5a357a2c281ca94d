//go:build unix

package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// lockFile locks f until f is closed, and reports whether it got the lock.
func lockFile(f *os.File) bool { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil }

// exposed returns how other users can read or write a file of the user euid. It returns "" if they cannot, or if the file
// belongs to another user. refused is false for root.
func exposed(info fs.FileInfo, euid int) (why string, refused bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	mode := info.Mode().Perm()
	if !ok || int(st.Uid) != euid || mode&0o077 == 0 {
		return "", false
	}
	return fmt.Sprintf("has mode %#o, so that others can read the secret", mode), euid != 0
}

// private returns an error if other users may have read the token in a file, or written the file.
func private(info fs.FileInfo) error {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() && os.Geteuid() != 0 {
		return errors.New("belongs to another user")
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && info.Size() > 0 {
		return fmt.Errorf("has mode %#o, so that others can read the token; its mode must be 0600", mode)
	}
	return nil
}
