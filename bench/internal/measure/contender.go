package measure

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/joblock/toolkit/bench/internal/peer"
	"github.com/joblock/toolkit/bench/internal/rig"
)

// contenderEnv carries the assignment of a process that is to wait for the lock.
const contenderEnv = "JOBLOCK_BENCH_CONTENDER"

// holdTime is how long each holder keeps the lock before it passes on.
const holdTime = time.Millisecond

// assignment says what a contender process has to do.
type assignment struct {
	Peer    peer.Name `json:"peer"`
	Addr    string    `json:"addr"`
	Key     string    `json:"key"`
	Waiters int       `json:"waiters"`
	Turn    string    `json:"turn"`             // path of the file
	Seat    int       `json:"seat"`             // of the process, from 0
	Seats   int       `json:"seats"`            // how many processes there are
	Places  bool      `json:"places,omitempty"` // note them down, and do not hold the lock

	Fleet *fleetPart `json:"fleet,omitempty"` // if set, all else but the seats is unset
	Ping  bool       `json:"ping,omitempty"`  // only send PINGs to Addr; see sendPings
}

// The orders that a contender takes on standard input, a line each. It gives one
// answer to each, and one unasked when it is connected.
const (
	orderWait = "wait" // begin to wait
	orderMark = "mark" // count what was sent until now
	orderStop = "stop" // end, and tell of all grants
)

// answer is one line of JSON from a contender.
type answer struct {
	Sent   rig.Count  `json:"sent"`             // since it was started
	Memory int64      `json:"memory,omitempty"` // in bytes; not with the answer to orderStop
	Grants []grant    `json:"grants,omitempty"` // with the answer to orderStop
	Places []place    `json:"places,omitempty"` // likewise
	Fleet  *fleetTold `json:"fleet,omitempty"`  // of a member of a fleet
	Err    string     `json:"err,omitempty"`
}

// ContendIfAsked turns this process into a contender if it was started as one, and
// then does not return. Call it first thing in main, and in TestMain.
func ContendIfAsked() { rig.PlayChild(contenderEnv, contend) }

func contend(a assignment, in io.Reader, out *json.Encoder) error {
	if a.Ping {
		return sendPings(a.Addr, in, out)
	}
	if a.Fleet != nil {
		return sail(a, in, out)
	}
	c := &contender{assignment: a}
	var err error
	if c.turn, err = openTurn(a.Turn); err != nil {
		return err
	}
	c.peer, err = peer.Open(a.Peer, peer.Options{
		Addr: a.Addr, Wire: &c.wire, TTL: leaseTTL, Places: a.Places, Seat: a.Seat, Seats: a.Seats,
	})
	if err != nil {
		return err
	}
	err = c.obey(in, out)
	return errors.Join(err, c.peer.Close(), c.turn.close())
}

// contender waits for the lock on several goroutines.
type contender struct {
	assignment
	peer peer.Peer
	wire rig.Wire
	turn *turn

	mu     sync.Mutex // guards what follows
	grants []grant
	places []place
	failed error
}

// obey works until it was told to stop, or until whoever tells it is gone.
func (c *contender) obey(in io.Reader, out *json.Encoder) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.warmUp(ctx); err != nil {
		return err
	}
	if err := out.Encode(c.state(true)); err != nil {
		return err
	}
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		switch order := lines.Text(); order {
		case orderWait:
			for range c.Waiters {
				waiting.Go(func() { c.wait(ctx) })
			}
			if err := out.Encode(c.state(false)); err != nil {
				return err
			}
		case orderMark:
			if err := out.Encode(c.state(true)); err != nil {
				return err
			}
		case orderStop:
			sent := c.wire.Count() // leaving the queue is not part of handing over
			cancel()
			waiting.Wait()
			last := answer{Sent: sent, Grants: c.grants, Places: c.places}
			if c.failed != nil {
				last.Err = c.failed.Error()
			}
			return out.Encode(last)
		default:
			return fmt.Errorf("unknown order %q", order)
		}
	}
	return lines.Err()
}

func (c *contender) state(memory bool) answer {
	a := answer{Sent: c.wire.Count()}
	if memory {
		a.Memory = rig.Memory()
	}
	return a
}

// warmUp opens connections and loads scripts, on a key of this process.
func (c *contender) warmUp(ctx context.Context) error {
	held, err := c.peer.Acquire(ctx, fmt.Sprintf("%s:warm-up:%d", c.Key, os.Getpid()))
	if err != nil {
		return err
	}
	return held.Release(ctx)
}

// wait waits, holds, releases and waits again. After a release it lets somebody
// else be granted the lock before it asks again: with a library that has no queue
// the releaser, being awake, would nearly always win it back, and what were
// measured is how fast one process passes a lock to itself.
func (c *contender) wait(ctx context.Context) {
	for ctx.Err() == nil {
		asked := now()
		held, err := c.peer.Acquire(ctx, c.Key)
		if err != nil {
			if ctx.Err() == nil {
				c.fail(err)
			}
			return
		}
		granted := now()
		n := c.turn.next()
		at, here := held.(peer.Placed)
		if !here {
			time.Sleep(holdTime)
		}
		released := now()
		// Not with ctx: a lock that is kept because the time is up would have the
		// next measurement wait for its lease.
		if err := held.Release(context.WithoutCancel(ctx)); err != nil {
			c.fail(err)
			return
		}
		c.mu.Lock()
		if here {
			c.places = append(c.places, place{at.Fence(), at.Joined()})
		} else {
			c.grants = append(c.grants, grant{asked, granted, released})
		}
		c.mu.Unlock()
		if !c.turn.reach(ctx, n+1) {
			return
		}
	}
}

func (c *contender) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = errors.Join(c.failed, err)
}

// now is the time of the one machine that all contenders run on, comparable
// between its processes.
func now() int64 { return time.Now().UnixNano() }
