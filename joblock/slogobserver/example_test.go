package slogobserver_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/slogobserver"
)

func ExampleNew() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			switch a.Key { // what differs from run to run
			case slog.TimeKey, "owner", "fence", "held":
				return slog.Attr{}
			}
			return a
		},
	}))
	store := memstore.New(&memstore.Config{Silent: true}) // in your program: redisstore.New(rdb, nil)
	locks, err := joblock.New(store, &joblock.Config{
		Holder:   "web-1",
		Observer: slogobserver.New(logger, nil),
		Logger:   slog.New(slog.DiscardHandler), // or losses are logged twice
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	lock, err := locks.TryAcquire(ctx, "export:acct-7")
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := lock.Release(ctx, joblock.Reason("nothing to export")); err != nil {
		fmt.Println(err)
	}
	if _, err := locks.TryAcquire(ctx, "rollup"); err != nil {
		fmt.Println(err)
	}
	if err := locks.Close(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// level=DEBUG msg="joblock: acquired" key=export:acct-7 holder=web-1
	// level=DEBUG msg="joblock: released" key=export:acct-7 holder=web-1 reason="nothing to export"
	// level=DEBUG msg="joblock: acquired" key=rollup holder=web-1
	// level=WARN msg="joblock: lost" key=rollup holder=web-1 err="joblock: \"rollup\": lock lost: its Locker was closed"
}
