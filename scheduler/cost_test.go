package scheduler_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/scheduler"
)

// What 1,000 jobs on three nodes cost the store, at rest and at a tick of all of them.
func TestCommandsOfAThousandJobs(t *testing.T) {
	for name, takes := range map[string]time.Duration{"short": 10 * time.Millisecond, "long": time.Minute} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(c *cluster) {
				t := c.T
				jobs := testkit.Size(300, 1000)
				start := time.Now()
				for range 3 {
					n := c.node(0, func(cfg *scheduler.Config) { cfg.Concurrency = jobs })
					for i := range jobs {
						n.add(fmt.Sprint("job", i), "@every 1h", func(ctx context.Context) error { time.Sleep(takes); return nil })
					}
					n.start()
				}
				calls := []string{faultstore.Inspect, faultstore.Acquire, faultstore.Renew, faultstore.Release, ""}
				count := func() (out [5]int) { // all nodes together
					for _, n := range c.nodes {
						for i, call := range calls {
							out[i] += n.store.Calls(call)
						}
					}
					return out
				}
				items := func(call string) (out int) {
					for _, n := range c.nodes {
						out += n.store.Items(call)
					}
					return out
				}
				since := func(before [5]int) (out [5]int) {
					for i, n := range count() {
						out[i] = n - before[i]
					}
					return out
				}
				until(start, 10*min)
				rest, read := count(), items(faultstore.Inspect)
				until(start, 20*min)
				idle := since(rest)
				if idle[0] > 3*64 || items(faultstore.Inspect)-read != idle[0] || idle[2] > 3*21 || idle[0]+idle[2] != idle[4] {
					t.Errorf("at rest %v commands in ten minutes, want 60 to 62 reads of one record each and node, and 20 renewals", idle)
				}
				until(start, hour-5*sec)
				before, read := count(), items(faultstore.Inspect)
				until(start, hour+5*min)
				fired := since(before)
				read = items(faultstore.Inspect) - read
				t.Logf("at rest: %d commands a minute and node", idle[4]/30)
				t.Logf("for %d ticks of %v on 3 nodes: %d records read in %d round trips, %d acquires, %d renewals and memos, %d releases",
					jobs, takes, read, fired[0], fired[1], fired[2], fired[3])
				if n := len(c.events.of(scheduler.Done)); n != jobs {
					t.Errorf("%d ticks done, want %d", n, jobs)
				}
				if takes > time.Minute/2 {
					return // renewals and nodes in line come on top, by design
				}
				// Each node reads each ledger once, or twice if the job was claimed at that moment.
				if read > 3*jobs*2+300 || fired[0] > 300 {
					t.Errorf("%d records read in %d round trips", read, fired[0])
				}
				// The first node: acquire, two memos, release. Few others try.
				roster := 3 * 11 // renewals of the nodes' records
				if fired[1] > jobs*3/2 || fired[2] < 2*jobs || fired[2] > 2*jobs+roster || fired[3] > jobs*11/10 {
					t.Errorf("%d acquires, %d memos, %d releases for %d ticks", fired[1], fired[2], fired[3], jobs)
				}
			})
		})
	}
}
