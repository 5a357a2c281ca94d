//go:build linux

package cli

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/joblock/toolkit/internal/redistest"
)

// terminal returns both ends of a new terminal: the keyboard with the screen, and what programs get.
func terminal(t *testing.T) (keyboard, tty *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(keyboard.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = tty.Close()
		_ = keyboard.Close()
	})
	return keyboard, tty
}

// atTerminal starts joblock with a command at a terminal. With a script, a shell runs the script, in which
// $@ is joblock.
func (s *stage) atTerminal(script string) (p *process, keyboard *os.File) {
	s.Helper()
	keyboard, tty := terminal(s.T)
	cmd := s.joblock(append(append([]string{"run", "--prefix", s.prefix()}, append(long, key)...), s.own("a", "defaults")...)...)
	if script != "" {
		file, err := os.Executable()
		if err != nil {
			s.Fatal(err)
		}
		inner := cmd
		cmd = exec.Command("/bin/bash", append([]string{"-c", script, "script", file}, inner.Args[1:]...)...)
		cmd.Env = inner.Env
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p = s.launch("a", cmd)
	s.res.sees("a", "hello")
	return p, keyboard
}

func (s *stage) types(keyboard *os.File, text string) {
	s.Helper()
	if _, err := keyboard.WriteString(text); err != nil {
		s.Fatal(err)
	}
}

// Rows of RUN.md with a terminal.
func TestRunAtATerminal(t *testing.T) {
	redis := redistest.Start(t)
	for name, row := range map[string]func(s *stage){
		"the command reads": func(s *stage) {
			a, keyboard := s.atTerminal("")
			s.res.say("a", "read")
			s.types(keyboard, "hello\n")
			s.res.sees("a", `read "hello\n" <nil>`)
			s.res.say("a", "exit 0")
			a.exits(0)
		},
		"Ctrl-C": func(s *stage) {
			a, keyboard := s.atTerminal("")
			b := s.rival()
			s.foreground(keyboard, "a")
			s.types(keyboard, "\x03")
			a.exits(-2) // so that the shell sees what has happened
			s.free(b)
		},
		"Ctrl-C in a script": func(s *stage) {
			a, keyboard := s.atTerminal(`"$@"; echo not reached; exit 5`)
			s.foreground(keyboard, "a")
			s.types(keyboard, "\x03")
			a.exits(-2)
		},
		"Ctrl-Z and fg": func(s *stage) {
			a, keyboard := s.atTerminal(`set -m; "$@"; echo stopped $?; fg; exit $?`)
			b := s.rival()
			s.foreground(keyboard, "a")
			s.types(keyboard, "\x1a")
			said := ""
			for text := make([]byte, 100); !strings.Contains(said, "stopped 148"); { // 128 and the number of SIGTSTP
				n, err := keyboard.Read(text)
				if said += string(text[:n]); err != nil {
					s.Fatalf("%v; the shell said %q", err, said)
				}
			}
			s.foreground(keyboard, "a")
			s.res.works("a", 0)
			s.res.say("a", "exit 6")
			a.exits(6)
			s.free(b)
		},
		"hang-up": func(s *stage) {
			a, keyboard := s.atTerminal("")
			b := s.rival()
			s.foreground(keyboard, "a")
			_ = keyboard.Close()
			a.exits(128 + 1)
			s.free(b)
		},
		"output into a pipe": func(s *stage) {
			a, keyboard := s.atTerminal(`"$@" | cat`)
			s.res.say("a", "read")
			s.foreground(keyboard, "a") // the command asks, and gets the terminal
			s.types(keyboard, "hello\n")
			s.res.sees("a", `read "hello\n" <nil>`)
			s.res.say("a", "exit 0")
			a.exits(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row(newStage(t, redis))
		})
	}
}

// foreground waits until the command called name has the terminal.
func (s *stage) foreground(keyboard *os.File, name string) {
	s.Helper()
	s.until(name+" has the terminal", func() bool {
		group, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPGRP)
		return err == nil && group == s.res.pid(name)
	})
}

// A container runtime sends TERM to the first process of a PID namespace, and later kills the namespace.
func TestRunInAContainer(t *testing.T) {
	redis := redistest.Start(t)
	if err := exec.Command("unshare", "--pid", "--fork", "true").Run(); err != nil {
		t.Skipf("no rights to make a PID namespace: %v", err)
	}
	for name, row := range map[string]func(s *stage, a, b *process){
		"stop": func(s *stage, a, b *process) {
			a.signal(syscall.SIGTERM)
			a.exits(7)
			s.free(b)
		},
		"kill": func(s *stage, a, b *process) {
			a.signal(syscall.SIGKILL)
			a.exits(-9)
			s.free(b)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, redis)
			cmd := s.joblock(append(append([]string{"run", "--prefix", s.prefix()}, append(short, key)...), s.own("a", "obeys")...)...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
			a := s.launch("a", cmd)
			s.res.sees("a", "hello")
			row(s, a, s.rival())
		})
	}
}

// The stop of a front that no shell can continue is ignored by the kernel, so the command goes on.
func TestStopWithoutAShell(t *testing.T) {
	redis := redistest.Start(t)
	s := newStage(t, redis)
	a, keyboard := s.atTerminal("")
	s.foreground(keyboard, "a")
	s.types(keyboard, "\x1a")
	time.Sleep(2 * stopPatience)
	s.res.works("a", 100*time.Millisecond)
	s.res.say("a", "exit 0")
	a.exits(0)
	if text := a.stderr.String(); strings.Contains(text, "fault") {
		t.Error(text)
	}
}
