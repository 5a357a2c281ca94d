package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/joblock/toolkit/bench/internal/fleet"
	"github.com/joblock/toolkit/bench/internal/measure"
	"github.com/joblock/toolkit/bench/internal/rig"
)

func main() {
	measure.ContendIfAsked()
	fleet.KeepIfAsked()
	rig.SpinIfAsked()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run does what the arguments say, prints the tables to out and progress to log.
func run(ctx context.Context, args []string, out, log io.Writer) error {
	if done, err := capacityOf(ctx, args, out, log); done {
		return err
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(log)
	set := settings{scale: measure.Full()}
	quick := flags.Bool("quick", false, "little work: shows that everything works, within seconds")
	rounds := flags.Int("rounds", 0, "interleaved rounds in each run; 0 for the scale's own number")
	flags.IntVar(&set.runs, "runs", 1, "how often everything is measured; the report has the range of the runs")
	only := flags.String("only", "", "names of the measurements to make, by comma; all if empty")
	flags.BoolVar(&set.aims, "aims", false, "make only the measurements for which something is aimed at")
	flags.StringVar(&set.program, "server", rig.DefaultProgram, "program of the server: a name in PATH, or a path")
	flags.BoolVar(&set.busy, "busy", false, "keep one core busy meanwhile")
	flags.StringVar(&set.against, "against", "", "directory of another checkout of this repository to measure beside this one")
	masters := flags.String("masters", "", "numbers of masters of the clusters, by comma; those of the scale if empty")
	keepers := keeperFlags(flags)
	dir := flags.String("out", "", "directory to write results.md, results.json and handover.svg to")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if *quick {
		set.scale = measure.Quick()
	}
	if keepers.asked {
		return runKeepers(ctx, keepers, set.program, *rounds, *dir, out, log)
	}
	if *rounds < 0 {
		return fmt.Errorf("-rounds is %d, must not be negative", *rounds)
	}
	if *rounds > 0 {
		set.scale.Rounds = *rounds
	}
	if *masters != "" {
		set.scale.Masters = nil
		for _, text := range strings.Split(*masters, ",") {
			n, err := strconv.Atoi(text)
			if err != nil || n < 3 || n > 100 {
				return fmt.Errorf("-masters has %q, must be numbers from 3 to 100", text)
			}
			set.scale.Masters = append(set.scale.Masters, n)
		}
	}
	if set.runs < 1 {
		return fmt.Errorf("-runs is %d, must be at least 1", set.runs)
	}
	if *only != "" {
		set.names = strings.Split(*only, ",")
	}
	r, err := compare(ctx, set, func(what string) { fmt.Fprintln(log, "bench:", what) })
	if err != nil {
		return err
	}
	if err := r.WriteMarkdown(out); err != nil || *dir == "" {
		return err
	}
	return writeResults(*dir, r, set.scale)
}
