package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/joblock/memstore"
)

// What a keeper does: the locks of jobs that still exist stay reserved, the others
// are freed.
func Example() {
	ctx := context.Background()
	now := time.Date(2030, time.January, 1, 3, 0, 0, 0, time.UTC)
	store := memstore.New(&memstore.Config{
		Now:    func() time.Time { return now }, // the store's clock, moved by hand
		Silent: true,
	})
	locks, err := joblock.New(store, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close(ctx)
	for _, job := range []string{"exports/1", "exports/2"} {
		lock, err := locks.TryAcquire(ctx, "lock of "+job)
		if err != nil {
			fmt.Println(err)
			return
		}
		if _, err := lock.Park(ctx, joblock.ForJob(job), joblock.Reserve(time.Minute)); err != nil {
			fmt.Println(err)
			return
		}
	}

	now = now.Add(20*time.Second + time.Second)
	exists := map[string]bool{"exports/1": true} // the other task was deleted
	due, err := jobs.Due(ctx, locks, jobs.DueRequest{Limit: 100, Claim: time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, job := range due.Entries {
		checked := jobs.Settlement{Entry: job} // Again is 0: no further check
		if exists[job.Job] {
			checked.Again = time.Minute
			err = errors.Join(jobs.Reserve(ctx, locks, jobs.Reservation{Key: job.Key, Job: job.Job, For: time.Hour})...)
		} else {
			err = errors.Join(jobs.Free(ctx, locks, jobs.Release{Key: job.Key, Job: job.Job, Reason: "the task was deleted"})...)
		}
		if err == nil {
			err = jobs.Settle(ctx, locks, checked)
		}
		if err != nil {
			fmt.Println(err)
			return
		}
	}

	sts, err := locks.Status(ctx, "lock of exports/1", "lock of exports/2")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, st := range sts {
		fmt.Printf("%s is %s, reserved for %s\n", st.Key, st.State, st.Reserved.Round(time.Minute))
	}
	// Output:
	// lock of exports/1 is parked, reserved for 1h0m0s
	// lock of exports/2 is free, reserved for 0s
}
