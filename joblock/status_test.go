package joblock_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

func TestStatusFollowsTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		status := func() joblock.Status {
			t.Helper()
			st, err := testkit.One(k.peer().Status(t.Context(), "key"))
			wantNil(t, "Status", err)
			return st
		}
		if st := status(); st.State != joblock.StateFree || st.Locked() || st.Fence != 0 {
			t.Errorf("an unknown key is %+v", st)
		}
		lock := k.acquire("key", joblock.Holder("web-1"))
		acquired := time.Now()
		st := status()
		if st.State != joblock.StateHeld || !st.Locked() || st.Holder != "web-1" || st.Fence != lock.Fence() ||
			st.Owner != lock.Digest() || st.Lease < 29*time.Second || !st.Since.Equal(acquired) || st.Age != 0 {
			t.Errorf("a held key is %+v", st)
		}
		time.Sleep(5 * time.Second)
		token := k.park(lock, joblock.ForJob("mail/7"), joblock.Reserve(time.Minute))
		k.StoreSkew += time.Second // the store's clock decides, not ours
		if st := status(); st.State != joblock.StateParked || st.Job != "mail/7" || st.Lease != 0 ||
			st.Reserved < time.Minute-time.Second || st.Owner != token.Digest() || !st.Since.Equal(acquired) || st.Age != 6*time.Second {
			t.Errorf("a parked key is %+v", st)
		}
		_, err := k.locks.Resume(t.Context(), token, joblock.ForJob("mail/7"), joblock.NoRenew())
		wantNil(t, "Resume", err)
		time.Sleep(joblock.DefaultTTL + time.Second)
		if st := status(); st.State != joblock.StateOrphaned || !st.Locked() {
			t.Errorf("an orphaned key is %+v", st)
		}
		wantErr(t, releaseOf(t.Context(), k.locks, "key", "another owner"), joblock.ErrNotOwner)
		wantNil(t, "Release", releaseOf(t.Context(), k.locks, "key", token.Owner()))
		wantErr(t, releaseOf(t.Context(), k.locks, "key", token.Owner()), joblock.ErrAlreadyReleased)
		wantErr(t, k.locks.ForceRelease(t.Context(), "key"), joblock.ErrNotFound)
		wantErr(t, releaseOf(t.Context(), k.locks, "nothing", "me"), joblock.ErrNotFound)
		st = status()
		if st.State != joblock.StateFree || st.Ended != driver.EndedReleased || st.Age != 0 {
			t.Errorf("a released key is %+v", st)
		}
		text, err := json.Marshal(st)
		wantNil(t, "Marshal", err)
		if !strings.Contains(string(text), `"state":"free"`) || !strings.Contains(string(text), `"ended":"released"`) {
			t.Errorf("JSON is %s", text)
		}
	})
}

func TestReadsReportAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.store.Set(faultstore.Fault{Mode: faultstore.Hang}, faultstore.Inspect, faultstore.List, faultstore.Release)
		_, err := testkit.One(k.locks.Status(t.Context(), "key"))
		wantErr(t, err, joblock.ErrUnavailable)
		n := 0
		for _, err := range k.locks.List(t.Context(), joblock.ListOptions{}) {
			wantErr(t, err, joblock.ErrUnavailable)
			n++
		}
		if n != 1 {
			t.Errorf("%d pairs after an error, want the one", n)
		}
		wantErr(t, releaseOf(t.Context(), k.locks, "key", "me"), joblock.ErrUnavailable)
		wantErr(t, k.locks.ForceRelease(t.Context(), "key"), joblock.ErrUnavailable)
	})
}

func TestStatusOfManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.acquire("held")
		k.park(k.acquire("parked"), joblock.ForJob("q/1"))
		keys := []string{"parked", "absent", "held", "parked"}
		got, err := k.locks.Status(t.Context(), keys...)
		wantNil(t, "Status", err)
		if len(got) != len(keys) {
			t.Fatalf("%d statuses of %d keys", len(got), len(keys))
		}
		for i, key := range keys {
			want, err := testkit.One(k.locks.Status(t.Context(), key))
			wantNil(t, "Status", err)
			if got[i] != want || want.Key != key {
				t.Errorf("%q: got %+v, want %+v", key, got[i], want)
			}
		}
		k.store.Set(faultstore.Fault{}, faultstore.Inspect)
		got, err = k.locks.Status(t.Context(), keys...)
		wantErr(t, err, joblock.ErrUnavailable)
		if got != nil {
			t.Errorf("%d statuses with an error: one that was not read would look free", len(got))
		}
	})
}
