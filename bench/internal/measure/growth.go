package measure

import (
	"context"
	"fmt"

	"github.com/joblock/toolkit/bench/internal/peer"
	"github.com/joblock/toolkit/bench/internal/report"
)

// The subjects of the section on growth.
const (
	once = "1×"
	more = "10×"
)

func (b *Bench) growth(ctx context.Context) (*report.Section, error) {
	s := &report.Section{
		Name:  "growth",
		Title: "Growth: ten times the work",
		Note: fmt.Sprintf("joblock only. What one unit of work costs, and what it costs when there is ten times as much of it: "+
			"×1 is in proportion. %d rounds.", b.Scale.Few()),
		Base:    once,
		Columns: []report.Column{{Title: "cost", Digits: 2, Ratio: true}},
	}
	g := b.Scale.Growth
	for _, m := range []struct {
		n     int
		units []string // what the costs are
		costs func(n int) ([]float64, error)
	}{
		{g.Keys, []string{"µs per acquire and release over %d keys"}, func(n int) ([]float64, error) {
			// As many pairs whatever the keys, so that only their number differs.
			p, err := b.openPairs(ctx, peer.Joblock, 1, n)
			if err != nil {
				return nil, err
			}
			defer func() { _ = p.close() }()
			if err := p.run(ctx, GrowthFactor*g.Keys); err != nil {
				return nil, err
			}
			c, err := p.cost()
			return []float64{c.micros}, err
		}},
		{g.Waiters, []string{"ms per hand-over (p50), %d waiters", "commands per hand-over, %d waiters"}, func(n int) ([]float64, error) {
			r, err := b.handRound(ctx, peer.Joblock, Crowd{Waiters: n, Processes: 1}, 0, b.Scale.Handover)
			if err != nil {
				return nil, err
			}
			return []float64{report.Quantile(r.latencies, 0.5), r.perHandover}, nil
		}},
		{g.Locks, []string{"own CPU µs per renewal, %d locks", "bytes per held lock, %d locks"}, func(n int) ([]float64, error) {
			c, err := b.hold(ctx, peer.Joblock, n)
			return []float64{c.own * 1000 / float64(n), c.bytes}, err
		}},
		{g.Jobs, []string{"µs per job processed with its lock, %d jobs"}, func(n int) ([]float64, error) {
			r, err := b.runJobs(ctx, locked, n, 0)
			return []float64{1e6 / r.processed}, err
		}},
	} {
		b.say("%s, "+m.units[0], s.Name, m.n)
		err := eachRound(ctx, b, b.Scale.Few(), []string{once, more}, func(_ int, subject string) error {
			n := m.n
			if subject == more {
				n *= GrowthFactor
			}
			costs, err := m.costs(n)
			if err != nil {
				return err
			}
			for i, unit := range m.units {
				s.Add(fmt.Sprintf(unit, m.n), subject, costs[i])
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}
