package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// BenchmarkPair takes and releases locks over HTTP: through a Server with an access log, and through a bare handler that
// decodes the body, calls the library and encodes the answer. Each is a process of its own on the same Redis, and they
// take turns of a few pairs, so that whatever the machine does meanwhile it does to both. The CPU is that of the process
// that serves; the figures of Linux are in nanoseconds.
func BenchmarkPair(b *testing.B) {
	for _, conns := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("connections=%d", conns), func(b *testing.B) {
			redisServer := redistest.Start(b)
			sides := []*side{
				newSide(b, startProcess(b, plan{Redis: redisServer.Addr()}), conns),
				newSide(b, startProcess(b, plan{Redis: redisServer.Addr(), Bare: true}), conns),
			}
			const turn = 50 // pairs
			for _, s := range sides {
				s.pairs(turn * 4) // connections, scripts, pools
				s.reset()
			}
			b.ResetTimer()
			pairs := 0
			for i := 0; b.Loop(); i++ {
				if i%turn == 0 {
					sides[i/turn%2].pairs(turn)
					sides[1-i/turn%2].pairs(turn)
					pairs += turn
				}
			}
			var cpu, took [2]float64
			for i, s := range sides {
				used, _ := s.cpu()
				cpu[i], took[i] = float64(used-s.before)/float64(pairs)/1e3, float64(s.took)/float64(pairs)/1e3
			}
			b.ReportMetric(took[0], "us/pair")
			b.ReportMetric(took[1], "bare-us/pair")
			b.ReportMetric(cpu[0], "cpu-us/pair")
			b.ReportMetric(cpu[1], "bare-cpu-us/pair")
			if cpu[1] > 0 {
				b.ReportMetric(cpu[0]/cpu[1], "cpu-ratio")
			}
		})
	}
}

// A side is a process and its clients.
type side struct {
	b       *testing.B
	process *process
	conns   []*pairClient
	took    time.Duration
	before  time.Duration
}

func newSide(b *testing.B, p *process, conns int) *side {
	s := &side{b: b, process: p}
	for i := range conns {
		s.conns = append(s.conns, newPairClient(b, p.addr(), fmt.Sprint("bench:", i)))
	}
	return s
}

func (s *side) reset() {
	s.took = 0
	s.before, _ = s.cpu()
}

