//go:build servers

package handoff_test

import (
	"context"
	"errors"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
)

// A real server that dies between Park and the enqueue, and comes back empty.
func TestServerThatDies(t *testing.T) {
	server := redistest.Start(t)
	redistest.Ran(t, server.Backend())
	w := newWeb(t, server.Client(t), nil)
	w.warm(t)
	w.faults.onEnqueue(func(_ context.Context, apply func() error) error {
		server.Kill()
		return apply()
	})
	lock := acquire(t, w.locks, "k")
	if _, err := w.jobs.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("export", nil)); !errors.Is(err, joblock.ErrUnavailable) {
		t.Errorf("error is %v, want ErrUnavailable", err)
	}
	w.wantParked(t, lock)
	server.Restart()
	if _, err := w.locks.Acquire(t.Context(), "k", joblock.MaxWait(hang)); err != nil {
		t.Errorf("the lock of a job that does not exist was not freed: %v", err)
	}
}
