// Command lock runs work that only one process may do at a time. docs/locks.md shows it.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, "localhost:6379", migrate); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, addr string, work func(context.Context) error) (err error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	store, err := redisstore.New(rdb, nil)
	if err != nil {
		return err
	}
	locks, err := joblock.New(store, nil) // one per process
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, locks.Close(context.WithoutCancel(ctx))) }() // before rdb is closed

	// Longer than one lease, so waiting behind a dead holder still succeeds.
	return locks.Do(ctx, "migrate", work, joblock.MaxWait(time.Minute))
}

// migrate returns when ctx ends: on a signal, or with cause joblock.ErrLost if the lock was lost.
func migrate(ctx context.Context) error {
	lock, _ := joblock.FromContext(ctx)
	log.Printf("migrating under fence %d", lock.Fence())
	select {
	case <-time.After(3 * time.Second):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
