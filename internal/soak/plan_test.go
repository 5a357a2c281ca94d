//go:build servers

package soak

import (
	"os"
	"testing"
	"time"
)

const (
	ttl    = 6 * time.Second
	poll   = time.Second
	retain = time.Second
	grace  = 500 * time.Millisecond // until the keeper first looks at a job's lock

	// queueRetain is for the keys that are waited for: they are looked at in the end, and then deleted.
	queueRetain = time.Hour
)

// plan is how much load there is, and for how long.
type plan struct {
	warmUp, length time.Duration
	held           int // locks that are held and renewed all the time
	waiters        int // goroutines that wait for a few keys, ten to one
	others         int // goroutines of each of the other kinds
	inFlight       int // jobs enqueued and not yet done
}

func planOf(t *testing.T) plan {
	t.Helper()
	text := os.Getenv("JOBLOCK_SOAK")
	if text == "" {
		return plan{warmUp: time.Second, length: 3 * time.Second, held: 200, waiters: 200, others: 5, inFlight: 50}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 10*time.Second {
		t.Fatalf("JOBLOCK_SOAK is %q, want a time of at least 10s: %v", text, err)
	}
	return plan{warmUp: min(d/4, 15*time.Second), length: d, held: 2500, waiters: 2500, others: 30, inFlight: 500}
}
