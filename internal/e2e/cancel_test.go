//go:build servers

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/worker"
)

// Each of many jobs in a row ends the one before, which runs. The test logs how long it takes from the beginning of the
// enqueue to the end of the older job's context. JOBLOCK_CANCEL_RUNS is the number of jobs, 40 by default.
func TestEndOfAContextAfterAnEnqueue(t *testing.T) {
	runs := 40
	if text := os.Getenv("JOBLOCK_CANCEL_RUNS"); text != "" {
		var err error
		if runs, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	started, ended := make(chan string), make(chan time.Time, 1)
	last := fmt.Sprint(runs)
	a := newApp(t, func(ctx context.Context, task *asynq.Task) error {
		started <- string(task.Payload())
		if string(task.Payload()) == last {
			return nil
		}
		<-ctx.Done()
		ended <- time.Now()
		if cause := context.Cause(ctx); !errors.Is(cause, worker.ErrSuperseded) {
			t.Errorf("%s ended because of %v", task.Payload(), cause)
		}
		return ctx.Err()
	})
	u := handoff.Unique{Key: "k", OnConflict: handoff.CancelInProgress}
	var took []time.Duration
	for i := range runs + 1 {
		asked := time.Now()
		if _, err := a.unique(u, fmt.Sprint(i), asynq.MaxRetry(0)); err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			took = append(took, (<-ended).Sub(asked))
		}
		if got := <-started; got != fmt.Sprint(i) {
			t.Fatalf("job %s has started, want %d", got, i)
		}
	}
	a.awaitFree(t, "k")
	slices.Sort(took)
	t.Logf("%d jobs: p50 %s, p99 %s, the longest %s", runs, took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
	if info, err := a.inspector.GetQueueInfo("default"); err != nil || info.Size != 0 || info.Failed != 0 {
		t.Errorf("%+v, %v; want no task left, and no failure", info, err)
	}
}
