package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
)

func TestLongListsAreSentInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		const n = 2*driver.MaxBatch + 1
		keys := make([]string, n)
		reserve := make([]jobs.Reservation, n)
		forget := make([]jobs.Entry, n)
		for i := range n {
			keys[i] = fmt.Sprint("key-", i)
			reserve[i] = jobs.Reservation{Key: keys[i], Job: "q/1"}
			forget[i] = jobs.Entry{Key: keys[i], Job: "q/1", Mark: 1}
		}
		// Two that differ from the others, on either side of an edge.
		token := k.park(k.Acquire(keys[driver.MaxBatch]), joblock.ForJob("q/1"))
		reserve[driver.MaxBatch-1].Key = ""
		errs := jobs.Reserve(t.Context(), k.Locks, reserve...)
		for i, want := range map[int]error{
			0: joblock.ErrNotFound, driver.MaxBatch - 1: joblock.ErrInvalid, driver.MaxBatch: nil, driver.MaxBatch + 1: joblock.ErrNotFound,
			n - 1: joblock.ErrNotFound,
		} {
			if !errors.Is(errs[i], want) {
				t.Errorf("item %d: error %v, want %v", i, errs[i], want)
			}
		}
		sts, err := k.Locks.Status(t.Context(), keys...)
		wantNil(t, "Status", err)
		if len(sts) != n || sts[driver.MaxBatch].Key != token.Key() || sts[driver.MaxBatch].State != joblock.StateParked {
			t.Errorf("%d statuses, number %d is %+v", len(sts), driver.MaxBatch, sts[driver.MaxBatch])
		}
		wantNil(t, "Settle", remove(k.Locks, forget...))
		free := make([]jobs.Release, n)
		for i := range n {
			free[i] = jobs.Release{Key: keys[i], Job: "q/1"}
		}
		free[driver.MaxBatch-1].Job = ""
		for i, err := range jobs.Free(t.Context(), k.Locks, free...) {
			want := joblock.ErrNotFound
			switch i {
			case driver.MaxBatch - 1:
				want = joblock.ErrInvalid
			case driver.MaxBatch:
				want = nil
			}
			if !errors.Is(err, want) {
				t.Errorf("freeing item %d: error %v, want %v", i, err, want)
			}
		}
		for call, items := range map[string]int{faultstore.Reserve: n - 1, faultstore.Release: n - 1, faultstore.Inspect: n, faultstore.Settle: n} {
			if k.Store.Largest(call) != driver.MaxBatch || k.Store.Items(call) != items {
				t.Errorf("%s: %d items, %d at once, want %d and %d", call,
					k.Store.Items(call), k.Store.Largest(call), items, driver.MaxBatch)
			}
		}
	})
}

func TestCallsWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.park(k.Acquire("key"), joblock.ForJob("q/1"))
		time.Sleep(time.Minute)
		seen := k.wantDue(time.Minute, "q/1 key")
		k.Store.Set(faultstore.Fault{Mode: faultstore.Hang}, faultstore.Due, faultstore.Settle, faultstore.Reserve,
			faultstore.Release, faultstore.Inspect)
		_, due := jobs.Due(t.Context(), k.Locks, jobs.DueRequest{Limit: 10, Claim: time.Minute})
		_, statuses := k.Locks.Status(t.Context(), "key")
		for call, err := range map[string]error{
			"Due": due, "Status": statuses, "Settle": remove(k.Locks, seen...),
			"Reserve": jobs.Reserve(t.Context(), k.Locks, jobs.Reservation{Key: "key", Job: "q/1"})[0],
			"Free":    jobs.Free(t.Context(), k.Locks, jobs.Release{Key: "key", Job: "q/1", Reason: "gone"})[0],
		} {
			if !errors.Is(err, joblock.ErrUnavailable) || !joblock.Retryable(err) {
				t.Errorf("%s: error %v, want ErrUnavailable", call, err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := jobs.Reserve(ctx, k.Locks, jobs.Reservation{Key: "key", Job: "q/1"})[0]
		wantErr(t, err, context.Canceled)
		k.WantState("key", joblock.StateParked)
	})
}

// partly is a Store one of whose nodes is dead.
type partly struct {
	driver.Store
	dead string
}

func (s partly) Reserve(ctx context.Context, reqs []driver.ReserveRequest) ([]driver.Reply, error) {
	replies, err := s.Store.Reserve(ctx, reqs)
	for i, req := range reqs {
		if err == nil && req.Key == s.dead {
			replies[i], err = driver.Reply{}, faultstore.Err
		}
	}
	return replies, err
}

func TestADeadNodeHidesNoReservationsOfTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		var reserve []jobs.Reservation
		for _, key := range []string{"one", "dead", "two"} {
			k.park(k.Acquire(key), joblock.ForJob("q/1"))
			reserve = append(reserve, jobs.Reservation{Key: key, Job: "q/1"})
		}
		errs := jobs.Reserve(t.Context(), k.Open(partly{k.Mem, "dead"}, nil), reserve...)
		if errs[0] != nil || errs[2] != nil || !errors.Is(errs[1], joblock.ErrUnavailable) {
			t.Errorf("errors %v, want ErrUnavailable for the second only", errs)
		}
	})
}

// planted is a Store with a forged entry in its index.
type planted struct{ driver.Store }

func (s planted) Due(ctx context.Context, req driver.DueRequest) (driver.DueReply, error) {
	due, err := s.Store.Due(ctx, req)
	due.Entries = append([]jobs.Entry{{Key: "", Job: "q/1"}, {Key: "key", Job: ""}, {Key: "a\x00b", Job: "q/1"}}, due.Entries...)
	return due, err
}

func TestEntriesThatCannotBeLocksAreLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.park(k.Acquire("key"), joblock.ForJob("q/1"))
		time.Sleep(time.Minute)
		locks := k.Open(planted{k.Mem}, nil)
		due, err := jobs.Due(t.Context(), locks, jobs.DueRequest{Limit: 10, Claim: time.Minute})
		wantNil(t, "Due", err)
		if len(due.Entries) != 1 || due.Entries[0].Key != "key" || due.Entries[0].Job != "q/1" {
			t.Errorf("due are %+v", due)
		}
		wantNil(t, "Settle", remove(locks, due.Entries...))
	})
}
