//go:build servers

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// notes are the payloads of the jobs that ran, in order.
type notes struct {
	mu   sync.Mutex
	runs []string
}

func (n *notes) add(task *asynq.Task) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.runs = append(n.runs, string(task.Payload()))
}

func (n *notes) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.runs)
}

func (a *app) unique(u handoff.Unique, payload string, opts ...asynq.Option) (handoff.Result, error) {
	return a.jobs.Enqueue(context.Background(), u, asynq.NewTask("job", []byte(payload), opts...))
}

// A job that has finally failed does not keep its key. With asynq.Unique it does, as
// long as the time that was guessed for it.
func TestKeyIsFreeAfterAFinalFailure(t *testing.T) {
	a := newApp(t, func(context.Context, *asynq.Task) error { return errors.New("no") })
	client := asynq.NewClient(asynq.RedisClientOpt{Addr: a.addr})
	defer client.Close()
	task := asynq.NewTask("job", nil, asynq.MaxRetry(0), asynq.Unique(time.Hour))
	info, err := client.Enqueue(task)
	if err != nil {
		t.Fatal(err)
	}
	a.awaitState(t, info, asynq.TaskStateArchived)
	if _, err := client.Enqueue(task); !errors.Is(err, asynq.ErrDuplicateTask) {
		t.Errorf("asynq.Unique: %v; it has been repaired, say so in handoff's package comment", err)
	}

	for range 2 {
		got, err := a.unique(handoff.Unique{Key: "k"}, "x", asynq.MaxRetry(0))
		if err != nil {
			t.Fatal(err)
		}
		a.awaitState(t, got.Task, asynq.TaskStateArchived)
		a.awaitFree(t, "k")
	}
}

func (a *app) awaitState(t *testing.T, info *asynq.TaskInfo, want asynq.TaskState) {
	t.Helper()
	await(t, info.ID+" to be "+want.String(), func() bool {
		got, err := a.inspector.GetTaskInfo(info.Queue, info.ID)
		return err == nil && got.State == want
	})
}

