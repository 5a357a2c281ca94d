package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// streamsEnv is the environment variable with the number of streams of TestManyStreams, which then runs for minutes.
const streamsEnv = "JOBLOCK_STREAMS"

// Many clients hold locks by streams of one server process, on a real Redis. Each is notified in time that it has its
// lock. When the process closes, each client resumes its lock at another process, no lock is lost, and no waiter gets one of
// the locks in between. The test logs what a stream costs.
func TestManyStreams(t *testing.T) {
	t.Parallel()
	many, ttl, watched := 100, 10*time.Second, time.Duration(0)
	if text := os.Getenv(streamsEnv); text != "" {
		var err error
		many, err = strconv.Atoi(text)
		testkit.WantNil(t, streamsEnv, err)
		ttl, watched = 30*time.Second, time.Minute
	}
	redisServer := redistest.Start(t)
	// On a busy machine Redis may stand still for longer than the default. The clients of this test do not try again.
	patient := plan{Redis: redisServer.Addr(), CallTimeout: hang}
	first, second := startProcess(t, patient), startProcess(t, patient)
	warmUp(t, first)
	heap, rss := first.memory(), resident(first.pid())

	began := time.Now()
	streams := make([]*stream1, many)
	inTurns(many, func(i int) {
		streams[i] = openStream(t, first.addr(), object{"key": fmt.Sprint("stream:", i), "ttl_ms": ttl.Milliseconds()})
	})
	var watching sync.WaitGroup
	defer watching.Wait()
	defer func() {
		for _, s := range streams {
			s.close()
		}
	}()
	inTurns(many, func(i int) { streams[i].until("lock-acquired") })
	t.Logf("%d streams have their locks after %s", many, time.Since(began).Round(time.Millisecond))
	for _, s := range streams {
		watching.Go(s.watch)
	}
	time.Sleep(watched)
	for _, s := range streams {
		<-s.pinged // which takes a quarter of the TTL
	}
	heap, rss = first.memory()-heap, resident(first.pid())-rss
	t.Logf("%d streams: %d bytes of heap and stacks for each, %d bytes of resident memory", many, heap/int64(many), rss/int64(many))

	// Others wait for some of the locks, and must not get them.
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for i := 0; i < many; i += max(1, many/50) {
		waiting.Go(func() {
			status, o, err := ask(ctx, client, second.url()+"/v1/acquire", object{"key": fmt.Sprint("stream:", i), "wait_ms": 60_000})
			if err == nil && status == http.StatusOK {
				t.Errorf("another caller got %v", o)
			}
		})
	}
	awaitWaiters(t, client, second, "stream:0")

	began = time.Now()
	go first.drain()
	inTurns(many, func(i int) {
		s := streams[i]
		<-s.over
		if s.end.text("type") != "draining" {
			t.Errorf("the last line of %d: %v", i, s.end)
			return
		}
		s.close()
		streams[i] = openStream(t, second.addr(), object{"token": s.end.text("token")})
		if o := streams[i].until("lock-acquired"); o.number("fence") <= s.fence || o.text("key") != fmt.Sprint("stream:", i) {
			t.Errorf("%v after the fence %d", o, s.fence)
		}
		streams[i].moved = time.Since(began)
		streams[i].gaps, streams[i].untrusted = s.gaps, s.untrusted
	})
	var moved, late []time.Duration
	untrusted := 0
	for _, s := range streams {
		moved, untrusted = append(moved, s.moved), untrusted+s.untrusted
		for _, gap := range s.gaps {
			late = append(late, max(0, gap-ttl/4))
		}
	}
	slices.Sort(moved)
	slices.Sort(late)
	t.Logf("%d pings, every %s: late by %s (median), %s (99 %%), %s (99.9 %%), %s (most); %d lines came when the time of the line before was over",
		len(late), ttl/4, part(late, 0.5), part(late, 0.99), part(late, 0.999), part(late, 1), untrusted)
	t.Logf("drained: half of the locks are held elsewhere after %s, all after %s", part(moved, 0.5), part(moved, 1))
	if untrusted > 0 {
		t.Errorf("%d times a client had to give its lock up because no line came", untrusted)
	}
	// While all of this went on, each lock went from its client to its client.
	keys := make([]string, 0, many)
	for i := range many {
		keys = append(keys, fmt.Sprint("stream:", i))
	}
	for some := range slices.Chunk(keys, 1000) {
		_, o, err := ask(t.Context(), client, second.url()+"/v1/status", object{"keys": some})
		testkit.WantNil(t, "status", err)
		for _, l := range o.items() {
			if l.text("state") != joblock.StateHeld.String() {
				t.Errorf("%s is %s", l.text("key"), l.text("state"))
			}
		}
	}
}

