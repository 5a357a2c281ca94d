package keeper

import (
	"testing"
	"testing/synctest"
	"time"
)

// Only rounds that fail one after another add up to an outage.
func TestOutage(t *testing.T) {
	const most = 20 * time.Second
	for _, tc := range []struct {
		name   string
		rounds int
		pause  time.Duration // between two rounds
		want   time.Duration // until the outage has lasted for too long; 0: it never does
	}{
		{"one failure after another", 100, 4 * time.Second, most + time.Second},
		{"just close enough", 100, most, 22 * time.Second},
		{"now and then", 100, most + time.Second, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var o outage
				var got time.Duration
				start := time.Now()
				for range tc.rounds {
					asked := time.Now()
					time.Sleep(time.Second) // until the call times out
					if o.failed(asked, most) {
						got = time.Since(start)
						break
					}
					time.Sleep(tc.pause)
				}
				if got != tc.want {
					t.Errorf("too long after %s, want %s", got, tc.want)
				}
			})
		})
	}
}
