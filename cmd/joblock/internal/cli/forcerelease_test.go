//go:build linux

package cli

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// state returns the state of the key.
func (o *office) state() joblock.Status {
	o.Helper()
	st, err := o.locks.Status(context.Background(), key)
	testkit.WantNil(o.T, "Status", err)
	return st[0]
}

// force returns the arguments of a forced release with the given fence.
func (o *office) force(fence int64, flags ...string) []string {
	return append([]string{"force-release", key, "--fence", fmt.Sprint(fence), "--reason", "INC-7"}, flags...)
}

func TestForceRelease(t *testing.T) {
	o := newOffice(t)
	o.fails(exitNo, "the key is free", "force-release", key)
	o.fails(exitNo, "the key is free", o.force(7, "--yes")...)

	lock := o.acquire(key)
	waits := make(chan *joblock.Lock, 1)
	go func() {
		next, err := o.locks.Acquire(context.Background(), key, joblock.Holder("next"))
		testkit.WantNil(t, "Acquire", err)
		waits <- next
	}()
	o.until("one waits", func() bool { return o.state().Waiters > 0 })
	held := o.state()
	r := o.call("force-release", key)
	if command := fmt.Sprintf("joblock force-release --fence %d --reason TEXT -- %s", held.Fence, key); r.code != exitUsage || r.stdout != "" ||
		!strings.Contains(r.stderr, command) || !strings.Contains(r.stderr, "web-1:77") {
		t.Errorf("without --fence: %+v, want the holder and %q", r, command)
	}
	o.fails(exitUsage, "give --yes", o.force(held.Fence)...)
	o.fails(exitNo, "by now", o.force(held.Fence-1, "--yes")...)
	o.fails(exitBusy, "a holder runs under the lock", o.force(held.Fence, "--yes", "--if-idle")...)
	if st := o.state(); st.Fence != held.Fence || st.State != joblock.StateHeld {
		t.Fatalf("after refusals: %+v, want %+v", st, held)
	}
	r = o.call(o.force(held.Fence, "--yes", "-o", "json")...)
	if r.code != exitOK || !strings.Contains(r.stderr, "What will happen: ") || !strings.Contains(r.stderr, "Danger: ") {
		t.Fatalf("%+v", r)
	}
	var done struct {
		Before, After struct {
			Fence  int64
			Holder string
		}
		Audit string
	}
	wantJSON(t, "force-release.json", r.stdout, &done)
	next := <-waits
	if done.Before.Fence != held.Fence || done.After.Fence != next.Fence() || done.After.Holder != "next" || done.Audit == "" {
		t.Errorf("%+v", done)
	}
	testkit.WantErr(t, lock.Release(t.Context()), joblock.ErrLost)
	testkit.WantNil(t, "Release", next.Release(t.Context()))

	o.park(key, "default/7")
	parked := o.state()
	if out := o.ok(o.force(parked.Fence, "--yes", "--if-idle")...); !strings.Contains(out, "default/7") || !strings.Contains(out, "free") {
		t.Errorf("it wrote %q", out)
	}
	if st := o.state(); st.State != joblock.StateFree || st.Ended != driver.EndedForced || !strings.Contains(st.Reason, "INC-7") {
		t.Errorf("after a forced release: %+v", st)
	}
}

func TestForceReleaseOfBadInput(t *testing.T) {
	o := newOffice(t)
	o.acquire(key)
	held := o.state()
	fence := fmt.Sprint(held.Fence)
	for _, args := range [][]string{
		{"force-release"}, {"force-release", key, key}, {"force-release", ""}, {"force-release", "a\x1b[2J"}, {"force-release", "a\xff"},
		{"force-release", strings.Repeat("x", 600)}, {"force-release", "-x"}, {"force-release", "--nosuch", key}, {"force-release", "--", "-x", "y"},
		o.force(0, "--yes"), o.force(-1, "--yes"), o.force(1<<62, "--yes"), {"force-release", key, "--fence", "many"}, {"force-release", key, "--fence", "1e3"},
		{"force-release", key, "--fence", fence, "--yes"}, {"force-release", key, "--fence", fence, "--yes", "--reason", ""},
		{"force-release", key, "--fence", fence, "--yes", "--reason", "a\nb"}, {"force-release", key, "--fence", fence, "--yes", "--reason", strings.Repeat("x", 257)},
		{"force-release", key, "--fence", fence, "--yes", "--reason", "\xff"}, o.force(held.Fence, "--yes", "-o", "xml"),
	} {
		r := o.call(args...)
		if r.code != exitUsage || strings.ContainsFunc(r.stderr, func(r rune) bool { return r < ' ' && r != '\n' }) {
			t.Errorf("%q: %+v, want %d and nothing that a terminal obeys", args, r, exitUsage)
		}
	}
	if st := o.state(); st.Fence != held.Fence {
		t.Errorf("after bad input: %+v, want %+v", st, held)
	}
	if r := call("force-release", "--redis", "redis://"+o.redis.Addr(), "--", "-x"); r.code != exitNo {
		t.Errorf("a key that looks like a flag: %+v", r)
	}
	if r := call("force-release", "--help"); r.code != exitOK || !strings.Contains(r.stdout, "Exit codes:") || !strings.Contains(r.stdout, "Examples:") {
		t.Errorf("the help: %+v", r)
	}
}

