package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/joblock/toolkit/bench/internal/measure"
	"github.com/joblock/toolkit/bench/internal/report"
	"github.com/joblock/toolkit/bench/internal/rig"
)

// compared are the modules whose versions belong into the report.
var compared = []string{
	"github.com/bsm/redislock",
	"github.com/go-redsync/redsync/v4",
	"github.com/hibiken/asynq",
	"github.com/redis/go-redis/v9",
	"github.com/redis/rueidis",
}

// settings are what the command line says.
type settings struct {
	scale   measure.Scale
	names   []string // of the measurements; all if empty
	aims    bool     // only what has an aim
	runs    int
	program string // the server's
	busy    bool
	against string // the directory of another checkout; "" for none
}

// compare makes the measurements, each run against a server of its own.
func compare(ctx context.Context, set settings, progress func(string)) (r *report.Report, err error) {
	b := &measure.Bench{Program: set.program, Scale: set.scale, Progress: progress}
	r = &report.Report{
		Machine: rig.ThisMachine(), Load: "nothing else on purpose", LoadAverage: rig.LoadAverage(),
		Versions: rig.Versions(compared...), Rounds: set.scale.Rounds, Runs: set.runs,
	}
	if set.against != "" {
		temp, err := os.MkdirTemp("", "joblock-bench-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(temp)
		progress("building the drivers of two checkouts")
		if b.Other, err = measure.NewOther(ctx, set.against, temp); err != nil {
			return nil, err
		}
		r.Against = b.Other.Name
	}
	wanted, err := choose(b.Measurements(), set)
	if err != nil {
		return nil, err
	}
	if set.busy {
		r.Load = "one core kept busy by a process that counts"
		stop, err := rig.KeepBusy()
		if err != nil {
			return nil, err
		}
		defer func() { _ = stop() }()
	}
	for run := range set.runs {
		if err := oneRun(ctx, b, r, wanted, set.program); err != nil {
			return nil, fmt.Errorf("run %d: %w", run+1, err)
		}
	}
	for _, s := range r.Sections {
		s.Fold()
	}
	r.Aim(measure.Aims(set.scale, set.busy))
	return r, nil
}

// oneRun adds a run to the report.
func oneRun(ctx context.Context, b *measure.Bench, r *report.Report, wanted []measure.Measurement, program string) (err error) {
	if b.Server, err = rig.Start(ctx, program); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Server.Stop()) }()
	if r.Server, err = b.Server.Version(ctx); err != nil {
		return err
	}
	for _, m := range wanted {
		s, err := m.Run(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		if first := r.Section(m.Name); first != nil {
			first.Join(s)
		} else {
			r.Sections = append(r.Sections, s)
		}
	}
	return nil
}

// choose returns the measurements that are asked for, in their own order.
func choose(all []measure.Measurement, set settings) ([]measure.Measurement, error) {
	var known []string
	for _, m := range all {
		known = append(known, m.Name)
	}
	for _, name := range set.names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("no measurement %q; there are %q", name, known)
		}
	}
	return slices.DeleteFunc(all, func(m measure.Measurement) bool {
		return set.aims && !m.Aimed || len(set.names) > 0 && !slices.Contains(set.names, m.Name)
	}), nil
}
