package internal_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/sleep"
)

func TestSleepsForAsLongAsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if err := sleep.For(t.Context(), time.Minute); err != nil || time.Since(start) != time.Minute {
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
		if err := sleep.For(ctx, time.Minute); err != cause || time.Since(start) != time.Second {
			t.Errorf("For(ctx, 1m) = %v after %s, want %v after 1s", err, time.Since(start), cause)
		}
	})
}

func TestWaitsEndWithWhatTheyWaitForOrWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("enough")
		for _, c := range []struct {
			takes, allowed time.Duration
			want           error
		}{{time.Second, time.Minute, nil}, {time.Minute, time.Second, cause}} {
			ctx, cancel := context.WithTimeoutCause(t.Context(), c.allowed, cause)
			start := time.Now()
			err := sleep.While(ctx, func() { time.Sleep(c.takes) })
			if err != c.want || time.Since(start) != time.Second {
				t.Errorf("While of %s with a context of %s: %v after %s, want %v after 1s", c.takes, c.allowed, err, time.Since(start), c.want)
			}
			cancel()
		}
		time.Sleep(time.Minute) // the goroutine that While has left behind ends
	})
}

func TestAtMostEndsWithWhatItWaitsForOrWithTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			after, want time.Duration // when done is closed; when AtMost returns
			closed      bool
		}{
			{time.Second, time.Second, true},
			{3 * time.Second, 2 * time.Second, false},
		} {
			start, done := time.Now(), make(chan struct{})
			time.AfterFunc(c.after, func() { close(done) })
			if closed := sleep.AtMost(2*time.Second, done); closed != c.closed || time.Since(start) != c.want {
				t.Errorf("closed after %s: AtMost(2s) = %t after %s, want %t after %s", c.after, closed, time.Since(start), c.closed, c.want)
			}
			<-done
		}
	})
}
