//go:build unix

package process_test

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// Run serves until a signal comes, with the locks and the keeper of Start.
func TestRunUntilASignal(t *testing.T) {
	signals := make(chan os.Signal, 1) // or a signal before Run waits for one would end the tests
	signal.Notify(signals, syscall.SIGTERM)
	defer signal.Stop(signals)
	p := open(t, nil)
	s, err := p.NewServer(quick, nil)
	testkit.WantNil(t, "NewServer", err)
	got, done := make(chan bool, 1), make(chan error, 1)
	go func() {
		done <- s.Run(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			_, ok := joblock.FromContext(ctx)
			got <- ok
			return nil
		}))
	}()
	enqueue(t, p, "k")
	if !<-got {
		t.Error("the job has no lock")
	}
	free(t, p.Locks, "k")
	for {
		testkit.WantNil(t, "kill", syscall.Kill(os.Getpid(), syscall.SIGTERM))
		select {
		case err := <-done:
			testkit.WantNil(t, "Run", err)
			for deadline := time.Now().Add(hang); !s.Worker.KeeperStats().Working; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("no keeper works")
				}
			}
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}
