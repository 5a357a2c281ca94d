package storetest

import (
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// DefaultUnit is the Harness.Unit of a Harness that has none.
const DefaultUnit = 50 * time.Millisecond

// Harness is a Store to test, and the means to do so. Store and Advance are required. Tests
// that need a missing optional field are left out, and the log says so.
type Harness struct {
	// Store is empty, or keeps its keys apart from everybody else's.
	Store driver.Store

	// Advance lets d pass on the store's clock, for leases and for the retention of
	// records. It is time.Sleep if the clock cannot be moved.
	Advance func(d time.Duration)

	// Exact says that the store's clock moves through Advance and Step only, and
	// by exactly as much as they are told, to the microsecond.
	Exact bool

	// Unit is the length of leases that are meant to run out. It has to be long for the
	// store's clock, but the suite waits for it some fifty times. Default DefaultUnit.
	Unit time.Duration

	// Step steps the store's wall clock by d, which may be negative. Optional.
	Step func(d time.Duration)

	// Foreign writes something that is not a lock record at key, past the Store.
	// ForeignIntact reports whether exactly that is still there. Set both or neither.
	Foreign       func(key string)
	ForeignIntact func(key string) bool
}

// testCase is one property. It gets a harness of its own.
type testCase struct {
	name string
	run  func(k *kit)
}

// area is a group of properties that hold of every Store that can do what it needs.
type area struct {
	name  string
	cases []testCase
	needs func(h *Harness) bool // nil: nothing
}

var areas = []area{
	{name: "acquire", cases: acquireCases},
	{name: "renew", cases: renewCases},
	{name: "park", cases: parkCases},
	{name: "resume", cases: resumeCases},
	{name: "release", cases: releaseCases},
	{name: "jobs", cases: jobCases},
	{name: "index", cases: indexCases},
	{name: "seal keys", cases: sealCases},
	{name: "resend", cases: resendCases},
	{name: "batch", cases: batchCases},
	{name: "inspect", cases: inspectCases},
	{name: "list", cases: listCases},
	{name: "memo", cases: memoCases},
	{name: "fence", cases: fenceCases},
	{name: "retain", cases: retainCases},
	{name: "hostile", cases: hostileCases},
	{name: "concurrent", cases: concurrentCases},
	{name: "queue", cases: queueCases},
	{name: "grant", cases: grantCases},
	{name: "queue calls", cases: queueCallCases},
	{name: "queue concurrent", cases: queueConcurrentCases},
	{name: "subscribe", cases: subscribeCases},
	{name: "forced", cases: forcedCases},
	{name: "context", cases: contextCases},
	{name: "step", cases: stepCases, needs: func(h *Harness) bool { return h.Step != nil }},
	{name: "exact", cases: exactCases, needs: func(h *Harness) bool { return h.Exact }},
	{name: "foreign", cases: foreignCases, needs: func(h *Harness) bool { return h.Foreign != nil }},
}

// Run tests a Store. It calls newHarness once per property, with the T of the subtest. Each
// time newHarness must return an empty store, or one with a fresh prefix, and close it in
// t.Cleanup.
func Run(t *testing.T, newHarness func(t *testing.T) *Harness) {
	t.Run("transitions", func(t *testing.T) { runTransitions(t, newHarness) })
	able := newHarness(t)
	for _, a := range areas {
		if a.needs != nil && !a.needs(able) {
			t.Logf("storetest: this harness cannot do what area %q needs; left out", a.name)
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			for _, c := range a.cases {
				t.Run(c.name, func(t *testing.T) { c.run(newKit(t, newHarness)) })
			}
		})
	}
}
