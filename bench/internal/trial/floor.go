package trial

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/bench/internal/capacity"
	"github.com/joblock/toolkit/bench/internal/rig"
)

const (
	floorRate  = 200 // SETs a second, alone
	floorAlone = 2 * time.Second
	floorCrowd = 32 // connections
	floorSets  = 20_000
	floorBytes = 100
)

// Floor measures the bare SET on a new server.
func Floor(ctx context.Context, program string) (f capacity.Floor, err error) {
	s, err := rig.Start(ctx, program)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), PoolSize: floorCrowd})
	defer func() { err = errors.Join(err, rdb.Close()) }()
	value := strings.Repeat("x", floorBytes)
	set := func() error { return rdb.Set(ctx, "floor", value, time.Minute).Err() }

	measure := func(run func() (n int, err error)) (server, own float64, err error) {
		if err := set(); err != nil {
			return 0, 0, err
		}
		before, err := s.State(ctx)
		if err != nil {
			return 0, 0, err
		}
		ownBefore, err := rig.CPU()
		if err != nil {
			return 0, 0, err
		}
		n, err := run()
		if err != nil {
			return 0, 0, err
		}
		ownAfter, err := rig.CPU()
		if err != nil {
			return 0, 0, err
		}
		after, err := s.State(ctx)
		per := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) / float64(n) }
		return per(after.CPU - before.CPU), per(ownAfter - ownBefore), err
	}
	f.Alone, f.Own, err = measure(func() (n int, err error) {
		random := rand.New(rand.NewPCG(1, 2))
		start := time.Now()
		for due := start; due.Sub(start) < floorAlone && err == nil; n++ {
			due = due.Add(time.Duration(random.ExpFloat64() / floorRate * float64(time.Second)))
			pause(ctx, time.Until(due))
			err = set()
		}
		return n, err
	})
	if err != nil {
		return f, err
	}
	f.Crowded, _, err = measure(func() (int, error) {
		errs := make([]error, floorCrowd)
		var wg sync.WaitGroup
		for i := range floorCrowd {
			wg.Go(func() {
				for range floorSets / floorCrowd {
					if errs[i] = set(); errs[i] != nil {
						return
					}
				}
			})
		}
		wg.Wait()
		return floorSets, errors.Join(errs...)
	})
	return f, err
}

func median(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}
