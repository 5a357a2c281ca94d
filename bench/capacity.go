package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/joblock/toolkit/bench/internal/capacity"
	"github.com/joblock/toolkit/bench/internal/rig"
	"github.com/joblock/toolkit/bench/internal/trial"
)

const (
	costsFile = "results/costs.json"
	checkFile = "results/capacity.md"
	pageFile  = "../docs/capacity.md"
)

// capacityOf does what the first argument says, if that is about capacity.
func capacityOf(ctx context.Context, args []string, out, log io.Writer) (done bool, err error) {
	if len(args) == 0 {
		return false, nil
	}
	do, ok := map[string]func(context.Context, *flag.FlagSet, []string, io.Writer, io.Writer) error{
		"-costs": writeCosts, "-capacity": predict, "-capacity-check": checkPrediction, "-capacity-page": writePage,
	}[args[0]]
	if !ok {
		return false, nil
	}
	flags := flag.NewFlagSet("bench "+args[0], flag.ContinueOnError)
	flags.SetOutput(log)
	return true, do(ctx, flags, args[1:], out, log)
}

func parse(flags *flag.FlagSet, args []string) error {
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return nil
}

// writeCosts measures the costs and writes them.
func writeCosts(ctx context.Context, flags *flag.FlagSet, args []string, _, log io.Writer) error {
	program := flags.String("server", rig.DefaultProgram, "program of the servers")
	file := flags.String("out", costsFile, "file to write")
	quick := flags.Bool("quick", false, "little work: shows that everything works")
	runs := flags.Int("runs", 1, "how often everything is measured; the file has the medians")
	if err := parse(flags, args); err != nil {
		return err
	}
	if *runs < 1 {
		return fmt.Errorf("-runs is %d, must be at least 1", *runs)
	}
	scale := trial.Full()
	if *quick {
		scale = trial.Quick()
	}
	var all []capacity.Costs
	for range *runs {
		c, err := trial.Measure(ctx, *program, scale, progress(log))
		if err != nil {
			return err
		}
		all = append(all, c)
	}
	costs, err := capacity.Median(all)
	if err != nil {
		return err
	}
	costs.Runs = *runs
	text, err := costs.JSON()
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(filepath.Dir(*file), 0o755), os.WriteFile(*file, text, 0o644))
}

func progress(log io.Writer) func(string) {
	return func(what string) { fmt.Fprintln(log, "bench:", what) }
}

// predict prints what the load of the arguments needs.
func predict(_ context.Context, flags *flag.FlagSet, args []string, out, _ io.Writer) error {
	file := flags.String("costs", costsFile, "file that -costs wrote")
	var l capacity.Load
	l.Flags(flags)
	if err := parse(flags, args); err != nil {
		return err
	}
	c, err := capacity.Read(*file)
	if err != nil {
		return err
	}
	l = l.WithDefaults(c)
	if err := l.Check(); err != nil {
		return err
	}
	return capacity.Predict(c, l).Table(out, l)
}

// checkPrediction runs loads on real servers and prints what they took beside what was predicted.
func checkPrediction(ctx context.Context, flags *flag.FlagSet, args []string, out, log io.Writer) error {
	program := flags.String("server", rig.DefaultProgram, "program of the servers")
	costs := flags.String("costs", costsFile, "file that -costs wrote")
	file := flags.String("out", "", "file to write, such as "+checkFile)
	quick := flags.Bool("quick", false, "little work: shows that everything works")
	runs := flags.Int("runs", 1, "how often each load is run")
	if err := parse(flags, args); err != nil {
		return err
	}
	c, err := capacity.Read(*costs)
	if err != nil {
		return err
	}
	loads := trial.Loads()
	if *quick {
		loads = trial.QuickLoads()
	}
	text, err := trial.Check(ctx, *program, c, loads, *runs, progress(log))
	if err != nil {
		return err
	}
	if _, err := io.WriteString(out, text); err != nil || *file == "" {
		return err
	}
	return os.WriteFile(*file, []byte(text), 0o644)
}

// writePage puts the model's tables into the page on capacity.
func writePage(_ context.Context, flags *flag.FlagSet, args []string, _, _ io.Writer) error {
	costs := flags.String("costs", costsFile, "file that -costs wrote")
	page := flags.String("page", pageFile, "page to write anew")
	if err := parse(flags, args); err != nil {
		return err
	}
	c, err := capacity.Read(*costs)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(*page)
	if err != nil {
		return err
	}
	filled, err := capacity.Fill(c, string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", *page, err)
	}
	return os.WriteFile(*page, []byte(filled), 0o644)
}
