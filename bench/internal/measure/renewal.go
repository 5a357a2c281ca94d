package measure

import (
	"context"
	"fmt"
	"time"

	"github.com/joblock/toolkit/bench/internal/peer"
	"github.com/joblock/toolkit/bench/internal/report"
	"github.com/joblock/toolkit/bench/internal/rig"
)

// renewalsPerTTL is how often a lease is renewed before it would end.
const renewalsPerTTL = 3

// acquirers is how many goroutines take the locks that are to be held.
const acquirers = 32

func (b *Bench) renewal(ctx context.Context) (*report.Section, error) {
	s := &report.Section{
		Name:  "renewal",
		Title: fmt.Sprintf("Holding %d locks", b.Scale.Locks),
		Note: fmt.Sprintf("Leases of %s, renewed every third of it: a period. redislock and redsync leave renewing to "+
			"their users, who here have a goroutine with a ticker for each lock. CPU is user and system time. "+
			"Memory is that of the process that holds, goroutines included, per lock. Lost: locks whose renewal failed. %d rounds.", b.Scale.TTL, b.Scale.Few()),
		Base: string(peer.Joblock),
		Columns: []report.Column{
			{Title: "commands/period", Ratio: true},
			{Title: "round trips/period", Ratio: true},
			{Title: "own CPU ms/period", Digits: 1, Ratio: true},
			{Title: "server CPU ms/period", Digits: 1, Ratio: true},
			{Title: "bytes/lock", Ratio: true},
			{Title: "lost", Fold: report.Sum},
		},
	}
	c := fmt.Sprintf("%d locks", b.Scale.Locks)
	b.say("%s, %s", s.Name, c)
	err := eachRound(ctx, b, b.Scale.Few(), peer.Libraries(), func(_ int, name peer.Name) error {
		r, err := b.hold(ctx, name, b.Scale.Locks)
		if err == nil {
			s.Add(c, string(name), r.commands, r.turns, r.own, r.server, r.bytes, r.lost)
		}
		return err
	})
	return s, err
}

// holdCost is per renewal period; own and server are milliseconds of processor
// time. bytes is per lock.
type holdCost struct{ commands, turns, own, server, bytes, lost float64 }

// hold takes n locks, holds them for the periods of the scale and observes.
func (b *Bench) hold(ctx context.Context, name peer.Name, n int) (cost holdCost, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = b.withPeer(name, b.Scale.TTL, func(p peer.Peer, wire *rig.Wire) error {
		take := func(prefix string, n int, keep func(i int, held peer.Held)) error {
			// Not with parallel's own context: to rueidislock its end is the lock's.
			return parallel(ctx, acquirers, n, func(_ context.Context, _, i int) error {
				held, err := p.Acquire(ctx, fmt.Sprintf("%s:%d", prefix, i))
				if err == nil {
					keep(i, held)
				}
				return err
			})
		}
		// Connections and what the library makes once are not memory of the locks.
		if err := take("warm-up", acquirers, func(int, peer.Held) {}); err != nil {
			return err
		}
		before := rig.Memory()
		locks := make([]peer.Held, n)
		keepers := newKeepers(ctx, b.Scale.TTL)
		defer keepers.stop()
		if err := take("held", n, func(i int, held peer.Held) {
			locks[i] = held
			keepers.keep(held)
		}); err != nil {
			return err
		}
		cost.bytes = float64(rig.Memory()-before) / float64(n)
		if err := b.observe(ctx, wire, &cost); err != nil {
			return err
		}
		lost := keepers.failed.Load()
		for _, held := range locks {
			if l, ok := held.(peer.Loser); ok && l.Lost() {
				lost++
			}
		}
		cost.lost = float64(lost)
		return nil
	})
	return cost, err
}

// observe lets the periods pass and fills in what one of them costs.
func (b *Bench) observe(ctx context.Context, wire *rig.Wire, cost *holdCost) error {
	before, err := used(ctx, b.Server)
	if err != nil {
		return err
	}
	count, began, period := wire.Count(), time.Now(), b.Scale.TTL/renewalsPerTTL
	pause(ctx, time.Duration(b.Scale.Periods)*period)
	sent := wire.Count().Sub(count)
	// On a machine that stood still, renewals may all have come before this began.
	for sent.Commands == 0 && ctx.Err() == nil {
		pause(ctx, period)
		sent = wire.Count().Sub(count)
	}
	per := float64(period) / float64(time.Since(began))
	after, err := used(ctx, b.Server)
	if err != nil {
		return err
	}
	cpu := after.since(before)
	cost.commands = float64(sent.Commands) * per
	cost.turns = float64(sent.Turns) * per
	cost.own = micros(cpu.own) / 1000 * per
	cost.server = micros(cpu.server) / 1000 * per
	return nil
}
