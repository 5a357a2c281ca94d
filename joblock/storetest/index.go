package storetest

import (
	"fmt"
	"slices"
	"sync"
	"time"

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
	{"Due claims the entries that it returns", func(k *kit) {
		k.parkDue("claimed for long", "me", "q/job")
		k.wantDue(10, "q/job claimed for long")
		k.wantDue(10)
		k.parkDue("key", "me", "q/job")
		first := k.due(10, k.Unit)
		k.wantLocks(first, "q/job key")
		if k.Exact { // elsewhere the questions to all parts may take that long
			k.wantDue(10)
		}
		k.lapse()
		again := k.due(10, long)
		k.wantLocks(again, "q/job key")
		if first[0].Mark == again[0].Mark {
			k.Error("two claims have one mark")
		}
		k.lapse()
		k.wantDue(10)
	}},
	{"the longest overdue entries of a part come first, at most Limit of them", func(k *kit) {
		keys, part := k.neighbours(4)
		for _, key := range keys {
			k.parkDue(key, "me", "q/job")
		}
		k.lapse()
		for _, two := range [][]string{keys[:2], keys[2:]} {
			k.wantLocks(k.claim(part, 2, long).Entries, "q/job "+two[0], "q/job "+two[1])
		}
		k.wantLocks(k.claim(part, 2, long).Entries)
	}},
	{"Next is when the first other entry of the part is due", func(k *kit) {
		keys, part := k.neighbours(4)
		wantNext := func(limit int, low, high time.Duration, want ...string) {
			k.Helper()
			reply := k.claim(part, limit, long)
			k.wantLocks(reply.Entries, want...)
			if reply.Next < low || reply.Next > high {
				k.Fatalf("Next is %s, want it from %s to %s", reply.Next, low, high)
			}
		}
		wantNext(10, driver.MaxPeriod, driver.MaxPeriod)
		later := k.parkReq(driver.Term{}, "q/later")
		later.Grace = 10 * long
		k.parkAs(keys[3], "me", later)
		wantNext(10, 9*long, 10*long+rounding)
		for _, key := range keys[:3] {
			k.parkDue(key, "me", "q/job")
		}
		wantNext(2, 0, 0, "q/job "+keys[0], "q/job "+keys[1])
		slow := 2 * k.Unit
		if !k.Exact {
			slow = long / 2 // the machine may stand still
		}
		wantNext(1, long-rounding-slow, long+rounding, "q/job "+keys[2]) // the claim before
		wantNext(1, long-rounding-slow, long+rounding)
	}},
	{"a Due after Next finds the entry", func(k *kit) {
		keys, part := k.neighbours(1)
		req := k.parkReq(driver.Term{}, "q/job")
		req.Grace = k.Unit
		k.parkAs(keys[0], "me", req)
		reply := k.claim(part, 1, long)
		if !k.Exact && len(reply.Entries) > 0 {
			return // the machine stood still for a Unit
		}
		k.wantLocks(reply.Entries)
		k.Advance(reply.Next)
		k.wantLocks(k.claim(part, 1, long).Entries, "q/job "+keys[0])
	}},
	{"a settled entry is due again after Again", func(k *kit) {
		for _, claim := range []time.Duration{k.Unit, 10 * long} {
			k.parkDue("key", "me", "q/job")
			seen := k.due(10, claim)
			k.settle(k.Unit*3/2, seen...)
			if k.Exact { // elsewhere the question alone may take that long
				if claim == k.Unit {
					k.Advance(k.Unit * 5 / 4)
				}
				k.wantDue(10)
			}
			k.lapse()
			seen = k.due(10, k.Unit)
			k.wantLocks(seen, "q/job key")
			k.settle(long, seen...)
			k.lapse()
			k.wantDue(10)
			k.want("release", k.release(k.freeReq("key", "q/job")), driver.OutcomeOK)
		}
	}},
	{"Due does not return a removed entry", func(k *kit) {
		k.parkDue("one", "me", "q/job")
		k.parkDue("two", "me", "q/job")
		k.lapse()
		seen := k.sorted(k.due(10, k.Unit))
		k.wantLocks(seen, "q/job one", "q/job two")
		k.settle(0, seen[0])
		k.lapse()
		k.wantDue(10, "q/job two")
	}},
	{"Settle adds no entry", func(k *kit) {
		k.hold("key", "me")
		for _, again := range []time.Duration{0, time.Millisecond} {
			k.settle(again)
			k.settle(again, driver.Entry{Key: "absent", Job: "q/job", Mark: 1}, driver.Entry{Key: "key", Job: "q/job"})
		}
		k.lapse()
		k.wantDue(10)
	}},
	{"an entry that was written after its Settle is not Settled", func(k *kit) {
		k.parkDue("key", "me", "q/job")
		wantSettled := func(may bool, when string) []driver.Entry {
			k.Helper()
			locks := k.due(10, k.Unit)
			k.wantLocks(locks, "q/job key")
			if locks[0].Settled && !may {
				k.Errorf("the entry is Settled %s", when)
			}
			locks[0].Settled = false
			return locks
		}
		k.settle(k.Unit, wantSettled(false, "after Park")...)
		k.lapse()
		settle := func(locks []driver.Entry) {
			for i := range locks {
				locks[i].Settled = true
			}
			k.settle(k.Unit, locks...)
		}
		settle(wantSettled(false, "after a Settle without Settled"))
		k.lapse()
		wantSettled(true, "after Settle")
		k.lapse()
		settle(wantSettled(false, "after a claim that has ended"))
		k.lapse()
		wantSettled(true, "after Settle")
		k.lapse()
		settle(k.due(10, k.Unit))
		if k.Exact { // the clock can be moved
			k.Advance(k.Unit + driver.SettledFor + time.Second)
			settle(wantSettled(false, "a minute after it was due"))
		}
		resumed := k.resume(k.resumeReq("key", "me", "q/job"))
		k.wantGrant("resume", resumed, 0)
		again := k.parkReq(driver.Term{Key: "key", Owner: "me", Fence: resumed.Fence}, "q/job")
		again.Grace = 0
		k.want("park", k.park(again), driver.OutcomeOK)
		k.Advance(time.Millisecond)
		wantSettled(false, "after a second Park")
	}},
	{"Settle leaves an entry that a later Due has returned", func(k *kit) {
		for _, again := range []time.Duration{0, long} {
			k.parkDue("key", "me", "q/job")
			stale := k.due(10, k.Unit)
			k.lapse()
			k.wantLocks(k.due(10, k.Unit), "q/job key")
			k.settle(again, stale...)
			k.lapse()
			k.wantDue(10, "q/job key")
			k.want("release", k.release(k.freeReq("key", "q/job")), driver.OutcomeOK)
		}
	}},
	{"Settle leaves an entry that was settled since", func(k *kit) {
		for _, again := range []time.Duration{0, long} {
			k.parkDue("key", "me", "q/job")
			seen := k.due(10, long)
			k.wantLocks(seen, "q/job key")
			k.settle(k.Unit, seen...)
			k.settle(again, seen...)
			k.lapse()
			k.wantDue(10, "q/job key")
			k.want("release", k.release(k.freeReq("key", "q/job")), driver.OutcomeOK)
		}
	}},
	{"Settle leaves an entry that was written later", func(k *kit) {
		for _, again := range []time.Duration{0, 10 * long} {
			k.parkDue("key", "me", "q/job")
			stale := k.due(10, long)
			k.wantLocks(stale, "q/job key")
			resumed := k.resume(k.resumeReq("key", "me", "q/job"))
			k.wantGrant("resume", resumed, 0)
			k.want("release", k.release(k.releaseReq(byOwner("key", "me"))), driver.OutcomeOK)
			k.parkDue("key", "you", "q/job")
			k.settle(again, stale...)
			k.wantDue(10, "q/job key")
			k.want("release", k.release(k.freeReq("key", "q/job")), driver.OutcomeOK)
		}
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
	{"the entry of an ended lock stays until Settle", func(k *kit) {
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
		k.settle(0, k.due(10, k.Unit)...)
		k.lapse()
		k.wantDue(10)
		req := k.resumeReq("key", "me", "q/job")
		req.Grace = 0
		reply := k.resume(req)
		k.want("resume", reply, driver.OutcomeOK)
		if !reply.Recovered {
			k.Error("Recovered is not set")
		}
		k.lapse()
		k.wantDue(10, "q/job key")
	}},
	{"a Reserve that recovers a lock writes its entry", func(k *kit) {
		hold := k.parkReq(driver.Term{}, "q/job")
		hold.Reserve, hold.Grace = k.Unit, 0
		k.parkAs("key", "me", hold)
		k.lapse()
		k.settle(0, k.due(10, k.Unit)...)
		k.lapse()
		k.wantDue(10)
		req := k.reserveReq("key", "q/job")
		req.Grace = 0
		reply := k.reserve(req)
		k.want("reserve", reply, driver.OutcomeOK)
		if !reply.Recovered {
			k.Error("Recovered is not set")
		}
		k.lapse()
		found := k.due(10, long)
		k.wantLocks(found, "q/job key")
		k.settle(0, found...)
		k.reserve(req) // a reservation that has not ended has its entry, or its keeper wants none
		k.lapse()
		k.wantDue(10)
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
	{"hundreds are found, reserved and removed", func(k *kit) {
		const n = 250
		for i := range n {
			k.parkDue(fmt.Sprintf("key-%03d", i), "me", fmt.Sprintf("q/%03d", i))
		}
		k.lapse()
		var seen []driver.Entry
		for len(seen) < n {
			part := k.due(100, long)
			seen = append(seen, part...)
			if len(part) == 0 {
				break
			}
		}
		if len(seen) != n {
			k.Fatalf("%d locks due, want %d", len(seen), n)
		}
		reqs := make([]driver.ReserveRequest, len(seen))
		for i, s := range seen {
			reqs[i] = k.reserveReq(s.Key, s.Job)
		}
		for i, reply := range k.reserveAll(reqs) {
			k.want("reserve "+reqs[i].Key, reply, driver.OutcomeOK)
		}
		k.settle(0, seen...)
		if next := k.next(); next != driver.MaxPeriod {
			k.Errorf("an entry is left, due after %s", next)
		}
	}},
	{"Entries shows all entries, and claims none", func(k *kit) {
		k.parkDue("due", "me", "q/job")
		k.want("release", k.release(k.freeReq("due", "q/job")), driver.OutcomeOK)
		k.parkDue("due", "me", "q/other")
		k.parkFor("later", "me", "q/job", 10*long)
		k.parkDue("claimed", "me", "q/job")
		k.wantLocks(k.sorted(k.due(10, long)), "q/job claimed", "q/job due", "q/other due")
		for range 2 {
			k.wantLocks(k.sorted(k.entries(10)), "q/job claimed", "q/job due", "q/job later", "q/other due")
		}
		k.parkDue("new", "me", "q/job")
		k.wantLocks(k.sorted(k.entries(10)), "q/job claimed", "q/job due", "q/job later", "q/job new", "q/other due")
		k.wantDue(10, "q/job new")
	}},
	{"Entries returns when the first entry is due", func(k *kit) {
		wants := func(what string, least, most time.Time) {
			k.Helper()
			var due time.Time
			for part := range k.Store.Parts() {
				req := driver.EntriesRequest{Part: part, Count: 10}
				for first := true; first || req.Cursor != ""; first = false {
					page, err := k.Store.Entries(k.ctx, req)
					if err != nil {
						k.Fatalf("Entries: %v", err)
					}
					if page.Due.IsZero() != (len(page.Entries) == 0) {
						k.Errorf("%s: %d entries are due from %s", what, len(page.Entries), page.Due)
					}
					if due.IsZero() || !page.Due.IsZero() && page.Due.Before(due) {
						due = page.Due
					}
					req.Cursor = page.Next
				}
			}
			if due.Before(least.Add(-rounding)) || due.After(most.Add(rounding)) {
				k.Errorf("%s: the first entry is due at %s, want from %s to %s", what, due, least, most)
			}
		}
		wants("no entries", time.Time{}, time.Time{})
		k.hold("clock", "me")
		now := func() time.Time { return k.inspect("clock").Now }
		begin := now()
		req := k.parkReq(driver.Term{}, "q/later")
		req.Grace = long
		k.parkAs("later", "me", req)
		wants("an entry that is not due", begin.Add(long), now().Add(long))
		before := now()
		k.parkDue("due", "me", "q/due")
		after := now()
		wants("an entry that is due", before, after)
		k.Advance(5 * time.Millisecond)
		wants("the same some time later", before, after)
		seen := k.due(10, 2*long)
		wants("a claimed entry", begin.Add(long), now().Add(long))
		k.settle(0, seen...)
		wants("a settled entry", begin.Add(long), now().Add(long))
	}},
	{"Entries shows odd keys and jobs unchanged", func(k *kit) {
		var want []string
		for _, key := range hostileKeys {
			if len(key) > driver.MaxLabelBytes {
				continue
			}
			k.parkDue(key, "me", "q/"+key[:min(len(key), 200)])
			want = append(want, "q/"+key[:min(len(key), 200)]+" "+key)
		}
		slices.Sort(want)
		k.wantLocks(k.sorted(k.entries(3)), want...)
	}},
	{"Entries pages through hundreds while others come", func(k *kit) {
		const n = 250
		stays := make(map[string]bool)
		for i := range n {
			key := fmt.Sprintf("key-%03d", i)
			k.parkDue(key, "me", "q/job")
			stays[key] = true
		}
		pages := 0
		for part := range k.Store.Parts() {
			sum := 0.0
			req := driver.EntriesRequest{Part: part, Count: 10}
			for first := true; first || req.Cursor != ""; first = false {
				got, err := k.Store.Entries(k.ctx, req)
				if err != nil {
					k.Fatalf("Entries: %v", err)
				}
				sum += got.Progress
				for _, l := range got.Entries {
					if l.Mark != 0 || l.Settled {
						k.Errorf("the entry %+v has a Mark or is Settled", l)
					}
					delete(stays, l.Key)
				}
				if pages++; pages%8 == 0 {
					k.parkDue(fmt.Sprintf("new-%d", pages), "me", "q/job")
				}
				if pages > 10*n {
					k.Fatal("the pages do not end")
				}
				req.Cursor = got.Next
			}
			if sum < 0 || sum > 1.5 {
				k.Errorf("the pages of part %d add up to %v of the whole, want about 1, or 0 if the store does not know", part, sum)
			}
		}
		if len(stays) > 0 {
			k.Errorf("%d entries that were there throughout are on no page", len(stays))
		}
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
				for part := 0; part < k.Store.Parts(); {
					found, err := k.Store.Due(k.ctx, driver.DueRequest{Part: part, Limit: 7, Claim: long})
					if err != nil {
						k.Errorf("Due: %v", err)
					}
					if len(found.Entries) == 0 {
						part++
					}
					mu.Lock()
					for _, f := range found.Entries {
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
