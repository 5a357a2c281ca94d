package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// startTries is how often a start is repeated: the free port found may be
	// somebody else's by the time the server asks for it.
	startTries = 5

	// startTimeout guards against hanging; a server is usually up in 20 ms.
	startTimeout = 20 * time.Second
)

// Server is a redis-server without persistence, on a loopback port of its own.
type Server struct {
	addr string
	dir  string
	cmd  *exec.Cmd
	done chan struct{} // closed once the process was waited for
	rdb  *redis.Client // for questions about the server, not measured
}

// Start starts a server and returns when it answers. The caller stops it.
func Start(ctx context.Context) (*Server, error) {
	var err error
	for range startTries {
		var s *Server
		if s, err = start(ctx); err == nil {
			return s, nil
		}
		if errors.Is(err, exec.ErrNotFound) || ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("start redis-server: %w", err)
}

func start(ctx context.Context) (*Server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "joblock-bench-")
	if err != nil {
		return nil, err
	}
	var log bytes.Buffer
	cmd := exec.Command("redis-server", "--port", strconv.Itoa(port), "--bind", "127.0.0.1",
		"--save", "", "--appendonly", "no", "--dir", dir)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	s := &Server{
		addr: addr, dir: dir, cmd: cmd, done: make(chan struct{}),
		rdb: redis.NewClient(&redis.Options{Addr: addr, DialerRetries: 1, MaxRetries: -1}),
	}
	go func() {
		defer close(s.done)
		_ = cmd.Wait() // how it ended is seen in the log, or was wanted
	}()
	if err := s.awaitReady(ctx); err != nil {
		err = errors.Join(err, s.Stop())
		return nil, fmt.Errorf("%w\n%s", err, log.String()) // nobody writes to log any more
	}
	return s, nil
}

// awaitReady compares process ids because another server may have taken the
// port, and would answer just as well.
func (s *Server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		pid, err := s.pid(ctx)
		if err == nil && pid == strconv.Itoa(s.cmd.Process.Pid) {
			return nil
		}
		select {
		case <-s.done:
			return errors.New("it ended at start")
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// pid asks whoever answers on the port for its process id. The client is left alone
// until somebody listens: it would log every vain attempt.
func (s *Server) pid(ctx context.Context) (string, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", s.addr)
	if err != nil {
		return "", err
	}
	if err := conn.Close(); err != nil {
		return "", err
	}
	return s.info(ctx, "server", "process_id")
}

// Addr returns "127.0.0.1:port".
func (s *Server) Addr() string { return s.addr }

// Stop kills the server, waits for it and removes what it has written. A Server
// is stopped once.
func (s *Server) Stop() error {
	err := s.rdb.Close()
	_ = s.cmd.Process.Kill() // "already finished" is what is wanted
	<-s.done
	return errors.Join(err, os.RemoveAll(s.dir))
}

// Flush removes all keys, so that no measurement works on another's leftovers.
// Loaded scripts stay.
func (s *Server) Flush(ctx context.Context) error {
	return s.rdb.FlushAll(ctx).Err()
}

// Version returns what the server says of itself, such as "7.0.15".
func (s *Server) Version(ctx context.Context) (string, error) {
	return s.info(ctx, "server", "redis_version")
}

// CPU returns the processor time, user and system, that the server has used.
func (s *Server) CPU(ctx context.Context) (time.Duration, error) {
	var sum float64
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		text, err := s.info(ctx, "cpu", name)
		if err != nil {
			return 0, err
		}
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return 0, fmt.Errorf("INFO cpu: %s: %w", name, err)
		}
		sum += seconds
	}
	return time.Duration(sum * float64(time.Second)), nil
}

// info returns one field of a section of INFO.
func (s *Server) info(ctx context.Context, section, field string) (string, error) {
	text, err := s.rdb.Info(ctx, section).Result()
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if val, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(val), nil
		}
	}
	return "", fmt.Errorf("INFO %s has no %s", section, field)
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}
