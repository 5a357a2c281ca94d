package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// newScheduler is the wiring. The lease is short to keep the story short.
func newScheduler(addr, scope, name string) (s *scheduler.Scheduler, stop func(), err error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	store, err := redisstore.New(rdb, nil)
	if err != nil {
		return nil, nil, err
	}
	locks, err := joblock.New(store, &joblock.Config{TTL: 2 * time.Second})
	if err != nil {
		return nil, nil, err
	}
	s, err = scheduler.New(locks, &scheduler.Config{
		Scope:  scope,
		Node:   name,
		Logger: slog.New(slog.DiscardHandler),
		Observe: func(e scheduler.Event) {
			if e.Kind != scheduler.Started {
				fmt.Printf("%s: %s %s, tick of %s\n", name, e.Tick.Name, e.Kind, e.Tick.At.Format(time.TimeOnly))
			}
		},
	})
	return s, func() {
		if err := errors.Join(locks.Close(context.Background()), rdb.Close()); err != nil {
			fmt.Println(name, "close:", err)
		}
	}, err
}

// node runs one of the processes, which are all alike.
func node(addr, scope, name string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, closeAll, err := newScheduler(addr, scope, name)
	if err != nil {
		return err
	}
	defer closeAll()
	err = errors.Join(
		s.Func("beat", "@every 1s", func(context.Context) error { return nil }),
		s.Func("report", "@every 5s", func(ctx context.Context) error { return report(ctx, name) }),
	)
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// report takes three seconds, and stops when ctx ends.
func report(ctx context.Context, name string) error {
	for _, part := range []string{"begun", "half done"} {
		lock, _ := joblock.FromContext(ctx)
		fmt.Printf("%s: report %s, fence %d\n", name, part, lock.Fence())
		select {
		case <-time.After(1500 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// show prints what the ledgers say. Any process can: it needs the store and the scope.
func show(ctx context.Context, out io.Writer, addr, scope string) error {
	s, closeAll, err := newScheduler(addr, scope, "show")
	if err != nil {
		return err
	}
	defer closeAll()
	for _, name := range []string{"beat", "report"} {
		e, err := admin.Of(s).Entry(ctx, name)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s (%s): done %d, taken over %d, skipped %d; next at %s\n", e.Name, e.Spec, e.Counts.Done,
			e.Counts.TakenOver, e.Counts.Missed+e.Counts.Overlapped, e.Next.Format(time.TimeOnly))
		for _, r := range append([]admin.Execution{e.Latest}, e.History...) {
			fmt.Fprintf(out, "  tick of %s on %s: %s %s\n", r.Tick.At.Format(time.TimeOnly), r.Node, r.State, r.Duration())
		}
	}
	return nil
}
