package limit_test

import (
	"cmp"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
)

// Status shows how many permits a limit has, once a caller has found a permit taken. A caller that gets a permit at once
// does not pay for that.
func TestNumberOfPermitsIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		want := func(when, number string) {
			t.Helper()
			sts, err := k.Locks.Status(t.Context(), keyspace.Size("key"))
			wantNil(t, "Status", err)
			said, ok := keyspace.ParseSaid(sts[0].Holder)
			if ok != (number != "") || sts[0].Locked() {
				t.Errorf("%s: %+v, want %q of a free lock", when, sts[0], number)
			}
			if got := fmt.Sprintf("%d since %s, before %d, by %s", said.N, time.Since(cmp.Or(said.Since, sts[0].Since)).Round(time.Minute), said.Before, said.By); ok && got != number {
				t.Errorf("%s: %s, want %s", when, got, number)
			}
		}
		refused := func(n int) {
			t.Helper()
			_, err := limit.New(k.Locks, n).TryAcquire(t.Context(), "key", joblock.Holder(fmt.Sprint("caller-", n)))
			wantErr(t, err, joblock.ErrHeld)
			time.Sleep(2 * time.Millisecond)
		}
		k.take(1, "key")
		want("after a permit that was free", "")
		refused(1)
		want("after a refusal", "1 since 0s, before 0, by caller-1")
		before := k.Store.Items(faultstore.Acquire)
		refused(1)
		if got := k.Store.Items(faultstore.Acquire) - before; got != 1 {
			t.Errorf("a second refusal takes %d calls of Acquire, want that for the permit alone", got)
		}
		k.take(3, "key")
		k.take(3, "key")
		refused(3)
		want("just after another number", "1 since 0s, before 0, by caller-1")
		time.Sleep(2 * time.Minute)
		refused(3)
		want("two minutes after another number", "3 since 0s, before 1, by caller-3")
		time.Sleep(13 * time.Hour)
		refused(3)
		want("13 hours later", "3 since 13h0m0s, before 1, by caller-3")
	})
}
