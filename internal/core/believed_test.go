package core

import (
	"math"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

func TestBelieved(t *testing.T) {
	const ttl = 30 * time.Second
	sent := time.Unix(1000, 0)
	for _, c := range []struct {
		name    string
		grant   *driver.Grant
		refused int64
		age     time.Duration // of the request that was refused
		set     func(*Options)
		want    bool
	}{
		{"newer than the refusal", &driver.Grant{Fence: 8}, 7, time.Second, nil, true},
		{"the largest fence", &driver.Grant{Fence: driver.MaxFence}, 7, time.Second, nil, true},
		{"no grant in the push", nil, 7, time.Second, nil, false},
		{"the refused term", &driver.Grant{Fence: 7}, 7, time.Second, nil, false},
		{"an earlier term", &driver.Grant{Fence: 6}, 7, time.Second, nil, false},
		{"no fence", &driver.Grant{}, 7, time.Second, nil, false},
		{"a negative fence", &driver.Grant{Fence: math.MinInt64}, 7, time.Second, nil, false},
		{"more than a fence can be", &driver.Grant{Fence: driver.MaxFence + 1}, 7, time.Second, nil, false},
		{"far more than a fence can be", &driver.Grant{Fence: math.MaxInt64}, 7, time.Second, nil, false},
		{"no refusal with a fence", &driver.Grant{Fence: 8}, 0, time.Second, nil, false},
		{"just before the first renewal", &driver.Grant{Fence: 8}, 7, ttl/3 - 1, nil, true},
		{"at the first renewal", &driver.Grant{Fence: 8}, 7, ttl / 3, nil, false},
		{"after the lease", &driver.Grant{Fence: 8}, 7, 2 * ttl, nil, false},
		{"the memo is wanted", &driver.Grant{Fence: 8}, 7, time.Second, func(o *Options) { o.Memo = true }, false},
		{"the lease is all there is", &driver.Grant{Fence: 8}, 7, time.Second, func(o *Options) { o.NoRenew = true }, false},
	} {
		o := Options{TTL: ttl}
		if c.set != nil {
			c.set(&o)
		}
		if got := believed(c.grant, c.refused, sent, sent.Add(c.age), &o); got != c.want {
			t.Errorf("%s: believed %t, want %t", c.name, got, c.want)
		}
	}
}

// The waiter may be busy while pushes come. The best one is kept, and none blocks the store.
func TestInboxKeepsTheNewestGrant(t *testing.T) {
	b := &inbox{waiting: make(map[string]chan driver.Push)}
	pushes := b.expect("mine")
	for _, g := range []*driver.Grant{nil, {Fence: 4}, {Fence: 9}, nil, {Fence: 5}} {
		b.deliver(driver.Push{Nonce: "mine", Grant: g})
		b.deliver(driver.Push{Nonce: "another", Grant: g})
	}
	if p := <-pushes; p.Nonce != "mine" || p.Grant == nil || p.Grant.Fence != 9 {
		t.Errorf("the waiter reads %+v, want the grant of fence 9", p)
	}
	select {
	case p := <-pushes:
		t.Errorf("the waiter reads %+v too", p)
	default:
	}
	b.deliver(driver.Push{Nonce: "mine"})
	if p := <-pushes; p.Grant != nil {
		t.Errorf("the waiter reads %+v, want the push without a grant", p)
	}
	b.forget("mine")
	b.deliver(driver.Push{Nonce: "mine", Grant: &driver.Grant{Fence: 10}})
	if len(pushes) != 0 {
		t.Error("a push was delivered without a subscriber")
	}
}
