package memstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
)

// A delivery runs in the call that made the grant, but not under the Store's
// mutex: its receiver may use the Store, and so make the next grant.
func TestDeliverMayCallTheStore(t *testing.T) {
	const waiters = 50
	ctx := context.Background()
	s := memstore.New(&memstore.Config{Silent: true})
	release := func(owner string, fence int64) {
		t.Helper()
		replies, err := s.Release(ctx, []driver.ReleaseRequest{{
			Term:  driver.Term{Key: "key", Owner: owner, Fence: fence},
			Nonce: fmt.Sprint("release ", owner), Retain: time.Minute,
		}})
		if err != nil || replies[0].Outcome != driver.OutcomeOK {
			t.Errorf("release of fence %d: %+v, %v", fence, replies, err)
		}
	}
	var granted []string
	stop, err := s.Subscribe(ctx, "inbox", func(p driver.Push) {
		nonce := p.Nonce
		granted = append(granted, nonce)
		release(nonce, 0)
	})
	if err != nil {
		t.Fatal(err)
	}
	acquire := func(name string) driver.Reply {
		t.Helper()
		reply, err := s.Acquire(ctx, driver.AcquireRequest{
			Key: "key", Owner: name, Nonce: name, TTL: time.Minute, Retain: time.Minute,
			Inbox: "inbox", Patience: time.Minute,
		})
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	first := acquire("first")
	for i := range waiters {
		acquire(fmt.Sprint("waiter ", i))
	}
	release("first", first.Fence)
	stop()
	stop() // a second time does nothing
	if len(granted) != waiters {
		t.Fatalf("%d grants delivered, want %d", len(granted), waiters)
	}
	for i, name := range granted {
		if want := fmt.Sprint("waiter ", i); name != want {
			t.Errorf("grant %d went to %q, want %q", i, name, want)
		}
	}
}

func TestEveryListenerOfAnInboxGetsEachGrant(t *testing.T) {
	ctx := context.Background()
	s := memstore.New(&memstore.Config{Silent: true})
	heard := make([]int, 3)
	stops := make([]func(), len(heard))
	for i := range heard {
		stop, err := s.Subscribe(ctx, "inbox", func(driver.Push) { heard[i]++ })
		if err != nil {
			t.Fatal(err)
		}
		stops[i] = stop
	}
	turn := func(key string) {
		t.Helper()
		for _, owner := range []string{"holder", "waiter"} {
			_, err := s.Acquire(ctx, driver.AcquireRequest{
				Key: key, Owner: owner, Nonce: owner, TTL: time.Minute, Retain: time.Minute,
				Inbox: "inbox", Patience: time.Minute,
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		_, err := s.Release(ctx, []driver.ReleaseRequest{{
			Term: driver.Term{Key: key, Owner: "holder"}, Nonce: "release", Retain: time.Minute,
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	turn("one")
	stops[1]()
	turn("two")
	stops[0]()
	stops[2]()
	turn("three")
	if want := [...]int{2, 1, 2}; [3]int(heard) != want {
		t.Errorf("the listeners heard %v grants, want %v", heard, want)
	}
}
