package storetest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/storetest"
)

// The clock of some stores cannot be moved. So this test runs the suite with time.Sleep as Advance.
func TestRunWithRealTime(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) *storetest.Harness {
		if strings.Count(t.Name(), "/") > 1 { // a case: it waits for short leases most of the time
			t.Parallel()
		}
		return &storetest.Harness{
			Store:   memstore.New(&memstore.Config{Silent: true}),
			Advance: time.Sleep,
			Unit:    10 * time.Millisecond,
		}
	})
}
