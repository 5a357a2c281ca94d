package examples_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/journal"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/joblock/slogobserver"
	"github.com/joblock/toolkit/scheduler"
)

// A process that writes down what happens to its locks and cron jobs. docs/monitoring.md quotes it.
func Example_journal() {
	embedded := miniredis.NewMiniRedis()
	if err := embedded.Start(); err != nil {
		panic(err)
	}
	defer embedded.Close()
	rdb := redis.NewClient(&redis.Options{Addr: embedded.Addr()})
	defer rdb.Close()
	ctx, logger := context.Background(), slog.New(slog.DiscardHandler)

	events := must(journal.New(rdb, nil))
	locks := must(joblock.New(must(redisstore.New(rdb, nil)), &joblock.Config{
		Observer: event.Observers(events.Observe, slogobserver.New(logger, nil)),
	}))
	cron := must(scheduler.New(locks, &scheduler.Config{Scope: "shop", Observe: events.ObserveCron("shop")}))

	_ = cron
	lock := must(locks.TryAcquire(ctx, joblock.Key("export", "acct-7")))
	if err := locks.ForceRelease(ctx, lock.Key(), joblock.Reason("stuck")); err != nil {
		panic(err)
	}

	// At the end of the process, close the journal last: it writes the remaining events.
	err := locks.Close(ctx)
	err = events.Close(ctx)

	fmt.Println(err, rdb.XLen(ctx, "joblock:%events").Val() > 0)
	// Output: <nil> true
}
