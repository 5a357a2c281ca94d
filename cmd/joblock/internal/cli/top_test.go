//go:build linux

package cli

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock/limit"
)

// watcher reads what a program writes on a terminal.
type watcher struct {
	*testing.T
	keyboard *os.File
	mu       sync.Mutex
	text     string
}

// readAll reads until the terminal is closed.
func (w *watcher) readAll() {
	for text := make([]byte, 4096); ; {
		n, err := w.keyboard.Read(text)
		w.mu.Lock()
		w.text += string(text[:n])
		w.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// sees waits until the program has written text, and forgets what was written until then.
func (w *watcher) sees(text string) {
	w.Helper()
	for over := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		w.mu.Lock()
		all := w.text
		if _, rest, ok := strings.Cut(all, text); ok {
			w.text = rest
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		if time.Now().After(over) {
			w.Fatalf("gave up waiting for %q; at the end the screen got %q", text, all[max(0, len(all)-3000):])
		}
	}
}

func (w *watcher) types(text string) {
	w.Helper()
	if _, err := w.keyboard.WriteString(text); err != nil {
		w.Fatal(err)
	}
}

func (w *watcher) resize(columns, lines uint16) {
	w.Helper()
	if err := unix.IoctlSetWinsize(int(w.keyboard.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: lines}); err != nil {
		w.Fatal(err)
	}
}

// startTop starts top on a new terminal.
func startTop(t *testing.T, o *office, args ...string) (w *watcher, tty *os.File, p *process) {
	t.Helper()
	keyboard, tty := terminal(t)
	w = &watcher{T: t, keyboard: keyboard}
	w.resize(100, 30)
	cmd := exec.Command("/proc/self/exe", append([]string{"top", "--interval", "100ms"}, args...)...)
	cmd.Args[0] = "joblock"
	cmd.Env = append(os.Environ(), envAs+"=1", envRedis+"=redis://"+o.redis.Addr(), "GORACE=atexit_sleep_ms=0", "TERM=xterm", "NO_COLOR=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p = (&stage{T: t}).launch("top", cmd)
	go w.readAll()
	return w, tty, p
}

func modeOf(t *testing.T, tty *os.File) unix.Termios {
	t.Helper()
	mode, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *mode
}

// Top shows locks as they come and go, explains one, follows the keys and the size of the terminal, and leaves the
// terminal as it was.
func TestTopOnATerminal(t *testing.T) {
	o := newOffice(t)
	o.acquire("export:a")
	o.acquire("import:b")
	w, tty, p := startTop(t, o)
	w.sees(enterScreen)
	w.sees("2 locks: 2 held")
	w.sees("> export:a")
	lock := o.acquire("export:c")
	w.sees("3 locks: 3 held")
	w.types("/import\r")
	w.sees("1 with import")
	w.sees("> import:b")
	w.types("x")
	w.sees("web-1:77 has had the lock")
	w.sees("What you may do:")
	w.types("\x1b")
	w.sees("> import:b")
	w.types("\x1b")
	w.sees("export:c")
	if err := lock.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.sees("2 locks: 2 held")
	w.resize(40, 8)
	w.sees("\r\nq end  x explain  s sort  / filter  p p…" + clearLine)
	w.types("\x1b[B\x1b[B")
	w.sees("> import:b")
	w.types("q")
	w.sees(leaveScreen)
	p.exits(0)
	if mode := modeOf(t, tty); mode.Lflag&unix.ICANON == 0 || mode.Lflag&unix.ECHO == 0 || mode.Oflag&unix.OPOST == 0 {
		t.Errorf("the terminal was left in the mode %+v", mode)
	}
}

// However top ends, the terminal is as it was.
func TestTopLeavesTheTerminalAsItWas(t *testing.T) {
	o := newOffice(t)
	for name, tc := range map[string]struct {
		end  func(w *watcher, p *process)
		code int
	}{
		"ctrl-c": {func(w *watcher, p *process) { w.types("\x03") }, 0},
		"TERM":   {func(w *watcher, p *process) { p.signal(syscall.SIGTERM) }, 128 + 15},
		"INT":    {func(w *watcher, p *process) { p.signal(syscall.SIGINT) }, 128 + 2},
	} {
		t.Run(name, func(t *testing.T) {
			w, tty, p := startTop(t, o)
			w.sees("0 locks")
			tc.end(w, p)
			w.sees(leaveScreen)
			p.exits(tc.code)
			if mode := modeOf(t, tty); mode.Lflag&unix.ICANON == 0 {
				t.Error("the terminal was left in raw mode")
			}
		})
	}
	t.Run("hang-up", func(t *testing.T) {
		w, _, p := startTop(t, o)
		w.sees("0 locks")
		_ = w.keyboard.Close()
		p.exits(128 + 1)
	})
	t.Run("Redis is away", func(t *testing.T) {
		keyboard, tty := terminal(t)
		w := &watcher{T: t, keyboard: keyboard}
		cmd := exec.Command("/proc/self/exe", "top", "--redis", "redis://127.0.0.1:1", "--timeout", "300ms")
		cmd.Args[0] = "joblock"
		cmd.Env = append(os.Environ(), envAs+"=1", "GORACE=atexit_sleep_ms=0", "TERM=xterm")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		p := (&stage{T: t}).launch("top", cmd)
		go w.readAll()
		w.sees(leaveScreen)
		w.sees("joblock: ")
		p.exits(exitUnavailable)
	})
}

// While Redis is away, top shows what it knows, says so, and goes on when Redis is back.
func TestTopOutlivesARedisThatIsAway(t *testing.T) {
	o := newOffice(t)
	o.acquire("export:a")
	w, _, p := startTop(t, o, "--timeout", "300ms")
	w.sees("> export:a")
	o.redis.Stop()
	w.sees("store unavailable")
	w.sees("> export:a")
	o.redis.Cont()
	w.sees("as of 0.")
	w.types("q")
	p.exits(0)
}

// A waiter for a limit waits for each of its permits, and is counted once, in a row for the limit. The gate of the
// limit is no lock of anybody.
func TestWaitersOfALimitCountOnce(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	geo := limit.New(o.locks, 3)
	for range 3 {
		_, err := geo.TryAcquire(t.Context(), "geo")
		testkit.WantNil(t, "TryAcquire", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	for range 2 {
		group.Go(func() { _, _ = geo.Acquire(ctx, "geo") })
	}
	(&stage{T: t}).until("both wait", func() bool { return strings.Contains(o.ok("permits", "geo"), "3 of 3 taken, 2 waiting") })
	var look topLook
	wantJSON(t, "top.json", o.ok("top", "-o", "json"), &look)
	if look.Locks != 3 || look.Held != 3 || look.Waiting != 2 || look.Lines != 1 || len(look.Items) != 4 {
		t.Errorf("%+v", look)
	}
	if out := o.ok("ls", "--sort", "key"); strings.Contains(out, "gate") || strings.Count(out, "\n") != 5 || !strings.Contains(strings.Join(strings.Fields(out), " "), "geo limit - - - - 2 -") {
		t.Errorf("%s", out)
	}
	if out := o.ok("ls", "--waiters", "2", "-o", "name"); out != "geo\n" {
		t.Errorf("%q", out)
	}
	if out := o.ok("ls", "--state", "held", "-o", "name"); strings.Contains(out, "geo\n") || strings.Count(out, "\n") != 3 {
		t.Errorf("%q", out)
	}
	if out := o.ok("ls", "--own", "-o", "name"); !strings.Contains(out, "geo%#gate\n") {
		t.Errorf("%q", out)
	}
	wantJSON(t, "ls.json", o.ok("ls", "-o", "json"), new(any))
}
