package redisstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// What a server answers that cannot serve the call now: while it loads its data, after
// it became a replica, in a cluster that is broken or moves slots, and so on.
var notNow = []string{
	"LOADING Redis is loading the dataset in memory",
	"READONLY You can't write against a read only replica.",
	"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
	"CLUSTERDOWN The cluster is down",
	"TRYAGAIN Multiple keys request during rehashing of slot",
	"NOREPLICAS Not enough good replicas to write.",
	"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
	"OOM command not allowed when used memory > 'maxmemory'.",
	"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
	"ERR max number of clients reached",
}

// Such an answer says nothing about the lock: no call takes it for a refusal, and a
// lock that is held, one that is waited for and one that is to be released go on when
// the server serves again.
func TestAnswersOfAServerThatCannotServe(t *testing.T) {
	t.Parallel()
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	proxy := redistest.NewProxy(t, db.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), DB: db.Number(), MaxRetryBackoff: time.Millisecond})
	t.Cleanup(func() { rdb.Close() })
	// With so long a lease it is no lease's end that helps.
	locks, others := newLocker(t, rdb, &joblock.Config{TTL: time.Hour}), newLocker(t, db.Client(t), nil)
	scripts := redistest.Named("evalsha", "eval")
	for _, text := range notNow {
		name, _, _ := strings.Cut(strings.TrimPrefix(text, "ERR "), " ")
		t.Run(name, func(t *testing.T) {
			held, err := locks.TryAcquire(t.Context(), name+" held")
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := held.Context(t.Context())
			defer stop()

			fault := proxy.Always(scripts, redistest.Fail(text))
			_, err = locks.TryAcquire(t.Context(), name+" free")
			wantUnavailable(t, "TryAcquire", err, name)
			for range 10 { // as with renew, it may be the time that was up
				if err = held.Renew(t.Context()); err != nil && strings.Contains(err.Error(), name) {
					break
				}
			}
			wantUnavailable(t, "Renew", err, name)
			_, err = held.Park(t.Context())
			wantUnavailable(t, "Park", err, name)
			_, err = testkit.One(locks.Status(t.Context(), name+" held"))
			wantUnavailable(t, "Status", err, name)
			if err := held.Err(); err != nil || ctx.Err() != nil {
				t.Errorf("held: %v, %v", err, ctx.Err())
			}
			if fault.Hits() < 4 {
				t.Errorf("the answer was given %d times", fault.Hits())
			}
			proxy.Heal()
			if err := renew(held); err != nil {
				t.Errorf("renew: %v", err)
			}

			// The wait begins before the server serves again.
			waits := proxy.Times(5, redistest.All(scripts, redistest.Mentioning("waited")), redistest.Fail(text))
			waited, err := locks.Acquire(t.Context(), name+" waited", joblock.MaxWait(time.Minute))
			if err != nil || waits.Hits() != 5 {
				t.Fatalf("acquire after %d answers: %v", waits.Hits(), err)
			}
			// The release is repeated until it is answered.
			ends := proxy.Times(5, redistest.All(scripts, redistest.Mentioning("waited")), redistest.Fail(text))
			if err := waited.Release(t.Context()); err != nil {
				wantUnavailable(t, "Release", err, name)
			}
			next, err := others.Acquire(t.Context(), name+" waited", joblock.MaxWait(time.Minute))
			if err != nil {
				t.Fatalf("the next, %d answers later: %v", ends.Hits(), err)
			}
			if ends.Hits() != 5 || next.Fence() <= waited.Fence() {
				t.Errorf("%d answers until the release; fence %d after %d", ends.Hits(), next.Fence(), waited.Fence())
			}
			if err := errors.Join(held.Release(t.Context()), next.Release(t.Context())); err != nil {
				t.Errorf("release: %v", err)
			}
		})
	}
}
