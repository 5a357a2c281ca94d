//go:build servers

package redisstore

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/storetest"
)

// wantIFEQ skips the test on a server without IFEQ.
func wantIFEQ(t *testing.T, k *kit) {
	t.Helper()
	n := &k.native
	n.skipped.Store(nativeAfter)
	if !n.ready(context.Background(), k.store, "any") {
		t.Skip("the server has no SET with IFEQ")
	}
}

// Calls without Lua keep the contract.
func TestNativeCallsConform(t *testing.T) {
	srv := redistest.Start(t)
	redistest.Ran(t, srv.Backend())
	rdb := srv.Client(t)
	wantIFEQ(t, newKit(t, rdb))
	var n, made atomic.Int64
	t.Run("cases", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) *storetest.Harness {
			if strings.Count(t.Name(), "/") > 2 { // a case
				t.Parallel()
			}
			h := harness(t, rdb, fmt.Sprintf("test %d:", n.Add(1)))
			s := h.Store
			t.Cleanup(func() {
				calls, _ := nativeCalls(s)
				made.Add(calls)
			})
			h.Store = fastStore{Store: newHintingStore(s)}
			h.Advance = time.Sleep
			h.Unit = 10 * time.Millisecond
			return h
		})
	})
	t.Logf("%d calls without Lua", made.Load())
	if made.Load() < 500 {
		t.Error("the test shows less than it should")
	}
}

// The server's clock is set while a lock is held. The Release says what the script would, and the fences grow.
func TestNativeCallsWhileTheClockIsSet(t *testing.T) {
	srv, clock := redistest.StartClock(t)
	k := newKit(t, srv.Client(t))
	wantIFEQ(t, k)
	s := newHintingStore(k.store)
	ctx := context.Background()
	fence := int64(0)
	acquire := func(ttl time.Duration) driver.Term {
		t.Helper()
		r, err := s.Acquire(ctx, driver.AcquireRequest{Key: "key", Owner: "owner", Nonce: fastName(k.nonce()), TTL: ttl, Retain: long, Holder: "host"})
		wantOutcome(t, "acquire", r, err, driver.OutcomeOK)
		if r.Fence <= fence {
			t.Errorf("fence %d follows %d", r.Fence, fence)
		}
		fence = r.Fence
		return driver.Term{Key: "key", Owner: "owner", Fence: r.Fence}
	}
	release := func(term driver.Term, nonce string, want driver.Outcome) {
		t.Helper()
		rs, err := s.Release(ctx, []driver.ReleaseRequest{{Term: term, Nonce: nonce, Retain: long, Brief: time.Second}})
		wantOutcomes(t, "release", rs, err, 1, want)
	}
	for _, step := range []struct {
		before, held time.Duration
		want         driver.Outcome
		life         time.Duration
	}{
		{0, 0, driver.OutcomeOK, time.Second},
		{0, 10 * time.Second, driver.OutcomeOK, time.Second},
		{10 * time.Second, -10 * time.Second, driver.OutcomeOK, long},
		{-10 * time.Second, -10 * time.Second, driver.OutcomeOK, long},
		{-10 * time.Second, 30 * time.Second, driver.OutcomeOK, time.Second},
		{30 * time.Second, 60 * time.Second, driver.OutcomeOK, time.Second},
		{60 * time.Second, 125 * time.Second, driver.OutcomeLapsed, time.Second},
		{125 * time.Second, 0, driver.OutcomeOK, long},
	} {
		clock.Set(step.before)
		term := acquire(long)
		clock.Set(step.held)
		nonce := fastName(k.nonce())
		release(term, nonce, step.want)
		if life := k.rdb.PTTL(ctx, k.name("key")).Val(); life > step.life || life < step.life-step.life/2 {
			t.Errorf("%+v: the record is remembered for %s", step, life)
		}
		release(term, nonce, step.want) // again
		rec, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{"key"}})
		if err != nil || rec[0].EndedAt.Sub(rec[0].Now).Abs() > 2*time.Second {
			t.Errorf("%+v: ended at %s, now %s, %v", step, rec[0].EndedAt, rec[0].Now, err)
		}
	}
	wantNative(t, k.store, 4)
}

