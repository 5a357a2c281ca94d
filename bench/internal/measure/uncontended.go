package measure

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/joblock/toolkit/bench/internal/peer"
	"github.com/joblock/toolkit/bench/internal/report"
)

// sampleParts is into how many parts a sample is cut. The parts of all libraries
// alternate: how long a round trip takes depends on what else the machine does in
// that very moment (an idle processor wakes up slowly), and by more than what is
// to be told apart.
const sampleParts = 10

// The titles of columns that Aims names.
const (
	columnMicros  = "µs/op"
	columnOwn     = "own CPU µs/op"
	columnServer  = "server CPU µs/op"
	columnScripts = "server's count µs/op"
)

// A keyUse is what was done with the keys before.
type keyUse string

const (
	usedKeys  keyUse = "used keys"  // locked and released just before
	freshKeys keyUse = "fresh keys" // never seen by the server
)

// keyUses are the cases of each parallelism.
var keyUses = []keyUse{usedKeys, freshKeys}

func (b *Bench) uncontended(ctx context.Context) (*report.Section, error) {
	s := &report.Section{
		Name:  "uncontended",
		Title: "Uncontended: acquire and release",
		Note: "A pair of calls on a key that nobody else wants; each goroutine has its own keys, used before or fresh. Time per pair is " +
			"elapsed time by pairs of all goroutines together. The floor is SET NX PX and a compare-and-delete script " +
			"through go-redis, without a fence, renewal, or a record that the lock was there. CPU is user and system time. " +
			"The server's count is the time that the server says its commands have taken (INFO commandstats): of a pair, and, " +
			"where all locks were acquired before the first was released, of each. With one goroutine the calls come one by one. With many, " +
			"joblock and rueidislock send them in pipelines: see the round trips.",
		Base: string(peer.Joblock),
		Columns: []report.Column{
			{Title: columnMicros, Digits: 1, Ratio: true},
			{Title: "allocs/op", Digits: 1},
			{Title: "commands/op", Digits: 2},
			{Title: "round trips/op", Digits: 2},
			{Title: columnOwn, Digits: 1, Ratio: true},
			{Title: columnServer, Digits: 1, Ratio: true},
			{Title: columnScripts, Digits: 1, Ratio: true},
			{Title: "of acquire", Digits: 1},
			{Title: "of release", Digits: 1},
		},
	}
	for _, load := range b.Scale.Pairs {
		for _, use := range keyUses {
			c := pairCase(load.Goroutines, use)
			b.say("%s, %s", s.Name, c)
			for round := range b.Scale.Rounds {
				if err := b.uncontendedRound(ctx, s, load, use); err != nil {
					return nil, fmt.Errorf("round %d, %s: %w", round+1, c, err)
				}
			}
		}
	}
	return s, nil
}

// pairCase names a case of the report.
func pairCase(goroutines int, use keyUse) string {
	return fmt.Sprintf("parallelism %d, %s", goroutines, use)
}

// uncontendedRound measures all libraries, part by part.
func (b *Bench) uncontendedRound(ctx context.Context, s *report.Section, load PairLoad, use keyUse) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := b.Server.Flush(ctx); err != nil {
		return err
	}
	names := peer.All()
	n := max(load.Goroutines, load.Pairs/sampleParts)
	all := make([]*pairs, len(names))
	for i, name := range names {
		p, cannot := b.openPairs(ctx, name, load.Goroutines, n)
		if cannot != nil {
			return fmt.Errorf("%s: %w", name, cannot)
		}
		defer func() { err = errors.Join(err, p.close()) }()
		all[i] = p
	}
	for part := range sampleParts + 1 {
		// At random: in a fixed order each would always find the machine as the same
		// other one has left it.
		for _, at := range rand.Perm(len(all)) {
			if use == freshKeys {
				all[at].newKeys(n)
			}
			if part < sampleParts {
				err = all[at].run(ctx, n)
			} else {
				err = all[at].runApart(ctx)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", names[at], err)
			}
		}
	}
	for i, name := range names {
		c, err := all[i].cost()
		if err != nil {
			return err
		}
		s.Add(pairCase(load.Goroutines, use), string(name),
			c.micros, c.allocs, c.commands, c.turns, c.own, c.server, c.scripts, c.acquire, c.release)
	}
	return nil
}
