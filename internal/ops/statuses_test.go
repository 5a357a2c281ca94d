package ops

import (
	"fmt"
	"testing"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// Statuses are in the order of the keys.
func TestStatusesOfManyKeys(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		keys := make([]string, 10*inspectFew+1)
		for i := range keys {
			keys[i] = fmt.Sprint("key-", i)
		}
		held, last := s.acquire(keys[1]), len(keys)-1
		s.park(keys[last], "exports/1")
		got, err := s.Statuses(t.Context(), keys...)
		testkit.WantNil(t, "Statuses", err)
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
			t.Errorf("%d locks together with an error", len(got))
		}
	})
}

// Whatever a Desk reads about one key or about the keepers, no call reads many records: other clients would wait.
func TestNoCallReadsManyRecords(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		s.park("parked", "exports/1")
		_, err := s.Explain(t.Context(), "parked")
		testkit.WantNil(t, "Explain", err)
		_, err = s.Statuses(t.Context(), make300()...)
		testkit.WantNil(t, "Statuses", err)
		if n := s.store.Largest(faultstore.Inspect); n > inspectFew {
			t.Errorf("a call has read %d records, want at most %d", n, inspectFew)
		}
		if n := s.store.Items(faultstore.Inspect); n < 500 {
			t.Errorf("%d records were read: there was nothing to split", n)
		}
	})
}

func make300() (keys []string) {
	for i := range 300 {
		keys = append(keys, fmt.Sprint("key-", i))
	}
	return keys
}
