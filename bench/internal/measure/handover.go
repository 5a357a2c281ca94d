package measure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/joblock/toolkit/bench/internal/peer"
	"github.com/joblock/toolkit/bench/internal/report"
	"github.com/joblock/toolkit/bench/internal/rig"
)

// leastGrants are waited for even when the time for handing over is up.
const leastGrants = 3

// The titles of columns that the plot and Aims name.
const (
	columnP50       = "p50 ms"
	columnP99       = "p99 ms"
	columnOvertaken = "overtaken %"
	columnHandover  = "commands/hand-over"
)

// ErrNotExclusive is returned when a library was seen to grant a lock before its
// holder had begun to release it. (It is also what a step of the machine's clock
// during the measurement looks like.)
var ErrNotExclusive = errors.New("two held the lock at the same time")

func (b *Bench) handover(ctx context.Context) (*report.Section, error) {
	s := &report.Section{
		Name:  "handover",
		Title: "Hand-over among waiters",
		Note: "From the moment before Release is called until the next holder returns from Acquire, across processes. " +
			"Each holder keeps the lock for " + holdTime.String() + " and waits again once somebody else has been granted it. " +
			"publish is the floor, and no lock: a script that writes and publishes through go-redis, and the next process in turn subscribes to that. " +
			"Overtaken: of 100 grants, how many went to a waiter while another, who had asked at least " + fifoSlack.String() +
			" earlier, still waited. " + fmt.Sprintf("redislock and redsync, which wait by asking again, are measured in %d rounds.", b.Scale.Few()),
		Base: string(peer.Joblock),
		Columns: []report.Column{
			{Title: columnP50, Digits: 2, Ratio: true},
			{Title: columnP99, Digits: 2, Ratio: true},
			{Title: "max ms", Fold: report.Max, Digits: 1},
			{Title: "hand-overs", Fold: report.Sum},
			{Title: columnOvertaken, Digits: 1},
			{Title: columnHandover, Digits: 1},
		},
	}
	for _, c := range b.Scale.Crowds {
		b.say("%s, %s", s.Name, c)
		err := eachRound(ctx, b, b.Scale.Rounds, []peer.Name{peer.Publish, peer.Joblock, peer.Redislock, peer.Redsync, peer.Rueidislock},
			func(round int, name peer.Name) error {
				show := b.Scale.Handover
				if name == peer.Redislock || name == peer.Redsync {
					if round >= b.Scale.Few() {
						return nil
					}
					show *= 2 // they hand over less often
				}
				r, err := b.handRound(ctx, name, c, 0, show)
				if err == nil {
					n := float64(len(r.latencies))
					s.Add(c.String(), string(name), report.Quantile(r.latencies, 0.5), report.Quantile(r.latencies, 0.99),
						slices.Max(r.latencies), n, 100*float64(r.overtakes)/n, r.perHandover)
				}
				return err
			})
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (b *Bench) waiting(ctx context.Context) (*report.Section, error) {
	s := &report.Section{
		Name:  "waiting",
		Title: "Waiting for a lock that is held",
		Note: fmt.Sprintf("What each waiter sends while the lock is held and all wait, and the memory of a waiter in its process. %d rounds.",
			b.Scale.Few()),
		Base:    string(peer.Joblock),
		Columns: []report.Column{{Title: "commands/waiter/s", Digits: 2}, {Title: "KiB/waiter", Digits: 1}},
	}
	for _, c := range b.Scale.Waiting {
		b.say("%s, %s", s.Name, c)
		err := eachRound(ctx, b, b.Scale.Few(), peer.Libraries(), func(_ int, name peer.Name) error {
			r, err := b.handRound(ctx, name, c, b.Scale.Idle, 0)
			if err == nil {
				s.Add(c.String(), string(name), r.perIdle, r.kib)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// String names the crowd as a case of the report.
func (c Crowd) String() string {
	if c.Processes == 1 {
		return fmt.Sprintf("%d waiters in 1 process", c.Waiters)
	}
	return fmt.Sprintf("%d waiters in %d processes", c.Waiters, c.Processes)
}

// handResult is what came out of one sample.
type handResult struct {
	sequence
	perHandover float64 // commands
	perIdle     float64 // commands per waiter and second
	kib         float64 // per waiter
}

// handRound has a crowd wait, for as long as idle, for a lock that is held here, lets go of
// the lock, and watches it go round for as long as show.
func (b *Bench) handRound(ctx context.Context, name peer.Name, c Crowd, idle, show time.Duration) (r handResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	path, err := newTurnFile()
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.Remove(path)) }()
	turn, err := openTurn(path)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, turn.close()) }()
	const key = "hand-over"
	all, connected, err := gather(ctx, assignment{Peer: name, Addr: b.Server.Addr(), Key: key, Turn: path}, c)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, all.disperse()) }()

	err = b.withPeer(name, leaseTTL, func(p peer.Peer, _ *rig.Wire) error {
		held, err := p.Acquire(ctx, key)
		if err != nil {
			return err
		}
		if _, err := all.order(orderWait); err != nil {
			return err
		}
		pause(ctx, b.Scale.Settle)
		settled, err := all.order(orderMark)
		if err != nil {
			return err
		}
		start := time.Now()
		pause(ctx, idle)
		idled, err := all.order(orderMark)
		if err != nil {
			return err
		}
		waited := time.Since(start).Seconds() * float64(c.Waiters)

		released := now()
		if err := held.Release(ctx); err != nil {
			return err
		}
		pause(ctx, show)
		turn.reach(ctx, leastGrants)
		stopped := now()
		last, err := all.order(orderStop)
		if err != nil {
			return err
		}
		grants := before(stopped, last)
		r.sequence = follow(released, grants)
		if len(grants) == 0 {
			return fmt.Errorf("no hand-over within %s", patience)
		}
		if r.violations > 0 {
			return fmt.Errorf("%w: %d times in %d", ErrNotExclusive, r.violations, len(grants))
		}
		r.perHandover = float64(sent(idled, last).Commands) / float64(len(grants))
		r.perIdle = float64(sent(settled, idled).Commands) / waited
		r.kib = float64(grown(connected, settled)) / 1024 / float64(c.Waiters)
		return nil
	})
	return r, err
}

// pause sleeps, but not beyond the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
