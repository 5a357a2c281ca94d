package redisstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/redisstore"
)

func Example() {
	server, err := miniredis.Run() // stands for a Redis
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()

	store, err := redisstore.New(rdb, &redisstore.Config{Prefix: "shop:lock:"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()

	// A Locker makes these calls; an application only hands the store to it.
	ctx := context.Background()
	for _, owner := range []string{"alice", "bob"} {
		reply, err := store.Acquire(ctx, driver.AcquireRequest{
			Key: "export:7", Owner: owner, Nonce: owner + " 1", Holder: owner + "'s host",
			TTL: 30 * time.Second, Retain: 5 * time.Minute,
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		if reply.Outcome == driver.OutcomeHeld {
			fmt.Println(owner, "has to wait for", reply.Holder)
		} else {
			fmt.Println(owner, "has it")
		}
	}
	fmt.Println("kept at", server.Keys())
	// Output:
	// alice has it
	// bob has to wait for alice's host
	// kept at [shop:lock:export:7]
}

func ExampleCheck() {
	server, err := miniredis.Run() // stands for a Redis
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()

	store, err := redisstore.New(rdb, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	report, err := redisstore.Check(context.Background(), store)
	if err != nil {
		fmt.Println("cannot look:", err)
		return
	}
	for _, f := range report {
		if f.Severity != redisstore.Well {
			fmt.Println(f.Severity, f.Subject) // f also says what it means and what to change
		}
	}
	fmt.Println("fit for locks:", report.Err() == nil)
	// Output:
	// note persistence
	// fit for locks: true
}
