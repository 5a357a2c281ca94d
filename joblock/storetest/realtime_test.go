package storetest_test

import (
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/storetest"
)

// The suite has to hold on a store whose clock nobody can move, so this one is
// slept through on purpose.
func TestRunWithRealTime(t *testing.T) {
	storetest.Run(t, func(t *testing.T) *storetest.Harness {
		return &storetest.Harness{
			Store:   memstore.New(&memstore.Config{Notice: memstore.NoticeSilent}),
			Advance: time.Sleep,
			Unit:    10 * time.Millisecond,
		}
	})
}
