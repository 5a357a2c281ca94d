//go:build servers

package e2e

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// wantLocks checks what a context says it carries: the present lock first, then the
// keys of all, outermost first.
func wantLocks(t *testing.T, ctx context.Context, where, present string, all ...string) {
	t.Helper()
	if lock, ok := joblock.FromContext(ctx); !ok || lock.Key() != present {
		t.Errorf("%s: FromContext has %v, want the lock on %s", where, lock, present)
	}
	var keys []string
	for _, lock := range joblock.LocksFromContext(ctx) {
		keys = append(keys, lock.Key())
	}
	if !slices.Equal(keys, all) {
		t.Errorf("%s: LocksFromContext has %q, want %q", where, keys, all)
	}
}

// There is one answer to "which lock is this done under", wherever it comes from:
// a request's middleware, one within it, a Do, the job that carries on, a key that its
// type must not overlap on, the clock.
func TestOneLookupOfLocksEverywhere(t *testing.T) {
	done := make(chan struct{})
	var a *app
	handle := func(ctx context.Context, _ *asynq.Task) error {
		wantLocks(t, ctx, "job without overlapping", "type", "c", "a", "type")
		return a.locks.Do(ctx, "inside", func(ctx context.Context) error {
			wantLocks(t, ctx, "Do in the job", "inside", "c", "a", "type", "inside")
			close(done)
			return nil
		})
	}
	a = newApp(t, func(ctx context.Context, task *asynq.Task) error {
		wantLocks(t, ctx, "job", "c", "c", "a")
		next := asynq.HandlerFunc(handle)
		return a.worker.WithoutOverlapping(func(*asynq.Task) string { return "type" }, nil)(next).ProcessTask(ctx, task)
	})
	claim := func(key string, keys ...string) func(http.Handler) http.Handler {
		return handoff.Middleware(a.locks, func(*http.Request) (handoff.Claim, error) {
			return handoff.Claim{Key: key, Keys: keys}, nil
		})
	}
	h := claim("account")(claim("c", "a")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		wantLocks(t, ctx, "request", "c", "account", "c", "a")
		err := a.locks.Do(ctx, "inside", func(ctx context.Context) error {
			wantLocks(t, ctx, "Do in the request", "inside", "account", "c", "a", "inside")
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if _, err := a.jobs.Enqueue(ctx, handoff.Carry(joblock.LocksFromContext(ctx)[1:]...), asynq.NewTask("job", nil)); err != nil {
			t.Error(err)
		}
	})))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", nil))
	<-done

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	s, err := scheduler.New(a.locks, &scheduler.Config{Scope: "e2e", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	err = s.Func("tick", "@every 1h", func(ctx context.Context) error {
		lock, _ := joblock.FromContext(ctx)
		wantLocks(t, ctx, "tick", lock.Key(), lock.Key())
		stop()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Of(s).Trigger(ctx, "tick"); err != nil {
		t.Fatal(err)
	}
	if err := s.Run(ctx); err != nil {
		t.Error(err)
	}
}
