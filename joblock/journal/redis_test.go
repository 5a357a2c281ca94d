package journal_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/eventlog"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/journal"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// What happens to locks on a real server comes into the stream, in order, and no owner token does. Lists and checks of
// the store do not see the stream.
func TestJournalOfALocker(t *testing.T) {
	t.Parallel()
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	rdb := db.Client(t)
	j, err := journal.New(rdb, &journal.Config{Prefix: "x:", All: true, Source: "here"})
	testkit.WantNil(t, "New", err)
	store := testkit.Must(redisstore.New(rdb, &redisstore.Config{Prefix: "x:"}))
	locks, err := joblock.New(store, &joblock.Config{Holder: "web", Observer: event.Observers(j.Observe), Logger: slog.New(slog.DiscardHandler)})
	testkit.WantNil(t, "joblock.New", err)
	ctx := t.Context()
	const owner = "S3CRET"
	lock, err := locks.TryAcquire(ctx, "key", joblock.Owner(owner))
	testkit.WantNil(t, "TryAcquire", err)
	_, refused := locks.TryAcquire(ctx, "key")
	testkit.WantErr(t, refused, joblock.ErrHeld)
	token, err := lock.Park(ctx, joblock.ForJob("q/1"))
	testkit.WantNil(t, "Park", err)
	testkit.WantNil(t, "ForceRelease", locks.ForceRelease(ctx, "key", joblock.Reason("stuck")))
	testkit.WantNil(t, "Close", j.Close(ctx))

	var kinds []string
	for _, m := range stream(t, rdb, "x:") {
		e, at, ok := eventlog.Decode(m)
		if !ok || e.Source != "here" || time.Since(at) > time.Minute || time.Until(at) > time.Minute {
			t.Errorf("%v is %+v at %s", m, e, at)
		}
		kinds = append(kinds, e.Kind)
		text, _ := token.MarshalText()
		for _, secret := range []string{owner, fmt.Sprintf("%x", owner), string(text)} {
			if strings.Contains(fmt.Sprint(m.Values), secret) {
				t.Errorf("%q is in %v", secret, m.Values)
			}
		}
	}
	if got := strings.Join(kinds, ", "); got != "acquired, contended, parked, forced" {
		t.Errorf("the journal has %s", got)
	}
	page, err := store.List(ctx, driver.ListRequest{Count: 1000})
	testkit.WantNil(t, "List", err)
	if len(page.Records) != 1 || page.Records[0].Key != "key" {
		t.Errorf("the list has %+v", page.Records)
	}
	report, err := redisstore.Check(ctx, store)
	testkit.WantNil(t, "Check", err)
	for _, f := range report {
		if strings.Contains(f.Found, "%events") {
			t.Errorf("the check finds %+v", f)
		}
	}
	testkit.WantNil(t, "Close", locks.Close(ctx))
}

// stream returns the entries of a journal.
func stream(t *testing.T, rdb redis.UniversalClient, prefix string) []redis.XMessage {
	t.Helper()
	all, err := rdb.XRange(context.Background(), prefix+eventlog.Name, "-", "+").Result()
	testkit.WantNil(t, "XRange", err)
	return all
}

// The stream does not grow beyond its length, by much.
func TestStreamIsCapped(t *testing.T) {
	t.Parallel()
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	capped(t, db.Client(t))
}

func capped(t *testing.T, rdb redis.UniversalClient) {
	j, err := journal.New(rdb, &journal.Config{Length: 100})
	testkit.WantNil(t, "New", err)
	const n = 1000
	for i := range n {
		j.Observe(event.Event{Kind: event.Forced, Key: fmt.Sprint(i)})
	}
	testkit.WantNil(t, "Close", j.Close(t.Context()))
	all := stream(t, rdb, keyspace.DefaultPrefix)
	last, _, _ := eventlog.Decode(all[len(all)-1])
	if len(all) < 100 || len(all) > 300 || last.Key != fmt.Sprint(n-1) || j.Dropped() != 0 {
		t.Errorf("%d entries, the last is %+v; dropped %d", len(all), last, j.Dropped())
	}
}

// While the server is away, events wait; when it is back, they come in order. A key of another kind is an error that
// lasts, and Close says so.
func TestServerAwayAndBack(t *testing.T) {
	t.Parallel()
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	proxy := redistest.NewProxy(t, db.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), DB: db.Number(), MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	log := &testkit.Log{}
	j, err := journal.New(rdb, &journal.Config{Logger: log.Text(), Timeout: time.Second})
	testkit.WantNil(t, "New", err)
	lost := proxy.Once(redistest.Named("xadd"), redistest.DropReply())
	j.Observe(event.Event{Kind: event.Forced, Key: "first"})
	<-lost.Struck()
	// Of the next write, the server refuses the last entry.
	refused := proxy.Once(redistest.All(redistest.Named("xadd"), redistest.Mentioning("third")), redistest.Fail("OOM no memory"))
	j.Observe(event.Event{Kind: event.Forced, Key: "second"})
	j.Observe(event.Event{Kind: event.Forced, Key: "third"})
	<-refused.Struck()
	testkit.WantNil(t, "Close", j.Close(t.Context()))
	var keys, nonces []string
	for _, m := range stream(t, rdb, keyspace.DefaultPrefix) {
		e, _, _ := eventlog.Decode(m)
		keys, nonces = append(keys, e.Key), append(nonces, e.Nonce)
	}
	// A write whose answer was lost took effect. Its entry comes twice, with the same nonce.
	if got := strings.Join(keys, " "); got != "first first second third" || nonces[0] != nonces[1] {
		t.Errorf("the journal has %s, %s", got, nonces)
	}
	if !strings.Contains(log.String(), "could not be written") {
		t.Errorf("no warning:\n%s", log)
	}

	testkit.WantNil(t, "Set", rdb.Set(t.Context(), "y:%events", "other", 0).Err())
	j, err = journal.New(rdb, &journal.Config{Prefix: "y:", Logger: log.Text()})
	testkit.WantNil(t, "New", err)
	j.Observe(event.Event{Kind: event.Forced})
	for !strings.Contains(log.String(), "WRONGTYPE") { // the warning says why
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := j.Close(ctx); !errors.Is(err, joblock.ErrUnavailable) || !strings.Contains(err.Error(), "1 events") {
		t.Errorf("Close: %v", err)
	}
}

func ExampleNew() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	events, err := journal.New(rdb, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{Observer: events.Observe})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	fmt.Println(locks.Close(ctx), events.Close(ctx), rdb.Close())
	// Output: <nil> <nil> <nil>
}
