package storetest

import (
	"fmt"
	"slices"
	"sync"

	"github.com/joblock/toolkit/joblock/driver"
)

// indexCases test how a keeper finds the locks of jobs.
var indexCases = []testCase{
	{"a lock that is parked for a job is due after its Grace", func(k *kit) {
		k.parkDue("key", "me", "q/job")
		k.parkFor("later", "me", "q/job", 10*long)
		k.wantDue(10, "q/job key")
	}},
	{"a plain lock and a lock parked for no job have no entry", func(k *kit) {
		k.hold("held", "me")
		k.parkDue("parked", "me", "")
		k.resume(k.resumeReq("parked", "me", "q/job")) // this Resume binds the record to no job
		k.lapse()
		k.wantDue(10)
	}},
	{"Due makes the returned entries due later", func(k *kit) {
		k.parkDue("key", "me", "q/job")
		first := k.due(10, k.Unit)
		k.wantLocks(first, "q/job key")
		k.wantDue(10)
		k.lapse()
		again := k.due(10, long)
		k.wantLocks(again, "q/job key")
		if first[0].Mark == again[0].Mark {
			k.Error("two looks have one mark")
		}
		k.lapse()
		k.wantDue(10)
	}},
	{"the longest overdue entries come first, at most Limit of them", func(k *kit) {
		const n = 7
		for i := range n {
			k.parkDue(fmt.Sprintf("key-%d", n-i), "me", "q/job")
		}
		k.lapse()
		k.wantDue(3, "q/job key-7", "q/job key-6", "q/job key-5")
		k.wantDue(3, "q/job key-4", "q/job key-3", "q/job key-2")
		k.wantDue(3, "q/job key-1")
		k.wantDue(3)
	}},
	{"Due does not return a forgotten entry", func(k *kit) {
		k.parkDue("one", "me", "q/job")
		k.parkDue("two", "me", "q/job")
		k.lapse()
		seen := k.due(10, k.Unit)
		k.wantLocks(seen, "q/job one", "q/job two")
		k.forget(seen[0])
		k.lapse()
		k.wantDue(10, "q/job two")
		k.forget(seen...)
		k.forget(driver.JobLock{Key: "absent", Job: "q/job", Mark: 1})
		k.forget()
	}},
	{"Forget keeps an entry that a later Due has returned", func(k *kit) {
		k.parkDue("key", "me", "q/job")
		stale := k.due(10, k.Unit)
		k.lapse()
		k.wantLocks(k.due(10, k.Unit), "q/job key")
		k.forget(stale...)
		k.lapse()
		k.wantDue(10, "q/job key")
	}},
	{"Forget keeps an entry that was written later", func(k *kit) {
		k.parkDue("key", "me", "q/job")
		stale := k.due(10, k.Unit)
		k.wantLocks(stale, "q/job key")
		resumed := k.resume(k.resumeReq("key", "me", "q/job"))
		k.wantGrant("resume", resumed, 0)
		k.want("release", k.release(k.releaseReq(byOwner("key", "me"))), driver.OutcomeOK)
		k.parkDue("key", "you", "q/job")
		k.forget(stale...)
		k.wantDue(10, "q/job key")
	}},
	{"an entry is of one job and one key", func(k *kit) {
		first := k.parkDue("key", "me", "q/job")
		k.parkDue("other key", "me", "q/job")
		k.parkDue("q/job", "me", "key")
		k.wantGrant("resume", k.resume(k.resumeReq("key", "me", "q/job")), first.fence)
		k.want("release", k.release(k.releaseReq(byOwner("key", "me"))), driver.OutcomeOK)
		k.parkDue("key", "me", "q/other")
		seen := k.due(10, long)
		k.wantLocks(k.sorted(seen), "key q/job", "q/job key", "q/job other key", "q/other key")
	}},
	{"the entry of an ended lock stays until Forget", func(k *kit) {
		k.parkDue("released", "me", "q/job")
		k.want("release", k.release(k.freeReq("released", "q/job")), driver.OutcomeOK)
		k.wantDue(10, "q/job released")
	}},
	{"the entry of an attempt that died stays", func(k *kit) {
		parked := k.parkDue("key", "me", "q/job")
		req := k.resumeReq("key", "me", "q/job")
		req.TTL = k.Unit
		k.wantGrant("resume", k.resume(req), parked.fence)
		k.lapse()
		k.wantState("key", driver.StateOrphaned)
		k.wantDue(10, "q/job key")
	}},
	{"a Resume that recovers a job's lock writes its entry", func(k *kit) {
		hold := k.parkReq(driver.Term{}, "q/job")
		hold.Reserve, hold.Grace = k.Unit, 0
		k.parkAs("key", "me", hold)
		k.lapse()
		k.forget(k.due(10, k.Unit)...)
		k.lapse()
		k.wantDue(10)
		req := k.resumeReq("key", "me", "q/job")
		req.Grace = 0
		reply := k.resume(req)
		k.want("resume", reply, driver.OutcomeOK)
		if !reply.Recovered {
			k.Error("not recovered")
		}
		k.lapse()
		k.wantDue(10, "q/job key")
	}},
	{"parking for another job writes an entry for that job", func(k *kit) {
		h := k.hold("key", "me")
		req := k.parkReq(byFence("key", "me", h.fence), "q/one")
		req.Grace = 0
		k.wantGrant("park", k.park(req), h.fence)
		req.Job = "q/two" // the same call again, because its caller got no answer
		k.wantGrant("park", k.park(req), h.fence)
		k.lapse()
		k.wantLocks(k.sorted(k.due(10, long)), "q/one key", "q/two key")
	}},
	{"odd keys and jobs come back unchanged", func(k *kit) {
		var want []string
		for _, key := range hostileKeys {
			if len(key) > driver.MaxLabelBytes {
				continue
			}
			k.parkDue(key, "me", "q/"+key[:min(len(key), 200)])
			want = append(want, "q/"+key[:min(len(key), 200)]+" "+key)
		}
		k.lapse()
		slices.Sort(want)
		k.wantLocks(k.sorted(k.due(1000, long)), want...)
		if got := k.list("", 1000); len(got) != len(want) {
			k.Errorf("%d keys listed, want %d", len(got), len(want))
		}
	}},
	{"hundreds are found, reserved and forgotten", func(k *kit) {
		const n = 250
		for i := range n {
			k.parkDue(fmt.Sprintf("key-%03d", i), "me", fmt.Sprintf("q/%03d", i))
		}
		k.lapse()
		var seen []driver.JobLock
		for {
			part := k.due(100, k.Unit)
			seen = append(seen, part...)
			if len(part) < 100 {
				break
			}
		}
		if len(seen) < n {
			k.Fatalf("%d locks due, want %d", len(seen), n)
		}
		reqs := make([]driver.ReserveRequest, len(seen))
		for i, s := range seen {
			reqs[i] = k.reserveReq(s.Key, s.Job)
		}
		for i, reply := range k.reserveAll(reqs) {
			k.want("reserve "+reqs[i].Key, reply, driver.OutcomeOK)
		}
		for left := seen; len(left) > 0; left = k.due(1000, long) {
			k.forget(left...)
		}
		k.lapse()
		k.wantDue(1000)
	}},
	{"of many Dues at once exactly one returns an entry", func(k *kit) {
		const n, lookers = 60, 4
		for i := range n {
			k.parkDue(fmt.Sprintf("key-%d", i), "me", "q/job")
		}
		k.lapse()
		var mu sync.Mutex
		seen := make(map[string]int)
		var wg sync.WaitGroup
		for range lookers {
			wg.Go(func() {
				for {
					found, err := k.Store.Due(k.ctx, driver.DueRequest{Limit: 7, Later: long})
					if err != nil {
						k.Errorf("Due: %v", err)
					}
					if len(found) == 0 {
						return
					}
					mu.Lock()
					for _, f := range found {
						seen[f.Key]++
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if len(seen) != n {
			k.Errorf("%d keys found, want %d", len(seen), n)
		}
		for key, times := range seen {
			if times != 1 {
				k.Errorf("%s was found %d times", key, times)
			}
		}
	}},
}
