package compat

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/fallback"
)

// heard notes events.
type heard struct {
	mu    sync.Mutex
	kinds []string
}

func (h *heard) note(e event.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kinds = append(h.kinds, e.Kind.String())
}

func (h *heard) count(kind event.Kind) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range h.kinds {
		if k == kind.String() {
			n++
		}
	}
	return n
}

// The document describes a method in Ruby. Each example and each rule of its contract has its row: what does the same here,
// or what is done instead, and why.
func TestParseLockExamples(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := faultstore.New(memoryStore())
		log, events := new(testkit.Log), new(heard)
		open := func() *joblock.Locker {
			locks, err := joblock.New(shared{store}, &joblock.Config{Logger: log.JSON(), Observer: events.note})
			testkit.WantNil(t, "New", err)
			t.Cleanup(func() { testkit.WantNil(t, "Close", locks.Close(context.Background())) })
			return locks
		}
		locks, peer := open(), open()
		v := newVisitor(t, nil, "parse-lock.txt")
		note := func(section, served, says string, happened bool, answered string) {
			t.Helper()
			v.example(section)
			if !happened {
				t.Errorf("%s: %s, the document says: %s", section, answered, says)
			}
			v.note(section, served, says, 0, answered)
		}
		free := func(key string) bool {
			st, err := locks.Status(t.Context(), key)
			testkit.WantNil(t, "Status", err)
			return st[0].State == joblock.StateFree
		}
		// race runs two calls of Do at once, of two processes: the first takes so long.
		race := func(key string, takes time.Duration, opts ...joblock.AcquireOption) (ran int, second error) {
			var mu sync.Mutex
			work := func(context.Context) error {
				mu.Lock()
				ran++
				mu.Unlock()
				time.Sleep(takes)
				return nil
			}
			first := make(chan error)
			go func() { first <- locks.Do(t.Context(), key, work, opts...) }()
			synctest.Wait()
			second = peer.Do(t.Context(), key, work, opts...)
			testkit.WantNil(t, "Do", <-first)
			return ran, second
		}

		// The examples.
		ran, err := race(joblock.Key("import", "42"), 5*time.Second, joblock.TTL(10*time.Second), joblock.MaxWait(2*time.Second))
		note("Example, bulk-import dedup", `locks.Do(ctx, joblock.Key("import", batchID), fn, joblock.TTL(10 s), joblock.MaxWait(2 s))`, "only one worker runs; the rest get TimeoutError", ran == 1 && errors.Is(err, joblock.ErrTimeout), sprint(ran, " ran; the other: ", joblock.CodeOf(err)))
		ran, err = race("cron:nightly-rollup", time.Second, joblock.TTL(5*time.Second), joblock.MaxWait(0))
		note("Example, cron singleton", `locks.Do(ctx, "cron:nightly-rollup", fn, joblock.TTL(5 s), joblock.MaxWait(0))`, "wait: 0: either acquire immediately or raise", ran == 1 && errors.Is(err, joblock.ErrHeld), sprint(ran, " ran; the other: ", joblock.CodeOf(err)))
		ran, err = race(joblock.Key("stripe-webhook", "evt_1"), 200*time.Millisecond, joblock.TTL(30*time.Second), joblock.MaxWait(500*time.Millisecond))
		note("Example, external-API idempotency key", `locks.Do(ctx, joblock.Key("stripe-webhook", eventID), fn, joblock.TTL(30 s), joblock.MaxWait(500 ms))`, "serializes concurrent deliveries; NOT exactly-once", ran == 2 && err == nil, sprint(ran, " ran, one after the other"))

		// The contract.
		dead := open()
		dying, err := dead.Acquire(t.Context(), "crash", joblock.TTL(3*time.Second), joblock.NoRenew())
		testkit.WantNil(t, "Acquire", err)
		began := time.Now()
		_, err = locks.Acquire(t.Context(), "crash", joblock.MaxWait(10*time.Second), joblock.TTL(time.Second), joblock.NoRenew())
		note("Contract, TTL-bounded", "the holder dies; locks.Acquire(ctx, key)", "the lock self-clears after ttl: seconds", err == nil && time.Since(began) <= 3*time.Second+100*time.Millisecond && dying.Err() != nil, "acquired after the TTL")
		released := true
		for _, fn := range []func(context.Context) error{
			func(context.Context) error { return nil },
			func(context.Context) error { return errors.New("raised") },
			func(context.Context) error { panic("on purpose") },
		} {
			func() {
				defer func() { _ = recover() }()
				_ = locks.Do(t.Context(), "block", fn)
			}()
			released = released && free("block")
		}
		note("Contract, TTL-bounded", "locks.Do(ctx, key, fn); fn returns, fails, panics", "releases on normal return, on exception", released, "free after each")
		over, err := fallback.New(locks, &fallback.Config{Overrun: 30 * time.Second})
		testkit.WantNil(t, "New", err)
		var stillHeld bool
		err = over.Do(t.Context(), "long", func(ctx context.Context) error {
			time.Sleep(2 * time.Minute)
			lock, _ := joblock.FromContext(ctx)
			stillHeld = lock.Err() == nil
			return nil
		}, joblock.TTL(3*time.Second))
		note("Contract, TTL-bounded", "fallback.Config{Overrun: 30 s}; fn runs for 2 minutes, with a TTL of 3 s", "the lease expires WHILE you are still inside, and release logs a warning", err == nil && stillHeld && events.count(event.Overran) == 1,
			"the lease is renewed, so the lock is held to the end; an event and a warning report the overrun once, when it happens")
		var lost error
		_ = locks.Do(t.Context(), "long", func(ctx context.Context) error {
			<-ctx.Done()
			lost = context.Cause(ctx)
			return nil
		}, joblock.TTL(3*time.Second), joblock.NoRenew())
		note("Contract, TTL-bounded", "the same without renewal: joblock.NoRenew()", "provides no signal to the first holder", errors.Is(lost, joblock.ErrLost), "the context of fn ends before the lease does: "+joblock.CodeOf(lost))
		_, err = locks.Acquire(t.Context(), "k", joblock.TTL(48*time.Hour))
		note("Contract, TTL/wait clamps", "joblock.TTL(48 h)", "ttl: is clamped to 1..30 s, wait: to 0..30 s, silently", errors.Is(err, joblock.ErrInvalid) && strings.Contains(err.Error(), "at most 24h0m0s"), "not clamped: "+err.Error())
		note("Cooperation with first_or_create!", `joblock.Key("lock", name)`, "the prefix difference ensures the two namespaces cannot collide", joblock.Key("first_or_create", "billing") != joblock.Key("lock", "billing"), joblock.Key("first_or_create", "billing")+" and "+joblock.Key("lock", "billing"))

		// The key, the secret and the owner.
		empty, long := locks.Do(t.Context(), "", func(context.Context) error { return nil }), locks.Do(t.Context(), strings.Repeat("k", 1025), func(context.Context) error { return nil })
		note("acquire, key", `locks.Do(ctx, "", fn), and a key of 1025 bytes`, "a non-empty String of at most 1024 bytes", errors.Is(empty, joblock.ErrInvalid) && errors.Is(long, joblock.ErrInvalid), "both refused; the bound is 512 bytes")
		_, short := locks.TryAcquire(t.Context(), joblock.Secret("a").Key("lock", "import:42"))
		keyed := joblock.Secret("a secret of 20 bytes").Key("lock", "import:42")
		note("acquire, secret", `secret.Key("lock", name)`, "HMAC-SHA256 of the key; a secret of fewer than 16 bytes is refused", errors.Is(short, joblock.ErrInvalid) && len(keyed) == len("lock::")+64, "64 hexadecimal digits after the name; a secret of 1 byte: "+joblock.CodeOf(short))
		plain := joblock.Key("lock", "import", "42")
		note("acquire, secret", `joblock.Key("lock", name)`, "nil opts out of HMAC", strings.HasSuffix(plain, "import:42"), plain+", which people on call can read; there is no secret by default")
		var fence int64
		testkit.WantNil(t, "Do", locks.Do(t.Context(), "owner", func(ctx context.Context) error {
			lock, _ := joblock.FromContext(ctx)
			fence = lock.Fence()
			return nil
		}))
		note("acquire, yields owner", "lock, _ := joblock.FromContext(ctx); lock.Fence()", "the owner token, usable as a fencing token", fence > 0, "a number that grows with every holding, so that a resource can refuse smaller ones; the owner token stays secret")

		// The store is away.
		store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Acquire)
		entered := false
		enter := func(context.Context) error {
			entered = true
			return nil
		}
		err = locks.Do(t.Context(), "away", enter, joblock.MaxWait(2*time.Second))
		note("Contract, Fails closed", "locks.Do(ctx, key, fn), with a store that fails", "the block is NEVER entered without the lock", !entered && errors.Is(err, joblock.ErrUnavailable), joblock.CodeOf(err)+", without more polls: the outcome is unknown, so it is not a TimeoutError")
		for _, c := range []struct {
			on   string
			says string
			away fallback.Away
			runs bool
		}{
			{":raise", "raise UnavailableError", fallback.Refuse, false},
			{":warn", "one warning per call", fallback.Warn, true},
			{":warn_throttled", "one warning per minute", fallback.WarnEachMinute, true},
			{":proceed", "silent", fallback.Proceed, true},
		} {
			f, err := fallback.New(locks, &fallback.Config{Away: c.away})
			testkit.WantNil(t, "New", err)
			warned, told := strings.Count(log.String(), `"level":"WARN"`), events.count(event.FellBack)
			ran := 0
			var last error
			for range 3 {
				last = f.Do(t.Context(), "away", func(ctx context.Context) error {
					if lock, _ := joblock.FromContext(ctx); fallback.Local(lock) {
						ran++
					}
					return nil
				}, joblock.MaxWait(time.Second))
			}
			warned, told = strings.Count(log.String(), `"level":"WARN"`)-warned, events.count(event.FellBack)-told
			name := []string{"Refuse", "Warn", "WarnEachMinute", "Proceed"}[c.away]
			happened := ran == 3 && last == nil && told == 3
			if !c.runs {
				happened = ran == 0 && errors.Is(last, joblock.ErrUnavailable)
			}
			want := map[fallback.Away]int{fallback.Warn: 3, fallback.WarnEachMinute: 1}[c.away]
			note("acquire, on_degraded", "fallback.Config{Away: fallback."+name+"}, three calls", "on_degraded: "+c.on+": "+c.says, happened && warned == want,
				sprint(ran, " ran, ", warned, " warnings, ", told, " events fell back, the last error: ", joblock.CodeOf(last)))
			testkit.WantNil(t, "Close", f.Close(context.Background()))
		}
		local, err := fallback.New(locks, &fallback.Config{Away: fallback.Warn})
		testkit.WantNil(t, "New", err)
		running, most := 0, 0
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				_ = local.Do(t.Context(), "mutex", func(context.Context) error {
					running++ // one at a time
					most = max(most, running)
					time.Sleep(time.Second)
					running--
					return nil
				})
			})
		}
		all.Wait()
		note("Contract, In-process Mutex fallback", "fallback.Config{Away: fallback.Warn}, five calls at once", "guards single-process contention, but does NOT serialize across processes", most == 1, sprint("at most ", most, " at a time"))
		testkit.WantNil(t, "Close", local.Close(context.Background()))
		testkit.WantNil(t, "Close", over.Close(context.Background()))
		store.Clear()
		v.done("parse-lock")
	})
}
