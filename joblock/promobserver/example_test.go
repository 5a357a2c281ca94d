package promobserver_test

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/promobserver"
)

func ExampleNew() {
	registry := prometheus.NewRegistry() // in your program: prometheus.DefaultRegisterer
	metrics, err := promobserver.New(registry, &promobserver.Config{
		KeyGroup: promobserver.FirstPart, // "export" of "export:acct-7"
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
