//go:build linux

package cli

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

const key = "export:acct-7"

// stage is what one test of "run" has: a Redis, a proxy in front of the Redis, a resource, and the processes
// of joblock. The one called a is the subject. The one called b waits for the lock all the time, and shows when the
// lock is free.
type stage struct {
	*testing.T
	redis *redistest.Server
	proxy *redistest.Proxy
	res   *resource
	locks *joblock.Locker
	api   string // the URL of a lock server, if the commands use one in place of the Redis
}

func newStage(t *testing.T, redis *redistest.Server) *stage {
	t.Helper()
	s := &stage{T: t, redis: redis, proxy: redistest.NewProxy(t, redis.Addr()), res: newResource(t)}
	locks, err := joblock.New(testkit.Must(redisstore.New(redis.Client(t), &redisstore.Config{Prefix: s.prefix()})), &joblock.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locks.Close(context.Background()) })
	s.locks = locks
	return s
}

// remotely makes the commands of the stage use a lock server in place of the Redis.
func (s *stage) remotely(flags ...string) *stage {
	s.Helper()
	s.api = s.serve(append(flags, "--pages=false", "--max-ttl", "8784h")...).url
	return s
}

// prefix returns a prefix for this test alone, because tests share a Redis.
func (s *stage) prefix() string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s.Name()))
	return fmt.Sprintf("%x:", h.Sum64())
}

// process is a process of joblock.
type process struct {
	*stage
	name   string
	cmd    *exec.Cmd
	stderr *safeBuffer
	stdout *safeBuffer
	done   chan struct{}
}

// safeBuffer is a bytes.Buffer for several goroutines.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// own returns this program's arguments for a command under joblock. mode is that of the function command.
func (s *stage) own(name, mode string) []string {
	s.Helper()
	file, err := os.Executable()
	if err != nil {
		s.Fatal(err)
	}
	return []string{file, asCommand, s.res.addr, name, mode}
}

// joblock prepares joblock with args, and with the Redis behind the proxy.
func (s *stage) joblock(args ...string) *exec.Cmd {
	return s.joblockAt("redis://"+s.proxy.Addr(), args...)
}

func (s *stage) joblockAt(url string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	// A group whose parents are in this session: SIGTSTP stops no process of an orphaned group, which the test's own may be.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Args[0] = "joblock"
	cmd.Env = append(os.Environ(), envAs+"=1", envRedis+"="+url, "GORACE=atexit_sleep_ms=0", envHolder+"=")
	if s.api != "" && len(args) > 0 && args[0] != "serve" {
		cmd.Env = append(cmd.Env, envServer+"="+s.api)
	}
	return cmd
}

// where returns the flag of this test's prefix, which a lock server has itself.
func (s *stage) where() []string {
	if s.api != "" {
		return nil
	}
	return []string{"--prefix", s.prefix()}
}

// start starts "joblock run" with flags. The command is called name too.
func (s *stage) start(name, mode string, flags ...string) *process {
	s.Helper()
	args := append(append([]string{"run"}, s.where()...), flags...)
	return s.launch(name, s.joblock(append(append(args, key), s.own(name, mode)...)...))
}

func (s *stage) launch(name string, cmd *exec.Cmd) *process {
	s.Helper()
	p := &process{stage: s, name: name, cmd: cmd, stderr: &safeBuffer{}, stdout: &safeBuffer{}, done: make(chan struct{})}
	if cmd.Stderr == nil {
		cmd.Stderr = p.stderr
	}
	if cmd.Stdout == nil {
		cmd.Stdout = p.stdout
	}
	cmd.WaitDelay = 2 * time.Second // a command that is left behind must not hold the test up
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	go func() {
		_ = cmd.Wait()
		close(p.done)
	}()
	s.Cleanup(func() {
		select {
		case <-p.done:
		default:
			_ = cmd.Process.Kill() // the holder kills the command
			<-p.done
		}
		if s.Failed() {
			s.Logf("%s said:\n%s", name, p.stderr)
		}
	})
	return p
}

// rival starts the process b, and returns when b has a place in line.
func (s *stage) rival(flags ...string) *process {
	s.Helper()
	b := s.start("b", "obeys", append([]string{"--ttl", "60s"}, flags...)...)
	s.inLine(1)
	return b
}

// inLine waits until so many have a place in line.
func (s *stage) inLine(n int) {
	s.Helper()
	s.until(fmt.Sprintf("%d in line", n), func() bool { return s.status().Waiters == n })
}

func (s *stage) status() joblock.Status {
	st, err := s.locks.Status(context.Background(), key)
	if err != nil {
		return joblock.Status{}
	}
	return st[0]
}

func (s *stage) until(what string, ok func() bool) {
	s.Helper()
	for over := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(over) {
			s.Fatalf("gave up waiting: %s", what)
		}
	}
}

// signal sends a signal to the process that the user has started.
func (p *process) signal(n syscall.Signal) {
	p.Helper()
	if err := p.cmd.Process.Signal(n); err != nil {
		p.Fatalf("signal %s to %s: %v", n, p.name, err)
	}
}

// holder returns the pid of the process that has the lock.
func (p *process) holder() int {
	p.Helper()
	pid := 0
	p.until("the holder of "+p.name, func() bool {
		for _, child := range childrenOf(p.cmd.Process.Pid) {
			pid = child
		}
		return pid != 0
	})
	return pid
}

func childrenOf(pid int) (all []int) {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, task.Name()))
		for _, word := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(word); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

// exits waits for the end of the process, and checks the exit code: -9 for a process that a signal 9 has
// ended.
func (p *process) exits(want int) {
	p.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.signal(syscall.SIGQUIT) // the process says where it hangs
		select {
		case <-p.done:
		case <-time.After(10 * time.Second):
		}
		p.Fatalf("%s does not end; it said %s; the resource got %s", p.name, p.stderr, p.res.reports())
	}
	code := p.cmd.ProcessState.ExitCode()
	if st, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && st.Signaled() {
		code = -int(st.Signal())
	}
	if code != want {
		p.Errorf("%s ended with %d, want %d; it said:\n%s", p.name, code, want, p.stderr)
	}
}

// says checks that the process has written this to the standard error.
func (p *process) says(want string) {
	p.Helper()
	if got := p.stderr.String(); !strings.Contains(got, want) {
		p.Errorf("%s said %q, want something with %q", p.name, got, want)
	}
}

// wantSaw checks what the command called name has reported: signals, and "bye" if it has ended by itself.
func (s *stage) wantSaw(name, want string) {
	s.Helper()
	if got := s.res.saw(name); got != want {
		s.Errorf("the command %s saw %q, want %q", name, got, want)
	}
}

// free checks that b gets the lock.
func (s *stage) free(b *process) {
	s.Helper()
	s.res.sees("b", "hello")
	s.res.say("b", "exit 0")
	b.exits(0)
}

// hears reports whether a process with this prefix is notified of forced releases at once.
func hears(t *testing.T, addr, prefix string) bool {
	t.Helper()
	channel := prefix + "forced"
	n, err := clientOf(t, addr).PubSubNumSub(context.Background(), channel).Result()
	return err == nil && n[channel] > 0
}

func clientOf(t *testing.T, addr string) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}
