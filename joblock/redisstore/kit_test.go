package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

// must returns v, and panics if err is not nil.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// long is a lease that does not run out during a test.
const long = time.Minute

// dueOf returns what Due returns of all parts of the index.
func dueOf(ctx context.Context, s driver.Store, limit int, claim time.Duration) (locks []driver.Entry, err error) {
	for part := 0; part < s.Parts() && len(locks) < limit; part++ {
		reply, err := s.Due(ctx, driver.DueRequest{Part: part, Limit: limit - len(locks), Claim: claim})
		if err != nil {
			return nil, err
		}
		locks = append(locks, reply.Entries...)
	}
	return locks, nil
}

// removeFrom removes entries that Due has returned.
func removeFrom(ctx context.Context, s driver.Store, locks []driver.Entry) error {
	entries := make([]driver.Settlement, len(locks))
	for i, l := range locks {
		entries[i].Entry = l
	}
	return s.Settle(ctx, entries)
}

// recordLines are the fields of a record that have a line of their own.
var recordLines = []string{"owner", "holder", "job", "reason", "first", "since", "nonce", "last"}

// readRecord returns the fields of the record at a Redis key, which is a string or a hash.
func (k *kit) readRecord(name string) map[string]string {
	k.t.Helper()
	ctx := context.Background()
	text, err := k.rdb.Get(ctx, name).Result()
	if err != nil {
		text, err = k.rdb.HGet(ctx, name, "s").Result()
	}
	lines := strings.Split(text, "\n")
	if err != nil || len(lines) != len(recordLines)+2 || len(lines[0]) != 20 || len(lines[9]) != 18 && len(lines[9]) != 58 {
		k.t.Fatalf("the record is %q, %v; want the kind and the fence, the lines %q, and times", text, err, recordLines)
	}
	rec := map[string]string{"kind": lines[0][:4], "fence": lines[0][4:]}
	for i, name := range recordLines {
		rec[name] = lines[i+1]
	}
	times := lines[9] + strings.Repeat(" ", 40)
	rec["changed"], rec["prior"], rec["memo"] = times[:16], times[16:17], times[17:18]
	rec["begun"], rec["ttl"], rec["reserve"] = strings.TrimSpace(times[18:34]), times[34:46], times[46:58]
	return rec
}

// recordText is the text of a record with these fields.
func recordText(rec map[string]string) string {
	text := rec["kind"] + rec["fence"] + "\n"
	for _, name := range recordLines {
		text += rec[name] + "\n"
	}
	return text + rec["changed"] + rec["prior"] + rec["memo"] + rec["begun"] + rec["ttl"] + rec["reserve"]
}

// writeRecord replaces the text of a record. With fields it makes the record a hash that has
// them too.
func (k *kit) writeRecord(name, text string, fields ...any) {
	k.t.Helper()
	ctx := context.Background()
	life := k.rdb.PTTL(ctx, name).Val()
	hash := len(fields) > 0 || k.rdb.Type(ctx, name).Val() == "hash"
	var err error
	if !hash {
		err = k.rdb.Set(ctx, name, text, life).Err()
	} else {
		if k.rdb.Type(ctx, name).Val() != "hash" {
			k.rdb.Del(ctx, name)
		}
		err = errors.Join(k.rdb.HSet(ctx, name, append(fields, "s", text)...).Err(), k.rdb.PExpire(ctx, name, life).Err())
	}
	if err != nil {
		k.t.Fatal(err)
	}
}

// backends are those of onBoth. With the build tag servers, miniredis is one too.
var backends = map[string]func(t testing.TB) *kit{"redis": newRealKit}

// onBoth runs a test on a redis-server and, with the build tag servers, on miniredis.
func onBoth(t *testing.T, test func(t *testing.T, k *kit)) {
	for name, kit := range backends {
		t.Run(name, func(t *testing.T) { test(t, kit(t)) })
	}
}

// kit is a store, and a client of the same server for looking behind it.
type kit struct {
	*store
	t   testing.TB
	rdb redis.UniversalClient
	n   atomic.Int64

	fast bool // nonces have the length of joblock's, so that short stages answer
}

func newKit(t testing.TB, rdb redis.UniversalClient) *kit { return newKitWith(t, rdb, nil) }

