package storetest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/storetest"
)

// newHarness returns an empty store and a function that moves the store's clock. The test of a store needs nothing else.
func newHarness() *storetest.Harness {
	now := time.Date(2030, time.January, 1, 0, 0, 0, 0, time.UTC)
	move := func(d time.Duration) { now = now.Add(d) }
	store := memstore.New(&memstore.Config{Silent: true, Now: func() time.Time { return now }})
	return &storetest.Harness{Store: store, Advance: move, Step: move}
}

// The test of a store is one line. The rest of this example shows the kind of calls that Run makes.
func ExampleRun() {
	_ = func(t *testing.T) { // func TestConformance(t *testing.T)
		storetest.Run(t, func(*testing.T) *storetest.Harness { return newHarness() })
	}

	ctx, h := context.Background(), newHarness()
	acquire := func(owner string) driver.Reply {
		r, err := h.Store.Acquire(ctx, driver.AcquireRequest{
			Key: "key", Owner: owner, Nonce: owner, TTL: time.Minute, Retain: time.Hour, Holder: owner,
		})
		if err != nil {
			panic(err)
		}
		return r
	}
	first := acquire("me")
	fmt.Println("held by", acquire("you").Holder)
	h.Advance(time.Minute + time.Second)
	next := acquire("you")
	fmt.Println("then free:", next.Outcome == driver.OutcomeOK, next.Ended, next.Fence > first.Fence)
	// Output:
	// held by me
	// then free: true lapsed true
}
