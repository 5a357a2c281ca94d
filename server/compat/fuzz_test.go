package compat

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/server"
)

// Whatever a request has, no answer is a 500 and no answer and no log has the token of another lock.
func FuzzHandlers(f *testing.F) {
	// Nothing is remembered for long, or the store would grow with the inputs.
	locks, err := joblock.New(memoryStore(), &joblock.Config{Logger: slog.New(slog.DiscardHandler), Retain: time.Millisecond, Reserve: time.Millisecond, MaxTTL: time.Hour})
	testkit.WantNil(f, "New", err)
	var log bytes.Buffer
	s, err := server.New(server.Config{Locks: locks, Authorize: server.Anyone(), Logger: slog.New(slog.NewJSONHandler(&log, nil)), BodyTimeout: time.Second})
	testkit.WantNil(f, "New", err)
	f.Cleanup(func() {
		testkit.WantNil(f, "Close", s.Close(context.Background()))
		testkit.WantNil(f, "Close of the Locker", locks.Close(context.Background()))
	})
	other, err := locks.TryAcquire(context.Background(), "other", joblock.TTL(time.Hour))
	testkit.WantNil(f, "TryAcquire", err)
	text, err := other.MarshalText()
	testkit.WantNil(f, "MarshalText", err)
	mux := http.NewServeMux()
	mux.Handle("/infra/locks/", mounted(f)(SaaSignal(s, "")))
	mux.Handle("/terraform/", http.StripPrefix("/terraform", mounted(f)(Terraform(s, ""))))
	mux.Handle("/v1.0-alpha1/", mounted(f)(DaprAlpha1(s, map[string]string{"redis": "shop:"})))
	for path, cfg := range map[string]DaprAlpha2Config{"/alpha2": {Prefix: "shop:", MaxHold: time.Second}, "/streams": {Prefix: "shop:", Stream: true}} {
		mux.Handle(path+"/", http.StripPrefix(path, mounted(f)(DaprAlpha2(s, cfg))))
	}
	mux.Handle("/rpc", Forrst(s))
	for _, seed := range []struct{ method, path, body string }{
		{"POST", "/alpha2/lock/a", `{"immediate":true,"ttl":"1s"}`},
		{"DELETE", "/alpha2/lock/a", `{"force":false,"lockID":"1.rs.x"}`},
		{"POST", "/streams/lock/b", `{"immediate":false,"ttl":"50ms"}`},
		{"DELETE", "/streams/lock/b", ""},
		{"POST", "/rpc", `{"protocol":{"name":"forrst","version":"0.1.0"},"id":"1","call":{"function":"urn:cline:forrst:ext:atomic-lock:fn:status","version":"1.0.0","arguments":{"key":"lock:a"}}}`},
		{"POST", "/infra/locks/a/acquire", `{"ttl_ms":1000,"holder_id":"x"}`},
		{"LOCK", "/terraform/state", `{"ID":"1","Operation":"plan","Info":"","Who":"me"}`},
		{"UNLOCK", "/terraform/state", `{"ID":"1"}`},
		{"POST", "/v1.0-alpha1/lock/redis", `{"resourceId":"a","lockOwner":"b","expiryInSeconds":1}`},
		{"POST", "/v1.0-alpha1/unlock/redis", `{"resourceId":"a","lockOwner":"b"}`},
	} {
		f.Add(seed.method, seed.path, seed.body)
	}
	f.Fuzz(func(t *testing.T, method, path, body string) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, strings.NewReader(body))
		if err != nil {
			return // net/http refuses such a request too
		}
		r.RequestURI, r.RemoteAddr = path, (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}).String()
		r.Header.Set("Content-Type", "application/json")
		log.Reset()
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		if w.Code == http.StatusInternalServerError && ctx.Err() == nil { // Dapr's API has no other status for a call that ended early
			t.Errorf("%s %s: %s; %s", method, path, w.Body, &log)
		}
		if token := string(text); strings.Contains(log.String(), token) || strings.Contains(w.Body.String(), token) && !strings.Contains(body+path, token) {
			t.Errorf("%s %s: a token is in %s or in %s", method, path, w.Body, &log)
		}
	})
}
