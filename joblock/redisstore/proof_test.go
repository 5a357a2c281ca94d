package redisstore

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

// waitOf asks for a key that is held, and returns what is pushed.
func (k *kit) waitOf(t *testing.T, key, inbox, nonce string) (pushes chan driver.Push, held driver.Reply) {
	t.Helper()
	ctx := context.Background()
	pushes = make(chan driver.Push, 10)
	stop, err := k.Subscribe(ctx, inbox, func(p driver.Push) { pushes <- p })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	held, err = k.Acquire(ctx, driver.AcquireRequest{Key: key, Owner: "next", Nonce: nonce, TTL: long, Retain: long, Inbox: inbox, Patience: long})
	wantOutcome(t, "wait", held, err, driver.OutcomeHeld)
	return pushes, held
}

// awaitProofs waits until the Store has read the seal keys.
func (k *kit) awaitProofs(t *testing.T) {
	t.Helper()
	for k.proofs.key() == "" {
		time.Sleep(time.Millisecond)
	}
}

func pushed(t *testing.T, pushes chan driver.Push) driver.Push {
	t.Helper()
	select {
	case p := <-pushes:
		return p
	case <-t.Context().Done():
		t.Fatal("nothing was pushed")
		return driver.Push{}
	}
}

// A push from another Store has its grant from the second one on: the first shows the
// releasing Store that a caller waits.
func TestPushesCarryTheirGrantWithAProof(t *testing.T) {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	cfg := &Config{Prefix: "pushes:"} // channels belong to the whole server, and the test listens to all of the prefix
	k := newKitWith(t, db.Client(t), cfg)
	releaser := newKitWith(t, k.rdb, cfg)
	releaser.n.Store(1000)
	ctx := context.Background()
	heard := k.rdb.PSubscribe(ctx, k.channel("*"))
	defer heard.Close()
	if _, err := heard.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		key, nonce := fmt.Sprint("key ", i), fmt.Sprint("waits ", i)
		term := releaser.acquire(key)
		pushes, held := k.waitOf(t, key, fmt.Sprint("inbox ", i), nonce)
		k.awaitProofs(t)
		if i > 0 {
			releaser.awaitProofs(t)
		}
		if held.Fence != term.Fence {
			t.Errorf("held under fence %d, want %d", held.Fence, term.Fence)
		}
		rs, err := releaser.Release(ctx, []driver.ReleaseRequest{releaser.release(term)})
		wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
		p := pushed(t, pushes)
		if p.Nonce != nonce || (p.Grant != nil) != (i > 0) {
			t.Fatalf("push %d is %+v, want one with a grant: %t", i, p, i > 0)
		}
		recs, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{key}})
		if err != nil || p.Grant != nil && (*p.Grant != driver.Grant{Fence: recs[0].Fence, Ended: driver.EndedReleased}) {
			t.Errorf("grant %+v of the record %+v, %v", p.Grant, recs[0], err)
		}

		// Another text, or the same under another nonce, announces no grant.
		m, err := heard.ReceiveMessage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(m.Payload, "next") {
			t.Errorf("%q shows the owner", m.Payload)
		}
		lines := strings.Split(m.Payload, "\n")
		if i == 0 {
			continue
		}
		for what, forged := range map[string]string{
			"another nonce":    strings.Replace(m.Payload, nonce, "waits 9", 1),
			"a larger fence":   strings.Replace(m.Payload, lines[1], lines[1][:15]+"x", 1),
			"another end":      strings.Replace(m.Payload, "\nR\n", "\nF\n", 1),
			"no proof":         strings.Join(lines[:3], "\n"),
			"an empty proof":   strings.Join(lines[:3], "\n") + "\n",
			"another proof":    strings.Join(lines[:3], "\n") + "\n" + strings.Repeat("0", 40),
			"a proof alone":    "\n" + lines[3],
			"a nonce alone":    nonce,
			"a proof too many": m.Payload + "\n" + lines[3],
		} {
			if got, ok := k.parseGrant(forged); !ok || got.Grant != nil {
				t.Errorf("%s: %q is the push %+v", what, forged, got)
			}
		}
	}
}

