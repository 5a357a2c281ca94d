//go:build unix

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
)

// holder is the process that holds the lock. See link_unix.go.
type holder struct {
	o      *runOptions
	link   *link
	caught chan os.Signal
	label  string

	stop   int  // the signal that ended the wait, or that the command has got; see the function ends
	orphan bool // the front has ended
}

// turn is one wait for the lock and one run of the command.
type turn struct {
	report
	err     error // why the command did not run; nil if the command ran
	lasted  time.Duration
	trouble string // what else the user has to know
}

// holdFor runs the holder. The last message has the exit code.
func holdFor(o *runOptions, l *link) {
	// The kernel kills the command when the thread that started it ends, so this goroutine keeps its thread.
	runtime.LockOSThread()
	h := holder{o: o, link: l, caught: catch(), label: o.label(os.Getppid())}
	if err := adoptOrphans(); err != nil {
		h.link.say("adopt orphaned processes: %v", err)
		h.link.send(message{End: &ending{Code: exitFault}})
		return
	}
	pause := repeatPause
	for {
		t := h.turn()
		h.tell(&t)
		if !o.repeat || h.stop != 0 || h.orphan || !again(&t) {
			h.link.send(message{End: &ending{t.Exit, t.Signal}})
			return
		}
		if t.lasted >= repeatReset {
			pause = repeatPause
		}
		h.link.say("%s: trying again in %s", o.key, pause)
		h.sleep(pause)
		if h.stop != 0 || h.orphan {
			h.link.send(message{End: &ending{exitSignal + h.stop, h.stop}})
			return
		}
		pause = min(2*pause, repeatMost)
	}
}

// With --repeat, the pause between two turns doubles from repeatPause up to repeatMost. It restarts at repeatPause after
// a command that ran for at least repeatReset.
const (
	repeatPause = time.Second
	repeatMost  = 30 * time.Second
	repeatReset = 10 * time.Second
)

// again reports whether --repeat continues after the turn t.
func again(t *turn) bool {
	switch t.Exit {
	case exitUsage, exitDenied, exitNotRunnable, exitNotFound:
		return t.Ran
	}
	return true
}

// tell writes the report and prints what went wrong.
func (h *holder) tell(t *turn) {
	if t.err != nil {
		t.Reason = textOf(t.err)
		if text, _, ok := h.o.server.unanswered(t.err); ok {
			t.Reason = fmt.Sprintf("%s: %s, so the command did not run", h.o.key, text)
		}
		h.link.say("%s", t.Reason)
	} else if t.Reason != "" {
		h.link.say("%s: %s", h.o.key, t.Reason)
	}
	if t.trouble != "" {
		h.link.say("%s: %s", h.o.key, t.trouble)
	}
	if err := h.o.writeReport(t.report); err != nil {
		h.link.say("%v", err)
	}
}

// sleep returns after d, at a signal that ends joblock, or when the front ends.
func (h *holder) sleep(d time.Duration) {
	for over := time.After(d); ; {
		select {
		case <-over:
			return
		case s := <-h.caught:
			h.stopBy(int(s.(syscall.Signal)))
		case m, open := <-h.link.gets:
			h.orphan = !open
			h.stopBy(m.Signal)
		}
		if h.stop != 0 || h.orphan {
			return
		}
	}
}

func (h *holder) stopBy(n int) {
	if ends(n) && h.stop == 0 {
		h.stop = n
	}
}

// turn takes the lock, runs the command and releases the lock.
func (h *holder) turn() (t turn) {
	t.report = report{V: 1, Key: h.o.key}
	var busy atomic.Bool
	locks, err := h.o.server.locks(joblock.Config{
		TTL: h.o.ttl, Holder: h.label, WatchForced: true, MaxRenew: h.o.maxHold, CallTimeout: h.o.server.callTimeout(),
		Observer: func(e event.Event) {
			if e.Kind == event.Contended && busy.CompareAndSwap(false, true) && h.o.talks() && !h.o.noWait {
				h.link.say("%s: waiting; %s", h.o.key, holderText(e))
			}
		},
	})
	if err != nil {
		return t.failed(err, codeOf(err))
	}
	defer func() { locks.close(h.o.server.cleanUp()) }()
	began := time.Now()
	lock, err := h.acquire(locks)
	waited := time.Since(began)
	t.WaitedMS = waited.Milliseconds()
	if lock == nil {
		if h.stop != 0 || h.orphan {
			t.Signal, t.Exit, t.Reason = h.stop, exitSignal+h.stop, fmt.Sprintf("the wait was ended by %s", signalName(h.stop))
			return t
		}
		code := codeOf(err)
		if code == exitBusy {
			code = h.o.busyCode
		}
		return t.failed(err, code)
	}
	t.Acquired, t.Fence = true, lock.Fence()
	if h.o.verbose {
		h.link.say("%s: got the lock after %s, fence %d", h.o.key, waited.Round(time.Millisecond), t.Fence)
	}
	if h.stop == 0 && !h.orphan {
		began = time.Now()
		h.command(lock, &t)
		t.lasted = time.Since(began)
	} else {
		t.Signal, t.Exit = h.stop, exitSignal+h.stop
	}
	h.release(lock, &t)
	return t
}

