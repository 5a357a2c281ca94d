package core

import (
	"testing"
	"testing/synctest"
	"time"
)

// A store that gets no calls is not silent, on however busy a machine: the last question about a lock that may still be on
// its way may come late.
func TestCloseWaitsForAQuestionThatIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Locker{cfg: Config{CallTimeout: time.Second}, now: time.Now}
		j := newJanitor(l)
		running := make(chan struct{})
		j.running = running
		j.doubted[1].push(cleanup{})
		time.AfterFunc(3*time.Second, func() { close(running) }) // asked and answered
		if err := j.stop(t.Context()); err != nil {
			t.Errorf("error %v of a store that was not asked", err)
		}
	})
}