// Within a Store nothing is published: the reply of the release has the grant.
func TestHandOverWithinAStoreIsInTheReply(t *testing.T) {
	onBoth(t, func(t *testing.T, k *kit) {
		ctx := context.Background()
		k = newKitWith(t, k.rdb, &Config{Prefix: "hand over:"}) // the channels of other prefixes are other tests'
		heard := k.rdb.PSubscribe(ctx, k.channel("*"))
		defer heard.Close()
		if _, err := heard.Receive(ctx); err != nil {
			t.Fatal(err)
		}
		term := k.acquire("key")
		pushes, _ := k.waitOf(t, "key", "inbox", "waits")
		rs, err := k.Release(ctx, []driver.ReleaseRequest{k.release(term)})
		wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
		select {
		case p := <-pushes:
			if p.Nonce != "waits" || p.Grant == nil || p.Grant.Fence <= term.Fence || p.Grant.Ended != driver.EndedReleased {
				t.Errorf("push %+v with %+v after fence %d", p, p.Grant, term.Fence)
			}
		default:
			t.Fatal("the waiter was not notified before the release returned")
		}
		// What comes next is what the test publishes.
		if err := k.rdb.Publish(ctx, k.channel("end"), "").Err(); err != nil {
			t.Fatal(err)
		}
		if m, err := heard.ReceiveMessage(ctx); err != nil || m.Channel != k.channel("end") {
			t.Errorf("published: %v, %v", m, err)
		}
	})
}

// A release of a caller that starts jobs says so after the key for proofs. Without such a key, the push has no proof, and
// the Store learns from the answer to fetch its keys.
func TestReleaseOfACallerThatStartsJobsMeetsAWaiter(t *testing.T) {
	k := newRealKit(t)
	releaser := newKit(t, k.rdb)
	releaser.fast = true
	term := releaser.acquire("key")
	nonce := fastName("waits")
	pushes, _ := k.waitOf(t, "key", "inbox", nonce)
	req := releaser.release(term)
	req.Starts = true
	rs, err := releaser.Release(context.Background(), []driver.ReleaseRequest{req})
	wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
	if p := pushed(t, pushes); p.Nonce != nonce || p.Grant != nil {
		t.Errorf("push %+v, want %q alone", p, nonce)
	}
	if !releaser.passesOn.Load() {
		t.Error("the Store does not know that it has met a waiter: it never proves a grant")
	}
}

// A Store that may not read the seal keys pushes without a grant, and all else works.
func TestWithoutSealKeysPushesCarryNoGrant(t *testing.T) {
	k := newRealKit(t)
	ctx := context.Background()
	if err := k.rdb.Set(ctx, k.sealKeys(), "no set", 0).Err(); err != nil {
		t.Fatal(err)
	}
	releaser := newKit(t, k.rdb)
	releaser.n.Store(1000)
	for i := range 2 {
		key, nonce := fmt.Sprint("key ", i), fmt.Sprint("waits ", i)
		term := releaser.acquire(key)
		pushes, _ := k.waitOf(t, key, fmt.Sprint("inbox ", i), nonce)
		rs, err := releaser.Release(ctx, []driver.ReleaseRequest{releaser.release(term)})
		wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
		if p := pushed(t, pushes); p.Nonce != nonce || p.Grant != nil {
			t.Errorf("push %+v, want %q alone", p, nonce)
		}
	}
}

// A subscription whose connection breaks hears the next pushes again.
func TestBrokenSubscriptionsComeBack(t *testing.T) {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	proxy := redistest.NewProxy(t, db.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), DB: db.Number()})
	t.Cleanup(func() { rdb.Close() })
	k := newKitWith(t, rdb, &Config{Prefix: "broken:"})
	other, ctx := db.Client(t), t.Context()
	pushes := make(chan driver.Push, 100)
	stop, err := k.Subscribe(ctx, "inbox", func(p driver.Push) { pushes <- p })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	for i := range 2 {
		again := proxy.Times(1<<30, redistest.Named("SUBSCRIBE"), redistest.Pass())
		proxy.Cut()
		<-again.Struck()
		again.Disarm()
		want := fmt.Sprint("nonce ", i)
		for other.Publish(ctx, k.channel("inbox"), want).Val() == 0 {
			time.Sleep(time.Millisecond)
		}
		if p := pushed(t, pushes); p.Nonce != want {
			t.Errorf("pushed %q, want %q", p.Nonce, want)
		}
	}
	stop()
	if other.Publish(ctx, k.channel("inbox"), "late"); len(pushes) > 0 {
		t.Errorf("%d pushes after the end", len(pushes))
	}
}
