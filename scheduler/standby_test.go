package scheduler_test

import (
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// One of the other nodes stands by, not all of them, and none during a short execution.
func TestFewStandBy(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		var long, short runs
		start := time.Now()
		const nodes = 20
		for range nodes {
			n := c.node(0)
			n.add("long", "@every 1h", long.fn(n, 10*time.Minute))
			n.add("short", "@every 1h", short.fn(n, 300*time.Millisecond))
			n.start()
		}
		for d, want := range map[time.Duration][2]int{ // at least and at most
			hour + 450*time.Millisecond: {0, 0}, hour + 2*sec: {1, nodes / 4}, hour + 5*time.Minute: {1, nodes / 4},
		} {
			c.after(start, d, func() {
				st, err := testkit.One(c.nodes[0].locks.Status(c.Context(), "%cron:cron:long"))
				wantNil(t, "Status", err)
				if st.Waiters < want[0] || st.Waiters > want[1] {
					t.Errorf("%d in line after %s, want %d to %d", st.Waiters, d-hour, want[0], want[1])
				}
			})
		}
		c.after(start, hour+250*time.Millisecond, func() {
			if st, err := testkit.One(c.nodes[0].locks.Status(c.Context(), "%cron:cron:short")); err != nil || st.Waiters > 0 || st.State != joblock.StateHeld {
				t.Errorf("short: %+v, %v", st, err)
			}
		})
		until(start, hour+12*time.Minute)
		if n := len(long.all()) + len(short.all()); n != 2 {
			t.Errorf("%d runs, want one of each", n)
		}
	})
}

// after calls f at d after start.
func (c *cluster) after(start time.Time, d time.Duration, f func()) {
	time.AfterFunc(time.Until(start.Add(d)), f)
}
