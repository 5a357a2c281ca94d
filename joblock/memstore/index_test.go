package memstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
)

// Where no keeper runs the index must not grow forever; where one is away for a
// while it must not forget.
func TestUnreadEntriesAreDroppedAfterADay(t *testing.T) {
	ctx := context.Background()
	now := time.UnixMicro(1_900_000_000_000_000)
	s := memstore.New(&memstore.Config{Silent: true, Now: func() time.Time { return now }})
	park := func(key string) {
		t.Helper()
		rs, err := s.Take(ctx, []driver.TakeRequest{{
			Key: key, Owner: "me", Nonce: key, Reserve: time.Minute, Retain: time.Minute, Job: "q/1",
		}})
		if err != nil || rs[0].Outcome != driver.OutcomeOK {
			t.Fatalf("take %s: %+v, %v", key, rs, err)
		}
	}
	due := func() int {
		t.Helper()
		found, err := s.Due(ctx, driver.DueRequest{Limit: 1000, Claim: 500 * time.Microsecond})
		if err != nil {
			t.Fatal(err)
		}
		return len(found.Entries)
	}
	for i := range 7 {
		park(fmt.Sprint("old ", i))
	}
	now = now.Add(time.Minute)
	park("in time")
	now = now.Add(driver.JobKeep - time.Minute - time.Millisecond)
	park("first") // nothing is old enough to go
	now = now.Add(2 * time.Millisecond)
	for i := range 3 {
		park(fmt.Sprint("new ", i)) // two go for each
	}
	now = now.Add(time.Millisecond)
	if n := due(); n != 1+1+1+3 {
		t.Errorf("%d entries are left, want 1 of the 7 that are more than a day overdue, and 5 that are not", n)
	}
	if n := due(); n != 0 {
		t.Errorf("%d entries are due again at once", n)
	}
}