func newKitWith(t testing.TB, rdb redis.UniversalClient, cfg *Config) *kit {
	s := must(newStore(rdb, cfg))
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &kit{store: s, t: t, rdb: rdb}
}

// newRealKit returns a kit on a database of the shared redis-server.
func newRealKit(t testing.TB) *kit {
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	return newKit(t, db.Client(t))
}

// content returns what a name of the database holds. DUMP would not do: for a hash it also shows how far the server has
// got with moving its table.
func (k *kit) content(name string) string {
	k.t.Helper()
	ctx := context.Background()
	switch kind := k.rdb.Type(ctx, name).Val(); kind {
	case "none":
		return ""
	case "hash":
		return fmt.Sprintf("%q", k.rdb.HGetAll(ctx, name).Val()) // fmt sorts the fields
	case "zset":
		return fmt.Sprintf("%v", k.rdb.ZRangeWithScores(ctx, name, 0, -1).Val())
	case "string":
		return k.rdb.Get(ctx, name).Val()
	default:
		k.t.Fatalf("%q is of type %s, which the kit cannot read", name, kind)
		return ""
	}
}

// nonce returns a new one for each call.
func (k *kit) nonce() string {
	if k.fast {
		return fmt.Sprintf("nonce-%07d", k.n.Add(1))
	}
	return fmt.Sprintf("nonce-%d", k.n.Add(1))
}

// acquire takes a key for an owner that is named after it.
func (k *kit) acquire(key string) driver.Term {
	k.t.Helper()
	owner := "owner of " + key
	r, err := k.Acquire(context.Background(), driver.AcquireRequest{
		Key: key, Owner: owner, Nonce: k.nonce(), TTL: long, Retain: long, Holder: "a host",
	})
	wantOutcome(k.t, "acquire", r, err, driver.OutcomeOK)
	return driver.Term{Key: key, Owner: owner, Fence: r.Fence}
}

// Take, Resume and Park are those of the Store for a single request.

func (k *kit) Take(ctx context.Context, req driver.TakeRequest) (driver.Reply, error) {
	return first(k.store.Take(ctx, []driver.TakeRequest{req}))
}

func (k *kit) Resume(ctx context.Context, req driver.ResumeRequest) (driver.Reply, error) {
	return first(k.store.Resume(ctx, []driver.ResumeRequest{req}))
}

func (k *kit) Park(ctx context.Context, req driver.ParkRequest) (driver.Reply, error) {
	return first(k.store.Park(ctx, []driver.ParkRequest{req}))
}

func first(replies []driver.Reply, err error) (driver.Reply, error) {
	if len(replies) == 0 {
		return driver.Reply{}, err
	}
	return replies[0], err
}

func (k *kit) taking(key string) driver.TakeRequest {
	return driver.TakeRequest{
		Key: key, Owner: "owner of " + key, Nonce: k.nonce(), Holder: "a host", Job: "q/1", Reserve: long, Retain: long, Grace: long,
	}
}

func (k *kit) renewal(t driver.Term) driver.RenewRequest {
	return driver.RenewRequest{Term: t, TTL: long, Retain: long}
}

func (k *kit) release(t driver.Term) driver.ReleaseRequest {
	return driver.ReleaseRequest{Term: t, Nonce: k.nonce(), Retain: long, Reason: "done"}
}

func (k *kit) park(t driver.Term) driver.ParkRequest {
	return driver.ParkRequest{Term: t, Nonce: k.nonce(), Reserve: long, Retain: long, Job: "q/1", Grace: long}
}

func wantOutcome(t testing.TB, what string, r driver.Reply, err error, want driver.Outcome) {
	t.Helper()
	if err != nil || r.Outcome != want {
		t.Fatalf("%s: outcome %d, error %v; want outcome %d", what, r.Outcome, err, want)
	}
}

func wantOutcomes(t testing.TB, what string, rs []driver.Reply, err error, n int, want driver.Outcome) {
	t.Helper()
	if err != nil || len(rs) != n {
		t.Fatalf("%s: %d replies, error %v; want %d", what, len(rs), err, n)
	}
	for i, r := range rs {
		if r.Outcome != want {
			t.Fatalf("%s: item %d has outcome %d, want %d", what, i, r.Outcome, want)
		}
	}
}
