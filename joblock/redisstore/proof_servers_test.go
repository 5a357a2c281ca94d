//go:build servers

package redisstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

// In a cluster the node with the seal keys may be away while those with the locks answer. Then pushes carry no grant,
// but neither a release nor a wait is held up.
func TestSealKeysThatDoNotAnswerHoldUpNothing(t *testing.T) {
	srv := redistest.Start(t)
	redistest.Ran(t, srv.Backend())
	proxy := redistest.NewProxy(t, srv.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
	t.Cleanup(func() { rdb.Close() })
	k := newKit(t, rdb)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	hung := proxy.Times(1<<30, redistest.Mentioning(k.sealKeys()), redistest.SwallowReply())
	defer hung.Disarm()
	k.passesOn.Store(true)
	term := k.acquire("key")
	pushes, _ := k.waitOf(t, "key", "inbox", "waits")
	rs, err := k.Release(ctx, []driver.ReleaseRequest{k.release(term)})
	wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
	if p := pushed(t, pushes); p.Nonce != "waits" {
		t.Errorf("pushed %+v", p)
	}
	<-hung.Struck()
}

// A subscription whose connection breaks, and one whose server was away, hear the next pushes again.
func TestSubscriptionsComeBack(t *testing.T) {
	k := newOwnKit(t)
	ctx := context.Background()
	pushes := make(chan driver.Push, 100)
	stop, err := k.Subscribe(ctx, "inbox", func(p driver.Push) { pushes <- p })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	for i := range 3 {
		if err := k.rdb.Do(ctx, "CLIENT", "KILL", "TYPE", "pubsub").Err(); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprint("nonce ", i)
		for end := time.Now().Add(10 * time.Second); k.rdb.Publish(ctx, k.channel("inbox"), want).Val() == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("no waiter listens any more")
			}
		}
		if p := pushed(t, pushes); p.Nonce != want {
			t.Errorf("pushed %q, want %q", p.Nonce, want)
		}
	}
	stop()
	if k.rdb.Publish(ctx, k.channel("inbox"), "late"); len(pushes) > 0 {
		t.Errorf("%d pushes after the end", len(pushes))
	}
}
