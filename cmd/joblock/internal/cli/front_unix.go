//go:build unix

package cli

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// forwarded are the signals that "run" forwards to the command. SIGTSTP is not among them, because a Go program that has
// caught SIGTSTP once can no longer be stopped by it, and Ctrl-Z has to stop the front. The terminal sends Ctrl-Z to the
// command itself.
var forwarded = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
	syscall.SIGCONT,
}

// ends reports whether the signal n ends a wait for the lock.
func ends(n int) bool {
	switch syscall.Signal(n) {
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
		return true
	}
	return false
}

// catch returns a channel that gets the forwarded signals. A signal that was ignored when this process started stays
// ignored, also by the command, so that nohup works.
func catch() chan os.Signal {
	caught := make(chan os.Signal, 16)
	for _, s := range forwarded {
		if !signal.Ignored(s) {
			signal.Notify(caught, s)
		}
	}
	return caught
}

// run implements "joblock run". See link_unix.go for its two processes.
func run(o *runOptions) error {
	l, inherited, err := inheritedLink()
	if err != nil {
		return &exitError{exitFault, err}
	}
	if inherited {
		// The front has checked the flags, and has read the files that they name.
		files, ok := <-l.gets
		if !ok {
			return nil // the front has ended
		}
		o.server.files = files.Files
		if err := o.check(); err != nil {
			l.say("%s", textOf(err))
			l.send(message{End: &ending{Code: codeOf(err)}})
			return nil
		}
		holdFor(o, l)
		return nil // the front reports the rest
	}
	if err := o.check(); err != nil {
		return err
	}
	f := front{o: o, caught: catch()}
	if err := adoptOrphans(); err != nil {
		return &exitError{exitFault, fmt.Errorf("adopt orphaned processes: %w", err)}
	}
	if err := f.start(); err != nil {
		return &exitError{exitFault, fmt.Errorf("start the process that holds the lock: %w", err)}
	}
	return f.watch()
}

// front is the process that the user has started.
type front struct {
	o      *runOptions
	link   *link
	caught chan os.Signal
	waits  chan struct{} // closed when the holder and all descendants have ended

	tty    *os.File  // the controlling terminal, nil if there is none
	lent   bool      // the command has the terminal
	child  int       // pid and process group of the command while the command runs, else 0
	began  bool      // a command was started
	until  *until    // the latest answer of the holder
	askAt  time.Time // when to ask the holder again
	killAt time.Time // when to give up waiting for an answer; zero: the holder was not asked
	killed bool      // the holder has failed, so the front kills everything
	end    *ending
}

func (f *front) start() error {
	own, other, err := newLink()
	if err != nil {
		return err
	}
	defer syscall.Close(other)
	f.link = own
	file, err := ownFile()
	if err != nil {
		return err
	}
	// If a variable occurs twice, the first value counts. So an inherited value has to be removed, or the new process
	// would be another front.
	env := slices.DeleteFunc(os.Environ(), func(pair string) bool { return strings.HasPrefix(pair, envHolder+"=") })
	env = append(env, fmt.Sprintf("%s=%d:%d", envHolder, other, os.Getpid()))
	// The holder has a process group of its own, so that keys of the terminal do not reach it. Files that this process
	// has inherited stay open under their numbers.
	if _, err := syscall.ForkExec(file, os.Args, &syscall.ProcAttr{
		Env: env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setpgid: true},
	}); err != nil {
		return err
	}
	if err := f.link.sendIn(filesPatience, message{Files: f.o.server.files}); err != nil {
		return err // the holder ends with the link
	}
	// The front may take the terminal back while the command has it; without this, the kernel would stop the front
	// then. The holder was started before, so neither the holder nor the command ignores the signal.
	signal.Ignore(syscall.SIGTTOU)
	f.waits = make(chan struct{})
	go func() {
		defer close(f.waits)
		for {
			if _, _, ok := waitAny(0); !ok {
				return
			}
		}
	}()
	if tty, err := os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY, 0); err == nil {
		f.tty = tty
	}
	return nil
}

// killPause is the time between two rounds of killing.
const killPause = 20 * time.Millisecond

// watch passes on signals and messages until the holder and all descendants have ended.
func (f *front) watch() error {
	gets := f.link.gets
	for {
		select {
		case s := <-f.caught:
			f.signal(s.(syscall.Signal))
		case m, open := <-gets:
			if !open {
				gets = nil
				f.killed = f.killed || f.end == nil
				if f.o.leave && !f.killed {
					return f.finish(nil)
				}
				continue
			}
			f.message(m)
		case <-f.guard():
			f.guarded()
		case <-f.waits:
			return f.finish(gets)
		}
		if f.killed {
			killDescendants(f.child)
		}
	}
}

// guard returns a channel that fires when the holder has to be asked, or did not answer in time.
func (f *front) guard() <-chan time.Time {
	switch {
	case f.killed:
		return time.After(killPause)
	case f.child == 0 || f.until == nil:
		return nil
	case f.killAt.IsZero():
		return time.After(time.Until(f.askAt))
	}
	return time.After(time.Until(f.killAt))
}

