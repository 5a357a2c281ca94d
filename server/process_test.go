package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// planEnv is the environment variable with the plan of a server process, as JSON.
const planEnv = "JOBLOCK_SERVER_PLAN"

// A plan says what a server process is.
type plan struct {
	Listen      string // the address of a former process, or 127.0.0.1:0
	Redis       string
	CallTimeout time.Duration
	Reserve     time.Duration
	Poll        time.Duration
	Bare        bool   // the handler that benchmarks compare a Server with
	Broken      string // a rule that is broken, so that a test can show that it would notice
}

// The rules that a plan can break.
const (
	brokenRelease = "release ignores the token"
	brokenValid   = "answers promise too much time"
)

// runPlan is the server process. It prints its address, closes as a deploy does when its input ends, and prints how much
// memory it uses for each line of its input.
func runPlan(text string) int {
	redis.SetLogger(silence{})
	var p plan
	err := json.Unmarshal([]byte(text), &p)
	if err == nil {
		err = p.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (p *plan) run() error {
	rdb := redis.NewClient(&redis.Options{Addr: p.Redis})
	var store driver.Store = testkit.Must(redisstore.New(rdb, nil))
	if p.Broken == brokenRelease {
		store = releaseForAll{store}
	}
	quiet := slog.New(slog.DiscardHandler)
	locks, err := joblock.New(store, &joblock.Config{CallTimeout: p.CallTimeout, Reserve: p.Reserve, Poll: p.Poll, Logger: quiet})
	if err != nil {
		return err
	}
	s, err := New(Config{
		Locks: locks, Authorize: Anyone(), Logger: slog.New(slog.NewJSONHandler(io.Discard, nil)), MaxWait: time.Minute, MaxWaiting: 100_000, MaxWaitingEach: 100_000,
	})
	if err != nil {
		return err
	}
	var h http.Handler = s
	if p.Bare {
		h = bare(locks)
	}
	if p.Broken == brokenValid {
		h = promising(h)
	}
	l, err := p.listen()
	if err != nil {
		return err
	}
	hs := HTTPServer(h)
	hs.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	served := make(chan error, 1)
	go func() { served <- hs.Serve(l) }()
	fmt.Println(l.Addr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(memory())
	}
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	err = errors.Join(s.Close(ctx), hs.Shutdown(ctx))
	<-served
	closing := locks.Close(ctx)
	if errors.Is(closing, joblock.ErrUnavailable) {
		closing = nil // Redis was away: what is left ends by itself
	}
	return errors.Join(err, closing, rdb.Close())
}

// listen waits for the port of a former process.
func (p *plan) listen() (l net.Listener, err error) {
	for end := time.Now().Add(hang); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if l, err = net.Listen("tcp", p.Listen); err == nil {
			return l, nil
		}
	}
	return nil, err
}

// releaseForAll is a store whose Release frees a key for any caller.
type releaseForAll struct{ driver.Store }

func (s releaseForAll) Release(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
	for i := range reqs {
		recs, err := s.Store.Inspect(ctx, driver.InspectRequest{Keys: []string{reqs[i].Key}, Memo: true})
		if err != nil {
			return nil, err
		}
		if recs[0].State == joblock.StateHeld {
			reqs[i].Owner, reqs[i].Fence, reqs[i].Grant = recs[0].Owner, recs[0].Fence, ""
		}
	}
	return s.Store.Release(ctx, reqs)
}

// promising has the answers of acquire and resume tell of a second more than there is.
func promising(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/acquire") && !strings.HasSuffix(r.URL.Path, "/resume") {
			h.ServeHTTP(w, r)
			return
		}
		b := &buffered{ResponseWriter: w, status: http.StatusOK}
		h.ServeHTTP(b, r)
		text := b.text.Bytes()
		var o map[string]any
		if b.status == http.StatusOK && json.Unmarshal(text, &o) == nil {
			o["valid_ms"] = object(o).number("valid_ms") + 1000
			text, _ = json.Marshal(o)
		}
		w.Header().Del("Content-Length")
		w.WriteHeader(b.status)
		_, _ = w.Write(text)
	})
}

type buffered struct {
	http.ResponseWriter
	status int
	text   bytes.Buffer
}

func (b *buffered) WriteHeader(status int)      { b.status = status }
func (b *buffered) Write(p []byte) (int, error) { return b.text.Write(p) }

// A process is a server in a process of its own.
type process struct {
	t  testing.TB
	at atomic.Value // the address, a string, from the first process on

	mu   sync.Mutex // guards what follows
	plan plan
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	errs bytes.Buffer
}

// startProcess starts a server process, which ends with the test at the latest.
func startProcess(t testing.TB, p plan) *process {
	t.Helper()
	s := &process{t: t, plan: p}
	s.plan.Listen = "127.0.0.1:0"
	t.Cleanup(s.kill)
	if !s.start() {
		t.FailNow()
	}
	return s
}

func (s *process) addr() string { return s.at.Load().(string) }
func (s *process) url() string  { return "http://" + s.addr() }

// start starts a process at the address of the former one.
func (s *process) start() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, err := json.Marshal(s.plan)
	if err != nil {
		s.t.Error(err)
		return false
	}
	s.errs.Reset()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), planEnv+"="+string(text), "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = &s.errs
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		s.t.Errorf("start a server: %v", err)
		return false
	}
	s.cmd, s.in, s.out = cmd, in, bufio.NewReader(out)
	line, err := s.out.ReadString('\n')
	if err != nil {
		_ = cmd.Wait()
		s.cmd = nil
		s.t.Errorf("start a server: %v: %s", err, &s.errs)
		return false
	}
	s.plan.Listen = strings.TrimSpace(line)
	s.at.Store(s.plan.Listen)
	return true
}

// kill ends the process as a crash does, if there is one.
func (s *process) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
	if s.errs.Len() > 0 {
		s.t.Errorf("the server at %s: %s", s.plan.Listen, &s.errs)
	}
}

// drain ends the process as a deploy does.
func (s *process) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	_ = s.in.Close()
	if err := s.cmd.Wait(); err != nil || s.errs.Len() > 0 {
		s.t.Errorf("the server at %s: %v: %s", s.plan.Listen, err, &s.errs)
	}
	s.cmd = nil
}

func (s *process) pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return 0
	}
	return s.cmd.Process.Pid
}

// memory returns how many bytes of heap and stacks the process has in use, after a collection of garbage.
func (s *process) memory() int64 {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := io.WriteString(s.in, "\n")
	testkit.WantNil(s.t, "Write", err)
	line, err := s.out.ReadString('\n')
	testkit.WantNil(s.t, "Read", err)
	n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	testkit.WantNil(s.t, "ParseInt", err)
	return n
}

// resident returns how many bytes of memory the system has given to a process, 0 where that cannot be read.
func resident(pid int) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// ask sends a request with a JSON body to a server process.
func ask(ctx context.Context, client *http.Client, url string, body any, header ...string) (status int, o object, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(text))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	if text, err = io.ReadAll(res.Body); err != nil {
		return 0, nil, err
	}
	return res.StatusCode, o, json.Unmarshal(text, &o)
}
