package server

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

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// A fuzzed server has the lock of another caller, whose token no answer and no log may show.
type fuzzed struct {
	name    string
	h       http.Handler
	s       *Server
	locks   *joblock.Locker
	log     bytes.Buffer // of the last request
	foreign *joblock.Lock
	token   string
	calls   int

	inspector *asynq.Inspector // of a database with the task job in the queues mine and theirs
}

func newFuzzed(f *testing.F, name string, who Authorizer, handler func(*Server) http.Handler) *fuzzed {
	f.Helper()
	z := &fuzzed{name: name}
	logger := slog.New(slog.NewJSONHandler(&z.log, nil))
	var err error
	// Nothing is remembered for long, or the store would grow with the inputs.
	z.locks, err = joblock.New(store(), &joblock.Config{Logger: slog.New(slog.DiscardHandler), Retain: time.Millisecond, Reserve: time.Millisecond, MaxTTL: time.Hour})
	testkit.WantNil(f, "New", err)
	mini := redistest.MiniServer(f)
	rdb := redistest.MiniClient(f, mini)
	z.inspector = asynq.NewInspectorFromRedisClient(rdb)
	for _, queue := range []string{"mine", "theirs"} {
		_, err := asynq.NewClientFromRedisClient(rdb).Enqueue(asynq.NewTask("export", nil), asynq.Queue(queue), asynq.TaskID("job"))
		testkit.WantNil(f, "Enqueue", err)
	}
	z.s, err = New(Config{
		Locks: z.locks, Authorize: who, Logger: logger, BodyTimeout: time.Second, CronScopes: []string{"main"},
		Databases: []Database{{Name: "main", Inspector: z.inspector}}, Redis: rdb,
	})
	testkit.WantNil(f, "New", err)
	z.foreign, err = z.locks.TryAcquire(context.Background(), "foreign", joblock.TTL(time.Hour), joblock.Retain(time.Hour))
	testkit.WantNil(f, "TryAcquire", err)
	text, err := z.foreign.MarshalText()
	testkit.WantNil(f, "MarshalText", err)
	z.token = string(text)
	z.h = handler(z.s)
	f.Cleanup(func() {
		testkit.WantNil(f, "Close", z.s.Close(context.Background()))
		testkit.WantNil(f, "Close of the Locker", z.locks.Close(context.Background()))
	})
	return z
}

// Whatever a request has, the answer is one that openapi.json knows, and never a 500. No token gets into an answer or
// into the log. A caller with prefixes neither sees nor changes a lock of another prefix, and an unknown one gets nothing.
func FuzzServer(f *testing.F) {
	plain := func(s *Server) http.Handler { return s }
	all := newFuzzed(f, "anyone", Anyone(), plain)
	mine := newFuzzed(f, "with a prefix", AuthorizeFunc(func(*http.Request) (Principal, error) {
		return Principal{ID: "mine", Scopes: scopeAny &^ ScopeAdmin, Prefixes: []string{"mine:"}, Queues: []string{"mine"}}, nil
	}), plain)
	none := newFuzzed(f, "no account", AuthorizeFunc(func(*http.Request) (Principal, error) { return Principal{}, ErrUnauthorized }), plain)
	for _, seed := range []struct{ method, path, headers, body string }{
		{"POST", "/v1/acquire", "Idempotency-Key: x", `{"key":"mine:a","ttl_ms":1000,"wait_ms":10,"holder":"h","limit":2}`},
		{"POST", "/v1/locks/a%2Fb/acquire", "Content-Type: application/json; charset=utf-8", `{}`},
		{"POST", "/v1/renew", "", `{"token":"` + all.token + `","ttl_ms":1}`},
		{"POST", "/v1/release", "", `{"token":"` + all.token[:len(all.token)-2] + `","reason":"x"}`},
		{"POST", "/v1/park", "", `{"token":"","job":"a/b","reserve_ms":5}`},
		{"POST", "/v1/resume", "Idempotency-Key: ", `{"token":"gA","job":"mine/1"}`},
		{"POST", "/v1/hold", "Accept: text/event-stream", `{"key":"mine:held","ttl_ms":50,"wait_ms":1,"max_hold_ms":5,"on_disconnect":"park"}`},
		{"POST", "/v1/status", "", `{"keys":["foreign","mine:a"]}`},
		{"POST", "/v1/force-release", `If-Match: "1"`, `{"key":"foreign","reason":"x"}`},
		{"POST", "/v1/cron-pause?scope=main", "", `{"reason":"x"}`},
		{"POST", "/v1/cron/x/trigger", "", `{"reason":"x"}`},
		{"GET", "/v1/lock?key=foreign", "If-None-Match: *", ""},
		{"GET", "/v1/locks?prefix=mine:&state=held,free&older_ms=1&waiters=1&ended=1&own=1&limit=5&cursor=x", "", ""},
		{"GET", "/v1/jobs?prefix=mine:&queue=mine&suspects=1&cursor=e30&limit=1", "", ""},
		{"GET", "/v1/jobs/mine/a%2Fb", "", ""},
		{"GET", "/v1/jobs/theirs/job", "If-None-Match: *", ""},
		{"POST", "/v1/jobs/mine/job/run", `If-Match: "x"`, `{"reason":"x"}`},
		{"POST", "/v1/jobs/mine/job/cancel", "If-Match: *", `{"reason":"x"}`},
		{"POST", "/v1/jobs/theirs/job/drop", "If-Match: *", `{"reason":"x"}`},
		{"POST", "/v1/jobs/theirs/job/drop", `If-Match: "a","b"`, `{"reason":"x","key":"y"}`},
		{"POST", "/v1/jobs/theirs/%00/run?x=1", "If-Match: \"\\\"", `{"reason":""}`},
		{"POST", "/v1/skip", `If-Match: "1"`, `{"key":"foreign","reason":"x"}`},
		{"POST", "/v1/locks/mine:a/skip", `If-Match: W/"1-2"`, `{"reason":"x"}`},
		{"GET", "/v1/sequences?prefix=mine:&halted=1&limit=1", "", ""},
		{"GET", "/v1/locks?prefix=mine:&job=1&queue=mine&cursor=e30&limit=1", "", ""},
		{"GET", "/v1/cron/x/backfill?from=2026-01-02T15:04:05Z&to=2026-01-03T15:04:05Z", "", ""},
		{"POST", "/v1/cron/x/backfill", "", `{"from":"2026-01-02T15:04:05Z","to":"2026-01-03T15:04:05Z","reason":"x"}`},
		{"POST", "/v1/cron/x/stop-backfill", "", `{"reason":"x"}`},
		{"POST", "/v1/renew", "", `{"token":"` + all.token + `","reserve_ms":1}`},
		{"GET", "/v1/events?prefix=mine:&kind=lost&since=2026-01-02T15:04:05Z&after=0", "Accept: text/event-stream\nLast-Event-ID: 1-1", ""},
		{"GET", "/v1/history?key=mine:a&limit=3", "", ""},
		{"GET", "/v1/locks/mine:a/explain", "", ""},
		{"GET", "/v1/line?key=mine:a&limit=1", "", ""},
		{"GET", "/v1/permits?key=mine:a&n=3", "", ""},
		{"GET", "/v1/cron-preview?spec=0+*+*+*+*&zone=Europe/Berlin&n=3", "", ""},
		{"GET", "/v1/doctor", "", ""},
		{"GET", "/v1/audit?since=2026-01-02T15:04:05Z&key=x", "", ""},
		{"GET", "/v1/me", "Authorization: Bearer x\nHost: evil.example\nSec-Fetch-Site: cross-site", ""},
		{"HEAD", "/readyz", "Accept: */*", ""},
		{"POST", "/v1/locks/%2E%2E/../x", "", `{"key":"\ud800"}`},
	} {
		f.Add(seed.method, seed.path, seed.headers, seed.body)
	}
	f.Fuzz(func(t *testing.T, method, path, headers, body string) {
		for _, z := range []*fuzzed{all, mine, none} {
			z.try(t, method, path, headers, body)
		}
	})
}

