package handoff_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
)

// hang bounds what must happen but has no time of its own.
const hang = 30 * time.Second

// What is documented, but not exported.
const (
	settleFor      = 3 * time.Second
	watchFor       = 5 * time.Minute
	defaultMaxHold = time.Minute
	claimFailed    = "LOCK_CLAIM_FAILED"
)

var errDown = errors.New("connection refused")

// newStore returns a memstore that can be made to fail.
func newStore() *faultstore.Store {
	return faultstore.New(memstore.New(&memstore.Config{Silent: true}))
}

// newLocker returns a Locker on s that is closed with the test.
func newLocker(t testing.TB, s driver.Store) *joblock.Locker {
	t.Helper()
	locks, err := joblock.New(s, &joblock.Config{Holder: "test", Logger: silent})
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
func acquire(t testing.TB, locks *joblock.Locker, key string, opts ...joblock.AcquireOption) *joblock.Lock {
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
	st, err := testkit.One(locks.Status(context.Background(), key))
	if err != nil {
		t.Fatal(err)
	}
	if st.State != want {
		t.Errorf("%s is %s, want %s (%+v)", key, st.State, want, st)
	}
	return st
}

// wantOneEntry checks that the log has one entry, of the level, that says says.
func wantOneEntry(t testing.TB, log *testkit.Log, level, says string) {
	t.Helper()
	text := log.String()
	if strings.Count(text, "\n") != 1 || !strings.Contains(text, `"level":"`+level+`"`) || !strings.Contains(text, says) {
		t.Errorf("log is %q, want one entry of level %s that says %q", text, level, says)
	}
}

// silent is the logger of a Guard whose log does not matter.
var silent = slog.New(slog.DiscardHandler)

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

// taskOf returns the task of the result of an enqueue.
func taskOf(done handoff.Result, err error) (*asynq.TaskInfo, error) { return done.Task, err }

// accept is a handler that answers 202.
var accept = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })
