// Package storetest is the conformance suite of driver.Store. Any store, also one outside
// this module, is correct if Run passes:
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) *storetest.Harness {
//			store := mystore.New(…) // empty, or under a prefix nobody else uses
//			t.Cleanup(func() { store.Close() })
//			return &storetest.Harness{Store: store, Advance: time.Sleep}
//		})
//	}
//
// The suite begins with the transition table of package driver: every call in every state
// that a record can be in (transitions.go). A failure names the row of the table. Then it
// looks at each area closer, one file per area. The queue of waiters takes several files
// (queue*.go, grant.go, subscribe.go). Benchmark measures the calls that matter most.
//
// Nothing in Run depends on how fast the machine is. A lease that has to be alive lasts a
// minute. If one has to be over, Run waits for more than its length.
//
// How to write a store is in docs/writing-a-store.md.
package storetest
