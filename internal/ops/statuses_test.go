package ops

import (
	"fmt"
	"testing"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Statuses are in the order of the keys, and take a call for each batch.
func TestStatusesOfManyKeys(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		keys := make([]string, driver.MaxBatch+1)
		for i := range keys {
			keys[i] = fmt.Sprint("key-", i)
		}
		held, last := s.acquire(keys[1]), len(keys)-1
		s.park(keys[last], "exports/1")
		before := s.store.Calls(faultstore.Inspect)
		got, err := s.Statuses(t.Context(), keys...)
		testkit.WantNil(t, "Statuses", err)
		if n := s.store.Calls(faultstore.Inspect) - before; n != 2 {
			t.Errorf("%d calls for %d keys, want 2", n, len(keys))
		}
		if len(got) != len(keys) || got[0].State != joblock.StateFree || got[1].Fence != held.Fence() || got[last].Job != "exports/1" {
			t.Fatalf("%d locks: %+v, %+v, %+v", len(got), got[0], got[1], got[last])
		}
		for i, l := range got {
			if l.Key != keys[i] {
				t.Errorf("lock %d is that of %s", i, l.Key)
			}
		}
		_, err = s.Statuses(t.Context(), keys[0], "")
		testkit.WantErr(t, err, joblock.ErrInvalid)
		s.store.Set(faultstore.Fault{Mode: faultstore.Hang}, faultstore.Inspect)
		got, err = s.Statuses(t.Context(), keys...)
		testkit.WantErr(t, err, joblock.ErrUnavailable)
		if len(got) != 0 {
			t.Errorf("%d locks beside an error", len(got))
		}
	})
}