// A server that cannot serve now refuses a call without a script as it refuses scripts. A server that refuses the command
// alone is asked no more for a while, and the calls go by script.
func TestNativeCallsAreRefused(t *testing.T) {
	srv := redistest.Start(t)
	proxy := redistest.NewProxy(t, srv.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), MaxRetryBackoff: time.Millisecond})
	t.Cleanup(func() { rdb.Close() })
	k := newKit(t, rdb)
	wantIFEQ(t, k)
	locks := newLockerOn(t, k.store, &joblock.Config{TTL: time.Hour})
	all := redistest.Named("set", "pexpiretime", "getrange", "pttl", "evalsha", "eval")
	for _, text := range append(slices.Clone(notNow), "ERR syntax error", "NOPERM no permissions to run the 'set' command") {
		name, _, _ := strings.Cut(strings.TrimPrefix(text, "ERR "), " ")
		t.Run(name, func(t *testing.T) {
			k.native.able.Store(true)
			held, err := locks.TryAcquire(t.Context(), name+" held")
			if err != nil {
				t.Fatal(err)
			}
			before, _ := nativeCalls(k.store)
			if proxy.Always(all, redistest.Fail(text)); !strings.Contains(text, "syntax") {
				_, err = locks.TryAcquire(t.Context(), name+" free")
				wantUnavailable(t, "TryAcquire", err, name)
				wantUnavailable(t, "Release", held.Release(t.Context()), name)
			}
			proxy.Heal()
			if now, _ := nativeCalls(k.store); now != before {
				t.Errorf("%d refused calls count as made", now-before)
			}
			// Only the commands without a script are refused: the script serves.
			k.native.able.Store(true)
			proxy.Always(redistest.Named("set", "pexpiretime", "getrange", "pttl"), redistest.Fail(text))
			next, err := locks.TryAcquire(t.Context(), name+" next")
			if err != nil {
				t.Fatal(err)
			}
			if err := next.Release(t.Context()); err != nil {
				t.Error(err)
			}
			if asks := !k.native.able.Load(); asks != (strings.HasPrefix(text, "ERR") || strings.HasPrefix(text, "NOPERM")) {
				t.Errorf("the Store takes the server for one without IFEQ: %t", asks)
			}
			proxy.Heal()
		})
	}
}

// Answers that are lost: the call is made again, and the record shows what the first one did.
func TestNativeCallsWithoutAnAnswer(t *testing.T) {
	srv := redistest.Start(t)
	proxy := redistest.NewProxy(t, srv.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), MaxRetryBackoff: time.Millisecond})
	t.Cleanup(func() { rdb.Close() })
	k := newKit(t, rdb)
	wantIFEQ(t, k)
	s := newHintingStore(k.store)
	ctx := context.Background()
	var fence int64
	for i, lost := range []string{"set", "pexpiretime", "getrange", "pttl"} {
		nonce := fastName(k.nonce())
		fault := proxy.Once(redistest.All(redistest.Named(lost), redistest.Mentioning("key")), redistest.DropReply())
		r, err := s.Acquire(ctx, driver.AcquireRequest{Key: "key", Owner: "owner", Nonce: nonce, TTL: long, Retain: long, Holder: "host"})
		wantOutcome(t, "acquire", r, err, driver.OutcomeOK)
		if r.Fence <= fence {
			t.Errorf("fence %d follows %d", r.Fence, fence)
		}
		fence = r.Fence
		if lost != "pttl" && fault.Hits() != 1 {
			t.Errorf("%s: %d answers were lost", lost, fault.Hits())
		}
		fault.Disarm()
		fault = proxy.Once(redistest.All(redistest.Named([]string{"set", "pttl"}[i%2]), redistest.Mentioning("key")), redistest.DropReply())
		rs, err := s.Release(ctx, []driver.ReleaseRequest{{Term: driver.Term{Key: "key", Owner: "owner", Fence: fence}, Nonce: fastName(k.nonce()), Retain: long, Brief: long}})
		wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
		fault.Disarm()
		rec, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{"key"}})
		if err != nil || rec[0].State != driver.StateFree || rec[0].Ended != driver.EndedReleased || rec[0].Fence != fence {
			t.Errorf("%+v, %v", rec, err)
		}
	}
}

// A reservation that ends between the two commands of a Release has ended: the Release does not go by what was left of it.
func TestNativeReleaseThatIsLateBetweenItsCommands(t *testing.T) {
	t.Parallel()
	k, h, other := newNativeKit(t)
	ctx := context.Background()
	r, err := k.Acquire(ctx, driver.AcquireRequest{Key: "key", Owner: "me", Nonce: k.nonce(), TTL: 4 * lateMargin, Retain: long, Holder: "a host"})
	wantOutcome(t, "acquire", r, err, driver.OutcomeOK)
	h.between = func() {
		time.Sleep(5 * lateMargin)
		other.look("key") // sets the server's clock
	}
	rs, err := k.Release(ctx, []driver.ReleaseRequest{{
		Term: driver.Term{Key: "key", Owner: "me", Fence: r.Fence}, Nonce: k.nonce(), Retain: long, Hint: r.Hint,
	}})
	wantOutcomes(t, "release", rs, err, 1, driver.OutcomeLapsed)
	if h.between != nil {
		t.Error("the Release was made by script")
	}
}

