package trial

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/bench/internal/capacity"
	"github.com/joblock/toolkit/bench/internal/rig"
)

// Named is a load with a name.
type Named struct {
	Name string
	Load Load
}

// Loads returns the loads that predictions are checked with. None of them is one that costs are measured with.
func Loads() []Named {
	return []Named{
		{"jobs, held locks and parked locks", Load{Settle: 12 * time.Second, Observe: 16 * time.Second, Load: capacity.Load{
			Web: 2, Workers: 2, Jobs: 130, Work: 40 * time.Millisecond, Pairs: 180, Held: 1800, Parked: 9000,
			TTL: 10 * time.Second, Retain: 3 * time.Second, Grace: 3 * time.Second, Every: 8 * time.Second,
		}}},
		{"many waiters", Load{Settle: 4 * time.Second, Observe: 40 * time.Second, Load: capacity.Load{
			Web: 4, Workers: 1, Held: 2000, Waiting: 4000, Handovers: 80, TTL: 24 * time.Second, Poll: 3 * time.Second,
		}}},
		{"short leases and cron entries", Load{Settle: 4 * time.Second, Observe: 40 * time.Second, Load: capacity.Load{
			Web: 3, Workers: 2, Held: 2000, Pairs: 120, Cron: 250, CronEvery: 5 * time.Second,
			TTL: 3 * time.Second, Retain: 3 * time.Second,
		}}},
		{"a cluster of three masters", Load{Settle: 12 * time.Second, Observe: 16 * time.Second, Load: capacity.Load{
			Web: 3, Workers: 2, Masters: 3, Jobs: 120, Pairs: 150, Held: 1800, Waiting: 600, Parked: 6000,
			TTL: 8 * time.Second, Retain: 3 * time.Second, Grace: 3 * time.Second, Every: 8 * time.Second,
		}}},
	}
}

// QuickLoads returns smaller ones, whose figures mean nothing.
func QuickLoads() []Named {
	loads := Loads()
	for i := range loads {
		l := &loads[i].Load
		l.Jobs, l.Pairs, l.Handovers = l.Jobs/4, l.Pairs/4, l.Handovers/4
		l.Held, l.Waiting, l.Parked, l.Cron = l.Held/50, l.Waiting/50, l.Parked/50, l.Cron/10
		l.Settle, l.Observe = time.Second, 2*time.Second
	}
	return loads
}

// near is how far a prediction may be off, to count as met.
const near = 0.25

// Check runs the loads and returns a table of predictions and measurements in Markdown.
func Check(ctx context.Context, program string, c capacity.Costs, loads []Named, runs int, say func(string)) (string, error) {
	floor, err := Floor(ctx, program)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, `# Predicted and measured

What the model of [docs/capacity.md](../../docs/capacity.md) says of four loads, and what those loads took on real
servers (%s). The model was not fed with these loads: its costs are from loads of one kind at a time. Its rules for
connections were corrected after other loads of this kind. Processor time is that of
%s. Runs of each load: %d. A table has the
medians, and the least and the greatest ratio. A figure that is not within a quarter in each run is a miss.

A SET that comes alone took a server %.0[5]f µs, and %.0[6]f µs where the costs are from. The load average of the machine was %[4]s at the
start: other work on the machine makes all processor time a lottery. Before the observation each server answered nobody
for half a second: a fleet keeps the connections that such a moment opens. Written by
go run . -capacity-check -runs %[3]d -out results/capacity.md.

`, c.Server, c.Machine, runs, rig.LoadAverage(), floor.Alone, c.Floor.Alone)
	for _, named := range loads {
		l := named.Load
		l.Load = l.WithDefaults(c)
		var rows []row
		for range runs {
			say(named.Name)
			s, err := Run(ctx, program, l)
			if err != nil {
				return "", fmt.Errorf("%s: %w", named.Name, err)
			}
			rows = join(rows, compare(capacity.Predict(c, l.Load), s, l))
		}
		fmt.Fprintf(&b, "## %s\n\n%s\n\n%s", named.Name, named.Load.Load.Args(), write(rows))
	}
	return b.String(), nil
}

// row is a figure: predicted and measured, in each run.
type row struct {
	what                string
	format              string
	least               float64 // what is smaller is not judged
	predicted, measured []float64
}

func compare(p capacity.Need, s Seen, l Load) []row {
	one := func(what, format string, least, predicted, measured float64) row {
		return row{what, format, least, []float64{predicted}, []float64{measured}}
	}
	locks := "locks' Redis"
	if l.Masters > 1 {
		locks = "each master"
	}
	var rows []row
	for _, n := range []struct {
		of   string
		p, m capacity.Node
	}{{locks, p.Locks, s.Locks}, {"asynq's Redis", p.Asynq, s.Asynq}} {
		rows = append(rows,
			one(n.of+": commands/s", "%.0f", 1, n.p.Commands, n.m.Commands),
			one(n.of+": CPU, % of a core", "%.1f", 0.5, 100*n.p.CPU, 100*n.m.CPU),
			one(n.of+": memory, MiB", "%.2f", 0, n.p.Memory/(1<<20), n.m.Memory/(1<<20)),
			one(n.of+": connections", "%.0f", 0, n.p.Connections, n.m.Connections),
			one(n.of+": KiB/s in", "%.0f", 5, n.p.In/1024, n.m.In/1024),
			one(n.of+": KiB/s out", "%.0f", 5, n.p.Out/1024, n.m.Out/1024),
		)
	}
	processes := p.Web.CPU*float64(l.Web) + p.Worker.CPU*float64(l.Workers) + p.Keeper.CPU*float64(min(l.Keepers, l.Workers))
	return append(rows, one("all processes: own CPU, % of a core", "%.1f", 0, 100*processes, 100*s.own))
}

func join(all, more []row) []row {
	if all == nil {
		return more
	}
	for i := range all {
		all[i].predicted = append(all[i].predicted, more[i].predicted...)
		all[i].measured = append(all[i].measured, more[i].measured...)
	}
	return all
}

// write writes the median of the predictions and of the measurements, and the ratios of all runs.
func write(rows []row) string {
	var b strings.Builder
	b.WriteString("| figure | predicted | measured | predicted to measured | within a quarter |\n|---|---:|---:|---:|---|\n")
	for _, r := range rows {
		var ratios []float64
		for i := range r.predicted {
			ratios = append(ratios, ratio(r.predicted[i], r.measured[i]))
		}
		slices.Sort(ratios)
		least, most := ratios[0], ratios[len(ratios)-1]
		met := "yes"
		switch {
		case max(median(r.predicted), median(r.measured)) < r.least:
			met = "too small to tell"
		case least < 1-near || most > 1+near:
			met = "**no**"
		}
		told := fmt.Sprintf("%.2f", least)
		if len(ratios) > 1 {
			told += fmt.Sprintf(" – %.2f", most)
		}
		fmt.Fprintf(&b, "| %s | "+r.format+" | "+r.format+" | %s | %s |\n", r.what, median(r.predicted), median(r.measured), told, met)
	}
	return b.String() + "\n"
}

func ratio(predicted, measured float64) float64 {
	if predicted == measured {
		return 1
	}
	return predicted / measured
}
