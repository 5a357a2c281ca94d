//go:build servers

package redistest

import (
	"testing"
	"time"
)

func TestClockOfAServerIsSet(t *testing.T) {
	s, clock := StartClock(t)
	rdb := s.Client(t)
	for _, d := range []time.Duration{0, time.Hour, -time.Hour, 0} {
		clock.Set(d)
		now, err := rdb.Time(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		// Half an hour is for a machine that is busy.
		if off := time.Until(now); (off - d).Abs() > 30*time.Minute {
			t.Errorf("the server's clock differs by %v, want %v", off, d)
		}
	}
}
