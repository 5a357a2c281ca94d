package storetest

import (
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// This file has the methods of kit for the locks of jobs.

func (k *kit) reserveReq(key, job string) driver.ReserveRequest {
	return driver.ReserveRequest{Key: key, Job: job, Reserve: 10 * long, Retain: long}
}

// freeReq returns a request that frees the lock of an ended job, without the lock's owner.
func (k *kit) freeReq(key, job string) driver.ReleaseRequest {
	req := k.forceReq(key)
	req.Kind, req.Job = driver.ReleaseForJob, job
	return req
}

func (k *kit) reserveAll(reqs []driver.ReserveRequest) []driver.Reply {
	k.Helper()
	replies, err := k.Store.Reserve(k.ctx, reqs)
	return k.answers("Reserve", len(reqs), replies, err)
}

func (k *kit) reserve(req driver.ReserveRequest) driver.Reply {
	k.Helper()
	return k.reserveAll([]driver.ReserveRequest{req})[0]
}

func (k *kit) due(limit int, later time.Duration) []driver.JobLock {
	k.Helper()
	locks, err := k.Store.Due(k.ctx, driver.DueRequest{Limit: limit, Later: later})
	if err != nil {
		k.Fatalf("Due: %v", err)
	}
	if len(locks) > limit {
		k.Fatalf("Due gave %d locks, at most %d were asked for", len(locks), limit)
	}
	return locks
}

func (k *kit) forget(locks ...driver.JobLock) {
	k.Helper()
	if err := k.Store.Forget(k.ctx, locks); err != nil {
		k.Fatalf("Forget: %v", err)
	}
}

// parkDue parks a lock and waits until the lock's entry is due.
func (k *kit) parkDue(key, owner, job string) held {
	k.Helper()
	req := k.parkReq(driver.Term{}, job)
	req.Grace = 0
	h := k.parkAs(key, owner, req)
	k.Advance(time.Millisecond) // until the entry is due
	return h
}

// parkAs acquires key and parks the key with req. parkAs sets the Term of req.
func (k *kit) parkAs(key, owner string, req driver.ParkRequest) held {
	k.Helper()
	before := k.hold(key, owner)
	req.Term = byFence(key, owner, before.fence)
	reply := k.park(req)
	k.wantGrant("park", reply, before.fence)
	return held{reply.Fence, req.Nonce}
}

// wantDue fails the test unless Due returns the parameter want. The entries are due again after the constant long.
func (k *kit) wantDue(limit int, want ...string) {
	k.Helper()
	k.wantLocks(k.due(limit, long), want...)
}

// wantLocks fails the test unless the entries of locks are the parameter want. Each string of want is "job key".
func (k *kit) wantLocks(locks []driver.JobLock, want ...string) {
	k.Helper()
	var got []string
	for _, l := range locks {
		got = append(got, l.Job+" "+l.Key)
	}
	if !slices.Equal(got, want) {
		k.Fatalf("due are %q, want %q", got, want)
	}
}

func (k *kit) sorted(locks []driver.JobLock) []driver.JobLock {
	slices.SortFunc(locks, func(a, b driver.JobLock) int {
		return strings.Compare(a.Job+" "+a.Key, b.Job+" "+b.Key)
	})
	return locks
}
