package measure

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"

	"github.com/joblock/toolkit/bench/internal/checkout"
	"github.com/joblock/toolkit/bench/internal/peer"
	"github.com/joblock/toolkit/bench/internal/report"
)

// The subjects of the section on another checkout.
const (
	thisCheckout  = "this checkout"
	otherCheckout = "the other"
)

// Other is another checkout of this repository, and the drivers of both.
type Other struct {
	Name string // of the other: its directory and commit

	programs map[string]string // by subject
}

// NewOther builds the drivers of this checkout and of the one in dir, and puts the programs
// into temp.
func NewOther(ctx context.Context, dir, temp string) (*Other, error) {
	here, err := checkout.Here(ctx)
	if err != nil {
		return nil, err
	}
	o := &Other{
		Name:     fmt.Sprintf("%s, this one is %s", checkout.Describe(ctx, dir), checkout.Describe(ctx, here)),
		programs: make(map[string]string),
	}
	for subject, dir := range map[string]string{thisCheckout: here, otherCheckout: dir} {
		o.programs[subject] = filepath.Join(temp, fmt.Sprintf("driver-%d", len(o.programs)))
		if err := checkout.Build(ctx, dir, o.programs[subject]); err != nil {
			return nil, err
		}
	}
	return o, nil
}

func (b *Bench) against(ctx context.Context) (s *report.Section, err error) {
	s = &report.Section{
		Name:  "against",
		Title: "Acquire and release, beside another checkout",
		Note: "joblock only. Each checkout has a process of its own, built from the same program: TryAcquire and Release. " +
			"Columns and cases are as above. " + b.Other.Name + ".",
		Base: thisCheckout,
		Columns: []report.Column{
			{Title: columnMicros, Digits: 1, Ratio: true},
			{Title: columnOwn, Digits: 1, Ratio: true},
			{Title: columnServer, Digits: 1, Ratio: true},
			{Title: columnScripts, Digits: 1, Ratio: true},
		},
	}
	drivers := []*checkoutDriver{{subject: thisCheckout}, {subject: otherCheckout}}
	for _, d := range drivers {
		var cannot error
		if d.Driver, cannot = checkout.Start(ctx, b.Other.programs[d.subject], b.Server.Addr()); cannot != nil {
			return nil, cannot
		}
		defer func() { err = errors.Join(err, d.Stop()) }()
	}
	for _, load := range b.Scale.Pairs {
		for _, use := range keyUses {
			c := pairCase(load.Goroutines, use)
			b.say("%s, %s", s.Name, c)
			for round := range b.Scale.Rounds {
				if err := b.againstRound(ctx, s, drivers, load, use); err != nil {
					return nil, fmt.Errorf("round %d, %s: %w", round+1, c, err)
				}
			}
		}
	}
	return s, nil
}

// checkoutDriver is the driver of one checkout, and what its pairs have cost in a round.
type checkoutDriver struct {
	*checkout.Driver
	subject string
	prefix  string // of the keys
	made    int    // prefixes

	pairs   int
	elapsed float64 // µs, as own and server
	own     float64
	server  float64
	counts  []float64 // of each part: the server's count per pair, in µs
}

// newKeys has the next pairs take keys that nobody has used before.
func (d *checkoutDriver) newKeys() {
	d.made++
	d.prefix = fmt.Sprintf("pair:%.5s:%d", d.subject, d.made)
}

// againstRound measures both checkouts, part by part.
func (b *Bench) againstRound(ctx context.Context, s *report.Section, drivers []*checkoutDriver, load PairLoad, use keyUse) error {
	if err := b.Server.Flush(ctx); err != nil {
		return err
	}
	n := max(load.Goroutines, load.Pairs/sampleParts)
	for _, d := range drivers {
		d.newKeys()
		d.pairs, d.elapsed, d.own, d.server, d.counts = 0, 0, 0, 0, nil
		o := checkout.Order{Prefix: d.prefix, Keys: n, Pairs: max(n, warmUpPairs*load.Goroutines), Goroutines: load.Goroutines}
		if _, err := d.Do(o); err != nil {
			return fmt.Errorf("%s: %w", d.subject, err)
		}
	}
	for range sampleParts {
		for _, at := range rand.Perm(len(drivers)) {
			d := drivers[at]
			if use == freshKeys {
				d.newKeys()
			}
			if err := b.drive(ctx, d, checkout.Order{Prefix: d.prefix, Keys: n, Pairs: n, Goroutines: load.Goroutines}); err != nil {
				return fmt.Errorf("%s: %w", d.subject, err)
			}
		}
	}
	for _, d := range drivers {
		per := 1 / float64(d.pairs)
		s.Add(pairCase(load.Goroutines, use), d.subject,
			d.elapsed*per, d.own*per, d.server*per, report.Quantile(d.counts, 0.5))
	}
	return nil
}

// drive has an order done and adds up what that has cost.
func (b *Bench) drive(ctx context.Context, d *checkoutDriver, o checkout.Order) error {
	before, err := used(ctx, b.Server)
	if err != nil {
		return err
	}
	a, err := d.Do(o)
	if err != nil {
		return err
	}
	after, err := used(ctx, b.Server)
	cpu := after.since(before, peer.Commands(peer.Joblock)...)
	d.server += micros(cpu.server)
	d.counts = append(d.counts, micros(cpu.calls.Time)/float64(o.Pairs))
	d.elapsed += micros(a.Elapsed)
	d.own += micros(a.CPU)
	d.pairs += o.Pairs
	return err
}