func (z *fuzzed) try(t *testing.T, method, path, headers, body string) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		return // net/http refuses such a request too
	}
	r.RequestURI, r.RemoteAddr = path, (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}).String()
	r.Header.Set("Content-Type", "application/json")
	for line := range strings.Lines(headers) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		if strings.EqualFold(name, "Host") {
			r.Host = strings.TrimSpace(value)
		} else if name != "" {
			r.Header.Add(name, strings.TrimSpace(value))
		}
	}
	z.log.Reset()
	w := httptest.NewRecorder()
	z.h.ServeHTTP(w, r)
	res := w.Result()
	if res.StatusCode == http.StatusInternalServerError {
		t.Errorf("%s: %s %s: %s; %s", z.name, method, path, w.Body, &z.log)
	}
	if strings.Contains(z.log.String(), z.token) || strings.Contains(w.Body.String(), z.token) && !strings.Contains(body+path, z.token) {
		t.Errorf("%s: %s %s: a token is in %s or in %s", z.name, method, path, w.Body, &z.log)
	}
	checkAnswer(t, r, []byte(body), res, w.Body.Bytes())
	switch z.name {
	case "with a prefix":
		if z.foreign.Err() != nil || strings.Contains(w.Body.String(), `"holder":"`+z.s.in.Settings().Holder+`"`) && strings.Contains(w.Body.String(), `"foreign"`) {
			t.Errorf("%s %s: %v, %s", method, path, z.foreign.Err(), w.Body)
		}
	case "no account":
		if got := res.StatusCode; got < 400 && !open(r.URL.Path) {
			t.Errorf("%s %s: an unknown caller gets %d %s", method, path, got, w.Body)
		}
	}
	if strings.Contains(path, "jobs") && (z.name == "with a prefix" || z.name == "no account") {
		if info, err := z.inspector.GetTaskInfo("theirs", "job"); err != nil || info.State != asynq.TaskStatePending {
			t.Errorf("%s: the task of others: %+v, %v", z.name, info, err)
		}
	}
	if z.calls++; z.calls%256 != 0 {
		return
	}
	for st, err := range z.locks.List(context.Background(), joblock.ListOptions{}) {
		switch {
		case err != nil:
			t.Error(err)
		case z.name == "with a prefix" && st.Key != "foreign" && !strings.HasPrefix(st.Key, "mine:"), z.name == "no account" && st.Key != "foreign":
			t.Errorf("%s: a caller has %s", z.name, st.Key)
		}
	}
	if err := z.foreign.Renew(context.Background()); err != nil && z.name != "anyone" {
		t.Errorf("%s: the foreign lock: %v", z.name, err)
	}
}

// open reports whether a path needs no caller.
func open(path string) bool {
	return path == "/healthz" || path == "/readyz" || path == "/openapi.json"
}
