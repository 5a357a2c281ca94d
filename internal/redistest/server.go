package redistest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Server is one redis-server process. All methods except Client may be called from any goroutine, and report trouble
// with Errorf on the test that started the server.
type Server struct {
	p *process
}

// startTries is how often a server is started, on another port each time, if another process takes the port first.
const startTries = 5

// Start starts a redis-server on 127.0.0.1 with a port and a directory of its own, and returns when the server answers.
// Start adds args to the end of the command line. Without args such as "--appendonly", "yes" the server persists
// nothing. The server is killed at the end of the test. Without a redis-server to start, the test fails.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, nil, func() []string { return args })
}

// start is Start with additions to the server's environment. Each try calls args again, because args may choose a port.
func start(t testing.TB, env []string, args func() []string) *Server {
	t.Helper()
	bin := binary(t)
	p, err := startOnFreePort(func() *process {
		port := freePort(t)
		p := newProcess(t, bin, port, serverArgs(port, args())...)
		p.env = env
		return p
	})
	if err != nil {
		t.Fatal(err)
	}
	return &Server{p}
}

// startOnFreePort runs a process that next prepares, and another one if the port has been taken meanwhile.
func startOnFreePort(next func() *process) (*process, error) {
	for try := 1; ; try++ {
		p := next()
		err := p.run()
		if err == nil {
			return p, nil
		}
		p.kill()
		if try == startTries || !p.portTaken() {
			return nil, fmt.Errorf("start redis-server: %w", err)
		}
	}
}

// serverArgs returns the command line of a server without persistence, followed
// by extra. The server runs in its process's directory.
func serverArgs(port int, extra []string) []string {
	return append([]string{
		"--port", strconv.Itoa(port), "--bind", "127.0.0.1",
		"--save", "", "--appendonly", "no",
		"--repl-diskless-sync-delay", "0",
		// A snapshot that a replica asks for must not wait for a machine short of memory.
		"--stop-writes-on-bgsave-error", "no",
	}, extra...)
}

// Addr returns the server's address, "127.0.0.1:port". Restart does not change the address.
func (s *Server) Addr() string { return s.p.addr() }

// Dir returns the server's directory. An append-only file would be in that directory.
func (s *Server) Dir() string { return s.p.dir }

// Pid returns the id of the server's process, or 0 if the server does not run.
func (s *Server) Pid() int { return s.p.pid() }

// Log returns what the server has printed since it was last started.
func (s *Server) Log() string { return s.p.log() }

// Client returns a client with default settings. The client is closed at the end of the test.
func (s *Server) Client(t testing.TB) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	t.Cleanup(func() { _ = rdb.Close() }) // a test may have closed it already
	return rdb
}

// Kill ends the server with SIGKILL, like a crash, and waits until the process is gone.
func (s *Server) Kill() { s.p.kill() }

// Shutdown ends the server with SIGTERM, and waits until the server has persisted its data, if so configured, and has
// ended.
func (s *Server) Shutdown() { s.p.shutdown() }

// Restart starts the server again on the same port and directory, and returns when the server answers. A server that
// still runs is killed first.
func (s *Server) Restart() {
	s.p.t.Helper()
	s.p.restart()
}

// Stop pauses the server with SIGSTOP: connections stay open, and nothing answers until Cont. The end of the test kills
// a paused server too.
func (s *Server) Stop() {
	s.p.t.Helper()
	s.p.signal("stop", pause)
}

// Cont lets a paused server run on.
func (s *Server) Cont() {
	s.p.t.Helper()
	s.p.signal("continue", unpause)
}

// Version returns the version that the server reports about itself, such as
// "7.0.15". The server must be running.
func (s *Server) Version() string {
	s.p.t.Helper()
	_, version, _ := strings.Cut(backend(s.info()), " ")
	return version
}

// Backend returns the server's name for [Ran], such as "redis-server 7.0.15" or
// "valkey-server 8.0.1".
func (s *Server) Backend() string {
	s.p.t.Helper()
	return backend(s.info())
}

// info returns the server's answer to INFO server.
func (s *Server) info() string {
	s.p.t.Helper()
	info, err := ask(s.Addr(), "INFO", "server")
	if err != nil {
		s.p.t.Errorf("version of the server: %v", err)
	}
	return info
}

// infoField returns the value of a "name:value" line of an INFO answer, or "" if there is no such line.
func infoField(info, name string) string {
	for l := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(l, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