// A stream1 is a client of a stream on a socket of its own.
type stream1 struct {
	t     *testing.T
	conn  net.Conn
	r     *bufio.Reader
	sent  time.Time
	fence int64
	trust time.Time // until when the client can rely on its lock

	pinged    chan struct{} // closed with the first ping
	over      chan struct{} // closed with the end
	end       object        // the last line
	gaps      []time.Duration
	untrusted int
	moved     time.Duration
}

func openStream(t *testing.T, addr string, body object) *stream1 {
	t.Helper()
	text, err := json.Marshal(body)
	testkit.WantNil(t, "Marshal", err)
	conn, err := net.DialTimeout("tcp", addr, hang)
	if err != nil {
		t.Errorf("dial: %v", err)
		conn, _ = net.Pipe() // whose reads fail below
		_ = conn.Close()
	}
	s := &stream1{t: t, conn: conn, r: bufio.NewReaderSize(conn, 512), sent: time.Now(), pinged: make(chan struct{}), over: make(chan struct{})}
	_, _ = fmt.Fprintf(conn, "POST /v1/hold HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
	return s
}

func (s *stream1) close() { _ = s.conn.Close() }

// line returns the next line, or nil.
func (s *stream1) line() object {
	_ = s.conn.SetReadDeadline(time.Now().Add(2 * hang))
	for {
		text, err := s.r.ReadString('\n')
		if err != nil {
			return nil
		}
		var o object
		if strings.HasPrefix(text, "{") && json.Unmarshal([]byte(text), &o) == nil {
			if o["valid_ms"] != nil {
				s.trust = s.sent.Add(time.Duration(o.number("elapsed_ms")+o.number("valid_ms")) * time.Millisecond)
			}
			return o
		}
	}
}

// until reads to the next line of a type.
func (s *stream1) until(kind string) object {
	for last := (object)(nil); ; {
		o := s.line()
		if o == nil {
			s.t.Errorf("the stream has ended without %q, after %v", kind, last)
			return nil
		}
		last = o
		if o.text("type") == kind {
			s.fence = o.number("fence")
			return o
		}
	}
}

// watch reads to the end, and notes when the pings come.
func (s *stream1) watch() {
	defer close(s.over)
	pinged := sync.OnceFunc(func() { close(s.pinged) })
	defer pinged()
	for last := (time.Time{}); ; {
		trust := s.trust
		o := s.line()
		now := time.Now()
		if o != nil && now.After(trust) {
			s.untrusted++
		}
		if o.text("type") != "ping" {
			s.end = o
			return
		}
		if !last.IsZero() {
			s.gaps = append(s.gaps, now.Sub(last))
		}
		last = now
		pinged()
	}
}

// inTurns calls f with all numbers below n, a few at a time.
func inTurns(n int, f func(i int)) {
	var group sync.WaitGroup
	turn := make(chan struct{}, 64)
	for i := range n {
		turn <- struct{}{}
		group.Go(func() {
			defer func() { <-turn }()
			f(i)
		})
	}
	group.Wait()
}

// warmUp has a process do once what it does again and again later.
func warmUp(t *testing.T, s *process) {
	t.Helper()
	one := openStream(t, s.addr(), object{"key": "warm", "ttl_ms": 10_000})
	one.until("lock-acquired")
	one.close()
}

func awaitWaiters(t *testing.T, client *http.Client, s *process, key string) {
	t.Helper()
	for end := time.Now().Add(hang); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, o, err := ask(t.Context(), client, s.url()+"/v1/status", object{"keys": []string{key}}); err == nil && len(o.items()) == 1 && o.items()[0].number("waiters") > 0 {
			return
		}
	}
	t.Errorf("no waiters for %s", key)
}

// part returns the value below which a part of the sorted values is.
func part(sorted []time.Duration, share float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))].Round(100 * time.Microsecond)
}

func memory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
