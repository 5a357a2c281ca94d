// Package storetest is the conformance suite of driver.Store. A store inside or outside this module is correct if Run
// passes:
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) *storetest.Harness {
//			store := mystore.New(…) // empty, or under a prefix of its own
//			t.Cleanup(func() { store.Close() })
//			return &storetest.Harness{Store: store, Advance: time.Sleep}
//		})
//	}
//
// The suite begins with the transition table of package driver: each call in each state of a record (transitions.go).
// A failure names the row of the table. Then the suite tests each area in detail, one file per area. The queue of
// waiters has several files (queue*.go, grant.go, subscribe.go). Benchmark measures the most frequent calls.
//
// Run does not depend on the speed of the machine. A lease that must stay alive lasts a minute. If a lease must run
// out, Run waits for longer than the lease.
//
// The guide docs/writing-a-store.md shows how to write a store.
package storetest
