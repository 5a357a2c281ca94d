package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/joblock/toolkit/bench/internal/fleet"
)

// keeperSettings are the flags of the measurement of keepers.
type keeperSettings struct {
	fleet.Settings
	asked bool
}

func keeperFlags(flags *flag.FlagSet) *keeperSettings {
	k := &keeperSettings{}
	flags.BoolVar(&k.asked, "keepers", false, "measure the keepers of several processes before very many parked locks, and nothing else")
	flags.IntVar(&k.Locks, "locks", 1_000_000, "with -keepers: how many locks are parked")
	flags.IntVar(&k.Processes, "processes", 4, "with -keepers: how many processes have a Run")
	flags.IntVar(&k.Keepers, "places", 1, "with -keepers: worker.Config.Keepers")
	flags.DurationVar(&k.Every, "every", 30*time.Second, "with -keepers: worker.Config.Every")
	flags.Float64Var(&k.Share, "share", 0.1, "with -keepers: worker.Config.Share")
	return k
}

func runKeepers(ctx context.Context, k *keeperSettings, program string, rounds int, dir string, out, log io.Writer) error {
	k.Program, k.Rounds, k.Deleted = program, cmp.Or(rounds, 3), min(200, k.Locks/10)
	if k.Locks < 1000 || k.Processes < 2 || rounds < 0 {
		return fmt.Errorf("-locks is %d, -processes %d and -rounds %d; must be at least 1000, 2 and 0", k.Locks, k.Processes, rounds)
	}
	r, err := fleet.Run(ctx, k.Settings, func(what string) { fmt.Fprintln(log, "bench:", time.Now().Format(time.TimeOnly), what) })
	if err != nil {
		return err
	}
	if err := r.WriteMarkdown(out); err != nil || dir == "" {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return errors.Join(
		writeFile(filepath.Join(dir, "keepers.md"), r.WriteMarkdown),
		writeFile(filepath.Join(dir, "keepers.json"), r.WriteJSON),
	)
}
