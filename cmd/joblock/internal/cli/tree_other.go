//go:build unix && !linux

package cli

import (
	"os"
	"syscall"
	"time"
)

// adoptOrphans does nothing: only Linux lets a process adopt its orphaned descendants.
func adoptOrphans() error { return nil }

// childAttributes gives the command a process group of its own.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// clock is the wall clock: there is no other clock that all processes share on every system.
func clock() int64 { return time.Now().UnixNano() }

func ownFile() (string, error) { return os.Executable() }

// killDescendants sends SIGKILL to the children of this process, and to the process group of the command. Descendants
// that have left that group escape.
func killDescendants(group int) {
	if group > 0 {
		_ = syscall.Kill(-group, syscall.SIGKILL)
	}
}

// waitAny waits for the next change of a child, and after the last child for the end of the process group of the
// command.
func waitAny(group int) (pid int, status syscall.WaitStatus, ok bool) {
	for {
		pid, err := syscall.Wait4(-1, &status, syscall.WUNTRACED, nil)
		switch {
		case err == nil:
			return pid, status, true
		case err == syscall.EINTR:
		case group > 0 && syscall.Kill(-group, 0) == nil:
			time.Sleep(20 * time.Millisecond)
		default:
			return 0, 0, false
		}
	}
}
