//go:build servers && unix

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// What a Locker's clean-up costs after a great many calls that ended without the lock:
// processor time of this process from the end of the load on, and how long it takes.
// Run them with -benchtime=1x.

// BenchmarkCleanUpAfterShortWaits has many wait for a busy key for a moment each.
func BenchmarkCleanUpAfterShortWaits(b *testing.B) {
	srv := redistest.Start(b)
	locks := benchLocker(b, srv)
	ctx := b.Context()
	holder := benchLocker(b, srv)
	if _, err := holder.TryAcquire(ctx, "key"); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		var wg sync.WaitGroup
		begin, calls := cpuTime(), make([]int, 300)
		for i := range calls {
			rnd := rand.New(rand.NewPCG(7, uint64(i)))
			wg.Go(func() {
				for end := time.Now().Add(10 * time.Second); time.Now().Before(end); calls[i]++ {
					wait := time.Millisecond * time.Duration(1+rnd.IntN(30))
					if _, err := locks.Acquire(ctx, "key", joblock.MaxWait(wait)); err == nil || errors.Is(err, joblock.ErrClosed) {
						b.Errorf("Acquire of a busy key returned %v", err)
					}
				}
			})
		}
		wg.Wait()
		st, err := testkit.One(holder.Status(ctx, "key"))
		if err != nil {
			b.Fatal(err)
		}
		all := 0
		for _, n := range calls {
			all += n
		}
		b.ReportMetric(float64(all), "calls")
		b.ReportMetric((cpuTime() - begin).Seconds(), "load-cpu-s")
		b.ReportMetric(float64(st.Waiters), "left-behind")
		measureCleanUp(b, func() bool {
			st, err := testkit.One(holder.Status(ctx, "key"))
			return err == nil && st.Waiters == 0
		})
	}
}

// BenchmarkCleanUpAfterAFreeze has many calls without an answer while the server stands
// still.
func BenchmarkCleanUpAfterAFreeze(b *testing.B) {
	srv := redistest.Start(b)
	locks := benchLocker(b, srv)
	ctx := b.Context()
	if _, err := locks.TryAcquire(ctx, "warm"); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		srv.Stop()
		var wg sync.WaitGroup
		thaw := time.AfterFunc(4*time.Second, srv.Cont)
		for i := range 20000 {
			wg.Go(func() {
				bounded, cancel := context.WithTimeout(ctx, 3*time.Second)
				defer cancel()
				_, _ = locks.TryAcquire(bounded, fmt.Sprint("key-", i))
			})
		}
		wg.Wait()
		thaw.Stop()
		srv.Cont()
		measureCleanUp(b, func() bool {
			for st, err := range locks.List(ctx, joblock.ListOptions{Prefix: "key-"}) {
				if err != nil || st.Locked() {
					return false
				}
			}
			return true
		})
	}
}

// measureCleanUp reports what is used until done, and until this process has come to
// rest: calls that may have been under way for long are asked for more than once.
func measureCleanUp(b *testing.B, done func() bool) {
	begin, cpu := time.Now(), cpuTime()
	for !done() {
		if time.Since(begin) > 2*time.Minute {
			b.Fatal("the clean-up does not come to an end")
		}
		time.Sleep(100 * time.Millisecond)
	}
	b.ReportMetric(time.Since(begin).Seconds(), "clean-after-s")
	for quiet := 0; quiet < 4; quiet++ {
		before := cpuTime()
		if time.Sleep(time.Second); cpuTime()-before > 20*time.Millisecond {
			quiet = -1
		}
	}
	b.ReportMetric((time.Since(begin) - 4*time.Second).Seconds(), "rest-after-s")
	b.ReportMetric((cpuTime() - cpu).Seconds(), "clean-cpu-s")
}

func benchLocker(b *testing.B, srv *redistest.Server) *joblock.Locker {
	b.Helper()
	locks, err := joblock.New(must(newStore(srv.Client(b), nil)), &joblock.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = locks.Close(ctx)
	})
	return locks
}

// cpuTime is what this process has had of the processors so far.
func cpuTime() time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		return 0
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
