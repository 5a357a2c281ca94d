package server

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// A server process is killed. The locks of its streams are free when their leases are over, and not before their clients
// have stopped relying on them. The locks that were taken by acquire stay with their tokens, at another process.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	const (
		many = 20
		ttl  = 3 * time.Second
	)
	redisServer := redistest.Start(t)
	rdb := redis.NewClient(&redis.Options{Addr: redisServer.Addr()})
	defer rdb.Close()
	locks, err := joblock.New(redisstore.New(rdb, nil), &joblock.Config{CallTimeout: hang})
	testkit.WantNil(t, "New", err)
	defer func() { testkit.WantNil(t, "Close", locks.Close(t.Context())) }()
	killed, other := startProcess(t, plan{Redis: redisServer.Addr()}), startProcess(t, plan{Redis: redisServer.Addr()})
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()

	tokens, fences := make([]string, many), make([]int64, many)
	for i := range many {
		status, o, err := ask(t.Context(), client, killed.url()+"/v1/acquire", object{"key": fmt.Sprint("acquired:", i), "ttl_ms": 600_000})
		if err != nil || status != http.StatusOK {
			t.Fatalf("%d %v, %v", status, o, err)
		}
		tokens[i], fences[i] = o.text("token"), o.number("fence")
	}
	streams, keys := make([]*stream1, many), make([]string, many)
	for i := range many {
		keys[i] = fmt.Sprint("stream:", i)
		streams[i] = openStream(t, killed.addr(), object{"key": keys[i], "ttl_ms": ttl.Milliseconds()})
		streams[i].until("lock-acquired")
	}
	var watching sync.WaitGroup
	for _, s := range streams {
		watching.Go(s.watch)
	}
	for _, s := range streams {
		<-s.pinged
	}
	killed.kill()
	at := time.Now()
	sts, err := locks.Status(t.Context(), keys...)
	testkit.WantNil(t, "Status", err)
	for _, st := range sts { // by the clock of the store, so that a busy machine does not matter
		if st.Locked() && st.Remaining > ttl {
			t.Errorf("%s has %s left of a lease of %s", st.Key, st.Remaining, ttl)
		}
	}
	watching.Wait()
	var waiting sync.WaitGroup
	var mu sync.Mutex
	var last time.Duration
	for i := range many {
		waiting.Go(func() {
			status, o, err := ask(t.Context(), client, other.url()+"/v1/acquire", object{"key": keys[i], "wait_ms": 60_000, "ttl_ms": 600_000})
			if err != nil || status != http.StatusOK {
				t.Errorf("%s: %d %v, %v", keys[i], status, o, err)
				return
			}
			if now := time.Now(); now.Before(streams[i].trust) {
				t.Errorf("%s was granted %s before its client stops relying on it", keys[i], streams[i].trust.Sub(now))
			}
			if o.number("fence") <= streams[i].fence {
				t.Errorf("%s: the fence %d after %d", keys[i], o.number("fence"), streams[i].fence)
			}
			mu.Lock()
			defer mu.Unlock()
			last = max(last, time.Since(at))
		})
	}
	waiting.Wait()
	t.Logf("all locks of %d streams have other holders %s after the kill; their TTL is %s", many, last.Round(time.Millisecond), ttl)
	for i, token := range tokens {
		status, o, err := ask(t.Context(), client, other.url()+"/v1/acquire", object{"key": fmt.Sprint("acquired:", i)})
		if err != nil || status != http.StatusConflict {
			t.Errorf("%d %v, %v", status, o, err)
		}
		status, o, err = ask(t.Context(), client, other.url()+"/v1/renew", object{"token": token})
		if err != nil || status != http.StatusOK || o.number("fence") != fences[i] {
			t.Errorf("%d %v, %v", status, o, err)
		}
		if status, o, err = ask(t.Context(), client, other.url()+"/v1/release", object{"token": token}); err != nil || status != http.StatusOK {
			t.Errorf("%d %v, %v", status, o, err)
		}
	}
	for _, s := range streams {
		s.close()
	}
}
