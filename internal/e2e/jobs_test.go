//go:build servers

package e2e

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// gauge counts how many run at once, and the most that ever did.
type gauge struct {
	mu        sync.Mutex
	now, most int
}

func (g *gauge) enter() (leave func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now++
	g.most = max(g.most, g.now)
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.now--
	}
}

// asynq starts the next attempt while one that has overrun its timeout still
// runs: four copies at once. With a lock there is never more than one.
func TestDeafHandlerNeverRunsTwice(t *testing.T) {
	t.Parallel()
	var g gauge
	var runs atomic.Int32
	var mu sync.Mutex
	var budgets []int
	a := newApp(t, func(ctx context.Context, task *asynq.Task) error {
		defer g.enter()()
		runs.Add(1)
		budget, _ := asynq.GetMaxRetry(ctx)
		mu.Lock()
		budgets = append(budgets, budget)
		mu.Unlock()
		time.Sleep(4 * time.Second) // deaf to ctx: this is the point of the test
		return nil
	})
	info, _ := a.enqueue(t, "deaf", asynq.Timeout(time.Second), asynq.MaxRetry(3))
	st := a.awaitFree(t, "deaf")
	if g.most != 1 {
		t.Errorf("%d copies ran at once, want 1", g.most)
	}
	if n := runs.Load(); n != 4 {
		t.Errorf("%d attempts ran, want 4 as asynq's own rules have it", n)
	}
	if !slices.Equal(budgets, []int{3, 3, 3, 3}) {
		t.Errorf("handlers saw MaxRetry %v, want 3 each time", budgets)
	}
	got, err := a.inspector.GetTaskInfo("default", info.ID)
	if err != nil || got.State != asynq.TaskStateArchived {
		t.Errorf("the task is %v, %v; want archived", got, err)
	}
	t.Logf("most at once %d, attempts %d, lock %s (%s)", g.most, runs.Load(), st.State, st.Reason)
}

// Two jobs that want one key, neither with a retry to spend: the lock of the
// first was forced away and taken for the second, so that both carry a token.
func TestContendersWithoutRetriesBothRun(t *testing.T) {
	var g gauge
	var mu sync.Mutex
	var ran []string
	release := make(chan struct{})
	a := newApp(t, func(ctx context.Context, task *asynq.Task) error {
		defer g.enter()()
		id, _ := asynq.GetTaskID(ctx)
		mu.Lock()
		ran = append(ran, id)
		mu.Unlock()
		<-release
		return nil
	})
	lock, err := a.locks.TryAcquire(t.Context(), "contended")
	if err != nil {
		t.Fatal(err)
	}
	first, err := a.jobs.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("job", nil),
		asynq.MaxRetry(0), asynq.ProcessIn(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.locks.ForceRelease(t.Context(), "contended", joblock.Reason("for the test")); err != nil {
		t.Fatal(err)
	}
	second, _ := a.enqueue(t, "contended", asynq.MaxRetry(0))
	a.awaitState(t, second, asynq.TaskStateActive)
	if err := a.inspector.RunTask(first.Task.Queue, first.Task.ID); err != nil {
		t.Fatal(err)
	}

	// The first finds the second at work, and is snoozed.
	await(t, "the first job to be snoozed", func() bool {
		info, err := a.inspector.GetTaskInfo("default", first.Task.ID)
		return err == nil && info.State == asynq.TaskStateRetry && info.Retried == 0
	})
	close(release)
	await(t, "both jobs to be done", func() bool {
		_, err1 := a.inspector.GetTaskInfo("default", first.Task.ID)
		_, err2 := a.inspector.GetTaskInfo("default", second.ID)
		return errors.Is(err1, asynq.ErrTaskNotFound) && errors.Is(err2, asynq.ErrTaskNotFound)
	})
	a.awaitFree(t, "contended")
	archived, err := a.inspector.ListArchivedTasks("default")
	if err != nil || len(archived) != 0 {
		t.Errorf("archived %d, %v; want none", len(archived), err)
	}
	if want := []string{second.ID, first.Task.ID}; !slices.Equal(ran, want) {
		t.Errorf("ran %v, want %v", ran, want)
	}
	if g.most != 1 {
		t.Errorf("%d ran at once, want 1", g.most)
	}
}

// A client that goes away takes neither the lock with it nor the job's chance.
func TestDisconnectedClientLeavesNoLock(t *testing.T) {
	a := newApp(t, func(ctx context.Context, _ *asynq.Task) error {
		if _, ok := joblock.FromContext(ctx); !ok {
			return errors.New("no lock")
		}
		return nil
	})
	inHandler, gone := make(chan struct{}), make(chan struct{})
	web := httptest.NewServer(handoff.Middleware(a.locks, func(r *http.Request) (handoff.Claim, error) {
		return handoff.Claim{Key: "page"}, nil
	})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(inHandler)
		<-r.Context().Done()
		close(gone)
	})))
	defer web.Close()

	ctx, disconnect := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, web.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			res.Body.Close()
		}
		answered <- err
	}()
	<-inHandler
	if st, err := testkit.One(a.locks.Status(t.Context(), "page")); err != nil || st.State != joblock.StateHeld {
		t.Fatalf("during the request: %v, %v; want held", st.State, err)
	}
	disconnect()
	<-gone
	if err := <-answered; !errors.Is(err, context.Canceled) {
		t.Errorf("the client saw %v", err)
	}
	if st := a.awaitFree(t, "page"); st.Ended != driver.EndedReleased {
		t.Errorf("the lock ended as %v, want released", st.Ended)
	}
}

// The defer that every handler has must not free the job's lock.
func TestDeferredReleaseAfterEnqueueFreesNothing(t *testing.T) {
	a := newApp(t, func(context.Context, *asynq.Task) error { return nil })
	info, lock := a.enqueue(t, "later", asynq.ProcessIn(time.Hour))
	if err := lock.Release(t.Context()); !errors.Is(err, joblock.ErrNotOwner) {
		t.Errorf("Release: %v, want ErrNotOwner", err)
	}
	st, err := testkit.One(a.locks.Status(t.Context(), "later"))
	if err != nil || st.State != joblock.StateParked || st.Job != "default/"+info.ID {
		t.Errorf("after it: %+v, %v; want parked for the job", st, err)
	}
	if st.Reserved < time.Hour {
		t.Errorf("reserved for %v, must cover the delay of an hour", st.Reserved)
	}
}
