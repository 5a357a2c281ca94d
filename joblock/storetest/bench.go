package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// Benchmark measures the most frequent calls: Acquire and Release; Park and Resume, once with a job and once without;
// Take and Release; batches of 100 renewals; and batches of 100 reservations.
func Benchmark(b *testing.B, newHarness func(b *testing.B) *Harness) {
	ctx := context.Background()
	acquire := func(b *testing.B, store driver.Store, key, nonce string) driver.Reply {
		reply, err := store.Acquire(ctx, driver.AcquireRequest{
			Key: key, Owner: "owner", Nonce: nonce, TTL: time.Hour, Retain: long, Holder: "holder",
		})
		mustOK(b, reply, err)
		return reply
	}
	release := func(b *testing.B, store driver.Store, term driver.Term, nonce string) {
		replies, err := store.Release(ctx, []driver.ReleaseRequest{{Term: term, Nonce: nonce, Retain: long}})
		mustOK(b, replies[0], err)
	}

	b.Run("AcquireRelease", func(b *testing.B) {
		store := newHarness(b).Store
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			reply := acquire(b, store, "key", fmt.Sprint(i))
			release(b, store, byFence("key", "owner", reply.Fence), fmt.Sprint("r", i))
		}
	})
	for name, job := range map[string]string{"ParkResume": "", "ParkResumeForJob": "q/job"} {
		b.Run(name, func(b *testing.B) {
			store := newHarness(b).Store
			reply := acquire(b, store, "key", "first")
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				parked, err := store.Park(ctx, []driver.ParkRequest{{
					Term: byFence("key", "owner", reply.Fence), Nonce: fmt.Sprint("p", i), Reserve: time.Hour, Retain: long, Job: job, Grace: long,
				}})
				mustOK(b, parked[0], err)
				resumed, err := store.Resume(ctx, []driver.ResumeRequest{{
					Key: "key", Owner: "owner", Nonce: fmt.Sprint(i), TTL: time.Hour, Retain: long, Holder: "holder", Job: job,
				}})
				reply = resumed[0]
				mustOK(b, reply, err)
			}
		})
	}
	b.Run("TakeRelease", func(b *testing.B) {
		store := newHarness(b).Store
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			replies, err := store.Take(ctx, []driver.TakeRequest{{
				Key: "key", Owner: "owner", Nonce: fmt.Sprint(i), Holder: "holder", Job: "q/job", Reserve: time.Hour, Retain: long, Grace: long,
			}})
			mustOK(b, replies[0], err)
			release(b, store, byFence("key", "owner", replies[0].Fence), fmt.Sprint("r", i))
		}
	})
	b.Run("Reserve100", func(b *testing.B) {
		store := newHarness(b).Store
		reqs := make([]driver.ReserveRequest, 100)
		for i := range reqs {
			key := fmt.Sprintf("key-%d", i)
			reply := acquire(b, store, key, "first")
			parked, err := store.Park(ctx, []driver.ParkRequest{{
				Term: byFence(key, "owner", reply.Fence), Nonce: "park", Reserve: time.Hour, Retain: long, Job: "q/job", Grace: long,
			}})
			mustOK(b, parked[0], err)
			reqs[i] = driver.ReserveRequest{Key: key, Job: "q/job", Reserve: time.Hour, Retain: long}
		}
		b.ReportAllocs()
		for b.Loop() {
			replies, err := store.Reserve(ctx, reqs)
			for _, reply := range replies {
				mustOK(b, reply, err)
			}
		}
	})
	b.Run("Renew100", func(b *testing.B) {
		store := newHarness(b).Store
		reqs := make([]driver.RenewRequest, 100)
		for i := range reqs {
			key := fmt.Sprintf("key-%d", i)
			reply := acquire(b, store, key, "first")
			reqs[i] = driver.RenewRequest{Term: byFence(key, "owner", reply.Fence), TTL: time.Hour, Retain: long}
		}
		b.ReportAllocs()
		for b.Loop() {
			replies, err := store.Renew(ctx, reqs)
			for _, reply := range replies {
				mustOK(b, reply, err)
			}
		}
	})
}

func mustOK(b *testing.B, reply driver.Reply, err error) {
	b.Helper()
	if err != nil || reply.Outcome != driver.OutcomeOK {
		b.Fatalf("outcome %s, error %v", reply.Outcome, err)
	}
}
