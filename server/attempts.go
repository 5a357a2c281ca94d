package server

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// The limits of failed authentication attempts from one address: a rate per second, and a burst.
const (
	attemptRate  = 10
	attemptBurst = 100

	// maxAddresses is how many addresses are remembered. All further addresses share one allowance.
	maxAddresses = 10_000
)

// attempts counts the requests of unknown callers, by address. A known caller is never refused because of other callers
// at its address, because behind a proxy all callers share one address.
type attempts struct {
	mu     sync.Mutex // guards what follows
	of     map[netip.Addr]*attempt
	others *rate.Limiter
	swept  time.Time
}

type attempt struct {
	bucket *rate.Limiter
	last   time.Time
}

func newAttempts() *attempts {
	return &attempts{of: make(map[netip.Addr]*attempt), others: rate.NewLimiter(attemptRate, attemptBurst)}
}

// failed counts a failed attempt. It returns how long the address must wait before its next attempt, or 0.
func (a *attempts) failed(remote string) (after time.Duration) {
	now := time.Now()
	a.mu.Lock()
	bucket := a.bucketLocked(addressOf(remote), now)
	a.mu.Unlock()
	r := bucket.ReserveN(now, 1)
	if after = r.DelayFrom(now); after > 0 {
		r.CancelAt(now)
	}
	return after
}

func (a *attempts) bucketLocked(address netip.Addr, now time.Time) *rate.Limiter {
	known := a.of[address]
	if known == nil {
		if len(a.of) >= maxAddresses {
			a.sweepLocked(now)
		}
		if len(a.of) >= maxAddresses {
			return a.others
		}
		known = &attempt{bucket: rate.NewLimiter(attemptRate, attemptBurst)}
		a.of[address] = known
	}
	known.last = now
	return known.bucket
}

// sweepLocked forgets addresses whose allowance is full again. A sweep reads the whole table, so it runs at most once a
// second.
func (a *attempts) sweepLocked(now time.Time) {
	const whole = attemptBurst / attemptRate * time.Second
	if now.Sub(a.swept) < time.Second {
		return
	}
	a.swept = now
	for address, of := range a.of {
		if now.Sub(of.last) >= whole {
			delete(a.of, address)
		}
	}
}

// addressOf returns the address in a Request.RemoteAddr. For IPv6 it returns the /64 network, because one customer
// usually has all of it. Clients without an address, such as those of a Unix socket, count as one address.
func addressOf(remote string) netip.Addr {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	address, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}
	}
	address = address.Unmap().WithZone("")
	if address.Is6() {
		network, err := address.Prefix(64)
		if err != nil {
			return netip.Addr{}
		}
		return network.Addr()
	}
	return address
}