// guarded asks the holder how long the lock can be trusted. If the holder does not answer before the lock is lost, it
// hangs, and the front kills the holder and the command. If the front itself was stopped, it asks too late, so it gives
// the holder a moment to answer.
func (f *front) guarded() {
	switch now := time.Now(); {
	case f.killed:
	case f.killAt.IsZero() && !now.Before(f.askAt):
		f.killAt = now.Add(max(f.until.left()+f.until.Lead, f.until.Lead/4))
		f.link.send(message{Ask: true})
	case !f.killAt.IsZero() && !now.Before(f.killAt):
		f.killed = true
	}
}

func (f *front) message(m message) {
	switch {
	case m.Say != "":
		sayTo(os.Stderr, m.Say)
	case m.Child != 0:
		f.child, f.began = m.Child, true
		if f.foreground() && term.IsTerminal(0) && term.IsTerminal(1) {
			f.lend()
		}
	case m.Until != nil:
		// If the renewals get no answer, the time runs out, and the holder stops the command. As long as the holder
		// answers, the front leaves that to it.
		f.until, f.killAt = m.Until, time.Time{}
		f.askAt = time.Now().Add(max(f.until.left(), f.until.Lead/4))
	case m.Stopped != 0:
		f.stopped(syscall.Signal(m.Stopped))
	case m.Gone:
		f.takeBack()
		f.child, f.until, f.killAt = 0, nil, time.Time{}
	case m.End != nil:
		f.end = m.End
	}
}

func (f *front) signal(s syscall.Signal) {
	if s == syscall.SIGCONT && f.child != 0 && f.foreground() && term.IsTerminal(0) && term.IsTerminal(1) {
		f.lend()
	}
	f.link.send(message{Signal: int(s)})
}

// stopped is called when a signal has stopped the command. On a terminal joblock stops too, so that the shell notices. If
// the command stopped because it needs the terminal, it gets the terminal.
func (f *front) stopped(s syscall.Signal) {
	if f.tty == nil {
		return
	}
	wants := s == syscall.SIGTTIN || s == syscall.SIGTTOU
	if wants && f.foreground() {
		f.lend()
	} else if !wants || !f.lent {
		f.takeBack()
		f.stop()
		if f.foreground() {
			f.lend()
		}
	}
	f.link.send(message{Signal: int(syscall.SIGCONT)})
}

// stopPatience is how long to wait for a stop to take effect. The kernel ignores a stop if there is no shell that could
// continue joblock.
const stopPatience = 200 * time.Millisecond

// stop stops the process group of this process, as Ctrl-Z does. It returns when the shell continues the group.
func (f *front) stop() {
	_ = syscall.Kill(0, syscall.SIGTSTP)
	for patience := time.After(stopPatience); ; {
		select {
		case s := <-f.caught:
			if s != syscall.SIGCONT {
				f.link.send(message{Signal: int(s.(syscall.Signal))})
				continue
			}
		case <-patience:
		}
		return
	}
}

// foreground reports whether this process has a terminal and may read from it.
func (f *front) foreground() bool { return f.terminalOf() == unix.Getpgrp() }

// terminalOf returns the process group that has the terminal, 0 if unknown.
func (f *front) terminalOf() int {
	if f.tty == nil {
		return 0
	}
	group, err := unix.IoctlGetInt(int(f.tty.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

func (f *front) lend() {
	if f.child != 0 && unix.IoctlSetPointerInt(int(f.tty.Fd()), unix.TIOCSPGRP, f.child) == nil {
		f.lent = true
	}
}

func (f *front) takeBack() {
	if f.lent && f.terminalOf() == f.child {
		_ = unix.IoctlSetPointerInt(int(f.tty.Fd()), unix.TIOCSPGRP, unix.Getpgrp())
	}
}

// finish returns the error with the exit code, after reading the holder's last messages from gets.
func (f *front) finish(gets <-chan message) error {
	for gets != nil {
		m, open := <-gets
		if !open {
			break
		}
		f.message(m)
	}
	f.takeBack()
	if f.end != nil && !f.killed {
		// The terminal sent Ctrl-C only to the command. If that ended the command, a script that runs joblock has to end
		// too, so joblock sends the signal to the script's process group.
		if syscall.Signal(f.end.Signal) == syscall.SIGINT && f.lent && f.end.Code == exitSignal+int(syscall.SIGINT) {
			signal.Reset(syscall.SIGINT)
			_ = syscall.Kill(0, syscall.SIGINT)
			time.Sleep(stopPatience)
		}
		return &exitError{code: f.end.Code}
	}
	if !f.began {
		return &exitError{exitFault, fmt.Errorf("%s: the process that waits for the lock was killed", f.o.key)}
	}
	r := report{V: 1, Key: f.o.key, Acquired: true, Ran: true, Exit: exitLost, Lost: true, Reason: "the process that holds the lock has failed"}
	if err := f.o.writeReport(r); err != nil {
		sayTo(os.Stderr, err.Error())
	}
	return &exitError{exitLost, fmt.Errorf("%s: the process that holds the lock has failed; the command was killed, and the lock ends with its lease", f.o.key)}
}
