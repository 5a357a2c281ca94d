//go:build servers

package redistest

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestServerStartsAnswersAndEndsWithItsTest(t *testing.T) {
	var pid int
	var dir string
	t.Run("inner", func(t *testing.T) {
		s := Start(t)
		pid, dir = s.Pid(), s.Dir()
		if !alive(pid) {
			t.Fatalf("process %d of a started server is not alive", pid)
		}
		if err := s.Client(t).Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if v := s.Version(); strings.Count(v, ".") != 2 || !strings.HasSuffix(s.Backend(), "-server "+v) {
			t.Errorf("Version() = %q, Backend() = %q", v, s.Backend())
		}
		s.Stop() // a paused server must not outlive its test either
	})
	if alive(pid) {
		t.Errorf("process %d outlived its test", pid)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("directory of the server outlived its test: %v", err)
	}
}

// alive reports whether the process exists, zombies included.
func alive(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	return unpause(p) == nil
}

func TestRestartForgetsWithoutPersistence(t *testing.T) {
	s := Start(t)
	rdb := s.Client(t)
	addr, pid := s.Addr(), s.Pid()
	if err := rdb.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	if err := rdb.Get(t.Context(), "k").Err(); err == nil || err == redis.Nil {
		t.Errorf("Get from a killed server: %v, want a network error", err)
	}
	if s.Pid() != 0 || alive(pid) {
		t.Errorf("after Kill: Pid() = %d, alive %v", s.Pid(), alive(pid))
	}
	s.Restart()
	if s.Addr() != addr {
		t.Errorf("address changed from %s to %s", addr, s.Addr())
	}
	if err := rdb.Get(t.Context(), "k").Err(); err != redis.Nil {
		t.Errorf("Get after Restart: %v, want redis.Nil", err)
	}
}

func TestRestartRemembersWithAppendOnlyFile(t *testing.T) {
	s := Start(t, "--appendonly", "yes", "--appendfsync", "always")
	rdb := s.Client(t)
	for _, end := range []func(){s.Kill, s.Shutdown, func() {}} {
		if err := rdb.Incr(t.Context(), "n").Err(); err != nil {
			t.Fatal(err)
		}
		end()
		s.Restart()
	}
	if n, err := rdb.Get(t.Context(), "n").Int(); n != 3 || err != nil {
		t.Errorf("n = %d, %v after three restarts, want 3", n, err)
	}
}

func TestStoppedServerDoesNotAnswerUntilCont(t *testing.T) {
	s := Start(t)
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), ReadTimeout: 50 * time.Millisecond, MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	s.Stop()
	if err := rdb.Ping(t.Context()).Err(); err == nil {
		t.Error("a stopped server answered")
	}
	s.Cont()
	if err := s.Client(t).Ping(t.Context()).Err(); err != nil {
		t.Errorf("after Cont: %v", err)
	}
}

// A server that stands in for Redis tells which Redis it is like.
func TestServerIsCalledByItsOwnName(t *testing.T) {
	s := Start(t)
	info, err := ask(s.Addr(), "INFO", "server")
	if err != nil {
		t.Fatal(err)
	}
	want := "redis-server " + infoField(info, "redis_version")
	if v := infoField(info, "valkey_version"); v != "" {
		want = "valkey-server " + v
	}
	if got := s.Backend(); got != want {
		t.Errorf("Backend() = %q, want %q", got, want)
	}
}

func TestStartReportsWhatTheServerSays(t *testing.T) {
	port := freePort(t)
	p := newProcess(t, binary(t), port, serverArgs(port, []string{"--no-such-setting", "1"})...)
	err := p.run()
	if err == nil || !strings.Contains(err.Error(), "no-such-setting") {
		t.Errorf("run() = %v, want what redis-server printed", err)
	}
	if p.portTaken() {
		t.Error("a bad setting was taken for a taken port")
	}
}

func TestTakenPortIsRecognised(t *testing.T) {
	s := Start(t)
	p := newProcess(t, binary(t), s.p.port, serverArgs(s.p.port, nil)...)
	if err := p.run(); err == nil {
		t.Fatal("a second server started on the same port")
	}
	if !p.portTaken() {
		t.Errorf("not recognised as a taken port:\n%s", p.log())
	}
}

func TestProxyOfADeadServerClosesConnections(t *testing.T) {
	s := Start(t)
	p := NewProxy(t, s.Addr())
	s.Kill()
	if _, err := ask(p.Addr(), "PING"); err == nil {
		t.Error("the proxy answered for a dead server")
	}
	s.Restart()
	if pong, err := ask(p.Addr(), "PING"); pong != "PONG" {
		t.Errorf("after Restart: %q, %v", pong, err)
	}
}
