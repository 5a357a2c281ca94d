//go:build servers

package redisstore

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
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
				calls, _ := NativeCalls(s)
				made.Add(calls)
			})
			h.Store = usualStore{Store: newHintingStore(s)}
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
		r, err := s.Acquire(ctx, driver.AcquireRequest{Key: "key", Owner: "owner", Nonce: usualName(k.nonce()), TTL: ttl, Retain: long, Holder: "host"})
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
		made, _ := NativeCalls(k.store)
		term := acquire(long)
		if now, _ := NativeCalls(k.store); now == made {
			t.Errorf("%+v: the Acquire went by script", step)
		}
		clock.Set(step.held)
		nonce := usualName(k.nonce())
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
}
