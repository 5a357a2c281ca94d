package handoff_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
)

// hang bounds what must happen but has no time of its own.
const hang = 30 * time.Second

// store is a Store some of whose calls fail while their error is set.
type store struct {
	driver.Store
	mu                                   sync.Mutex // guards what follows
	acquire, release, resume, park, seal error
	onResume                             func() // before the next one
	onRelease                            func() // before each
}

func (s *store) set(where *error, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*where = err
}

func (s *store) get(where *error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *where
}

func (s *store) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	if err := s.get(&s.acquire); err != nil {
		return driver.Reply{}, err
	}
	return s.Store.Acquire(ctx, req)
}

func (s *store) Resume(ctx context.Context, req driver.ResumeRequest) (driver.Reply, error) {
	if err := s.get(&s.resume); err != nil {
		return driver.Reply{}, err
	}
	s.mu.Lock()
	do := s.onResume
	s.onResume = nil
	s.mu.Unlock()
	if do != nil {
		do()
	}
	return s.Store.Resume(ctx, req)
}

func (s *store) SealKeys(ctx context.Context, req driver.SealKeysRequest) ([]driver.SealKey, error) {
	if err := s.get(&s.seal); err != nil {
		return nil, err
	}
	return s.Store.SealKeys(ctx, req)
}

func (s *store) Park(ctx context.Context, req driver.ParkRequest) (driver.Reply, error) {
	if err := s.get(&s.park); err != nil {
		return driver.Reply{}, err
	}
	return s.Store.Park(ctx, req)
}

func (s *store) Release(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
	s.mu.Lock()
	do := s.onRelease
	s.mu.Unlock()
	if do != nil {
		do()
	}
	if err := s.get(&s.release); err != nil {
		return make([]driver.Reply, len(reqs)), err
	}
	return s.Store.Release(ctx, reqs)
}

var errDown = errors.New("connection refused")

// newStore returns a memstore that can be made to fail.
func newStore() *store {
	return &store{Store: memstore.New(&memstore.Config{Notice: memstore.NoticeSilent})}
}

// newLocker returns a Locker on s that is closed with the test.
func newLocker(t testing.TB, s driver.Store) *joblock.Locker {
	t.Helper()
	locks, err := joblock.New(s, &joblock.Config{Holder: "test", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), hang)
		defer cancel()
		if err := locks.Close(ctx); err != nil {
			t.Errorf("close the Locker: %v", err)
		}
	})
	return locks
}

func newMemLocker(t testing.TB) *joblock.Locker { return newLocker(t, newStore()) }

// acquire takes a lock that must be free.
func acquire(t testing.TB, locks *joblock.Locker, key string, opts ...joblock.TryOption) *joblock.Lock {
	t.Helper()
	lock, err := locks.TryAcquire(context.Background(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

// wantState checks the state of a key and returns its status.
func wantState(t testing.TB, locks *joblock.Locker, key string, want joblock.State) joblock.Status {
	t.Helper()
	st, err := locks.Status(context.Background(), key)
	if err != nil {
		t.Fatal(err)
	}
	if st.State != want {
		t.Errorf("%s is %s, want %s (%+v)", key, st.State, want, st)
	}
	return st
}

// logBuffer is a log that a test can look at.
type logBuffer struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// wantOneEntry checks that the log has one entry, of the level, that says says.
func wantOneEntry(t testing.TB, log *logBuffer, level, says string) {
	t.Helper()
	text := log.String()
	if strings.Count(text, "\n") != 1 || !strings.Contains(text, `"level":"`+level+`"`) || !strings.Contains(text, says) {
		t.Errorf("log is %q, want one entry of level %s that says %q", text, level, says)
	}
}

// silent are the options of a middleware whose log does not matter.
func silent() handoff.MiddlewareOption { return handoff.Logger(slog.New(slog.DiscardHandler)) }

// fixed is a claim function that claims the same for every request.
func fixed(c handoff.Claim) func(*http.Request) (handoff.Claim, error) {
	return func(*http.Request) (handoff.Claim, error) { return c, nil }
}

// serve sends one request through h.
func serve(h http.Handler) *httptest.ResponseRecorder {
	return serveRequest(h, httptest.NewRequest(http.MethodPost, "/exports", strings.NewReader("{}")))
}

func serveRequest(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// accept is a handler that answers 202.
var accept = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })
