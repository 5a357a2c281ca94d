package sleep

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestSleepsForAsLongAsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if err := For(t.Context(), time.Minute); err != nil || time.Since(start) != time.Minute {
			t.Errorf("For(ctx, 1m) = %v after %s", err, time.Since(start))
		}
	})
}

func TestContextEndsTheSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(cause) })
		start := time.Now()
		if err := For(ctx, time.Minute); err != cause || time.Since(start) != time.Second {
			t.Errorf("For(ctx, 1m) = %v after %s, want %v after 1s", err, time.Since(start), cause)
		}
	})
}
