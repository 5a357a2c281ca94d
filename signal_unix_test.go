//go:build unix

package toolkit_test

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
)

// Run serves until a signal comes, with the locks and the keeper of Start, and then does what Shutdown does.
func TestRunUntilASignal(t *testing.T) {
	signals := make(chan os.Signal, 1) // or a signal before Run waits for one would end the tests
	signal.Notify(signals, syscall.SIGTERM)
	defer signal.Stop(signals)
	mem := memstore.New(&memstore.Config{Silent: true})
	p := open(t, &toolkit.Config{Store: mem})
	s := newServer(t, p, quick)
	got, done := make(chan bool, 2), make(chan error, 1)
	go func() {
		done <- s.Run(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			_, ok := joblock.FromContext(ctx)
			got <- ok
			if string(task.Payload()) == "long" {
				<-ctx.Done() // Shutdown cancels the handler and does not wait for it
			}
			return ctx.Err()
		}))
	}()
	enqueue(t, p, "short")
	if !<-got {
		t.Error("the job has no lock")
	}
	free(t, p.Locks, "short")
	for !s.Worker.KeeperStats().Working {
		time.Sleep(time.Millisecond)
	}
	enqueue(t, p, "long")
	<-got
	for {
		testkit.WantNil(t, "kill", syscall.Kill(os.Getpid(), syscall.SIGTERM))
		select {
		case err := <-done:
			testkit.WantNil(t, "Run", err)
			recs, err := mem.Inspect(t.Context(), driver.InspectRequest{Keys: []string{"long"}})
			if err != nil || recs[0].State != driver.StateParked {
				t.Errorf("after Run the lock of the job that was cut short is %v, %v", recs, err)
			}
			if s.Worker.KeeperStats().Working {
				t.Error("the keeper works after Run")
			}
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}
