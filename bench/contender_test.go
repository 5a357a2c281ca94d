//go:build servers

package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// contenderEnv has the assignment of a process that waits for a lock.
const contenderEnv = "JOBLOCK_BENCH_CONTENDER"

// holdTime is how long each holder keeps the lock before passing it on.
const holdTime = time.Millisecond

// assignment is what a contender process has to do.
type assignment struct {
	seat
	Peer    string
	Key     string
	Waiters int    // goroutines
	Turn    string // path of the file
}

// report is what a contender writes as JSON: an empty one when it is connected and one in reply to each line, then one
// with all grants when its input ends.
type report struct {
	Commands int64 // sent since the last line of input
	Grants   []grant
	Err      string
}

// contendIfAsked turns this process into a contender if it was started as one, and then does not return.
func contendIfAsked() {
	text, asked := os.LookupEnv(contenderEnv)
	if !asked {
		return
	}
	c := &contender{}
	err := json.Unmarshal([]byte(text), &c.assignment)
	if err == nil {
		err = c.run(os.Stdin, json.NewEncoder(os.Stdout))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// contender waits for the lock on several goroutines.
type contender struct {
	assignment
	peer peer
	turn *turn

	mu     sync.Mutex // guards what follows
	grants []grant
	failed error
}

func (c *contender) run(in io.Reader, out *json.Encoder) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if c.turn, err = openTurn(c.Turn); err != nil {
		return err
	}
	c.wire = new(wire)
	if c.peer, err = peers[c.Peer](c.seat); err != nil {
		return err
	}
	// On a key of its own, so that connections are open and scripts are loaded.
	warm, err := c.peer.Acquire(ctx, fmt.Sprintf("%s:warm-up:%d", c.Key, c.Seat))
	if err == nil {
		err = warm.Release(ctx)
	}
	if err == nil {
		err = out.Encode(report{})
	}
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	var waiting sync.WaitGroup
	var before int64
	for first := true; lines.Scan(); first = false {
		for i := 0; first && i < c.Waiters; i++ {
			waiting.Go(func() { c.wait(ctx) })
		}
		before = c.wire.commands.Load()
		if err := out.Encode(report{}); err != nil {
			return err
		}
	}
	last := report{Commands: c.wire.commands.Load() - before} // leaving the queue is no part of handing over
	cancel()
	waiting.Wait()
	last.Grants = c.grants
	if c.failed != nil {
		last.Err = c.failed.Error()
	}
	return errors.Join(out.Encode(last), c.peer.Close())
}

// wait waits, holds, releases, and waits again once another waiter has been granted the lock: where there is no queue,
// the process that has released would nearly always win the lock back.
func (c *contender) wait(ctx context.Context) {
	for ctx.Err() == nil {
		g := grant{Asked: time.Now().UnixNano()}
		h, err := c.peer.Acquire(ctx, c.Key)
		g.Granted = time.Now().UnixNano()
		if err == nil {
			n := c.turn.Add(1)
			time.Sleep(holdTime)
			g.Released = time.Now().UnixNano()
			if err = h.Release(context.WithoutCancel(ctx)); err == nil {
				c.mu.Lock()
				c.grants = append(c.grants, g)
				c.mu.Unlock()
				c.turn.reach(ctx, n+1, 200*time.Microsecond)
				continue
			}
		}
		if ctx.Err() == nil {
			c.mu.Lock()
			c.failed = errors.Join(c.failed, err)
			c.mu.Unlock()
			return
		}
	}
}

// turn is how often the lock was granted so far, in memory that processes share through a file. A message for each grant
// would cost more than what is measured.
type turn struct{ *atomic.Int64 }

// openTurn maps the file for the rest of the process's life.
func openTurn(path string) (*turn, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping stays
	page, err := syscall.Mmap(int(f.Fd()), 0, os.Getpagesize(), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return &turn{(*atomic.Int64)(unsafe.Pointer(&page[0]))}, nil
}

// reach waits until the lock was granted n times, or ctx ends. It looks once per pause.
func (t *turn) reach(ctx context.Context, n int64, pause time.Duration) bool {
	for t.Load() < n && ctx.Err() == nil {
		time.Sleep(pause)
	}
	return ctx.Err() == nil
}

// member is a contender process.
type member struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	reports *json.Decoder
}

// startMember starts a contender and waits until it is connected.
func startMember(b *testing.B, ctx context.Context, a assignment) *member {
	b.Helper()
	text, err := json.Marshal(a)
	if err != nil {
		b.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	m := &member{cmd: exec.CommandContext(ctx, self)}
	m.cmd.Env = append(os.Environ(), contenderEnv+"="+string(text))
	m.cmd.Stderr = os.Stderr
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		b.Fatal(err)
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	m.reports = json.NewDecoder(out)
	if err := m.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = m.cmd.Wait() })
	m.report(b)
	return m
}

func (m *member) report(b *testing.B) (r report) {
	b.Helper()
	if err := m.reports.Decode(&r); err != nil || r.Err != "" {
		b.Fatalf("contender: %v %s", err, r.Err)
	}
	return r
}

// send sends each contender a line, and waits until it is understood.
func send(b *testing.B, all []*member) {
	b.Helper()
	for _, m := range all {
		if _, err := fmt.Fprintln(m.in); err != nil {
			b.Fatal(err)
		}
		m.report(b)
	}
}