func TestForceReleaseWithoutRedis(t *testing.T) {
	o := newOffice(t)
	o.acquire(key)
	held := o.state()
	proxy := redistest.NewProxy(t, o.redis.Addr())
	args := append(o.force(held.Fence, "--yes"), "--redis", "redis://"+proxy.Addr(), "--timeout", "300ms")
	for name, fault := range map[string]func(){"away": proxy.Refuse, "silent": proxy.BlackHole} {
		fault()
		if r := call(args...); r.code != exitUnavailable {
			t.Errorf("Redis is %s: %+v", name, r)
		}
		proxy.Heal()
	}
	// The action cannot be recorded.
	proxy.Always(redistest.Named("xadd"), redistest.Fail("NOPERM this user has no permissions to run the 'xadd' command"))
	if r := call(args...); r.code != exitDenied || !strings.Contains(r.stderr, "recorded") {
		t.Errorf("without the right to record: %+v", r)
	}
	proxy.Heal()
	proxy.Always(redistest.Named("xadd"), redistest.Swallow())
	if r := call(args...); r.code != exitUnavailable || !strings.Contains(r.stderr, "recorded") {
		t.Errorf("without an answer to the record: %+v", r)
	}
	if st := o.state(); st.Fence != held.Fence {
		t.Errorf("%+v, want %+v", st, held)
	}
}

// On a terminal, people type the key.
func TestForceReleaseAtATerminal(t *testing.T) {
	redis := redistest.Start(t)
	for name, tc := range map[string]struct {
		types string
		code  int
		moves bool // another holder comes before the key is typed
		freed bool
	}{
		"the key":               {types: key + "\n", freed: true},
		"another key":           {types: "export:acct-8\n", code: exitNo},
		"yes":                   {types: "yes\n", code: exitNo},
		"nothing":               {types: "\n", code: exitNo},
		"the end of the file":   {types: "\x04", code: exitNo},
		"Ctrl-C":                {types: "\x03", code: -2},
		"the key, but too late": {types: key + "\n", code: exitNo, moves: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, redis)
			lock, err := s.locks.TryAcquire(t.Context(), key)
			testkit.WantNil(t, "TryAcquire", err)
			keyboard, tty := terminal(t)
			cmd := s.joblock("force-release", "--prefix", s.prefix(), key, "--fence", fmt.Sprint(lock.Fence()), "--reason", "INC-7")
			cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			p := s.launch("force-release", cmd)
			s.reads(keyboard, "Type the key")
			if tc.moves {
				testkit.WantNil(t, "Release", lock.Release(t.Context()))
				lock, err = s.locks.TryAcquire(t.Context(), key)
				testkit.WantNil(t, "TryAcquire", err)
			}
			s.types(keyboard, tc.types)
			p.exits(tc.code)
			if st := s.status(); st.Locked() == tc.freed || !tc.freed && st.Fence != lock.Fence() {
				t.Errorf("%+v, want freed: %t", st, tc.freed)
			}
		})
	}
}

// reads waits until the screen has the text.
func (s *stage) reads(screen *os.File, text string) {
	s.Helper()
	said := ""
	for buffer := make([]byte, 1000); !strings.Contains(said, text); {
		n, err := screen.Read(buffer)
		if said += string(buffer[:n]); err != nil {
			s.Fatalf("%v; the screen has %q", err, said)
		}
	}
}
