package measure

import (
	"context"
	"sync"
)

// parallel runs f for every i below n on so many goroutines, goroutine g taking
// every i that leaves g when divided by their number. It returns one of the
// errors; the first one cancels the context of the others.
func parallel(ctx context.Context, goroutines, n int, f func(ctx context.Context, g, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := g; i < n && ctx.Err() == nil; i += goroutines {
				if err := f(ctx, g, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}
