//go:build servers && unix

package torture

import (
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
)

// checkLeaks waits for what dead processes have left to run out, and fails if anything
// is locked or waited for even then. Once that has run out, what is done here gives no key
// to a job, and so writes no entry of the index.
func checkLeaks(t *testing.T, c *center) {
	t.Helper()
	ended := time.Now()
	awaitSettled(t, c)
	all := known(t, c)
	if len(all) == 0 {
		t.Error("there is no key to look at")
	}
	for _, st := range all {
		if st.Locked() {
			t.Errorf("leaked lock: %s is %s by %s, for another %v", st.Key, st.State, st.Holder, max(st.Lease, st.Reserved))
			continue
		}
		if place, any := firstInLine(t, c, st.Key); any {
			t.Errorf("leaked place in line: in that of %s is %+v", st.Key, place)
			continue
		}
		// Places of the dead go when the next one comes.
		lock, err := c.locks.Acquire(t.Context(), st.Key, joblock.MaxWait(10*time.Second), core.OwnKey)
		if err != nil {
			t.Errorf("%s cannot be had: %v", st.Key, err)
			continue
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Error(err)
		}
		fields, err := redistest.QueueFields(t.Context(), c.rdb, c.redisKey(st.Key))
		if err != nil {
			t.Error(err)
		}
		if len(fields) > 0 {
			t.Errorf("leaked waiters: %s has the fields %q", st.Key, fields)
		}
	}
	checkIndex(t, c, ended)
}

// known returns the keys that the store remembers, once each. A walk over the keys may show one twice.
func known(t *testing.T, c *center) map[string]joblock.Status {
	t.Helper()
	all := make(map[string]joblock.Status)
	for st, err := range c.locks.List(t.Context(), joblock.ListOptions{Ended: true}) {
		if err != nil {
			t.Fatal(err)
		}
		all[st.Key] = st
	}
	return all
}

// awaitSettled returns when nothing is locked and no job is left in line, or after a while. A job that still
// had its place would get a key from checkLeaks: without one, a release of another slot gives that slot to the job.
func awaitSettled(t *testing.T, c *center) {
	t.Helper()
	for end := time.Now().Add(c.plan.Pace.settled()); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if settled(t, c) {
			return
		}
	}
}

func settled(t *testing.T, c *center) bool {
	t.Helper()
	for st, err := range c.locks.List(t.Context(), joblock.ListOptions{Ended: true}) {
		if err != nil {
			t.Log(err) // and asks again
			return false
		}
		if st.Locked() {
			return false
		}
		if _, any := firstInLine(t, c, st.Key); any {
			return false
		}
	}
	return true
}

// firstInLine returns the first place in the line of a key that has not ended.
func firstInLine(t *testing.T, c *center, key string) (first jobs.Place, any bool) {
	t.Helper()
	for place, err := range jobs.Line(t.Context(), c.locks, key) {
		if err != nil {
			t.Fatal(err)
		}
		return place, true
	}
	return first, false
}

// checkIndex fails if the index has entries that never come to a keeper, or that come later than anybody has asked for.
// The processes, which have ended at that time, have asked for grace and for later, which is longer.
func checkIndex(t *testing.T, c *center, ended time.Time) {
	t.Helper()
	last := ended
	for entry, due := range entries(t, c) {
		if due.After(ended.Add(later)) {
			t.Errorf("a late entry of the index, due %v after all processes have ended: %q", due.Sub(ended), entry)
		} else if due.After(last) {
			last = due
		}
	}
	time.Sleep(time.Until(last.Add(time.Millisecond)))
	settleIndex(t, c)
	if left := entries(t, c); len(left) > 0 {
		t.Errorf("leaked entries of the index, and when they are due: %v", left)
	}
}

// entries returns the entries of the index, and when they are due.
func entries(t *testing.T, c *center) map[string]time.Time {
	t.Helper()
	all := make(map[string]time.Time)
	for part := range jobs.Parts(c.locks) {
		found, err := c.rdb.ZRangeWithScores(t.Context(), c.place(part), 0, -1).Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, z := range found {
			all[z.Member.(string)] = time.UnixMicro(int64(z.Score))
		}
	}
	return all
}

// settleIndex does what a keeper does with the entries that are due.
func settleIndex(t *testing.T, c *center) {
	t.Helper()
	for part := 0; part < jobs.Parts(c.locks); {
		due, err := jobs.Due(t.Context(), c.locks, jobs.DueRequest{Part: part, Limit: driver.MaxBatch, Claim: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		var over []jobs.Settlement
		for _, d := range due.Entries {
			over = append(over, jobs.Settlement{Entry: d})
		}
		if err := jobs.Settle(t.Context(), c.locks, over...); err != nil {
			t.Fatal(err)
		}
		if len(due.Entries) == 0 {
			part++
		}
	}
}
