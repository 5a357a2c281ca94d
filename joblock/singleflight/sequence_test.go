package singleflight_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/ministore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/testkit/lockkit"
	"github.com/joblock/toolkit/joblock/singleflight"
)

// Those who have waited judge a result by the store's clock, and not by a fence.
func TestResultsAreSharedOnAPlainSequenceOfFences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &ministore.Store{}
		k := lockkit.New(t, nil)
		var computed atomic.Int32
		var all sync.WaitGroup
		for range 5 {
			locks := k.Open(store, nil)
			all.Go(func() {
				v, err := singleflight.Do(t.Context(), locks, "key", time.Hour, func(context.Context) (int32, error) {
					time.Sleep(time.Second)
					return computed.Add(1), nil
				})
				testkit.WantNil(t, "Do", err)
				if v != 1 {
					t.Errorf("result %d, want that of the first", v)
				}
			})
		}
		all.Wait()
		if n := computed.Load(); n != 1 {
			t.Errorf("computed %d times, want once", n)
		}
	})
}
