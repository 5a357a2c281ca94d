package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/joblock/toolkit/bench/internal/measure"
)

func main() {
	measure.ContendIfAsked()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run does what the arguments say, prints the tables to out and progress to log.
func run(ctx context.Context, args []string, out, log io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(log)
	short := flags.Bool("short", false, "little work: shows that everything works, within seconds")
	rounds := flags.Int("rounds", 0, "interleaved rounds; 0 for the scale's own number")
	only := flags.String("only", "", "names of the measurements to make, by comma; all if empty")
	dir := flags.String("out", "", "directory to write results.md, results.json and handover.svg to")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	scale := measure.Full()
	if *short {
		scale = measure.Short()
	}
	if *rounds < 0 {
		return fmt.Errorf("-rounds is %d, must not be negative", *rounds)
	}
	if *rounds > 0 {
		scale.Rounds = *rounds
	}
	var names []string
	if *only != "" {
		names = strings.Split(*only, ",")
	}
	r, err := compare(ctx, scale, names, func(what string) { fmt.Fprintln(log, "bench:", what) })
	if err != nil {
		return err
	}
	if err := r.WriteMarkdown(out); err != nil || *dir == "" {
		return err
	}
	return writeResults(*dir, r, scale)
}
