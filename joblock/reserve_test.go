package joblock_test

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/joblock"
)

// A job may run for longer than the reservation that was made for its time in the
// queue; when its holder then dies the key is still the job's.
func TestReserveOutlastsTheReservationOfThePark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		token := k.park(k.acquire("key"), joblock.Reserve(time.Minute))
		lock, err := k.locks.Resume(t.Context(), token, joblock.Reserve(10*time.Minute))
		wantNil(t, "Resume", err)
		if left := k.record("key").Reserved; left < 10*time.Minute+29*time.Second {
			t.Errorf("reserved for %s after Resume, want the lease and 10m", left)
		}
		time.Sleep(time.Hour)
		lock.StopRenewing()
		<-lock.Done()
		time.Sleep(5 * time.Minute)
		k.wantState("key", joblock.StateOrphaned)
		_, err = k.peer().TryAcquire(t.Context(), "key")
		wantErr(t, err, joblock.ErrHeld)
		time.Sleep(6 * time.Minute)
		k.wantState("key", joblock.StateFree)
	})
}

func TestStatusAsJSONHasMilliseconds(t *testing.T) {
	text, err := json.Marshal(joblock.Status{
		Key: "key", State: joblock.StateHeld, Fence: 7, TTL: 30 * time.Second, Age: 90 * time.Second, Lease: 1500 * time.Millisecond, Reserved: time.Hour,
	})
	wantNil(t, "Marshal", err)
	const want = `{"key":"key","state":"held","fence":7,"ttl_ms":30000,"age_ms":90000,"lease_ms":1500,"reserved_ms":3600000}`
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}
