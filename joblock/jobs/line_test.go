package jobs_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
)

// waits gives each job a place in the line of key that lasts for two hours.
func (k *kit) waits(key string, names ...string) (tokens []joblock.Token) {
	k.Helper()
	var takes []core.Take
	for _, job := range names {
		takes = append(takes, core.Take{Key: key, Job: job, Reserve: time.Hour, Patience: 2 * time.Hour})
	}
	for i, got := range (*core.Locker)(k.Locks).Take(k.Context(), "take", takes) {
		wantNil(k, "take for "+names[i], got.Err)
		if got.Waits == nil {
			k.Fatalf("%s has the key %q, want a place", names[i], key)
		}
		tokens = append(tokens, joblock.Token(got.Token))
	}
	return tokens
}

// inLine returns the jobs in the line of key; a process is "".
func (k *kit) inLine(key string) (names []string) {
	k.Helper()
	for p, err := range jobs.Line(k.Context(), k.Locks, key) {
		wantNil(k, "Line", err)
		names = append(names, p.Job)
	}
	return names
}

func (k *kit) wantLine(key string, want ...string) {
	k.Helper()
	if got := k.inLine(key); !slices.Equal(got, want) {
		k.Errorf("in the line of %q are %q, want %q", key, got, want)
	}
}

func TestLineShowsAllWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.Acquire("key")
		k.wantLine("key")
		var want []string
		for i := range 450 {
			want = append(want, fmt.Sprintf("q/%d", i))
		}
		k.waits("key", want[:230]...)
		asking := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = k.Locks.Acquire(ctx, "key") }()
		synctest.Wait()
		k.waits("key", want[230:]...)
		k.wantLine("key", slices.Insert(want, 230, "")...)
		seen := 0
		for p, err := range jobs.Line(t.Context(), k.Locks, "key") {
			wantNil(t, "Line", err)
			if p.Ahead != seen || p.Since.Sub(asking).Abs() > time.Second || p.Holder == "" {
				t.Errorf("place %+v, want number %d, since about %s", p, seen, asking)
			}
			if seen++; seen == 300 {
				break
			}
		}
		cancel()
		synctest.Wait()
		for _, err := range jobs.Line(t.Context(), k.Locks, "") {
			wantErr(t, err, joblock.ErrInvalid)
		}
	})
}

func TestReserveKeepsAPlaceAndServesAFreeKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.park(k.Acquire("key"), joblock.ForJob("q/0"), joblock.Reserve(4*time.Hour))
		k.waits("key", "q/1", "q/2", "q/3")
		time.Sleep(time.Hour)
		errs := jobs.Reserve(t.Context(), k.Locks,
			jobs.Reservation{Key: "key", Job: "q/0", For: time.Hour},
			jobs.Reservation{Key: "key", Job: "q/2", For: 10 * time.Hour},
			jobs.Reservation{Key: "key", Job: "q/3", For: 10 * time.Hour},
			jobs.Reservation{Key: "key", Job: "q/4", For: 10 * time.Hour})
		wantNil(t, "Reserve for the job that has the key", errs[0])
		wantErr(t, errs[1], joblock.ErrHeld)
		wantErr(t, errs[2], joblock.ErrHeld)
		wantErr(t, errs[3], joblock.ErrNotOwner)
		time.Sleep(2 * time.Hour)
		k.wantLine("key", "q/2", "q/3") // the place of q/1 has ended
		time.Sleep(2 * time.Hour)       // and so has the reservation of q/0
		var next []string
		granted := func(key, job string) { next = append(next, key+" "+job) }
		errs = (*core.Locker)(k.Locks).ReserveForJobs(t.Context(), granted, []core.Reservation{{Key: "key", Job: "q/3", For: time.Hour}})
		wantErr(t, errs[0], joblock.ErrHeld)
		if !slices.Equal(next, []string{"key q/2"}) {
			t.Errorf("next are %q, want the first in line", next)
		}
		if r := k.Record("key"); r.State != joblock.StateParked || r.Job != "q/2" {
			t.Errorf("record %+v, want it parked for q/2", r)
		}
		k.wantReserved("key", time.Hour)
	})
}

func TestFreeTakesJobsOutOfLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.park(k.Acquire("key"), joblock.ForJob("q/0"))
		tokens := k.waits("key", "q/1", "q/2", "q/3")
		var next []string
		free := func(names ...string) []error {
			var all []core.JobRelease
			for _, job := range names {
				all = append(all, core.JobRelease{Key: "key", Job: job})
			}
			return (*core.Locker)(k.Locks).FreeJobs(t.Context(), func(key, job string) { next = append(next, job) }, all)
		}
		errs := free("q/2", "q/9")
		wantNil(t, "Free of a job that waits", errs[0])
		wantErr(t, errs[1], joblock.ErrNotOwner)
		k.wantLine("key", "q/1", "q/3")
		wantNil(t, "Free of the job that has the key", free("q/0")[0])
		if !slices.Equal(next, []string{"q/1"}) {
			t.Errorf("next are %q, want q/1", next)
		}
		_, err := k.Locks.Resume(t.Context(), tokens[1], joblock.ForJob("q/2"))
		wantErr(t, err, joblock.ErrNotOwner)
		_, err = k.Locks.Resume(t.Context(), tokens[0], joblock.ForJob("q/1"))
		wantNil(t, "Resume of the job that is next", err)
	})
}

func TestListenReportsJobsThatNoProcessStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		var heard []string
		stop, err := jobs.Listen(t.Context(), k.Locks, func(g jobs.Granted) { heard = append(heard, g.Key+" "+g.Job) })
		wantNil(t, "Listen", err)
		lock := k.Acquire("key")
		k.waits("key", "q/1", "q/2", "q/3")
		wantNil(t, "Release", lock.Release(t.Context()))
		wantNil(t, "Free", (*core.Locker)(k.Locks).FreeJobs(t.Context(), func(string, string) {}, []core.JobRelease{{Key: "key", Job: "q/1"}})[0])
		stop()
		wantNil(t, "Free", jobs.Free(t.Context(), k.Locks, jobs.Release{Key: "key", Job: "q/2"})[0])
		if !slices.Equal(heard, []string{"key q/1"}) {
			t.Errorf("heard %q, want only the job that no other process starts, before the stop", heard)
		}
		wantNil(t, "Close", k.Locks.Close(t.Context()))
		_, err = jobs.Listen(t.Context(), k.Locks, func(jobs.Granted) {})
		wantErr(t, err, joblock.ErrClosed)
	})
}