// With Sentinel calls are made without Lua too. A replica that is promoted dates the record as its master did.
func TestNativeCallsWithSentinel(t *testing.T) {
	sentinel := redistest.StartSentinel(t)
	redistest.Ran(t, "sentinel of "+sentinel.Master().Backend())
	k := newKit(t, sentinel.Client(t))
	wantIFEQ(t, k)
	s := newHintingStore(k.store)
	ctx := context.Background()
	acquire := func(key string) driver.Term {
		r, err := s.Acquire(ctx, driver.AcquireRequest{Key: key, Owner: "owner", Nonce: fastName(k.nonce()), TTL: time.Hour, Retain: time.Hour, Holder: "host"})
		wantOutcome(t, "acquire", r, err, driver.OutcomeOK)
		return driver.Term{Key: key, Owner: "owner", Fence: r.Fence}
	}
	term := acquire("a")
	wantNative(t, k.store, 1)
	if n, err := k.rdb.Do(ctx, "wait", 1, 10_000).Int(); err != nil || n != 1 {
		t.Fatalf("%d replicas have the lock, %v", n, err)
	}
	sentinel.Failover()
	renewUntilAnswered(t, k, term)
	rec := must(k.Inspect(ctx, driver.InspectRequest{Keys: []string{"a"}}))[0]
	if rec.State != driver.StateHeld || rec.Fence != term.Fence || rec.First != term.Fence {
		t.Errorf("after the fail-over the record of fence %d is %+v", term.Fence, rec)
	}
	before, _ := nativeCalls(k.store)
	if next := acquire("b"); next.Fence <= term.Fence {
		t.Errorf("fence %d follows %d", next.Fence, term.Fence)
	}
	wantNative(t, k.store, before+1)
}

// A replica, or a file of commands, gets plain writes with an expiry: a replica without IFEQ follows such a master.
func TestNativeCallsAreReplicatedAsPlainWrites(t *testing.T) {
	master := redistest.Start(t)
	host, port, _ := net.SplitHostPort(master.Addr())
	replica := redistest.Start(t, "--replicaof", host+" "+port)
	redistest.Ran(t, "replica of "+master.Backend())
	k := newKit(t, master.Client(t))
	wantIFEQ(t, k)
	ctx := t.Context()
	inStep := func() {
		t.Helper()
		if err := k.rdb.Incr(ctx, "marker").Err(); err != nil {
			t.Fatal(err)
		}
		if n, err := k.rdb.Do(ctx, "wait", 1, 60_000).Int(); err != nil || n != 1 {
			t.Fatalf("%d replicas follow, %v", n, err)
		}
	}
	inStep()
	conn, err := net.Dial("tcp", replica.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	if fmt.Fprint(conn, "MONITOR\r\n"); !lines.Scan() || lines.Text() != "+OK" {
		t.Fatalf("MONITOR: %q, %v", lines.Text(), lines.Err())
	}
	locks := newLockerOn(t, k.store, &joblock.Config{TTL: time.Hour})
	const pairs = 20
	for i := range pairs {
		lock, err := locks.TryAcquire(ctx, fmt.Sprint("key", i))
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}
	wantNative(t, k.store, pairs)
	inStep()
	writes := 0
	for lines.Scan() && !strings.Contains(lines.Text(), `"marker"`) {
		if command := strings.ToLower(lines.Text()); strings.Contains(command, `"set" "`+k.name("key")) {
			writes++
			if !strings.Contains(command, `"pxat"`) || strings.Contains(command, `"ifeq"`) {
				t.Errorf("the replica got %s", command)
			}
		}
	}
	if writes < 2*pairs || lines.Err() != nil {
		t.Errorf("the replica got %d writes of the keys, want at least %d, %v", writes, 2*pairs, lines.Err())
	}
}

// A stranger who takes the expiry from a record that is dated by it makes the key foreign, and gives it to no other.
func TestNativeRecordWithoutAnExpiry(t *testing.T) {
	srv := redistest.Start(t)
	k := newKit(t, srv.Client(t))
	wantIFEQ(t, k)
	ctx := context.Background()
	s := newHintingStore(k.store)
	r, err := s.Acquire(ctx, driver.AcquireRequest{Key: "key", Owner: "owner", Nonce: fastName(k.nonce()), TTL: long, Retain: long})
	wantOutcome(t, "acquire", r, err, driver.OutcomeOK)
	k.rdb.Persist(ctx, k.name("key"))
	r, err = k.store.Acquire(ctx, driver.AcquireRequest{Key: "key", Owner: "another", Nonce: "other", TTL: long, Retain: long})
	wantOutcome(t, "acquire", r, err, driver.OutcomeForeign)
}
