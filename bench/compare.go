package main

import (
	"context"
	"errors"
	"fmt"
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

// compare makes the named measurements, all if there are no names, against a
// server of its own.
func compare(ctx context.Context, scale measure.Scale, names []string, progress func(string)) (r *report.Report, err error) {
	b := &measure.Bench{Scale: scale, Progress: progress}
	wanted, err := choose(b.Measurements(), names)
	if err != nil {
		return nil, err
	}
	if b.Server, err = rig.Start(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Server.Stop()) }()
	r = &report.Report{Machine: rig.ThisMachine(), Versions: rig.Versions(compared...), Rounds: scale.Rounds}
	if r.Redis, err = b.Server.Version(ctx); err != nil {
		return nil, err
	}
	for _, m := range wanted {
		s, err := m.Run(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
		s.Fold()
		r.Sections = append(r.Sections, s)
	}
	return r, nil
}

// choose returns the measurements of these names, in their own order.
func choose(all []measure.Measurement, names []string) ([]measure.Measurement, error) {
	if len(names) == 0 {
		return all, nil
	}
	var known []string
	for _, m := range all {
		known = append(known, m.Name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("no measurement %q; there are %q", name, known)
		}
	}
	return slices.DeleteFunc(all, func(m measure.Measurement) bool { return !slices.Contains(names, m.Name) }), nil
}
