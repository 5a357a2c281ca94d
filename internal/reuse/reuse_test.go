package reuse

import (
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// goroutine returns the name of the goroutine that runs it, "goroutine 7".
func goroutine() string {
	buf := make([]byte, 64)
	name, _, _ := strings.Cut(string(buf[:runtime.Stack(buf, false)]), " [")
	return name
}

func TestGoroutinesAreUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, done := New(), make(chan struct{})
		var ran []string
		run := func() {
			p.Go(done, func() { ran = append(ran, goroutine()) })
			synctest.Wait()
		}
		run()
		run()
		time.Sleep(2 * idleTime) // the goroutine has ended
		run()
		close(done)
		synctest.Wait()
		run()
		if ran[0] != ran[1] || ran[1] == ran[2] || ran[2] == ran[3] {
			t.Errorf("ran in %q, want the first two in one goroutine", ran)
		}
	})
}

func TestABusyGoroutineDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, done, hold := New(), make(chan struct{}), make(chan struct{})
		p.Go(done, func() { <-hold })
		ran := false
		p.Go(done, func() { ran = true })
		synctest.Wait()
		if !ran {
			t.Error("the second function waits for the first")
		}
		close(hold)
		close(done)
	})
}
