package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// streamsEnv is the environment variable with the number of streams of TestManyStreams.
const streamsEnv = "JOBLOCK_STREAMS"

// Many clients hold locks by streams of one replica, on real sockets. When the replica closes, each client resumes its
// lock at another replica, and no lock is lost. The test logs what a stream costs.
func TestManyStreams(t *testing.T) {
	many := 200
	if text := os.Getenv(streamsEnv); text != "" {
		var err error
		many, err = strconv.Atoi(text)
		testkit.WantNil(t, streamsEnv, err)
	}
	one := shared{memoryStore()}
	start := func() (*Server, string) {
		locks, err := joblock.New(one, &joblock.Config{Logger: slog.New(slog.DiscardHandler)})
		testkit.WantNil(t, "New", err)
		s, err := New(Config{Locks: locks, Authorize: Anyone, Logger: slog.New(slog.DiscardHandler), MaxWaiting: many, MaxWaitingEach: many})
		testkit.WantNil(t, "New", err)
		l, err := s.Listen(ListenConfig{Address: "127.0.0.1:0"})
		testkit.WantNil(t, "Listen", err)
		hs := HTTPServer(s)
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = hs.Serve(l)
		}()
		t.Cleanup(func() {
			testkit.WantNil(t, "Close", s.Close(context.Background()))
			_ = hs.Close()
			<-served
			testkit.WantNil(t, "Close of the Locker", locks.Close(context.Background()))
		})
		return s, l.Addr().String()
	}
	first, at := start()
	_, elsewhere := start()
	before := memory()
	streams := make([]*rawStream, many)
	for i := range streams {
		streams[i] = openStream(t, at, fmt.Sprintf(`{"key":"stream:%d","ttl_ms":60000}`, i))
	}
	fences := make([]int64, many)
	for i, s := range streams {
		o := s.until(t, "lock-acquired")
		fences[i] = o.number("fence")
	}
	perStream := (memory() - before) / int64(many)
	began := time.Now()
	closed := make(chan error, 1)
	go func() { closed <- first.Close(context.Background()) }()
	tokens := make([]string, many)
	for i, s := range streams {
		tokens[i] = s.until(t, "draining").text("token")
	}
	testkit.WantNil(t, "Close", <-closed)
	drained := time.Since(began)
	for i, token := range tokens {
		streams[i].conn.Close()
		streams[i] = openStream(t, elsewhere, fmt.Sprintf(`{"token":%q}`, token))
	}
	for i, s := range streams {
		if o := s.until(t, "lock-acquired"); o.number("fence") <= fences[i] || o.text("key") != fmt.Sprint("stream:", i) {
			t.Errorf("%v after fence %d", o, fences[i])
		}
	}
	t.Logf("%d streams: %d bytes of memory for each; all locks parked and told after %s, and held elsewhere after %s",
		many, perStream, drained.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	for _, s := range streams {
		s.conn.Close()
	}
}

// rawStream is a client without a goroutine: what it has not read is in the buffers of the kernel.
type rawStream struct {
	conn net.Conn
	r    *bufio.Reader
}

func openStream(t *testing.T, addr, body string) *rawStream {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	testkit.WantNil(t, "Dial", err)
	_, err = fmt.Fprintf(conn, "POST /v1/hold HTTP/1.1\r\nHost: server\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	testkit.WantNil(t, "Write", err)
	return &rawStream{conn, bufio.NewReaderSize(conn, 512)}
}

// until reads to the next line of a type, and throws away the lines before.
func (s *rawStream) until(t *testing.T, kind string) object {
	t.Helper()
	_ = s.conn.SetReadDeadline(time.Now().Add(hang))
	for {
		text, err := s.r.ReadString('\n')
		if err != nil {
			t.Fatalf("%q: %v", kind, err)
		}
		if !strings.HasPrefix(text, "{") {
			continue
		}
		var o object
		testkit.WantNil(t, "Unmarshal", json.Unmarshal([]byte(text), &o))
		if o.text("type") == kind {
			return o
		}
	}
}

func memory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
