package fallback_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/fallback"
	"github.com/joblock/toolkit/joblock/memstore"
)

// An import may run twice, so it goes on while the store is away.
func ExampleLocker_Do() {
	ctx := context.Background()
	store := faultstore.New(memstore.New(&memstore.Config{Silent: true})) // a store that can go away
	locks, err := joblock.New(store, &joblock.Config{
		CallTimeout: 50 * time.Millisecond,
		Logger:      slog.New(slog.DiscardHandler),
		Observer: func(e event.Event) {
			if e.Kind == event.FellBack {
				fmt.Println(e.Key, e.Kind)
			}
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close(ctx)
	guarded, err := fallback.New(locks, &fallback.Config{Away: fallback.Warn, Overrun: 10 * time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer guarded.Close(ctx)

	runImport := func(ctx context.Context) error {
		lock, _ := joblock.FromContext(ctx)
		fmt.Println("local:", fallback.Local(lock))
		return nil
	}
	fmt.Println(guarded.Do(ctx, "import:42", runImport))
	store.Set(faultstore.Fault{}, faultstore.Acquire)
	fmt.Println(guarded.Do(ctx, "import:42", runImport))
	store.Clear()
	// Output:
	// local: false
	// <nil>
	// import:42 fell back
	// local: true
	// <nil>
}
