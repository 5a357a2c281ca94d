package storetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// This file has the methods of kit for the locks of jobs.

func (k *kit) reserveReq(key, job string) driver.ReserveRequest {
	return driver.ReserveRequest{Key: key, Job: job, Reserve: 10 * long, Retain: long}
}

// lineReq returns a Take with which job waits for longer than the test takes. The Nonce depends only on the job.
func (k *kit) lineReq(key, job string) driver.TakeRequest {
	req := k.takeReq(key, "next", job)
	req.Nonce, req.Patience = "of "+job, long
	return req
}

// joinLine sends a Take, and fails the test unless the job has a place in the queue.
func (k *kit) joinLine(req driver.TakeRequest) driver.Reply {
	k.Helper()
	reply := k.take(req)
	k.want("take", reply, driver.OutcomeHeld)
	if reply.Now.IsZero() || reply.Since.IsZero() || reply.Since.After(reply.Now) {
		k.Fatalf("take: %+v, want a place", reply)
	}
	return reply
}

// keepReq returns a Reserve that keeps the place of a job that waits.
func (k *kit) keepReq(wait driver.TakeRequest) driver.ReserveRequest {
	req := k.reserveReq(wait.Key, wait.Job)
	req.Nonce = wait.Nonce
	return req
}

// freeReq returns a request that frees the lock of an ended job, without the lock's owner. "" is any job, or none.
func (k *kit) freeReq(key, job string) driver.ReleaseRequest {
	req := k.forceReq(key)
	req.Kind, req.Job = driver.ReleaseForcedIdle, job
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

// claim calls Due for one part of the index.
func (k *kit) claim(part, limit int, claim time.Duration) driver.DueReply {
	k.Helper()
	reply, err := k.Store.Due(k.ctx, driver.DueRequest{Part: part, Limit: limit, Claim: claim})
	if err != nil {
		k.Fatalf("Due: %v", err)
	}
	if len(reply.Entries) > limit {
		k.Fatalf("Due gave %d locks, at most %d were asked for", len(reply.Entries), limit)
	}
	if reply.Next < 0 || reply.Next > driver.MaxPeriod {
		k.Fatalf("Next is %s, must be from 0 to %s", reply.Next, driver.MaxPeriod)
	}
	return reply
}

// due calls Due for each part of the index, until the parts have returned limit entries.
func (k *kit) due(limit int, claim time.Duration) (locks []driver.Entry) {
	k.Helper()
	for part := 0; part < k.Store.Parts() && len(locks) < limit; part++ {
		locks = append(locks, k.claim(part, limit-len(locks), claim).Entries...)
	}
	return locks
}

// entries reads all parts of the index by pages of the given size, and returns each entry once.
func (k *kit) entries(count int) (locks []driver.Entry) {
	k.Helper()
	seen := make(map[driver.Entry]bool)
	for part := range k.Store.Parts() {
		req := driver.EntriesRequest{Part: part, Count: count}
		for first := true; first || req.Cursor != ""; first = false {
			page, err := k.Store.Entries(k.ctx, req)
			if err != nil {
				k.Fatalf("Entries: %v", err)
			}
			for _, l := range page.Entries {
				if !seen[l] {
					seen[l] = true
					locks = append(locks, l)
				}
			}
			req.Cursor = page.Next
		}
	}
	return locks
}

// next returns the least Next of all parts, and fails the test if an entry is due now.
func (k *kit) next() time.Duration {
	k.Helper()
	least := driver.MaxPeriod
	for part := range k.Store.Parts() {
		reply := k.claim(part, 1, long)
		k.wantLocks(reply.Entries)
		least = min(least, reply.Next)
	}
	return least
}

func (k *kit) settle(again time.Duration, locks ...driver.Entry) {
	k.Helper()
	entries := make([]driver.Settlement, len(locks))
	for i, l := range locks {
		entries[i] = driver.Settlement{Entry: l, Again: again}
	}
	if err := k.Store.Settle(k.ctx, entries); err != nil {
		k.Fatalf("Settle: %v", err)
	}
}

// neighbours returns n free keys, at most four, that are in one part of the index, and that part.
func (k *kit) neighbours(n int) (keys []string, part int) {
	k.Helper()
	// However a store spreads the keys, one part has n of them.
	takes := make([]driver.TakeRequest, (n-1)*k.Store.Parts()+1)
	frees := make([]driver.ReleaseRequest, len(takes))
	for i := range takes {
		takes[i] = k.takeReq(fmt.Sprintf("neighbour-%d", i), "me", "q/neighbour")
		takes[i].Grace = 0
		frees[i] = k.freeReq(takes[i].Key, takes[i].Job)
	}
	k.takeAll(takes)
	k.releaseAll(frees)
	k.Advance(time.Millisecond)
	for p := range k.Store.Parts() {
		found := k.claim(p, driver.MaxBatch, long).Entries
		k.settle(0, found...)
		if len(found) >= n && len(keys) == 0 {
			part = p
			for _, l := range found[:n] {
				keys = append(keys, l.Key)
			}
		}
	}
	if len(keys) < n {
		k.Fatalf("no part of the index has %d of %d keys", n, len(takes))
	}
	return keys, part
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

// wantDue fails the test unless Due returns want. The entries are due again after long.
func (k *kit) wantDue(limit int, want ...string) {
	k.Helper()
	k.wantLocks(k.due(limit, long), want...)
}

// wantLocks fails the test unless the entries of locks are want. Each string of want is "job key".
func (k *kit) wantLocks(locks []driver.Entry, want ...string) {
	k.Helper()
	var got []string
	for _, l := range locks {
		got = append(got, l.Job+" "+l.Key)
	}
	if !slices.Equal(got, want) {
		k.Fatalf("due are %q, want %q", got, want)
	}
}

func (k *kit) sorted(locks []driver.Entry) []driver.Entry {
	slices.SortFunc(locks, func(a, b driver.Entry) int {
		return strings.Compare(a.Job+" "+a.Key, b.Job+" "+b.Key)
	})
	return locks
}
