package handoff_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
)

// senders returns how many goroutines enqueue tasks, or wait for a task to enqueue. Call it in a bubble where all
// other goroutines are blocked.
func senders() int {
	buf := make([]byte, 1<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "life.(*Pool).serve(")
}

// The IDs that handoff chooses grow with the time, so asynq's lists have tasks of one second in the order of their enqueues.
func TestChosenIDsGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		last := ""
		for range 20 {
			done, err := w.jobs.Enqueue(t.Context(), handoff.Sequence{Key: "k"}, asynq.NewTask("webhook", nil))
			if err != nil {
				t.Fatal(err)
			}
			if done.Task.ID <= last {
				t.Errorf("the ID %s comes after %s", done.Task.ID, last)
			}
			last = done.Task.ID
		}
	})
}

// One enqueue after the other takes one goroutine. The goroutine ends by itself, or with Close.
func TestGoroutineOfAnEnqueueServesTheNext(t *testing.T) {
	for name, tc := range map[string]struct {
		end func(*testing.T, *handoff.Client)
	}{
		"left alone": {func(*testing.T, *handoff.Client) { time.Sleep(100 * time.Millisecond) }},
		"closed": {func(t *testing.T, c *handoff.Client) {
			if err := c.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newMiniWeb(t)
				for _, key := range []string{"a", "b", "c"} {
					if _, err := w.jobs.Enqueue(t.Context(), handoff.Unique{Key: key}, asynq.NewTask("export", nil)); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					if n := senders(); n != 1 {
						t.Errorf("after the enqueue of %s there are %d goroutines, want 1", key, n)
					}
				}
				tc.end(t, w.jobs)
				synctest.Wait()
				if n := senders(); n != 0 {
					t.Errorf("%d goroutines are left", n)
				}
			})
		})
	}
}

// A request whose task hangs in Redis returns with its context, and keeps no other request waiting.
func TestEnqueueThatHangsDelaysNoOtherCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		w.warm(t)
		enqueue := func(ctx context.Context, key string) error {
			_, err := w.jobs.Enqueue(ctx, handoff.Unique{Key: key}, asynq.NewTask("export", nil))
			return err
		}
		if err := enqueue(t.Context(), "before"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		heal := make(chan struct{})
		defer close(heal)
		w.faults.onEnqueue(func(context.Context, func() error) error {
			<-heal
			return errDown
		})
		hung := make(chan error)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			hung <- enqueue(ctx, "hung")
		}()
		synctest.Wait()
		start := time.Now()
		if err := enqueue(t.Context(), "other"); err != nil || time.Since(start) > 0 {
			t.Errorf("another enqueue took %s: %v", time.Since(start), err)
		}
		if err := <-hung; !errors.Is(err, joblock.ErrUnavailable) || time.Since(start) != time.Second+settleFor {
			t.Errorf("after %s: %v, want ErrUnavailable after %s", time.Since(start), err, time.Second+settleFor)
		}
	})
}
