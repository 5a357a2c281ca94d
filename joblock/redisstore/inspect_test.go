package redisstore

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock/driver"
)

// Whatever else is among them, a record that is read with many others is read as it is
// read alone.
func TestInspectOfManyIsThatOfEach(t *testing.T) {
	onBoth(t, func(t *testing.T, k *kit) { inspectMany(t, k, nil) })
	t.Run("damaged", func(t *testing.T) { inspectMany(t, newRealKit(t), spoiled) })
}

func inspectMany(t *testing.T, k *kit, spoiled map[string][]string) {
	ctx := context.Background()
	var keys []string
	for name, fields := range spoiled {
		k.spoil(t, name, fields)
		keys = append(keys, name)
	}
	put := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	put(k.rdb.LPush(ctx, k.name("a list"), "x").Err())
	put(k.rdb.Set(ctx, k.name("a text"), "jobH, but not quite", 0).Err())
	put(k.rdb.HSet(ctx, k.name("a hash"), "field", "x").Err())
	keys = append(keys, "a list", "a text", "a hash", "absent", "absent")
	for i := range 350 {
		key := fmt.Sprint("key ", i)
		keys = append(keys, key)
		switch term := k.acquire(key); i % 3 {
		case 0:
			r, err := k.Park(ctx, k.park(term))
			wantOutcome(t, "park", r, err, driver.OutcomeOK)
		case 1:
			rs, err := k.Release(ctx, []driver.ReleaseRequest{k.release(term)})
			wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
		}
	}
	together, err := k.Inspect(ctx, driver.InspectRequest{Keys: keys})
	if err != nil || len(together) != len(keys) {
		t.Fatalf("%d records, %v", len(together), err)
	}
	states := make(map[driver.State]int)
	for i, key := range keys {
		recs, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{key}})
		put(err)
		one, many := recs[0], together[i]
		states[one.State]++
		// The clock has gone on.
		one.Lease, one.Reserved, one.Now = 0, 0, time.Time{}
		if many.Lease, many.Reserved, many.Now = 0, 0, (time.Time{}); fmt.Sprint(one) != fmt.Sprint(many) {
			t.Errorf("%s with others is\n%+v, alone\n%+v", key, many, one)
		}
	}
	if states[driver.StateForeign] < 2 || states[driver.StateHeld] < 100 || states[driver.StateParked] < 100 || states[driver.StateFree] < 100 {
		t.Errorf("there are %v", states)
	}
	// Memos are read one by one.
	recs, err := k.Inspect(ctx, driver.InspectRequest{Keys: keys, Memo: true})
	if err != nil || len(recs) != len(keys) || recs[len(recs)-1].State != together[len(recs)-1].State {
		t.Errorf("with memos: %d records, %v", len(recs), err)
	}
}

// A record that the server does not show to this user costs the others nothing.
func TestInspectAmongForbiddenRecords(t *testing.T) {
	k := newRealKit(t)
	ctx := context.Background()
	var keys []string
	for i := range 150 {
		keys = append(keys, fmt.Sprint("open ", i))
		k.acquire(keys[i])
	}
	keys = slices.Insert(keys, 70, "closed")
	k.acquire("closed")
	user := "redisstore-visitor" // of the whole server
	t.Cleanup(func() { k.rdb.Do(ctx, "acl", "deluser", user) })
	if err := k.rdb.Do(ctx, "acl", "setuser", user, "on", ">secret", "+@all", "~"+k.name("open")+"*").Err(); err != nil {
		t.Fatal(err)
	}
	opts := *k.rdb.(*redis.Client).Options()
	opts.Username, opts.Password = user, "secret"
	rdb := redis.NewClient(&opts)
	defer rdb.Close()
	recs, err := must(newStore(rdb, nil)).Inspect(ctx, driver.InspectRequest{Keys: keys})
	if err == nil || !redis.HasErrorPrefix(err, "NOPERM") {
		t.Errorf("inspect: %v, want NOPERM", err)
	}
	for i, rec := range recs {
		if open := keys[i] != "closed"; open != (rec.State == driver.StateHeld) || rec.Key != keys[i] {
			t.Errorf("%s: %+v", keys[i], rec)
		}
	}
}
