//go:build linux

package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// note is what a command tells the resource: that it works, and what has happened to it.
type note struct {
	Name  string
	Pid   int
	Fence int64
	At    int64  // by the function clock
	What  string // "hello", "work", "bye" or the name of a signal
}

// command is the command under joblock: it works at the resource all the time, tells the resource of each
// signal, and does what the test says. The arguments are the socket of the resource, the name of the command, and one
// of:
//
//	tells      catches signals, and goes on
//	obeys      catches signals, and ends with code 7 at INT, TERM, HUP and QUIT
//	defaults   does not catch signals
func command(args []string) {
	conn, err := net.Dial("unix", args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(98)
	}
	name, mode := args[1], args[2]
	fence, _ := strconv.ParseInt(os.Getenv("JOBLOCK_FENCE"), 10, 64)
	var mu sync.Mutex
	tell := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		text, _ := json.Marshal(note{name, os.Getpid(), fence, clock(), what})
		if _, err := conn.Write(append(text, '\n')); err != nil {
			os.Exit(99) // the test is over
		}
	}
	end := func(code int) {
		tell("bye")
		mu.Lock()
		os.Exit(code)
	}
	caught := make(chan os.Signal, 16)
	if mode != "defaults" {
		signal.Notify(caught, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1,
			syscall.SIGUSR2, syscall.SIGWINCH)
	}
	go func() {
		for s := range caught {
			tell(unix.SignalName(s.(syscall.Signal)))
			if mode == "obeys" && ends(int(s.(syscall.Signal))) {
				end(7)
			}
		}
	}()
	tell("hello")
	go func() {
		for ; ; time.Sleep(5 * time.Millisecond) {
			tell("work")
		}
	}()
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		switch words[0] {
		case "exit":
			code, _ := strconv.Atoi(words[1])
			end(code)
		case "raise":
			n, _ := strconv.Atoi(words[1])
			signal.Reset()
			_ = syscall.Kill(os.Getpid(), syscall.Signal(n))
		case "fork", "setsid":
			c := exec.Command("/proc/self/exe", asCommand, args[0], words[1], "tells")
			c.SysProcAttr = &syscall.SysProcAttr{Setsid: words[0] == "setsid"}
			if err := c.Start(); err != nil {
				end(97)
			}
		case "read": // a line of the standard input
			line, err := bufio.NewReader(os.Stdin).ReadString('\n')
			tell(fmt.Sprintf("read %q %v", line, err))
		}
	}
	os.Exit(99)
}

// resource is what the lock protects. Commands work at the resource all the time.
type resource struct {
	t    *testing.T
	addr string
	any  bool // commands may work at the same time: they have permits

	mu    sync.Mutex
	notes []note
	conns map[string]net.Conn
	ended map[string]bool // whose connection has ended
	more  chan struct{}   // closed at the next change
}

// patience bounds every wait of the tests. It is a guard against hanging.
const patience = 60 * time.Second

func newResource(t *testing.T) *resource {
	t.Helper()
	r := &resource{t: t, addr: filepath.Join(t.TempDir(), "s"), conns: map[string]net.Conn{}, ended: map[string]bool{}, more: make(chan struct{})}
	if len(r.addr) > 100 { // the kernel's bound for names of sockets
		dir, err := os.MkdirTemp("", "jl")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		r.addr = filepath.Join(dir, "s")
	}
	listener, err := net.Listen("unix", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { r.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		r.mu.Lock()
		for _, conn := range r.conns {
			_ = conn.Close()
		}
		r.mu.Unlock()
		all.Wait()
		r.check()
	})
	return r
}

func (r *resource) serve(conn net.Conn) {
	name := ""
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		var n note
		if json.Unmarshal(lines.Bytes(), &n) != nil {
			continue
		}
		r.mu.Lock()
		name = n.Name
		r.conns[name] = conn
		delete(r.ended, name)
		r.notes = append(r.notes, n)
		close(r.more)
		r.more = make(chan struct{})
		r.mu.Unlock()
	}
	r.mu.Lock()
	r.ended[name] = true
	close(r.more)
	r.more = make(chan struct{})
	r.mu.Unlock()
	_ = conn.Close()
}

// check fails the test if a command has worked at the resource after a command with a larger fence came.
func (r *resource) check() {
	if r.any {
		return
	}
	last := map[int64]note{} // by fence: the latest work
	first := map[int64]note{}
	for _, n := range r.notes {
		if l, ok := last[n.Fence]; !ok || n.At > l.At {
			last[n.Fence] = n
		}
		if f, ok := first[n.Fence]; !ok || n.At < f.At {
			first[n.Fence] = n
		}
	}
	for a, l := range last {
		for b, f := range first {
			if a < b && l.At >= f.At {
				r.t.Errorf("%s worked under fence %d for %s after %s had come with fence %d", l.Name, a, time.Duration(l.At-f.At), f.Name, b)
			}
		}
	}
}

// await waits until ok is true of the resource.
func (r *resource) await(what string, ok func() bool) {
	r.t.Helper()
	over := time.After(patience)
	for {
		r.mu.Lock()
		is, more := ok(), r.more
		r.mu.Unlock()
		if is {
			return
		}
		select {
		case <-more:
		case <-over:
			r.t.Fatalf("gave up waiting: %s; the resource got %s", what, r.reports())
		}
	}
}

// sees waits until the command called name has reported this.
func (r *resource) sees(name, what string) {
	r.t.Helper()
	r.await(name+" tells "+what, func() bool {
		return slices.ContainsFunc(r.notes, func(n note) bool { return n.Name == name && n.What == what })
	})
}

// count returns how often the command called name has reported this. The caller holds r.mu.
func (r *resource) count(name, what string) (n int) {
	for _, note := range r.notes {
		if note.Name == name && note.What == what {
			n++
		}
	}
	return n
}

// ends waits until the command called name has ended.
func (r *resource) ends(name string) {
	r.t.Helper()
	r.await("the end of "+name, func() bool { return r.ended[name] })
}

// works waits until the command called name has worked for another while.
func (r *resource) works(name string, d time.Duration) {
	r.t.Helper()
	since := clock()
	r.await(name+" works", func() bool {
		return slices.ContainsFunc(r.notes, func(n note) bool { return n.Name == name && n.At > since+int64(d) })
	})
}

// say tells the command called name what to do.
func (r *resource) say(name, what string) {
	r.t.Helper()
	r.mu.Lock()
	conn := r.conns[name]
	r.mu.Unlock()
	if conn == nil {
		r.t.Fatalf("%s has not come", name)
	}
	if _, err := fmt.Fprintln(conn, what); err != nil {
		r.t.Fatalf("tell %s to %s: %v", name, what, err)
	}
}

func (r *resource) pid(name string) int { return r.last(name).Pid }

func (r *resource) fence(name string) int64 { return r.last(name).Fence }

// last returns what the command called name has reported last.
func (r *resource) last(name string) note {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range slices.Backward(r.notes) {
		if n.Name == name {
			return n
		}
	}
	r.t.Fatalf("%s has not come", name)
	return note{}
}

// saw returns what the command called name has reported, without its work.
func (r *resource) saw(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, n := range r.notes {
		if n.Name == name && n.What != "work" && n.What != "hello" {
			all = append(all, n.What)
		}
	}
	return strings.Join(all, " ")
}

func (r *resource) reports() string {
	if r == nil { // the test has none
		return "nothing"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, n := range r.notes {
		if n.What != "work" {
			all = append(all, n.Name+" "+n.What)
		}
	}
	return strings.Join(all, ", ")
}
