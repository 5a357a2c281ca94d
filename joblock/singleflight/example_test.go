package singleflight_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/singleflight"
)

// Ten requests want the same exchange rates at the same time, in any number of
// processes. One of them fetches, and all have the answer.
func ExampleDo() {
	ctx := context.Background()
	locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close(ctx)

	type Rates struct{ USD float64 }
	fetch := func(ctx context.Context) (Rates, error) {
		fmt.Println("fetching")
		return Rates{USD: 1.08}, nil
	}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			rates, err := singleflight.Do(ctx, locks, "rates:eur", time.Minute, fetch)
			if err != nil || rates.USD != 1.08 {
				fmt.Println(rates, err)
			}
		})
	}
	wg.Wait()
	// Output: fetching
}

// An access token knows for how long it is good. It is renewed a minute early.
func ExampleDoFunc() {
	ctx := context.Background()
	locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close(ctx)

	type Access struct {
		Bearer  string
		Expires time.Time
	}
	login := func(ctx context.Context) (Access, error) {
		return Access{Bearer: "s3cret", Expires: time.Now().Add(time.Hour)}, nil
	}
	goodFor := func(a Access) time.Duration { return time.Until(a.Expires) - time.Minute }
	access, err := singleflight.DoFunc(ctx, locks, "access:partner", goodFor, login)
	fmt.Println(access.Bearer, err)
	// Output: s3cret <nil>
}
