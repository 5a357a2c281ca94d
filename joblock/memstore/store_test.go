package memstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// Keys that are not used again must not pile up.
func TestForgottenRecordsAreSweptOut(t *testing.T) {
	now := time.Date(2030, time.January, 1, 0, 0, 0, 0, time.UTC)
	s := newStore(&Config{Now: func() time.Time { return now }, Silent: true})
	take := func(key string, ttl time.Duration) {
		t.Helper()
		reply, err := s.Acquire(context.Background(), driver.AcquireRequest{
			Key: key, Owner: "me", Nonce: key, TTL: ttl, Retain: time.Second,
		})
		if err != nil || reply.Outcome != driver.OutcomeOK {
			t.Fatalf("acquire %s: %+v, %v", key, reply, err)
		}
	}
	const lasting = 2 * sweepMin
	for i := range lasting {
		take(fmt.Sprintf("lasting-%d", i), 365*24*time.Hour)
	}
	for i := range 20 * lasting {
		take(fmt.Sprintf("passing-%d", i), time.Second)
		now = now.Add(time.Second) // so that about two at a time are remembered
		if n := len(s.records); n > 2*(lasting+2)+1 {
			t.Fatalf("%d records in memory after %d passing ones, want at most about twice the %d that last", n, i+1, lasting)
		}
	}
	for i := range lasting {
		if key := fmt.Sprintf("lasting-%d", i); !s.records[key].exists() {
			t.Fatalf("%s was swept out, its lease stands", key)
		}
	}
}

func TestClosedStoreStaysUsable(t *testing.T) {
	s := newStore(&Config{Silent: true})
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatalf("Close() = %v", err)
		}
	}
	if _, err := s.Inspect(context.Background(), driver.InspectRequest{Keys: []string{"key"}}); err != nil {
		t.Errorf("Inspect after Close = %v, want it to work: other Lockers may share the store", err)
	}
}

func TestDefaultClockStartsAtTheWallAndGoesOn(t *testing.T) {
	before := time.Now()
	clock := newStore(nil).cfg.Now
	first := clock()
	second := clock()
	if first.Before(before) || second.Before(first) {
		t.Errorf("clock reads %s, then %s, want times from %s on", first, second, before)
	}
}
