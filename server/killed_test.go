package server

import (
	"cmp"
	"context"
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
	locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{CallTimeout: hang})
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
		if st.Locked() && st.Lease > ttl {
			t.Errorf("%s has %s left of a lease of %s", st.Key, st.Lease, ttl)
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

// A server is killed when Redis has carried a call out, and before the answer is sent. The same call at another server
// finds what was done. An acquire without an Idempotency-Key is a new call: the key stays without a holder for at most a lease.
func TestKilledBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	redisServer := redistest.Start(t)
	rdb := redisServer.Client(t)
	locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{CallTimeout: hang})
	testkit.WantNil(t, "New", err)
	t.Cleanup(func() { testkit.WantNil(t, "Close", locks.Close(context.Background())) })
	other := startProcess(t, plan{Redis: redisServer.Addr()})
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	token := "" // load the scripts
	for _, verb := range []string{"acquire", "renew", "park", "resume", "release"} {
		body := object{"token": token}
		if verb == "acquire" {
			body = object{"key": "warm"}
		}
		status, o, err := ask(t.Context(), client, other.url()+"/v1/"+verb, body)
		if err != nil || status != http.StatusOK {
			t.Fatalf("%s: %d %v, %v", verb, status, o, err)
		}
		token = cmp.Or(o.text("token"), token)
	}
	const ttl = 2 * time.Second
	for _, c := range []struct {
		verb       string
		repeatable bool
		state      joblock.State // after the call that was killed
	}{
		{"acquire", true, joblock.StateHeld}, {"acquire", false, joblock.StateHeld}, {"renew", false, joblock.StateHeld},
		{"park", false, joblock.StateParked}, {"resume", true, joblock.StateHeld}, {"release", false, joblock.StateFree},
	} {
		t.Run(fmt.Sprintf("%s, with an Idempotency-Key: %t", c.verb, c.repeatable), func(t *testing.T) {
			t.Parallel()
			proxy := redistest.NewProxy(t, redisServer.Addr())
			killed := startProcess(t, plan{Redis: proxy.Addr()})
			key := fmt.Sprintf("killed:%s:%t", c.verb, c.repeatable)
			send := func(url, verb string, body object, header ...string) (int, object) {
				status, o, err := ask(t.Context(), client, url+"/v1/"+verb, body, header...)
				if err != nil {
					return 0, nil
				}
				return status, o
			}
			var before object
			body := object{"key": key, "ttl_ms": ttl.Milliseconds()}
			if c.verb != "acquire" {
				_, before = send(other.url(), "acquire", object{"key": key, "ttl_ms": 60_000})
				body = object{"token": before.text("token")}
			}
			if c.verb == "resume" {
				_, before = send(other.url(), "park", body)
				body = object{"token": before.text("token")}
			}
			var header []string
			if c.repeatable {
				header = []string{"Idempotency-Key", key}
			}
			n := 0
			done := proxy.Once(redistest.All(redistest.Named("evalsha"), redistest.Mentioning(key), func(redistest.Command) bool {
				n++
				return n > 1 || c.verb != "acquire" || !c.repeatable // which looks first
			}), redistest.SwallowReply())
			answered := make(chan int, 1)
			go func() {
				status, _ := send(killed.url(), c.verb, body, header...)
				answered <- status
			}()
			select {
			case <-done.Ran():
			case status := <-answered:
				t.Fatalf("%d before the kill", status)
			}
			killed.kill()
			if status := <-answered; status != 0 {
				t.Errorf("%d, want no answer", status)
			}
			sts, err := locks.Status(t.Context(), key)
			testkit.WantNil(t, "Status", err)
			st := sts[0]
			if st.State != c.state { // the scripts are known to Redis
				t.Fatalf("%+v, want %s", st, c.state)
			}
			if c.verb == "acquire" && st.Lease > ttl {
				t.Errorf("the lock is without a holder for %s, and the lease is %s", st.Lease, ttl)
			}
			status, o := send(other.url(), c.verb, body, header...)
			if c.verb == "acquire" && !c.repeatable {
				if status != http.StatusConflict {
					t.Errorf("another acquire: %d %v", status, o)
				}
				body["wait_ms"] = 60_000
				if status, o = send(other.url(), c.verb, body); status != http.StatusOK || o.number("fence") <= st.Fence {
					t.Errorf("an acquire that waits: %d %v, after fence %d", status, o, st.Fence)
				}
				return
			}
			if status != http.StatusOK || c.state == joblock.StateHeld && o.number("fence") != st.Fence {
				t.Errorf("the call again: %d %v, want fence %d", status, o, st.Fence)
			}
			if c.state == joblock.StateHeld {
				token := o.text("token")
				if c.verb == "renew" {
					token = before.text("token")
				}
				if status, o := send(other.url(), "release", object{"token": token}); status != http.StatusOK || o.flag("already") {
					t.Errorf("release: %d %v", status, o)
				}
			}
		})
	}
}
