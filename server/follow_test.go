package server

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/joblock/toolkit/internal/testkit"
)

// A Server waits for the ends of so many executions, and no longer than until Close.
func TestFollowedExecutions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newHandler(t, slog.New(slog.DiscardHandler))
		ended := make(chan error, 2*followMost)
		for i := range 2 * followMost {
			err := s.await(func(ctx context.Context) { <-ctx.Done(); ended <- context.Cause(ctx) })
			if (err == nil) != (i < followMost) {
				t.Errorf("wait %d: %v", i, err)
			}
		}
		synctest.Wait()
		begun := s.follows.Load()
		testkit.WantNil(t, "Close", s.Close(t.Context()))
		over := 0
		for len(ended) > 0 {
			if err := <-ended; err == context.Canceled {
				over++
			}
		}
		if err := s.await(func(context.Context) { t.Error("waited after Close") }); err != errClosing {
			t.Errorf("after Close: %v", err)
		}
		synctest.Wait()
		if begun != followMost || over != followMost || s.follows.Load() != 0 {
			t.Errorf("%d waits have begun and %d have ended, want %d; %d are left", begun, over, followMost, s.follows.Load())
		}
	})
}