// What happens while the job runs can be queued for after it.
func TestUntilStarted(t *testing.T) {
	var a *app
	var runs notes
	u := handoff.Unique{Key: "k", UntilStarted: true}
	a = newApp(t, func(ctx context.Context, task *asynq.Task) error {
		runs.add(task)
		if lock, ok := joblock.FromContext(ctx); ok {
			t.Errorf("the handler has %v", lock)
		}
		if string(task.Payload()) != "first" {
			return nil
		}
		if _, err := a.unique(u, "second"); err != nil {
			t.Errorf("while the first runs: %v", err)
		}
		return nil
	})
	first, err := a.unique(u, "first", asynq.ProcessIn(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.unique(u, "refused"); !errors.Is(err, joblock.ErrHeld) {
		t.Errorf("while the first waits: %v, want ErrHeld", err)
	}
	if err := a.inspector.RunTask(first.Task.Queue, first.Task.ID); err != nil {
		t.Fatal(err)
	}
	await(t, "both to run", func() bool { return len(runs.all()) == 2 })
	a.awaitFree(t, "k")
	if got := runs.all(); !slices.Equal(got, []string{"first", "second"}) {
		t.Errorf("ran %q", got)
	}
}

// One runs, one waits, and what waits is the newest.
func TestKeepLast(t *testing.T) {
	var g gauge
	var runs notes
	release := make(chan struct{})
	a := newApp(t, func(ctx context.Context, task *asynq.Task) error {
		defer g.enter()()
		runs.add(task)
		if lock, ok := joblock.FromContext(ctx); !ok || lock.Key() != "k" {
			t.Errorf("the handler has %v, want the lock on k", lock)
		}
		<-release
		return nil
	})
	u := handoff.Unique{Key: "k", OnConflict: handoff.KeepLast}
	for i := range 5 {
		if _, err := a.unique(u, fmt.Sprint(i), asynq.MaxRetry(0)); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			await(t, "the first to run", func() bool { return len(runs.all()) == 1 })
		}
	}
	q, err := a.inspector.GetQueueInfo("default")
	if err != nil || q.Size != 2 {
		t.Errorf("%d tasks are there, %v; want one that runs and one that waits", q.Size, err)
	}
	close(release)
	await(t, "the last to run", func() bool { return len(runs.all()) == 2 })
	a.awaitFree(t, "k")
	if got := runs.all(); !slices.Equal(got, []string{"0", "4"}) || g.most != 1 {
		t.Errorf("ran %q, at most %d at once; want the first and the last, one at a time", got, g.most)
	}
}

// pause lets the workers in between two calls.
func pause() { time.Sleep(jitter.N(50 * time.Millisecond)) }

// Under load, with several who enqueue: never two at once, of each caller's the last
// runs last, nothing is archived and no lock stays behind.
func TestKeepLastUnderLoad(t *testing.T) {
	testkit.Seed(t, 1)
	const callers, calls = 4, 40
	var g gauge
	var runs notes
	a := newApp(t, func(_ context.Context, task *asynq.Task) error {
		defer g.enter()()
		runs.add(task)
		time.Sleep(5 * time.Millisecond)
		return nil
	})
	u := handoff.Unique{Key: "k", OnConflict: handoff.KeepLast}
	var mu sync.Mutex // also what orders the calls: the payload is the number of the call
	seq := 0
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range calls {
				pause()
				mu.Lock()
				seq++
				var err error
				for deadline := time.Now().Add(time.Minute); ; {
					if _, err = a.unique(u, fmt.Sprint(seq), asynq.MaxRetry(0)); !joblock.Retryable(err) || time.Now().After(deadline) {
						break
					}
				}
				mu.Unlock()
				if err != nil {
					t.Errorf("call: %v", err)
				}
			}
		})
	}
	wg.Wait()
	await(t, "all to be over", func() bool {
		q, err := a.inspector.GetQueueInfo("default")
		return err == nil && q.Size == 0
	})
	a.awaitFree(t, "k")
	a.awaitFree(t, "k%next")
	got := runs.all()
	if last := got[len(got)-1]; last != fmt.Sprint(callers*calls) {
		t.Errorf("the last to run was %s of %d", last, callers*calls)
	}
	if g.most != 1 {
		t.Errorf("%d ran at once", g.most)
	}
	t.Logf("%d of %d ran", len(got), callers*calls)
}

// Concurrent calls that replace each other's jobs, while workers take what
// they can get: each job either runs once or was replaced, and none is lost.
func TestReplaceUnderLoad(t *testing.T) {
	testkit.Seed(t, 1)
	const callers, calls = 4, 40
	var g gauge
	var runs notes
	a := newApp(t, func(_ context.Context, task *asynq.Task) error {
		defer g.enter()()
		runs.add(task)
		return nil
	})
	u := handoff.Unique{Key: "k", OnConflict: handoff.Replace}
	var mu sync.Mutex // guards what follows
	enqueued, replaced := map[string]bool{}, map[string]bool{}
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range calls {
				pause()
				payload := fmt.Sprintf("%d-%d", c, i)
				got, err := a.unique(u, payload, asynq.MaxRetry(0))
				mu.Lock()
				if err == nil {
					enqueued[payload] = true
				} else if !errors.Is(err, joblock.ErrHeld) {
					t.Errorf("call %s: %v", payload, err)
				}
				if got.Replaced != nil {
					replaced[string(got.Replaced.Payload)] = true
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	await(t, "all to be over", func() bool {
		q, err := a.inspector.GetQueueInfo("default")
		return err == nil && q.Size == 0
	})
	a.awaitFree(t, "k")
	ran := map[string]int{}
	for _, payload := range runs.all() {
		ran[payload]++
	}
	for payload := range enqueued {
		if n := ran[payload]; n > 1 || (n == 1) == replaced[payload] {
			t.Errorf("job %s ran %d times, replaced: %v", payload, n, replaced[payload])
		}
	}
	if g.most > 1 || len(ran) == 0 || len(replaced) == 0 {
		t.Errorf("%d ran, %d were replaced, at most %d at once", len(ran), len(replaced), g.most)
	}
	t.Logf("%d enqueued, %d replaced, %d ran", len(enqueued), len(replaced), len(ran))
}
