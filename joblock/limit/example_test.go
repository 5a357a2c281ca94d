package limit_test

import (
	"context"
	"fmt"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/joblock/memstore"
)

// At most two at a time call the service, whichever process they are in.
func Example() {
	ctx := context.Background()
	locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close(ctx)

	geocoder := limit.New(locks, 2)
	call := func(ctx context.Context) error {
		st, err := geocoder.Status(ctx, "geocoder")
		fmt.Println(st.Taken, "of", st.Limit)
		return err
	}
	fmt.Println(geocoder.Do(ctx, "geocoder", func(context.Context) error {
		return geocoder.Do(ctx, "geocoder", call) // with the outer ctx, as another caller
	}))
	// Output:
	// 2 of 2
	// <nil>
}
