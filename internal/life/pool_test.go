package life

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// goroutines returns how many goroutines Pools have. The caller is in a bubble whose other goroutines are blocked.
func goroutines() int {
	buf := make([]byte, 1<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "life.(*Pool).serve(")
}

func TestGoroutineServesAgainUntilItIsIdleOrThePoolCloses(t *testing.T) {
	for name, end := range map[string]func(context.CancelFunc){
		"idle":   func(context.CancelFunc) { time.Sleep(idle) },
		"closed": func(stop context.CancelFunc) { stop() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				closing, stop := context.WithCancel(t.Context())
				defer stop()
				c, calls := NewPool(closing), 0
				for range 3 {
					time.Sleep(idle / 2)
					c.Go(func() { calls++ })
					synctest.Wait()
					if n := goroutines(); n != 1 {
						t.Errorf("after call %d there are %d goroutines, want 1", calls, n)
					}
				}
				end(stop)
				synctest.Wait()
				if n := goroutines(); n != 0 || calls != 3 {
					t.Errorf("%d goroutines are left after %d calls, want 0 after 3", n, calls)
				}
			})
		})
	}
}

func TestFunctionThatHangsHoldsNoOtherUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closing, stop := context.WithCancel(t.Context())
		c, heal, called := NewPool(closing), make(chan struct{}), false
		c.Go(func() { <-heal })
		synctest.Wait()
		stop()
		c.Go(func() { called = true }) // even a Pool that closes runs what is asked for
		synctest.Wait()
		if !called {
			t.Error("a function waits for one that hangs")
		}
		close(heal)
		synctest.Wait()
		if n := goroutines(); n != 0 {
			t.Errorf("%d goroutines are left", n)
		}
	})
}
