//go:build unix

package torture

import (
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
)

// checkLeaks waits for what dead processes have left to run out, and fails if anything
// is locked or waited for even then.
func checkLeaks(t *testing.T, c *center) {
	t.Helper()
	awaitSettled(t, c)
	checked := 0
	for st, err := range c.locks.List(t.Context(), joblock.ListOptions{Ended: true}) {
		if err != nil {
			t.Fatal(err)
		}
		checked++
		if st.Locked() {
			t.Errorf("leaked lock: %s is %s by %s, for another %v", st.Key, st.State, st.Holder, max(st.Remaining, st.Reserved))
			continue
		}
		// Places of the dead go when the next one comes.
		lock, err := c.locks.Acquire(t.Context(), st.Key, joblock.MaxWait(10*time.Second), door.OwnKey[joblock.Option]())
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
	if checked == 0 {
		t.Error("there is no key to look at")
	}
	checkIndex(t, c)
}

// awaitSettled returns when nothing is locked any more, or should not be.
func awaitSettled(t *testing.T, c *center) {
	t.Helper()
	for end := time.Now().Add(c.plan.Pace.settled()); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		locked := 0
		for _, err := range c.locks.List(t.Context(), joblock.ListOptions{}) {
			if err != nil {
				t.Log(err) // and asks again
			}
			locked++
		}
		if locked == 0 {
			return
		}
	}
}

// checkIndex fails if the index has locks that never come to a keeper. An entry that was written last of all may be due
// somewhat later than the others.
func checkIndex(t *testing.T, c *center) {
	t.Helper()
	for end := time.Now().Add(c.plan.Pace.settled()); ; time.Sleep(100 * time.Millisecond) {
		settleIndex(t, c)
		var left []string
		for part := range jobs.Parts(c.locks) {
			entries, err := c.rdb.ZRange(t.Context(), c.place(part), 0, -1).Result()
			if err != nil {
				t.Fatal(err)
			}
			left = append(left, entries...)
		}
		switch {
		case len(left) == 0:
			return
		case time.Now().After(end):
			t.Errorf("leaked entries of the index: %q", left)
			return
		}
	}
}

// settleIndex does what a keeper does with the entries that are due.
func settleIndex(t *testing.T, c *center) {
	t.Helper()
	for part := 0; part < jobs.Parts(c.locks); {
		due, _, err := jobs.Due(t.Context(), c.locks, part, driver.MaxBatch, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		var over []jobs.Settlement
		for _, d := range due {
			over = append(over, jobs.Settlement{JobLock: d})
		}
		if err := jobs.Settle(t.Context(), c.locks, over...); err != nil {
			t.Fatal(err)
		}
		if len(due) == 0 {
			part++
		}
	}
}
