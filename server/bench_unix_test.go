//go:build unix

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
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// BenchmarkPair takes and releases a lock over HTTP: through a Server with a token and an access log, and through a bare
// handler that decodes the body, calls the library and encodes the answer. The client costs both the same.
func BenchmarkPair(b *testing.B) {
	redisServer := redistest.Start(b)
	rdb := redis.NewClient(&redis.Options{Addr: redisServer.Addr()})
	b.Cleanup(func() { _ = rdb.Close() })
	locks, err := joblock.New(redisstore.New(rdb, nil), &joblock.Config{Logger: slog.New(slog.DiscardHandler)})
	testkit.WantNil(b, "New", err)
	b.Cleanup(func() { _ = locks.Close(context.Background()) })
	s, err := New(Config{Locks: locks, Authorize: Anyone, Logger: slog.New(slog.NewJSONHandler(io.Discard, nil))})
	testkit.WantNil(b, "New", err)
	for name, h := range map[string]http.Handler{"server": s, "bare": bare(locks)} {
		b.Run(name, func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			testkit.WantNil(b, "Listen", err)
			hs := HTTPServer(h)
			go func() { _ = hs.Serve(l) }()
			defer hs.Close()
			conn, err := net.Dial("tcp", l.Addr().String())
			testkit.WantNil(b, "Dial", err)
			defer conn.Close()
			r := bufio.NewReader(conn)
			ask := func(path, body string) string {
				_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
				length := 0
				for {
					line, err := r.ReadString('\n')
					if err != nil {
						b.Fatal(err)
					}
					if n, ok := strings.CutPrefix(line, "Content-Length: "); ok {
						_, _ = fmt.Sscan(n, &length)
					}
					if line == "\r\n" {
						break
					}
				}
				text := make([]byte, length)
				_, _ = io.ReadFull(r, text)
				return string(text)
			}
			began := cpu()
			for b.Loop() {
				answer := ask("/v1/acquire", `{"key":"bench","ttl_ms":10000,"holder":"bench"}`)
				_, rest, _ := strings.Cut(answer, `"token":"`)
				token, _, ok := strings.Cut(rest, `"`)
				if !ok {
					b.Fatal(answer)
				}
				if answer := ask("/v1/release", `{"token":"`+token+`"}`); !strings.Contains(answer, "released") {
					b.Fatal(answer)
				}
			}
			b.ReportMetric(float64((cpu()-began).Microseconds())/float64(b.N), "cpu-us/op")
		})
	}
}

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

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
