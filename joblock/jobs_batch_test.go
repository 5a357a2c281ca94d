package joblock_test

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
)

func TestLongListsAreSentInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		const n = 2*driver.MaxBatch + 1
		keys := make([]string, n)
		reserve := make([]joblock.JobReservation, n)
		forget := make([]driver.JobLock, n)
		for i := range n {
			keys[i] = fmt.Sprint("key-", i)
			reserve[i] = joblock.JobReservation{Key: keys[i], Job: "q/1"}
			forget[i] = driver.JobLock{Key: keys[i], Job: "q/1", Mark: 1}
		}
		// Two that can be told from the others, on either side of an edge.
		token := k.park(k.acquire(keys[driver.MaxBatch]), joblock.ParkOptions{Job: "q/1"})
		reserve[driver.MaxBatch-1].Key = ""
		errs := k.locks.ReserveForJob(t.Context(), reserve)
		for i, want := range map[int]error{
			0: joblock.ErrNotFound, driver.MaxBatch - 1: joblock.ErrInvalid, driver.MaxBatch: nil, driver.MaxBatch + 1: joblock.ErrNotFound,
			n - 1: joblock.ErrNotFound,
		} {
			if !errors.Is(errs[i], want) {
				t.Errorf("item %d: error %v, want %v", i, errs[i], want)
			}
		}
		sts, err := k.locks.StatusOf(t.Context(), keys)
		wantNil(t, "StatusOf", err)
		if len(sts) != n || sts[driver.MaxBatch].Key != token.Key() || sts[driver.MaxBatch].State != joblock.StateParked {
			t.Errorf("%d statuses, number %d is %+v", len(sts), driver.MaxBatch, sts[driver.MaxBatch])
		}
		wantNil(t, "ForgetJobs", k.locks.ForgetJobs(t.Context(), forget))
		for call, items := range map[string]int{faultstore.Reserve: n - 1, faultstore.Inspect: n, faultstore.Forget: n} {
			if k.store.Largest(call) != driver.MaxBatch || k.store.Items(call) != items {
				t.Errorf("%s: %d items, %d at once, want %d and %d", call,
					k.store.Items(call), k.store.Largest(call), items, driver.MaxBatch)
			}
		}
	})
}

func TestJobCallsWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.park(k.acquire("key"), joblock.ParkOptions{Job: "q/1"})
		time.Sleep(time.Minute)
		seen := k.wantDue(time.Minute, "q/1 key")
		k.store.Set(faultstore.Fault{Mode: faultstore.Hang}, faultstore.Due, faultstore.Forget, faultstore.Reserve,
			faultstore.Release, faultstore.Inspect)
		_, due := k.locks.DueJobs(t.Context(), 10, time.Minute)
		_, statuses := k.locks.StatusOf(t.Context(), []string{"key"})
		for call, err := range map[string]error{
			"DueJobs": due, "StatusOf": statuses, "ForgetJobs": k.locks.ForgetJobs(t.Context(), seen),
			"ReserveForJob": k.locks.ReserveForJob(t.Context(), []joblock.JobReservation{{Key: "key", Job: "q/1"}})[0],
			"ReleaseForJob": k.locks.ReleaseForJob(t.Context(), "key", "q/1", 0, "gone"),
		} {
			if !errors.Is(err, joblock.ErrUnavailable) || !joblock.Retryable(err) {
				t.Errorf("%s: error %v, want ErrUnavailable", call, err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := k.locks.ReserveForJob(ctx, []joblock.JobReservation{{Key: "key", Job: "q/1"}})[0]
		wantErr(t, err, context.Canceled)
		k.wantState("key", joblock.StateParked)
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
		var reserve []joblock.JobReservation
		for _, key := range []string{"one", "dead", "two"} {
			k.park(k.acquire(key), joblock.ParkOptions{Job: "q/1"})
			reserve = append(reserve, joblock.JobReservation{Key: key, Job: "q/1"})
		}
		errs := k.open(partly{k.mem, "dead"}, nil).ReserveForJob(t.Context(), reserve)
		if errs[0] != nil || errs[2] != nil || !errors.Is(errs[1], joblock.ErrUnavailable) {
			t.Errorf("errors %v, want ErrUnavailable for the second only", errs)
		}
	})
}

// planted is a Store in whose index somebody has written.
type planted struct{ driver.Store }

func (s planted) Due(ctx context.Context, req driver.DueRequest) ([]driver.JobLock, error) {
	due, err := s.Store.Due(ctx, req)
	return append([]driver.JobLock{{Key: "", Job: "q/1"}, {Key: "key", Job: ""}, {Key: "a\x00b", Job: "q/1"}}, due...), err
}

func TestEntriesThatCannotBeLocksAreLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.park(k.acquire("key"), joblock.ParkOptions{Job: "q/1"})
		time.Sleep(time.Minute)
		locks := k.open(planted{k.mem}, nil)
		due, err := locks.DueJobs(t.Context(), 10, time.Minute)
		wantNil(t, "DueJobs", err)
		if len(due) != 1 || due[0].Key != "key" || due[0].Job != "q/1" {
			t.Errorf("due are %+v", due)
		}
		wantNil(t, "ForgetJobs", locks.ForgetJobs(t.Context(), due))
	})
}
