package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// DefaultProgram is the server that the system has.
const DefaultProgram = "redis-server"

// Start starts program, which takes the arguments of redis-server, and returns when the
// server answers. A program that is not found, or that does not come up, is an error. The
// caller stops the server.
func Start(ctx context.Context, program string) (*Server, error) {
	var err error
	for range startTries {
		var s *Server
		if s, err = start(ctx, program); err == nil {
			return s, nil
		}
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("start %s: %w", program, err)
}

func start(ctx context.Context, program string) (*Server, error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "joblock-bench-")
	if err != nil {
		return nil, err
	}
	return startIn(ctx, program, dir, ports[0])
}

// startIn starts a server that has dir to itself.
func startIn(ctx context.Context, program, dir string, port int, args ...string) (*Server, error) {
	var log bytes.Buffer
	cmd := exec.Command(program, append([]string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1",
		"--save", "", "--appendonly", "no", "--dir", dir}, args...)...)
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
	about, err := s.info(ctx, "server")
	return about["process_id"], err
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

// Client returns the client for questions about the server. The Server closes the client.
func (s *Server) Client() *redis.Client { return s.rdb }

// Flush removes all keys, so that no measurement works on another's leftovers.
// Loaded scripts stay.
func (s *Server) Flush(ctx context.Context) error {
	return s.rdb.FlushAll(ctx).Err()
}

// Version returns what the server says of itself, such as "Redis 7.0.15" or "Valkey 8.0.1".
func (s *Server) Version(ctx context.Context) (string, error) {
	about, err := s.info(ctx, "server")
	if err != nil {
		return "", err
	}
	if version, ok := about["valkey_version"]; ok {
		return "Valkey " + version, nil
	}
	return "Redis " + about["redis_version"], nil
}

// Usage is what a server has done since its start.
type Usage struct {
	CPU      time.Duration // processor time of the process, user and system
	Bytes    int64         // from and to clients
	commands map[string]Calls
}

// Calls is the server's own count of one command, or of several. Commands that a script runs
// are in the time of the script, and have counts of their own too.
type Calls struct {
	Number int64
	Time   time.Duration
}

// Of returns the count of the named commands together, such as "evalsha" and "set".
func (u Usage) Of(commands ...string) (sum Calls) {
	for _, name := range commands {
		sum.Number += u.commands[name].Number
		sum.Time += u.commands[name].Time
	}
	return sum
}

// All returns the count of all commands together. Commands that a script runs count twice in the
// time: alone and in the time of the script.
func (u Usage) All() (sum Calls) {
	for _, c := range u.commands {
		sum.Number += c.Number
		sum.Time += c.Time
	}
	return sum
}

// Sub returns what was counted between before and c.
func (c Calls) Sub(before Calls) Calls { return Calls{c.Number - before.Number, c.Time - before.Time} }

// Usage asks the server, once: the question costs the server some 50 µs.
func (s *Server) Usage(ctx context.Context) (u Usage, err error) {
	fields, err := s.info(ctx, "cpu", "stats", "commandstats")
	if err != nil {
		return u, err
	}
	var seconds float64
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		part, err := strconv.ParseFloat(fields[name], 64)
		if err != nil {
			return u, fmt.Errorf("INFO cpu: %s: %w", name, err)
		}
		seconds += part
	}
	u.CPU = time.Duration(seconds * float64(time.Second))
	for _, name := range []string{"total_net_input_bytes", "total_net_output_bytes"} {
		n, err := strconv.ParseInt(fields[name], 10, 64)
		if err != nil {
			return u, fmt.Errorf("INFO stats: %s: %w", name, err)
		}
		u.Bytes += n
	}
	u.commands = make(map[string]Calls)
	for name, text := range fields {
		command, ok := strings.CutPrefix(name, "cmdstat_")
		if !ok {
			continue
		}
		var c Calls
		if _, err := fmt.Sscanf(text, "calls=%d,usec=%d,", &c.Number, &c.Time); err != nil {
			return u, fmt.Errorf("INFO commandstats: %s: %q: %w", command, text, err)
		}
		c.Time *= time.Microsecond
		u.commands[command] = c
	}
	return u, nil
}

// Memory returns the bytes that the server has allocated, as INFO has it.
func (s *Server) Memory(ctx context.Context) (int64, error) {
	about, err := s.info(ctx, "memory")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(about["used_memory"], 10, 64)
}

// Key is what a server says of one key.
type Key struct {
	Bytes    int64         // as MEMORY USAGE has it; 0 if there is no such key
	Remember time.Duration // until the key expires; negative if it does not
}

// Key asks for a key by the name that it has in the server.
func (s *Server) Key(ctx context.Context, name string) (k Key, err error) {
	// MEMORY USAGE alone would still find a key that has expired.
	if n, err := s.rdb.Exists(ctx, name).Result(); n == 0 || err != nil {
		return Key{}, err
	}
	k.Bytes, err = s.rdb.MemoryUsage(ctx, name, 0).Result()
	if errors.Is(err, redis.Nil) {
		return Key{}, nil
	}
	if err == nil {
		k.Remember, err = s.rdb.PTTL(ctx, name).Result()
	}
	return k, err
}

// info returns the fields of sections of INFO.
func (s *Server) info(ctx context.Context, sections ...string) (map[string]string, error) {
	text, err := s.rdb.Info(ctx, sections...).Result()
	if err != nil {
		return nil, err
	}
	return parseInfo(text), nil
}

func parseInfo(text string) map[string]string {
	fields := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, val, ok := strings.Cut(line, ":"); ok {
			fields[name] = strings.TrimSpace(val)
		}
	}
	return fields
}

// freePorts returns n different ports on which nobody listens.
func freePorts(n int) (ports []int, err error) {
	for range n {
		l, lerr := net.Listen("tcp", "127.0.0.1:0")
		if lerr != nil {
			return nil, lerr
		}
		defer func() { err = errors.Join(err, l.Close()) }()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
