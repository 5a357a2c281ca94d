package otelobserver_test

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/otelobserver"
)

func ExampleNew() {
	metrics, err := otelobserver.New(otel.GetMeterProvider(), &otelobserver.Config{
		KeyGroup: otelobserver.FirstPart, // "export" of "export:acct-7"
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	store := memstore.New(&memstore.Config{Silent: true}) // in your program: redisstore.New(rdb, nil)
	locks, err := joblock.New(store, &joblock.Config{Observer: metrics})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(locks.Close(context.Background()))
	// Output: <nil>
}
