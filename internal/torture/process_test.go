//go:build servers && unix

package torture

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
)

// slot is a place for a process, behind proxies of its own, one for each server; when a
// process is killed another one takes its place.
type slot struct {
	t       *testing.T
	n       int  // which of the places
	plan    plan // of all its processes
	dir     string
	proxies []*redistest.Proxy
	started int

	cmd *exec.Cmd
	in  io.Closer // closing it ends the process
	out bytes.Buffer
}

func newSlot(t *testing.T, n int, r *rig, dir string, seed uint64) *slot {
	s := &slot{t: t, n: n, dir: dir, plan: r.plan}
	s.plan.Name, s.plan.Seed, s.plan.Via = fmt.Sprintf("p%d", n), seed+uint64(n)<<32, make(map[string]string)
	for _, addr := range r.servers {
		proxy := redistest.NewProxy(t, addr)
		s.proxies = append(s.proxies, proxy)
		s.plan.Via[addr] = proxy.Addr()
	}
	return s
}

// proxy returns one of its proxies.
func (s *slot) proxy(dice *rand.Rand) *redistest.Proxy { return s.proxies[dice.IntN(len(s.proxies))] }

// each does something to all of its proxies.
func (s *slot) each(do func(*redistest.Proxy)) {
	for _, p := range s.proxies {
		do(p)
	}
}

// start reports whether there is a process now.
func (s *slot) start() bool {
	s.started++
	p := s.plan
	p.Name = fmt.Sprintf("%s.%d", p.Name, s.started)
	p.Seed += uint64(s.started)
	p.Scripts = (s.n+s.started)%scriptsEvery == 0
	p.History = filepath.Join(s.dir, p.Name)
	text, err := json.Marshal(p)
	if err != nil {
		s.t.Error(err)
		return false
	}
	s.out.Reset()
	s.cmd = exec.Command(os.Args[0])
	s.cmd.Env = append(os.Environ(), planEnv+"="+string(text))
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	if s.in, err = s.cmd.StdinPipe(); err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		s.t.Errorf("start %s: %v", p.Name, err)
		s.cmd = nil
	}
	return s.cmd != nil
}

// kill ends the process as a crash does, if there is one.
func (s *slot) kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
	if s.out.Len() > 0 {
		s.t.Errorf("%s: %s", s.plan.Name, &s.out)
	}
}

// stopped stops the process for d.
func (s *slot) stopped(d time.Duration) {
	for _, sig := range []os.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		if err := s.cmd.Process.Signal(sig); err != nil {
			s.t.Errorf("%s: %v", s.plan.Name, err)
		}
		if sig == syscall.SIGSTOP {
			time.Sleep(d)
		}
	}
}

// finish has the process end by itself.
func (s *slot) finish() {
	if s.cmd == nil {
		return
	}
	_ = s.in.Close()
	hung := time.AfterFunc(time.Minute, func() { _ = s.cmd.Process.Signal(syscall.SIGQUIT) }) // prints all stacks
	defer hung.Stop()
	if err := s.cmd.Wait(); err != nil || s.out.Len() > 0 {
		s.t.Errorf("%s: %v: %s", s.plan.Name, err, &s.out)
	}
	s.cmd = nil
}
