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

// startTimeout bounds how long a server may take to answer. The bound is a guard against hanging, not an expectation: a
// server usually answers within 20 ms.
const startTimeout = 30 * time.Second

// process is one redis-server child on a fixed port. The methods report trouble with Errorf and never with FailNow, so
// tests may call them from any goroutine.
type process struct {
	t    testing.TB
	bin  string
	dir  string
	port int
	args []string
	env  []string // additions to the environment of this process

	mu   sync.Mutex // guards cmd and done
	cmd  *exec.Cmd
	done chan struct{} // closed once the child was waited for
}

// ServerEnv is the name of the environment variable with the program to start instead of redis-server. The program is
// another version, or another server with the same protocol.
const ServerEnv = "JOBLOCK_SERVER"

// binary returns the path of the program for a server of a test's own. It ends the test in a build without the tag
// servers: the fast tests share one server, see [Shared].
func binary(t testing.TB) string {
	t.Helper()
	if !ownServers {
		t.Fatal("this test starts a server of its own: put it into a file with //go:build servers, and run it with `go test -tags servers`; or use redistest.Shared")
	}
	bin, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// program returns the path of the server's program. If there is none, the error is exec.ErrNotFound.
func program() (string, error) {
	if other := os.Getenv(ServerEnv); other != "" {
		bin, err := exec.LookPath(other)
		if err != nil {
			return "", fmt.Errorf("%s names no program: %w", ServerEnv, err)
		}
		return bin, nil
	}
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return "", fmt.Errorf("redis-server not found: run `make test`, which installs it: %w", err)
	}
	return bin, nil
}

// newProcess prepares a child that will be killed at the end of the test. newProcess makes the child's directory, so
// that a caller can write configuration before the start.
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
		_ = cmd.Wait() // a killed child is no error here; awaitReady reports other trouble
	}()
	p.cmd, p.done = cmd, done
	return p.awaitReady(cmd.Process.Pid, done)
}

// awaitReady waits until the child itself answers. awaitReady compares the process id: another test's server may have
// taken the port first, and would answer just as well.
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
		pong, err := ask(p.addr(), "PING") // a server that loads its data set refuses PING
		return err == nil && pong == "PONG", nil
	})
}

// kill ends the child with SIGKILL, even if the child is paused, and waits for its end. Without a child, kill does
// nothing.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end((*os.Process).Kill)
}

// shutdown ends the child with SIGTERM, and waits until the child has persisted its data, if so configured, and has
// ended.
func (p *process) shutdown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(terminate)
}

// end ends the child with how, and waits for its end. Call end with p.mu locked.
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

// signal calls how with the process of the running child.
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

// pid returns the child's process id, or 0 if the child does not run.
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

// portTaken reports whether the last start failed because another process had the port.
func (p *process) portTaken() bool {
	return strings.Contains(p.log(), "Address already in use")
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// freePort returns a port that was free a moment ago; see freePorts.
func freePort(t testing.TB) int {
	t.Helper()
	return freePorts(t, 1)[0]
}

// freePorts returns n different ports that were free a moment ago. The ports are below the ranges that Linux, macOS and
// Windows use for outgoing connections and for port 0: a server that is restarted must find its port free, whatever
// connections were made in between. If portTaken is true after a start, callers take new ports.
func freePorts(t testing.TB, n int) []int {
	t.Helper()
	var out []int
	for range 100 * n {
		port := 15000 + rand.IntN(17000)
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			continue
		}
		defer l.Close() // after all ports are found, so that the ports differ
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

// claim keeps a port from other tests, in this process and in others, until this test ends, even while nothing listens
// on the port: a killed server must find its port free at its next start. To claim a port, claim listens on that port
// of another loopback address, if the machine has one. claim returns false if another test has the port.
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

// poll calls f every few milliseconds, until f returns true or an error or the time is up.
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
