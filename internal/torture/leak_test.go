//go:build unix

package torture

import (
	"slices"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// settled is more than it takes until everything has run out that a process can have
// left: a lease behind a reservation, and a place in a queue behind a lease.
const settled = 2*(ttl+hold) + 3*poll

// checkLeaks waits for what dead processes have left to run out, and fails if anything
// is locked or waited for even then.
func checkLeaks(t *testing.T, c *center) {
	t.Helper()
	time.Sleep(settled)
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
		lock, err := c.locks.Acquire(t.Context(), st.Key, joblock.MaxWait(10*time.Second))
		if err != nil {
			t.Errorf("%s cannot be had: %v", st.Key, err)
			continue
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Error(err)
		}
		fields, err := c.rdb.HKeys(t.Context(), redisstore.DefaultPrefix+st.Key).Result()
		if err != nil {
			t.Error(err)
		}
		fields = slices.DeleteFunc(fields, func(f string) bool { return f == "s" || f == "memo" })
		if len(fields) > 0 {
			t.Errorf("leaked waiters: %s has the fields %q", st.Key, fields)
		}
	}
	if checked == 0 {
		t.Error("there is no key to look at")
	}
}
