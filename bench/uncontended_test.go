//go:build servers

package bench

import (
	"fmt"
	"sync"
	"testing"

	"github.com/joblock/toolkit/internal/redistest"
)

// BenchmarkUncontended acquires and releases locks without contention. Used keys were locked before, and the store
// still remembers that. The floor is SET NX PX and a compare-and-delete script, without a fence, a renewal, or a record
// that the lock was there.
func BenchmarkUncontended(b *testing.B) {
	server := redistest.Start(b)
	admin := server.Client(b)
	var made int // keys
	for _, goroutines := range []int{1, 32} {
		for _, use := range []string{"used", "fresh"} {
			for _, name := range inAnyOrder("floor", "joblock", "redislock", "redsync", "rueidislock") {
				b.Run(fmt.Sprintf("goroutines=%d/keys=%s/lib=%s", goroutines, use, name), func(b *testing.B) {
					flush(b, admin)
					w := new(wire)
					ctx := bounded(b)
					p := open(b, name, seat{Addr: server.Addr(), wire: w})
					pair := func(key string) {
						h, err := p.Acquire(ctx, key)
						if err == nil {
							err = h.Release(ctx)
						}
						if err != nil {
							b.Error(err)
						}
					}
					warm := keysOf("warm", 1024) // connects, and loads scripts
					inParallel(goroutines, len(warm), func(i int) { pair(warm[i]) })
					keys := warm
					if use == "fresh" {
						made += b.N
						keys = keysOf(fmt.Sprint("fresh:", made), b.N)
					}
					m := newMeter(b, w, admin)
					m.start()
					inParallel(goroutines, b.N, func(i int) { pair(keys[i%len(keys)]) })
					m.stop(b.N)
				})
			}
		}
	}
}

// inParallel calls do with each number below n, on so many goroutines. Each goroutine has the numbers of one remainder, so
// its keys are its own if the number of keys is a multiple of goroutines: a goroutine that is held up meets no other.
func inParallel(goroutines, n int, do func(i int)) {
	var running sync.WaitGroup
	for first := range goroutines {
		running.Go(func() {
			for i := first; i < n; i += goroutines {
				do(i)
			}
		})
	}
	running.Wait()
}

// keysOf returns n keys.
func keysOf(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s:%d", prefix, i)
	}
	return keys
}
