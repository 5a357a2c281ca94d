// Command observed runs all parts of an application with locks, in one process and on an embedded Redis, to look at: a
// web side, two workers, two cron nodes, and a lock server with pages, metrics and a journal. Simulated customers keep
// them busy. Ctrl-C ends it all.
//
//	go run -C examples/observed .
//
// Each part is set up as if it were a process of its own, with its own Locker and connections. process.go has what
// observes the parts.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
)

func main() {
	var cfg config
	flag.StringVar(&cfg.app, "app", "127.0.0.1:0", "where the application listens; with port 0 at a free port")
	flag.StringVar(&cfg.pages, "pages", "127.0.0.1:0", "where the lock server listens")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, cfg); err != nil {
		fmt.Fprintln(os.Stderr, "observed:", err)
		os.Exit(1)
	}
}

type config struct {
	app, pages string        // addresses to listen at
	work       time.Duration // of an export; default 8 s
}

// endTimeout bounds the shutdown.
const endTimeout = 15 * time.Second

// run runs everything until ctx ends. It prints the addresses to w as soon as there is something to see.
func run(ctx context.Context, w io.Writer, cfg config) (err error) {
	cfg.work = cmp.Or(cfg.work, 8*time.Second)
	embedded := miniredis.NewMiniRedis()
	embedded.ClockTTL(true)
	if err := embedded.Start(); err != nil {
		return err
	}
	defer embedded.Close()
	all := &parts{redis: embedded.Addr(), work: cfg.work}
	defer func() {
		bounded, cancel := context.WithTimeout(context.Background(), endTimeout)
		defer cancel()
		err = errors.Join(err, all.close(bounded))
	}()
	if err := all.observe(); err != nil {
		return err
	}
	for _, begin := range []func(context.Context) error{all.workers, all.cron} {
		if err := begin(ctx); err != nil {
			return err
		}
	}
	app, err := all.web(ctx, cfg.app)
	if err != nil {
		return err
	}
	pages, err := all.server(cfg.pages)
	if err != nil {
		return err
	}
	all.customers(app)
	fmt.Fprintf(w, `
  pages     %[1]s/            locks, lines, jobs, cron jobs, live
  cluster   %[1]s/metrics     what all processes have, for Prometheus
  process   %[2]s/metrics     what one process does
  traces    %[2]s/traces      from a request to the end of its job
  try       curl -i -X POST %[2]s/exports/acct-1

Ctrl-C ends it.
`, pages, app)
	<-ctx.Done()
	fmt.Fprintln(w, "\nending in order")
	return nil
}
