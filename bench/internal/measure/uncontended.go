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
const sampleParts = 30

func (b *Bench) uncontended(ctx context.Context) (*report.Section, error) {
	s := &report.Section{
		Name:  "uncontended",
		Title: "Uncontended: acquire and release",
		Note: "A pair of calls on a key that nobody else wants; each goroutine has its own key. Time per pair is " +
			"elapsed time by pairs of all goroutines together. The floor is SET NX PX and a compare-and-delete script " +
			"through go-redis, without a fence, renewal, or a record that the lock was there. CPU is user and system time.",
		Base: string(peer.Joblock),
		Columns: []report.Column{
			{Title: "µs/op", Digits: 1, Ratio: true},
			{Title: "allocs/op", Digits: 1},
			{Title: "commands/op", Digits: 2},
			{Title: "round trips/op", Digits: 2},
			{Title: "own CPU µs/op", Digits: 1, Ratio: true},
			{Title: "server CPU µs/op", Digits: 1, Ratio: true},
		},
	}
	for _, goroutines := range b.Scale.Parallel {
		b.say("%s, %s", s.Name, parallelism(goroutines))
		for round := range b.Scale.Rounds {
			if err := b.uncontendedRound(ctx, s, goroutines); err != nil {
				return nil, fmt.Errorf("round %d, %s: %w", round+1, parallelism(goroutines), err)
			}
		}
	}
	return s, nil
}

func parallelism(goroutines int) string { return fmt.Sprintf("parallelism %d", goroutines) }

// uncontendedRound measures all libraries, part by part.
func (b *Bench) uncontendedRound(ctx context.Context, s *report.Section, goroutines int) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := b.Server.Flush(ctx); err != nil {
		return err
	}
	names := peer.All()
	all := make([]*pairs, len(names))
	for i, name := range names {
		p, err := b.openPairs(ctx, name, goroutines, goroutines)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		defer func() { err = errors.Join(err, p.close()) }()
		all[i] = p
	}
	for range sampleParts {
		// At random: in a fixed order each would always find the machine as the same
		// other one has left it.
		for _, at := range rand.Perm(len(all)) {
			if err := all[at].run(ctx, max(1, b.Scale.Ops/sampleParts)); err != nil {
				return fmt.Errorf("%s: %w", names[at], err)
			}
		}
	}
	for i, name := range names {
		c := all[i].cost()
		s.Add(parallelism(goroutines), string(name), c.micros, c.allocs, c.commands, c.turns, c.own, c.server)
	}
	return nil
}
