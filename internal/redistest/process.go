package redistest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// startTimeout bounds how long a server may take to answer. It is a guard against
// hanging, not an expectation: a server is usually up within 20 ms.
const startTimeout = 30 * time.Second

// process is one redis-server child on a fixed port. Its methods report trouble
// with Errorf, never with FailNow, so that tests may call them from any goroutine.
type process struct {
	t    testing.TB
	bin  string
	dir  string
	port int
	args []string
	env  []string // added to that of this process

	mu   sync.Mutex // guards cmd and done
	cmd  *exec.Cmd
	done chan struct{} // closed once the child was waited for
}

// ServerEnv names the environment variable with the program to start instead of
// redis-server: another version, or another server that speaks like it.
const ServerEnv = "JOBLOCK_SERVER"

// binary returns the path of the server's program, or ends the test.
func binary(t testing.TB) string {
	t.Helper()
	if other := os.Getenv(ServerEnv); other != "" {
		bin, err := exec.LookPath(other)
		if err != nil {
			t.Fatalf("%s names no program: %v", ServerEnv, err)
		}
		return bin
	}
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatal("redis-server not found: run `make test`, which installs it")
	}
	return bin
}

// newProcess prepares a child that will be killed at the end of the test. The
// directory is made at once, so that configuration can be written before start.
func newProcess(t testing.TB, bin string, port int, args ...string) *process {
	t.Helper()
	p := &process{t: t, bin: bin, dir: t.TempDir(), port: port, args: args}
	t.Cleanup(p.kill)
	return p
}

func (p *process) addr() string { return loopback(p.port) }

// run starts the child and waits until it answers.
func (p *process) run() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	log, err := os.OpenFile(p.logPath(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.bin, p.args...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = dieWithParent()
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // a killed child is no error here; readiness tells the rest
	}()
	p.cmd, p.done = cmd, done
	return p.awaitReady(cmd.Process.Pid, done)
}

// awaitReady waits until the child itself answers. The process id is compared
// because another test's server may have taken the port first, and would answer
// just as well.
func (p *process) awaitReady(pid int, done <-chan struct{}) error {
	want := "process_id:" + strconv.Itoa(pid)
	return poll(startTimeout, func() (bool, error) {
		select {
		case <-done:
			return false, fmt.Errorf("redis-server on port %d ended at start:\n%s", p.port, p.log())
		default:
		}
		info, err := ask(p.addr(), "INFO", "server")
		if err != nil || !hasLine(info, want) {
			return false, nil
		}
		pong, err := ask(p.addr(), "PING") // refused while it loads its data set
		return err == nil && pong == "PONG", nil
	})
}

// kill ends the child with SIGKILL, paused or not, and waits for it. It does
// nothing when there is none.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end((*os.Process).Kill)
}

// shutdown ends the child with SIGTERM and waits, so that what is configured to
// be persisted is.
func (p *process) shutdown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(terminate)
}

// end is called with p.mu held.
func (p *process) end(how func(*os.Process) error) {
	if p.cmd == nil {
		return
	}
	_ = how(p.cmd.Process) // "already finished" is what is wanted
	select {
	case <-p.done:
	case <-time.After(startTimeout):
		p.t.Errorf("redis-server on port %d does not end, killing it", p.port)
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	p.cmd, p.done = nil, nil
}

// restart ends the child if it runs, and starts it again on the same port, in the
// same directory.
func (p *process) restart() {
	p.t.Helper()
	p.kill()
	if err := p.run(); err != nil {
		p.t.Errorf("restart redis-server: %v", err)
	}
}

// signal applies how to the running child.
func (p *process) signal(what string, how func(*os.Process) error) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		p.t.Errorf("%s redis-server on port %d: it is not running", what, p.port)
		return
	}
	if err := how(p.cmd.Process); err != nil {
		p.t.Errorf("%s redis-server on port %d: %v", what, p.port, err)
	}
}

// pid returns the child's process id, 0 when it does not run.
func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

func (p *process) logPath() string { return filepath.Join(p.dir, "redis.log") }

func (p *process) log() string {
	b, err := os.ReadFile(p.logPath())
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// portTaken reports whether the last start failed because of the port.
func (p *process) portTaken() bool {
	return strings.Contains(p.log(), "Address already in use")
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// freePort returns a port that was free a moment ago; see freePorts.
func freePort(t testing.TB) int {
	t.Helper()
	return freePorts(t, 1)[0]
}

// freePorts returns n different ports that were free a moment ago. They are taken from
// below the ranges that Linux, macOS and Windows use for outgoing connections and for
// port 0: a server that is restarted must find its port still free, whatever
// connections were made in between. Callers start again on portTaken.
func freePorts(t testing.TB, n int) []int {
	t.Helper()
	var out []int
	for range 100 * n {
		port := 15000 + rand.IntN(17000)
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			continue
		}
		defer l.Close() // not before all are found, so that they differ
		if !claim(t, port) {
			continue
		}
		if out = append(out, port); len(out) == n {
			return out
		}
	}
	t.Fatal("no free ports on 127.0.0.1 between 15000 and 32000")
	return nil
}

// claim keeps a port from other tests until this one has ended, also of other
// processes and while nothing listens on it: a server that was killed is to find it
// free when it is started again. The port of another loopback address stands for it,
// where there is one.
func claim(t testing.TB, port int) bool {
	t.Helper()
	const second = "127.0.0.2"
	l, err := net.Listen("tcp", net.JoinHostPort(second, strconv.Itoa(port)))
	if err != nil {
		l, err := net.Listen("tcp", second+":0")
		if err != nil {
			return true // there is no such address on this machine
		}
		_ = l.Close()
		return false
	}
	t.Cleanup(func() { _ = l.Close() })
	return true
}

// poll calls f every few milliseconds until it says yes or fails, or until the
// time is up.
func poll(timeout time.Duration, f func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := f()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready within %s", timeout)
		case <-tick.C:
		}
	}
}

func hasLine(text, line string) bool {
	for l := range strings.Lines(text) {
		if strings.TrimRight(l, "\r\n") == line {
			return true
		}
	}
	return false
}
