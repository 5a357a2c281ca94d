//go:build unix

package torture

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
)

// slot is a place for a process, behind a proxy of its own; when a process is killed
// another one takes its place.
type slot struct {
	t       *testing.T
	name    string
	direct  string
	dir     string
	proxy   *redistest.Proxy
	seed    uint64
	started int

	cmd *exec.Cmd
	in  io.Closer // closing it ends the process
	out bytes.Buffer
}

func newSlot(t *testing.T, n int, server *redistest.Server, dir string, seed uint64) *slot {
	return &slot{t: t, name: fmt.Sprintf("p%d", n), direct: server.Addr(), dir: dir,
		proxy: redistest.NewProxy(t, server.Addr()), seed: seed + uint64(n)<<32}
}

// start reports whether there is a process now.
func (s *slot) start() bool {
	s.started++
	name := fmt.Sprintf("%s.%d", s.name, s.started)
	text, err := json.Marshal(plan{Name: name, Addr: s.proxy.Addr(), Direct: s.direct,
		History: filepath.Join(s.dir, name), Seed: s.seed + uint64(s.started)})
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
		s.t.Errorf("start %s: %v", name, err)
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
		s.t.Errorf("%s: %s", s.name, &s.out)
	}
}

// stopped stops the process for d.
func (s *slot) stopped(d time.Duration) {
	for _, sig := range []os.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		if err := s.cmd.Process.Signal(sig); err != nil {
			s.t.Errorf("%s: %v", s.name, err)
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
		s.t.Errorf("%s: %v: %s", s.name, err, &s.out)
	}
	s.cmd = nil
}
