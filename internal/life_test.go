package internal_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/life"
)

func TestCloseOfALifeWaitsForItsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, start := life.New(), time.Now()
		if !l.Enter() {
			t.Fatal("an open Life counts no work")
		}
		time.AfterFunc(time.Second, l.Leave)
		l.Go(func() {
			<-l.Context().Done()
			l.Go(func() { time.Sleep(time.Minute) }) // work that begins while Close waits
		})
		if err := l.Close(t.Context()); err != nil || time.Since(start) != time.Minute {
			t.Errorf("Close is %v after %s, want nil after 1m", err, time.Since(start))
		}
		if l.Enter() || l.TryGo(func() { t.Error("a closed Life does work") }) {
			t.Error("a closed Life counts work")
		}
		if err := l.Close(t.Context()); err != nil {
			t.Errorf("a second Close is %v", err)
		}
	})
}

func TestContextEndsTheCloseOfALife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, cause := life.New(), errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
		defer cancel()
		l.Go(func() { time.Sleep(time.Minute) })
		if err := l.Close(ctx); err != cause {
			t.Errorf("Close is %v, want %v", err, cause)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Errorf("a later Close is %v", err)
		}
	})
}
