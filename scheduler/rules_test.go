package scheduler_test

import (
	"testing"
	"time"

	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/spec"
)

// A spec with several rules, a begin, an end and times left out, on three nodes of which two
// die: each tick is executed once, also where rules agree, and the job falls silent at the end.
func TestTicksOfSeveralRulesWithLimits(t *testing.T) {
	virtual(t, func(c *cluster) {
		const text = "@every 6h; 0 */3 * * *; 30 2 L-27 * *; 0 9 * * sat#1; from 2000-01-01T01:00; until 2000-01-06T09:00; " +
			"except 2000-01-02, 2000-01-03T03:00..2000-01-03T12:00, 01-05"
		start := time.Now()
		if !start.Equal(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) {
			t.Fatalf("the bubble begins at %s", start)
		}
		var ran runs
		for i := range 3 {
			n := c.node(time.Duration(i-1)*sec, func(cfg *scheduler.Config) { cfg.Sync = 10 * min })
			n.add("job", text, ran.fn(n, sec), scheduler.CatchUpAll(hour, 10))
			n.start()
		}
		until(start, 30*hour)
		c.nodes[0].cut()
		c.nodes[0].stop()
		until(start, 75*hour)
		c.nodes[1].cut()
		c.nodes[1].stop()
		until(start, 6*24*hour)
		s, err := spec.Parse(text, nil)
		wantNil(t, "Parse", err)
		var want []time.Duration
		for tick := range s.Ticks(start, start.AddDate(1, 0, 0)) {
			want = append(want, tick.Sub(start))
		}
		if len(want) < 20 {
			t.Errorf("only %d ticks", len(want))
		}
		ran.wantTicks(c, start, want...)
		e, err := c.admin().Entry(c.Context(), "job")
		wantNil(t, "Entry", err)
		if !e.Next.IsZero() || e.Counts.Done != int64(len(want)) || e.Counts.Missed != 0 || e.Spec != s.String() {
			t.Errorf("entry %+v, want %d executions and no next", e, len(want))
		}
	})
}
