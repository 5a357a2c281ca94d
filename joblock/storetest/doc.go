// Package storetest is the conformance suite of driver.Store. A back end, also
// one from outside this module, is right when Run passes:
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) *storetest.Harness {
//			store := mystore.New(…) // empty, or under a prefix nobody else uses
//			t.Cleanup(func() { store.Close() })
//			return &storetest.Harness{Store: store, Advance: time.Sleep}
//		})
//	}
//
// The suite begins with a table of every call in every state a record can be in
// (transitions.go), then looks at each area closer, one file per area; the queue
// of waiters takes several (queue*.go, grant.go, listen.go). Benchmark measures the hot
// paths.
//
// Nothing in Run depends on how fast the machine is: a lease that has to be alive
// lasts a minute, and one that has to be over is waited for with time to spare.
package storetest
