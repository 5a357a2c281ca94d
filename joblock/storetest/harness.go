package storetest

import (
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// DefaultUnit is the default of Harness.Unit.
const DefaultUnit = 50 * time.Millisecond

// Harness has the Store under test, and the functions and values that the tests need. The fields Store and Advance are
// required. If an optional field is missing, Run leaves out the areas that need it, and logs them.
type Harness struct {
	// Store is the store to test. It is empty, or prefixes all keys with a text of its own.
	Store driver.Store

	// Advance lets the time d pass on the store's clock, for leases and for the retention of records. If that clock
	// cannot be moved, Advance is time.Sleep.
	Advance func(d time.Duration)

	// Exact says that only Advance and Step move the store's clock, and that each moves the clock by exactly d, to
	// the microsecond.
	Exact bool

	// Deaf says that the store cannot know whether an inbox has a subscriber. Then a waiter that has died may get the
	// key for its whole TTL.
	Deaf bool

	// Unit is the length of a lease that a test lets run out. The suite waits for a Unit some fifty times. The
	// store's clock must be able to measure a Unit. Default DefaultUnit.
	Unit time.Duration

	// Step sets the store's wall clock forward by d, or back if d is negative. Optional.
	Step func(d time.Duration)

	// Foreign writes a value that is not a lock record at key, without the Store. ForeignIntact reports whether the
	// value at key is still the same. Set both fields or neither.
	Foreign       func(key string)
	ForeignIntact func(key string) bool
}

// testCase tests one property, with a harness of its own.
type testCase struct {
	name string
	run  func(k *kit)
}

// area is a group of test cases with the same needs.
type area struct {
	name  string
	cases []testCase
	needs func(h *Harness) bool // whether h has what the cases need; nil means that they need nothing
}

var areas = []area{
	{name: "acquire", cases: acquireCases},
	{name: "renew", cases: renewCases},
	{name: "park", cases: parkCases},
	{name: "take", cases: takeCases},
	{name: "resume", cases: resumeCases},
	{name: "release", cases: releaseCases},
	{name: "jobs", cases: jobCases},
	{name: "index", cases: indexCases},
	{name: "seal keys", cases: sealCases},
	{name: "rate", cases: rateCases},
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
	{name: "unheard", cases: unheardCases, needs: func(h *Harness) bool { return !h.Deaf }},
	{name: "line", cases: lineCases},
	{name: "slot", cases: slotCases},
	{name: "queue calls", cases: queueCallCases},
	{name: "queue concurrent", cases: queueConcurrentCases},
	{name: "line concurrent", cases: lineConcurrentCases},
	{name: "subscribe", cases: subscribeCases},
	{name: "forced", cases: forcedCases},
	{name: "notify", cases: notifyCases},
	{name: "context", cases: contextCases},
	{name: "step", cases: stepCases, needs: func(h *Harness) bool { return h.Step != nil }},
	{name: "exact", cases: exactCases, needs: func(h *Harness) bool { return h.Exact }},
	{name: "foreign", cases: foreignCases, needs: func(h *Harness) bool { return h.Foreign != nil }},
}

// Run tests a Store. For each property, Run calls newHarness with the T of the subtest. Each call of newHarness must
// return an empty store, or a store with a fresh prefix, and must close that store in t.Cleanup.
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