func (t *turn) failed(err error, code int) turn {
	t.err, t.Exit = err, code
	return *t
}

// talks reports whether to print who has the lock.
func (o *runOptions) talks() bool { return !o.quiet && (o.verbose || term.IsTerminal(2)) }

// acquire waits for the lock. The wait ends when the front ends, or at a signal for which ends returns true.
func (h *holder) acquire(locks face) (held, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	want := want{key: h.o.key, ttl: h.o.ttl, limit: h.o.limit, wait: waitOf(h.o.noWait, h.o.wait), renews: true}
	type result struct {
		lock held
		err  error
	}
	got := make(chan result, 1)
	go func() {
		lock, err := locks.acquire(ctx, want)
		got <- result{lock, err}
	}()
	gets := h.link.gets
	for {
		select {
		case r := <-got:
			return r.lock, r.err
		case s := <-h.caught:
			h.stopBy(int(s.(syscall.Signal)))
		case m, open := <-gets:
			if !open {
				gets, h.orphan = nil, true
			}
			h.stopBy(m.Signal)
		}
		if h.stop != 0 || h.orphan {
			cancel()
		}
	}
}

// release releases the lock after the command has ended, and completes t.
func (h *holder) release(lock held, t *turn) {
	err := lock.Release(context.Background())
	switch {
	case err == nil:
	case errors.Is(err, joblock.ErrUnavailable):
		t.trouble = fmt.Sprintf("the release got no answer, so others may have to wait until the lease ends, at most %s", h.o.ttl)
	case !t.Lost && t.Ran:
		t.Lost, t.Exit = true, exitLost
		t.Reason = fmt.Sprintf("the lock was lost before the command had ended: %s", textOf(err))
	}
}

// change is a state change of a process, as reported by waitAny.
type change struct {
	pid    int
	status syscall.WaitStatus
}

// supervision is one run of the command.
type supervision struct {
	*holder
	t       *turn
	lock    held
	pid     int
	changes chan change // closed when the command and all its descendants have ended

	over     bool      // the command has ended, but its descendants may still run
	overAt   time.Time // when the command ended
	printed  bool      // the user was informed of those descendants
	kill     bool      // kill everything
	termAt   time.Time // when SIGTERM was sent because the lease ends; zero: not sent
	insisted int       // how many INT and TERM have come
}

// command runs the command, and returns when the command and all its descendants have ended. With --leave, it returns
// when the command has ended.
func (h *holder) command(lock held, t *turn) {
	path, err := lookPath(h.o.argv[0])
	if err != nil {
		t.failed(err, codeOf(err))
		return
	}
	if lock.Err() != nil || time.Until(lock.ExpiresAt()) <= h.o.grace {
		t.Lost = true
		t.failed(errors.New("the lock was lost before the command could be started"), exitLost)
		return
	}
	pid, err := syscall.ForkExec(path, h.o.argv, &syscall.ProcAttr{
		Env: h.o.environ(os.Environ(), lock, h.label), Files: []uintptr{0, 1, 2}, Sys: childAttributes(),
	})
	if err != nil {
		code := exitNotRunnable
		if errors.Is(err, fs.ErrNotExist) {
			code = exitNotFound
		}
		t.failed(fmt.Errorf("%s: cannot be executed: %w", h.o.argv[0], err), code)
		return
	}
	t.Ran = true
	h.link.send(message{Child: pid})
	s := &supervision{holder: h, t: t, lock: lock, pid: pid, changes: make(chan change)}
	s.answer()
	go s.wait()
	s.watch()
	h.link.send(message{Gone: true})
	if t.Lost || !s.termAt.IsZero() {
		t.Exit = exitLost
	}
}

