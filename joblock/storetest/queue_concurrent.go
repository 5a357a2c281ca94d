package storetest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// queueConcurrentCases test the queue with many goroutines.
var queueConcurrentCases = []testCase{
	{"all waiters are served in order, one at a time", func(k *kit) {
		const workers, turns = 8, 25
		w := &waiters{kit: k}
		var wg sync.WaitGroup
		for i := range workers {
			own := &caller{waiters: w, mail: k.listen(), name: fmt.Sprintf("worker-%d", i)}
			if i%2 == 1 { // the pushes to this caller are lost
				own.mail.stop()
				own.polls = true
			}
			wg.Go(func() {
				for turn := range turns {
					if err := own.turn(turn); err != nil {
						k.Errorf("%s: %v", own.name, err)
						return
					}
				}
			})
		}
		wg.Wait()
		if k.Failed() {
			return
		}
		if n := len(w.served); n != workers*turns {
			k.Fatalf("%d turns, want %d", n, workers*turns)
		}
		w.wantInTurn()
		if r := k.wantState("key", driver.StateFree); r.Waiters != 0 {
			k.Errorf("%d waiters left", r.Waiters)
		}
	}},
}

// waiters has what all callers of a test share.
type waiters struct {
	kit    *kit
	inside atomic.Int32 // number of holders in the protected section
	clock  atomic.Int64 // counts the moments of joining and asking

	mu     sync.Mutex // guards served
	served []service
}

// service is one grant: the moments before and after the caller joined, and the fence of the grant.
type service struct {
	who           string
	asked, joined int64
	fence         int64
}

// wantInTurn fails the test unless the grants are in the order of joining. Two callers that joined at the same time
// may have any order.
func (w *waiters) wantInTurn() {
	w.kit.Helper()
	for _, a := range w.served {
		for _, b := range w.served {
			if a.joined < b.asked && a.fence > b.fence {
				w.kit.Fatalf("%s joined before %s asked, but was served after it: fences %d and %d", a.who, b.who, a.fence, b.fence)
			}
		}
	}
}

// caller is one goroutine that takes the key again and again.
type caller struct {
	*waiters
	name  string
	mail  *mailbox
	polls bool // the caller asks again and does not wait for a push
}

func (c *caller) turn(turn int) error {
	id := fmt.Sprintf("%s turn %d", c.name, turn)
	req := driver.AcquireRequest{
		Key: "key", Owner: c.name, Nonce: id + " acquire", TTL: long, Retain: long,
		Inbox: c.mail.inbox, Patience: long,
	}
	s := service{who: id, asked: c.clock.Add(1)}
	reply, err := c.kit.Store.Acquire(c.kit.ctx, req)
	s.joined = c.clock.Add(1)
	if err != nil {
		return err
	}
	if s.fence, err = c.wait(req, reply); err != nil {
		return err
	}
	if n := c.inside.Add(1); n != 1 {
		return fmt.Errorf("one of %d holders", n)
	}
	c.mu.Lock()
	c.served = append(c.served, s)
	c.mu.Unlock()
	c.inside.Add(-1)
	ends, err := c.kit.Store.Release(c.kit.ctx, []driver.ReleaseRequest{{
		Term: byFence("key", c.name, s.fence), Nonce: id + " release", Retain: long,
	}})
	if err != nil || len(ends) != 1 || ends[0].Outcome != driver.OutcomeOK {
		return fmt.Errorf("release: %+v, %v, want OK", ends, err)
	}
	return nil
}

// wait returns the fence of the grant. Until then, wait repeats req after each push, or every 2 ms if
// c.polls.
func (c *caller) wait(req driver.AcquireRequest, reply driver.Reply) (int64, error) {
	ctx, cancel := context.WithTimeout(c.kit.ctx, 3*pushTimeout)
	defer cancel()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for {
		switch reply.Outcome {
		case driver.OutcomeOK:
			return reply.Fence, nil
		case driver.OutcomeHeld:
		default:
			return 0, fmt.Errorf("acquire: %s, want OK or Held", reply.Outcome)
		}
		var err error
		var p driver.Push
		if c.polls {
			select {
			case <-poll.C:
			case <-ctx.Done():
				err = ctx.Err()
			}
		} else {
			p, err = c.mail.await(req.Nonce)
		}
		if err != nil {
			return 0, err
		}
		if reply, err = c.kit.Store.Acquire(ctx, req); err != nil {
			return 0, err
		}
		if p.Grant != nil && p.Grant.Fence != reply.Fence {
			return 0, fmt.Errorf("a grant of fence %d was pushed, and the answer is %+v", p.Grant.Fence, reply)
		}
	}
}
