package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/joblock/toolkit/joblock/driver"
)

var concurrentCases = []testCase{
	{"of many Acquires at once exactly one is granted", func(k *kit) {
		const racers, rounds = 16, 50
		for round := range rounds {
			key := fmt.Sprintf("key-%d", round)
			replies := make([]driver.Reply, racers)
			errs := make([]error, racers)
			reqs := make([]driver.AcquireRequest, racers)
			for i := range reqs {
				reqs[i] = k.acquireReq(key, fmt.Sprintf("racer-%d", i))
			}
			begin := make(chan struct{})
			var wg sync.WaitGroup
			for i := range racers {
				wg.Go(func() {
					<-begin
					replies[i], errs[i] = k.Store.Acquire(k.ctx, reqs[i])
				})
			}
			close(begin)
			wg.Wait()
			granted := 0
			for i, reply := range k.answers("Acquire", racers, replies, firstError(errs)) {
				switch reply.Outcome {
				case driver.OutcomeOK:
					granted++
					if r := k.inspect(key); r.Owner != reqs[i].Owner || r.Fence != reply.Fence {
						k.Errorf("%s was granted fence %d, the record is of %q with %d", reqs[i].Owner, reply.Fence, r.Owner, r.Fence)
					}
				case driver.OutcomeHeld:
				default:
					k.Errorf("racer %d: %s, want OK or Held", i, reply.Outcome)
				}
			}
			if granted != 1 {
				k.Errorf("%d of %d racers were granted, want exactly 1", granted, racers)
			}
		}
	}},
	{"of many that take at once exactly one is granted", func(k *kit) {
		const racers, keys = 8, 20
		var granted [keys]atomic.Int32
		var wg sync.WaitGroup
		for i := range racers {
			reqs := make([]driver.TakeRequest, keys)
			for n := range reqs {
				reqs[n] = k.takeReq(fmt.Sprintf("key-%d", n), fmt.Sprintf("racer-%d", i), "q/job")
			}
			wg.Go(func() {
				replies, err := k.Store.Take(k.ctx, reqs)
				for n, reply := range replies {
					switch {
					case err != nil:
						k.Errorf("racer %d: %v", i, err)
					case reply.Outcome == driver.OutcomeOK:
						granted[n].Add(1)
					case reply.Outcome != driver.OutcomeHeld:
						k.Errorf("racer %d: %s, want OK or Held", i, reply.Outcome)
					}
				}
			})
		}
		wg.Wait()
		for n := range granted {
			if got := granted[n].Load(); got != 1 {
				k.Errorf("key-%d was granted to %d of %d racers, want exactly 1", n, got, racers)
			}
		}
	}},
	{"holders exclude each other and each sees a larger fence", func(k *kit) {
		const workers, turns = 8, 60
		var inside atomic.Int32 // number of holders in the protected section
		var seen atomic.Int64   // the largest fence that the protected resource has seen
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				owner := fmt.Sprintf("worker-%d", w)
				for turn := range turns {
					if err := k.turn(owner, turn, &inside, &seen); err != nil {
						k.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}},
	{"of many Resumes at once exactly one is granted", func(k *kit) {
		const racers = 16
		k.parkFor("key", "me", "q/job", 10*long)
		var granted atomic.Int32
		var wg sync.WaitGroup
		for i := range racers {
			req := k.resumeReq("key", "me", "q/job")
			wg.Go(func() {
				replies, err := k.Store.Resume(k.ctx, []driver.ResumeRequest{req})
				switch {
				case err != nil:
					k.Errorf("racer %d: %v", i, err)
				case replies[0].Outcome == driver.OutcomeOK:
					granted.Add(1)
				case replies[0].Outcome != driver.OutcomeBusy:
					k.Errorf("racer %d: %s, want OK or Busy", i, replies[0].Outcome)
				}
			})
		}
		wg.Wait()
		if n := granted.Load(); n != 1 {
			k.Errorf("%d of %d racers were granted, want exactly 1", n, racers)
		}
	}},
}

// turn tries once to acquire the key. After a grant, turn parks, resumes and releases the key, and checks
// each answer.
func (k *kit) turn(owner string, turn int, inside *atomic.Int32, seen *atomic.Int64) error {
	nonce := func(call string) string { return fmt.Sprintf("%s %s %d", owner, call, turn) }
	got, err := k.Store.Acquire(k.ctx, driver.AcquireRequest{
		Key: "key", Owner: owner, Nonce: nonce("acquire"), TTL: long, Retain: long,
	})
	if err != nil || got.Outcome == driver.OutcomeHeld {
		return err
	}
	one := func(replies []driver.Reply, err error) (driver.Reply, error) {
		if len(replies) != 1 {
			return driver.Reply{}, fmt.Errorf("%d replies to one request, %w", len(replies), err)
		}
		return replies[0], err
	}
	fence := func(call string, reply driver.Reply, err error) error {
		if err != nil || reply.Outcome != driver.OutcomeOK {
			return fmt.Errorf("%s %s: %s, %v, want OK", owner, call, reply.Outcome, err)
		}
		if last := seen.Swap(reply.Fence); reply.Fence <= last {
			return fmt.Errorf("%s %s: fence %d after %d", owner, call, reply.Fence, last)
		}
		return nil
	}
	if n := inside.Add(1); n != 1 {
		return fmt.Errorf("%s is one of %d holders", owner, n)
	}
	if err := fence("acquire", got, err); err != nil {
		return err
	}
	got, err = one(k.Store.Park(k.ctx, []driver.ParkRequest{{
		Term: byFence("key", owner, got.Fence), Nonce: nonce("park"), Reserve: long, Retain: long, Job: owner,
	}}))
	if err := fence("park", got, err); err != nil {
		return err
	}
	got, err = one(k.Store.Resume(k.ctx, []driver.ResumeRequest{{
		Key: "key", Owner: owner, Nonce: nonce("resume"), TTL: long, Retain: long, Job: owner,
	}}))
	if err := fence("resume", got, err); err != nil {
		return err
	}
	inside.Add(-1)
	ended, err := one(k.Store.Release(k.ctx, []driver.ReleaseRequest{{
		Term: byFence("key", owner, got.Fence), Nonce: nonce("release"), Retain: long,
	}}))
	if err != nil || ended.Outcome != driver.OutcomeOK {
		return fmt.Errorf("%s release: %+v, %v, want OK", owner, ended, err)
	}
	return nil
}

func firstError(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
