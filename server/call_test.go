package server

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/server/internal/problem"
)

// newHandler returns a Server without connections, with locks in memory.
func newHandler(t *testing.T, logger *slog.Logger) (*Server, *joblock.Locker) {
	t.Helper()
	locks, err := joblock.New(memoryStore(), nil)
	testkit.WantNil(t, "New", err)
	s, err := New(Config{Locks: locks, Authorize: Anyone(), Logger: logger})
	testkit.WantNil(t, "New", err)
	t.Cleanup(func() {
		testkit.WantNil(t, "Close", s.Close(context.Background()))
		testkit.WantNil(t, "Close of the Locker", locks.Close(context.Background()))
	})
	return s, locks
}

// A program around the Server may have put another body into a request, as one that decompresses does.
func TestReplacedBody(t *testing.T) {
	s, locks := newHandler(t, slog.New(slog.DiscardHandler))
	one := func(n int) string {
		return `{"key":"` + key + `","holder":"h"` + strings.Repeat(" ", n-len(`{"key":"`+key+`","holder":"h"}`)) + `}`
	}
	for _, c := range []struct {
		name     string
		declared int64
		body     string
		want     string
	}{
		{"as declared", 100, one(100), `"token"`},
		{"as declared, and large", 50_000, one(50_000), `"token"`},
		{"one byte more", 99, one(100), `"token"`},
		{"much more", 100, one(50_000), `"token"`},
		{"all that may be", 100, one(maxBody), `"token"`},
		{"too much", 100, one(maxBody + 1), problem.TooLarge},
		{"a byte less", 101, one(100), "ended early"},
		{"nothing", 100, "", "ended early"},
		{"nothing, as declared", 0, "", "not one JSON object"},
		{"something, and nothing declared", 0, one(100), `"token"`},
		{"of unknown length", -1, one(100), `"token"`},
	} {
		r := httptest.NewRequest(http.MethodPost, "http://localhost/v1/acquire", io.NopCloser(strings.NewReader(c.body)))
		r.ContentLength = c.declared
		r.Header.Set("Content-Type", jsonType)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: %d %s, want %s", c.name, w.Code, w.Body, c.want)
		}
		if err := locks.ForceRelease(t.Context(), key, joblock.Reason("the next case")); (err == nil) != (c.want == `"token"`) {
			t.Errorf("%s: the lock: %v", c.name, err)
		}
	}
}

// A token that stands in the place of a key is known for one, and so does not get into the log.
func TestTokensAreKnown(t *testing.T) {
	for _, ttl := range []time.Duration{time.Millisecond, time.Minute, driver.MaxPeriod} {
		for _, key := range []string{"k", key, strings.Repeat("k", driver.MaxKeyBytes)} {
			token, err := joblock.NewToken(key, "owner", ttl)
			testkit.WantNil(t, "NewToken", err)
			text, err := token.MarshalText()
			testkit.WantNil(t, "MarshalText", err)
			if !isToken(string(text)) {
				t.Errorf("the token %s is taken for a key", text)
			}
		}
	}
	for _, key := range []string{"", "l", "bench", tokenHead, tokenHead + "xyz", key} {
		if isToken(key) {
			t.Errorf("the key %q is taken for a token", key)
		}
	}
}

// The line of a request has what a line of a Logger has: the time, and the place in the code.
func TestLineOfARequest(t *testing.T) {
	var log bytes.Buffer
	s, _ := newHandler(t, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{AddSource: true})))
	began := time.Now().Truncate(time.Millisecond)
	serveText(s, "/v1/acquire", `{"key":"`+key+`","ttl_ms":10000}`)
	line := log.String()
	if strings.Count(line, "\n") != 1 || !strings.Contains(line, "/server/call.go:") || !strings.Contains(line, "status=200") || !strings.Contains(line, "key="+key) {
		t.Error(line)
	}
	text, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
	if at, err := time.Parse(time.RFC3339, text); err != nil || at.Before(began) || at.After(time.Now()) {
		t.Errorf("the line is of %s, %v; it was written since %s", text, err, began)
	}
}