func (s *supervision) wait() {
	defer close(s.changes)
	for {
		pid, status, ok := waitAny(s.pid)
		if !ok {
			return
		}
		s.changes <- change{pid, status}
	}
}

// lead returns how long before the trust deadline the front asks again. On a busy machine the answer may take a while.
func (s *supervision) lead() time.Duration { return max(s.o.grace, s.o.ttl/10) }

// answer sends the front how long the lock can be trusted.
func (s *supervision) answer() {
	s.link.send(message{Until: untilIn(time.Until(s.lock.ExpiresAt())-s.lead(), s.lead())})
}

func (s *supervision) watch() {
	lost, gets := s.lock.Done(), s.link.gets
	tick := time.NewTicker(min(max(s.o.ttl/100, 10*time.Millisecond), 100*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case c, open := <-s.changes:
			if !open {
				return
			}
			s.changed(c)
			if s.over && s.o.leave && !s.kill {
				return // joblock no longer controls what is left behind
			}
		case sig := <-s.caught:
			s.forward(sig.(syscall.Signal))
		case m, open := <-gets:
			switch {
			case !open:
				gets, s.orphan, s.kill = nil, true, true
			case m.Ask:
				s.answer()
			case m.Signal != 0:
				s.forward(syscall.Signal(m.Signal))
			}
		case <-lost:
			lost, s.kill, s.t.Lost = nil, true, true
			s.t.Reason = fmt.Sprintf("the command was killed: %s", textOf(s.lock.Err()))
		case <-tick.C:
			s.tick()
		}
		if s.kill {
			s.killAll()
		}
	}
}

func (s *supervision) killAll() {
	group := s.pid
	if !s.over { // afterwards the group's number may belong to other processes
		_ = syscall.Kill(-group, syscall.SIGKILL)
	}
	killDescendants(group)
}

// tick stops the command if the lock could not be renewed in time, and kills it --grace later.
func (s *supervision) tick() {
	switch {
	case s.kill:
	case !s.termAt.IsZero():
		s.kill = time.Since(s.termAt) >= s.o.grace
	case time.Until(s.lock.ExpiresAt()) <= s.o.grace:
		// The grace period is a part of the lease. A renewal that succeeds from now on makes no difference: SIGTERM is
		// sent.
		s.termAt = time.Now()
		s.t.Reason = "the command was stopped, because the lock could not be renewed in time"
		s.toCommand(syscall.SIGTERM)
		s.toCommand(syscall.SIGCONT) // a stopped command cannot end
	}
	if s.over && !s.printed && !s.o.quiet && time.Since(s.overAt) >= time.Second {
		s.printed = true
		s.link.say("%s: the command has ended; waiting for the processes that the command has left behind", s.o.key)
	}
}

// toCommand sends a signal to the process group of the command.
func (s *supervision) toCommand(n syscall.Signal) {
	if s.over {
		return // the group's number may belong to other processes
	}
	_ = syscall.Kill(-s.pid, n)
}

func (s *supervision) forward(n syscall.Signal) {
	s.stopBy(int(n))
	if n == syscall.SIGINT || n == syscall.SIGTERM {
		if s.insisted++; s.insisted > 1 || s.over {
			s.kill = true
			return
		}
	}
	s.toCommand(n)
}

// changed is called when a child has ended or was stopped.
func (s *supervision) changed(c change) {
	if c.pid != s.pid {
		return
	}
	switch st := c.status; {
	case st.Stopped():
		s.link.send(message{Stopped: int(st.StopSignal())})
	case st.Exited():
		s.over, s.overAt, s.t.Exit = true, time.Now(), st.ExitStatus()
	case st.Signaled():
		s.over, s.overAt = true, time.Now()
		s.t.Signal, s.t.Exit = int(st.Signal()), exitSignal+int(st.Signal())
	}
}

func signalName(n int) string {
	switch syscall.Signal(n) {
	case syscall.SIGINT:
		return "SIGINT"
	case syscall.SIGTERM:
		return "SIGTERM"
	case syscall.SIGHUP:
		return "SIGHUP"
	case syscall.SIGQUIT:
		return "SIGQUIT"
	}
	return fmt.Sprintf("signal %d", n)
}
