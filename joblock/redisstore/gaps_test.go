package redisstore

import (
	"context"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock"
)

// Between two that wait there may be any number of places that were given up, and who
// frees the key must not look at each of them. More are empty here than are looked at.
func TestManyEmptyPlacesBetweenWaiters(t *testing.T) {
	ctx := context.Background()
	k := newRealKit(t)
	const ages = time.Hour // a busy machine takes its time
	join := func(key, call string) {
		t.Helper()
		r, err := k.Acquire(ctx, joblock.AcquireRequest{
			Key: key, Owner: "owner of " + call, Nonce: call, TTL: ages, Retain: ages, Inbox: "inbox", Patience: ages,
		})
		wantOutcome(t, "join", r, err, joblock.OutcomeHeld)
	}
	release := func(term joblock.Term, want joblock.Outcome) {
		t.Helper()
		rs, err := k.Release(ctx, []joblock.ReleaseRequest{k.release(term)})
		wantOutcomes(t, "release", rs, err, 1, want)
	}
	of := func(key, call string) joblock.Term {
		return joblock.Term{Key: key, Owner: "owner of " + call, Grant: call}
	}
	check := func(key, owner string, waiters int) {
		t.Helper()
		recs, err := k.Inspect(ctx, joblock.InspectRequest{Keys: []string{key}})
		if err != nil || recs[0].Owner != owner || recs[0].Waiters != waiters {
			t.Errorf("owner %q with %d waiters, %v; want %q with %d", recs[0].Owner, recs[0].Waiters, err, owner, waiters)
		}
	}
	// Leaves "first", many empty places, "middle", as many again, and "last".
	gaps := func(key string) joblock.Term {
		t.Helper()
		holder := of(key, "holder")
		r, err := k.Acquire(ctx, joblock.AcquireRequest{Key: key, Owner: holder.Owner, Nonce: holder.Grant, TTL: ages, Retain: ages})
		wantOutcome(t, "acquire", r, err, joblock.OutcomeOK)
		join(key, "first")
		for _, end := range []string{"middle", "last"} {
			for before, n := "", 0; n < 1010; n++ {
				call := k.nonce()
				join(key, call)
				if before != "" {
					release(of(key, before), joblock.OutcomeNotOwner)
				}
				if before = call; n == 1009 {
					join(key, end)
					release(of(key, call), joblock.OutcomeNotOwner)
				}
			}
		}
		check(key, holder.Owner, 2023)
		return holder
	}
	release(gaps("served"), joblock.OutcomeOK)
	check("served", "owner of first", 2022)
	release(of("served", "first"), joblock.OutcomeOK)
	check("served", "owner of middle", 1)
	release(of("served", "middle"), joblock.OutcomeOK)
	check("served", "owner of last", 0)

	holder := gaps("given up")
	release(of("given up", "first"), joblock.OutcomeNotOwner)
	check("given up", holder.Owner, 1012)
	release(of("given up", "last"), joblock.OutcomeNotOwner)
	check("given up", holder.Owner, 1)
	join("given up", "another")
	release(holder, joblock.OutcomeOK)
	check("given up", "owner of middle", 1)
	release(of("given up", "another"), joblock.OutcomeNotOwner)
	check("given up", "owner of middle", 0)

	// The first of those that are listed has left unnoticed; the next is served.
	holder = gaps("middle gone")
	if err := k.rdb.HDel(ctx, k.prefix+"middle gone", "q1011").Err(); err != nil {
		t.Fatal(err)
	}
	release(holder, joblock.OutcomeOK)
	release(of("middle gone", "first"), joblock.OutcomeOK)
	check("middle gone", "owner of last", 0)
}