// pairs takes and releases n locks, with all connections at the same time.
func (s *side) pairs(n int) {
	began := time.Now()
	var left atomic.Int64
	left.Store(int64(n))
	var group sync.WaitGroup
	for _, c := range s.conns {
		group.Go(func() {
			for left.Add(-1) >= 0 {
				if err := c.pair(); err != nil {
					s.b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	s.took += time.Since(began)
}

// cpu returns the user and system time of all threads of the process.
func (s *side) cpu() (used time.Duration, err error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", s.process.pid()))
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if err != nil {
			return 0, err
		}
		first, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, err
		}
		used += time.Duration(n)
	}
	return used, err
}

// A pairClient costs little: the benchmark is about the server.
type pairClient struct {
	conn net.Conn
	r    *bufio.Reader
	key  string
}

func newPairClient(b *testing.B, addr, key string) *pairClient {
	conn, err := net.Dial("tcp", addr)
	testkit.WantNil(b, "Dial", err)
	b.Cleanup(func() { _ = conn.Close() })
	return &pairClient{conn, bufio.NewReader(conn), key}
}

func (c *pairClient) pair() error {
	answer, err := c.ask("/v1/acquire", `{"key":"`+c.key+`","ttl_ms":10000,"holder":"bench"}`)
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(answer, `"token":"`)
	token, _, ok := strings.Cut(rest, `"`)
	if !ok {
		return fmt.Errorf("acquire: %s", answer)
	}
	if answer, err = c.ask("/v1/release", `{"token":"`+token+`"}`); err != nil || !strings.Contains(answer, "released") {
		return fmt.Errorf("release: %s, %w", answer, err)
	}
	return nil
}

func (c *pairClient) ask(path, body string) (string, error) {
	_, err := fmt.Fprintf(c.conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	if err != nil {
		return "", err
	}
	for length := 0; ; {
		line, err := c.r.ReadString('\n')
		if err != nil {
			return "", err
		}
		if n, ok := strings.CutPrefix(line, "Content-Length: "); ok {
			_, _ = fmt.Sscan(n, &length)
		}
		if line == "\r\n" {
			text := make([]byte, length)
			_, err := io.ReadFull(c.r, text)
			return string(text), err
		}
	}
}

// A short run of the benchmark, so that it does not rot.
func TestBenchmarkedPairs(t *testing.T) {
	t.Parallel()
	redisServer := redistest.Start(t)
	for _, isBare := range []bool{false, true} {
		p := startProcess(t, plan{Redis: redisServer.Addr(), Bare: isBare})
		conn, err := net.Dial("tcp", p.addr())
		testkit.WantNil(t, "Dial", err)
		defer conn.Close()
		c := &pairClient{conn, bufio.NewReader(conn), "bench"}
		for range 3 {
			testkit.WantNil(t, "pair", c.pair())
		}
	}
}

// bare is what a program without a Server would write.
func bare(locks *joblock.Locker) http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	mux.HandleFunc("POST /v1/acquire", func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			Key    string `json:"key"`
			TTL    int64  `json:"ttl_ms"`
			Holder string `json:"holder"`
		}
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		lock, err := locks.TryAcquire(r.Context(), req.Key, joblock.TTL(time.Duration(req.TTL)*time.Millisecond), joblock.Holder(req.Holder), joblock.NoRenew())
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		answer(w, map[string]any{"key": lock.Key(), "token": lock.Token(), "fence": lock.Fence(), "expires_at": lock.ExpiresAt()})
	})
	mux.HandleFunc("POST /v1/release", func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			Token joblock.Token `json:"token"`
		}
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := locks.Release(r.Context(), req.Token); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		answer(w, map[string]any{"released": true})
	})
	return mux
}

// BenchmarkHandlerPair is what a pair costs without connections and without Redis: through a Server, and through the bare
// handler.
func BenchmarkHandlerPair(b *testing.B) {
	locks, err := joblock.New(memoryStore(), &joblock.Config{Logger: slog.New(slog.DiscardHandler)})
	testkit.WantNil(b, "New", err)
	s, err := New(Config{Locks: locks, Authorize: Anyone(), Logger: slog.New(slog.NewJSONHandler(io.Discard, nil))})
	testkit.WantNil(b, "New", err)
	defer func() {
		testkit.WantNil(b, "Close", s.Close(context.Background()))
		testkit.WantNil(b, "Close of the Locker", locks.Close(context.Background()))
	}()
	for _, side := range []struct {
		name string
		h    http.Handler
	}{{"server", s}, {"bare", bare(locks)}} {
		b.Run(side.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				answer := serveText(side.h, "/v1/acquire", `{"key":"bench","ttl_ms":10000,"holder":"bench"}`)
				_, rest, _ := strings.Cut(answer, `"token":"`)
				token, _, _ := strings.Cut(rest, `"`)
				if answer = serveText(side.h, "/v1/release", `{"token":"`+token+`"}`); !strings.Contains(answer, "released") {
					b.Fatal(answer)
				}
			}
		})
	}
}

// serveText answers a request with as little as can be around the handler.
func serveText(h http.Handler, path, body string) string {
	r := &http.Request{
		Method: http.MethodPost, URL: &url.URL{Path: path}, RequestURI: path, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Host: "localhost",
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
		RemoteAddr: "127.0.0.1:1",
	}
	w := &textWriter{header: make(http.Header)}
	h.ServeHTTP(w, r)
	return w.text.String()
}

type textWriter struct {
	header http.Header
	text   strings.Builder
}

func (w *textWriter) Header() http.Header              { return w.header }
func (w *textWriter) WriteHeader(int)                  {}
func (w *textWriter) Write(p []byte) (int, error)      { return w.text.Write(p) }
func (w *textWriter) SetReadDeadline(time.Time) error  { return nil }
func (w *textWriter) SetWriteDeadline(time.Time) error { return nil }
func (w *textWriter) Flush()                           {}
