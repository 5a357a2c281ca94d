package server

import (
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/server/internal/problem"
)

// The limits of the work for callers that have not been admitted: how many answers and sign-in forms may be under way at
// a time, for all addresses and for one. Each takes as long as its client likes, up to 10 s, and some 30 kB of memory
// meanwhile.
const (
	mostStrangers = 512
	mostOfAddress = 64
)

// strangers has the work under way for callers that have not been admitted. Beyond the limits it cuts off the oldest work
// rather than refusing the newest: a client that sends and reads at a normal speed has finished by then.
type strangers struct {
	mu  sync.Mutex  // guards what follows
	all []*stranger // the oldest first
}

type stranger struct {
	address netip.Addr
	cut     func()
}

// enter counts work for an address until leave is called. leave reports whether the work was cut off by calling cut. cut
// must not block, and is not called after leave.
func (s *strangers) enter(remote string, cut func()) (leave func() bool) {
	of := &stranger{addressOf(remote), cut}
	s.mu.Lock()
	defer s.mu.Unlock()
	first, n := -1, 0
	for i, other := range s.all {
		if other.address == of.address {
			if n++; n == 1 {
				first = i
			}
		}
	}
	switch {
	case n >= mostOfAddress:
		s.cutLocked(first)
	case len(s.all) >= mostStrangers:
		s.cutLocked(0)
	}
	s.all = append(s.all, of)
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		i := slices.Index(s.all, of)
		if i >= 0 {
			s.all = slices.Delete(s.all, i, i+1)
		}
		return i < 0
	}
}

func (s *strangers) cutLocked(i int) {
	s.all[i].cut()
	s.all = slices.Delete(s.all, i, i+1)
}

// strange counts work whose duration depends on a client that has not been admitted, until leave is called. To cut the
// work off, strange closes the client's connection, with all its other requests. If a caller was admitted over the same
// connection, for example through a proxy, it sets a deadline in the past instead. leave then ends the request without an
// answer.
func (c *call) strange(deadline func(time.Time) error) (leave func()) {
	if c.known {
		return func() {}
	}
	ctx := c.r.Context()
	if ctx.Err() != nil {
		panic(http.ErrAbortHandler) // the answer would not be read, so it is not rendered
	}
	left := c.s.strangers.enter(c.r.RemoteAddr, func() {
		if !cutOff(ctx) {
			_ = deadline(time.Unix(1, 0))
		}
	})
	return func() {
		if left() {
			c.code = problem.Rate
			panic(http.ErrAbortHandler)
		}
	}
}

// letIn records that the call's caller is known and may be served. It returns a problem if the caller has too many
// requests under way.
func (c *call) letIn() *problem.Problem {
	if !c.s.quotas.begin(c.who.ID) {
		return problem.New(http.StatusTooManyRequests, problem.Rate, "at most %d requests of one caller may be under way", c.s.quotas.atOnce()).Again(time.Second)
	}
	c.known = true
	noteKnown(c.r.Context())
	if !c.who.AllKeys || !c.who.AllQueues {
		c.r = c.r.WithContext(ops.SeenBy(c.r.Context(), c.who.viewer()))
	}
	return nil
}

// gone undoes letIn.
func (c *call) gone() {
	if c.known {
		c.s.quotas.end(c.who.ID)
	}
}
