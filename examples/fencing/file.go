//go:build unix

package fencing

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// WriteFile replaces the file at path, unless a later holder has written it. The fence is in a file next to it, which is
// locked meanwhile: so all writers must be on one machine, or on a file system whose locks work across machines.
func WriteFile(path string, body []byte, fence int64) (err error) {
	guard, err := os.OpenFile(path+".fence", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, guard.Close()) }() // which releases the file's lock
	if err := syscall.Flock(int(guard.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", guard.Name(), err)
	}
	text, err := os.ReadFile(guard.Name())
	if err != nil {
		return err
	}
	if len(text) > 0 {
		seen, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return fmt.Errorf("%s: %w", guard.Name(), err)
		}
		if seen > fence {
			return ErrFenced
		}
	}
	// The fence is written first: a crash in between leaves a fence without its content, and never the reverse. All fences
	// have 19 digits, so one write replaces the previous fence.
	if _, err := guard.WriteAt(fmt.Appendf(nil, "%019d\n", fence), 0); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", body, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path) // readers see the old file or the new one
}
