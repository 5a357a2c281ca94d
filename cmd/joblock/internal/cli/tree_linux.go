package cli

import (
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// adoptOrphans makes this process the parent of every descendant whose own parent ends.
func adoptOrphans() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// childAttributes gives the command a process group of its own. The kernel kills the command if the thread that starts
// it ends.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// clock returns the nanoseconds since the machine booted. The clock is the same for all processes, and continues while
// the machine sleeps.
func clock() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0
	}
	return t.Nano()
}

// ownFile returns a path to this program's file, even if another file has replaced it.
func ownFile() (string, error) { return "/proc/self/exe", nil }

// killDescendants sends SIGKILL to all descendants of this process. Descendants that are started meanwhile may escape, so
// callers repeat the call until waitAny finds no children. The argument, the process group of the command, is used only
// on other systems.
func killDescendants(int) {
	children := map[int][]int{}
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, d := range dirs {
		if pid, err := strconv.Atoi(d.Name()); err == nil {
			if ppid, ok := parentOf(pid); ok {
				children[ppid] = append(children[ppid], pid)
			}
		}
	}
	todo := children[os.Getpid()]
	for len(todo) > 0 {
		pid := todo[0]
		todo = append(todo[1:], children[pid]...)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// parentOf returns the parent of a process. It allows for process names with any characters, including parentheses.
func parentOf(pid int) (ppid int, ok bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	text := string(stat)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 2 {
		return 0, false
	}
	ppid, err = strconv.Atoi(fields[1])
	return ppid, err == nil
}

// waitAny waits for the next change of a child: its end, or its stop. Adopted processes are children too. ok is false
// if there are no children.
func waitAny(int) (pid int, status syscall.WaitStatus, ok bool) {
	for {
		pid, err := syscall.Wait4(-1, &status, syscall.WUNTRACED, nil)
		if err != syscall.EINTR {
			return pid, status, err == nil
		}
	}
}
