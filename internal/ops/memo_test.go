package ops

import (
	"bytes"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memo"
)

// Any process that has the token can write the memo of its key, and gets a new lease by that.
func TestWriteMemo(t *testing.T) {
	twoReplicas(t, func(t *testing.T, a, b *joblock.Locker, store *faultstore.Store, _ *testkit.Log) {
		ctx := t.Context()
		wants := func(what string, want []byte) {
			t.Helper()
			views, err := memo.Read(ctx, a, key)
			testkit.WantNil(t, "Read", err)
			if got := views[0].Memo; !bytes.Equal(got, want) {
				t.Errorf("%s: the memo has %d bytes, %.20q, want %.20q", what, len(got), got, want)
			}
		}
		lease, err := AcquireLease(ctx, a, LeaseRequest{Key: key, TTL: 10 * time.Second, Holder: "terraform"})
		testkit.WantNil(t, "AcquireLease", err)
		time.Sleep(9 * time.Second)
		testkit.WantNil(t, "WriteMemo", WriteMemo(ctx, b, lease.Token, 20*time.Second+time.Microsecond, []byte("first")))
		wants("after a write", []byte("first"))
		if st := status(t, a); st.TTL != 20*time.Second || st.Lease <= 19*time.Second || st.Fence != lease.Fence {
			t.Errorf("after a write: %+v, want a new lease of 20s", st)
		}
		testkit.WantNil(t, "nil", WriteMemo(ctx, b, lease.Token, time.Second*10, nil))
		wants("after nil", []byte("first"))
		testkit.WantNil(t, "empty", WriteMemo(ctx, a, lease.Token, 10*time.Second, []byte{}))
		wants("after an empty memo", nil)
		largest := bytes.Repeat([]byte("x"), driver.MaxMemoBytes)
		testkit.WantNil(t, "largest", WriteMemo(ctx, a, lease.Token, 10*time.Second, largest))
		wants("the largest", largest)

		for name, err := range map[string]error{
			"too long": WriteMemo(ctx, a, lease.Token, 10*time.Second, append(largest, 'x')),
			"no TTL":   WriteMemo(ctx, a, lease.Token, 0, nil),
			"long TTL": WriteMemo(ctx, a, lease.Token, 48*time.Hour, nil),
			"no token": WriteMemo(ctx, a, joblock.Token{}, 10*time.Second, nil),
			"no locks": WriteMemo(ctx, nil, lease.Token, 10*time.Second, nil),
		} {
			t.Log(name)
			testkit.WantErr(t, err, joblock.ErrInvalid)
		}
		wants("after bad calls", largest)

		store.Set(faultstore.Fault{Mode: faultstore.Drop}, faultstore.Renew)
		testkit.WantErr(t, WriteMemo(ctx, a, lease.Token, 10*time.Second, []byte("lost")), joblock.ErrUnavailable)
		store.Clear(faultstore.Renew)
		testkit.WantNil(t, "repeated", WriteMemo(ctx, a, lease.Token, 10*time.Second, []byte("lost")))
		wants("after a repeated call", []byte("lost"))

		time.Sleep(11 * time.Second)
		testkit.WantErr(t, WriteMemo(ctx, a, lease.Token, 10*time.Second, []byte("late")), joblock.ErrLost)
		time.Sleep(10 * time.Second) // the reservation of the longest lease
		next, err := AcquireLease(ctx, b, LeaseRequest{Key: key, TTL: 10 * time.Second})
		testkit.WantNil(t, "AcquireLease", err)
		testkit.WantErr(t, WriteMemo(ctx, a, lease.Token, 10*time.Second, []byte("late")), joblock.ErrNotOwner)
		wants("after a write that came too late", []byte("lost"))
		testkit.WantNil(t, "Release", Release(ctx, b, next.Token, ""))
		testkit.WantErr(t, WriteMemo(ctx, b, next.Token, 10*time.Second, []byte("late")), joblock.ErrAlreadyReleased)
		wants("after the release", []byte("lost"))
	})
}
