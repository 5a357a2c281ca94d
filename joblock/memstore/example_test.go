package memstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
)

// A test moves the clock by hand: the lease of a holder that crashed is over at
// once, and the next fence is the larger one.
func ExampleNew() {
	now := time.Date(2030, time.January, 1, 3, 0, 0, 0, time.UTC)
	store := memstore.New(&memstore.Config{
		Now:    func() time.Time { return now },
		Silent: true,
	})

	ctx := context.Background()
	acquire := func(owner, nonce string) driver.Reply {
		reply, err := store.Acquire(ctx, driver.AcquireRequest{
			Key: "report:daily", Owner: owner, Nonce: nonce, Holder: owner,
			TTL: 30 * time.Second, Retain: time.Minute,
		})
		if err != nil {
			panic(err) // only for a context that has ended
		}
		return reply
	}

	first := acquire("web-1", "n1")
	refused := acquire("web-2", "n2")
	fmt.Println(refused.Outcome == driver.OutcomeHeld, refused.Holder)

	now = now.Add(31 * time.Second)
	second := acquire("web-2", "n3")
	fmt.Println(second.Ended, second.Fence > first.Fence)
	// Output:
	// true web-1
	// lapsed true
}
