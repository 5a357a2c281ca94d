package core

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// Status is joblock.Status: the fields are the same.
type Status struct {
	Key      string
	State    State
	Owner    string
	Holder   string
	Job      string
	Fence    int64
	First    int64
	Since    time.Time
	Changed  time.Time
	Renewed  time.Time
	TTL      time.Duration
	EndedAt  time.Time
	Now      time.Time
	Age      time.Duration
	Lease    time.Duration
	Reserved time.Duration
	Ended    Ended
	Reason   string
	Waiters  int

	ByHand bool
}

// Locked reports whether the key is owned: held, parked or orphaned.
func (s Status) Locked() bool {
	return s.State == driver.StateHeld || s.State == driver.StateParked || s.State == driver.StateOrphaned
}

// Status reads the states of keys, in the order of keys.
func (l *Locker) Status(ctx context.Context, keys ...string) ([]Status, error) {
	const op = "status"
	if err := l.Check(op, keys...); err != nil {
		return nil, err
	}
	out := make([]Status, 0, len(keys))
	for part := range slices.Chunk(keys, driver.MaxBatch) {
		recs, err := l.Inspect(ctx, op, only(keys), driver.InspectRequest{Keys: part})
		if err != nil {
			return nil, err
		}
		for _, rec := range recs {
			out = append(out, StatusOf(rec))
		}
	}
	return out, nil
}

// Inspect reads the records of all req.Keys, or returns an error. named is the Key of that error, or "" if the error is
// not about one key.
func (l *Locker) Inspect(ctx context.Context, op, named string, req driver.InspectRequest) ([]driver.Record, error) {
	recs, err := ask(ctx, l, op, named, l.store.Inspect, req)
	if err != nil {
		return nil, err
	}
	if len(recs) != len(req.Keys) {
		return nil, Refusal(op, named, driver.Reply{})
	}
	return recs, nil
}

// ByHand is the beginning of the owners of locks that are renewed by hand, if at all: those of scripts, of clients of
// the lock server, and of programs with joblock.NoRenew. If a worker has resumed such a lock since, the worker renews
// it.
const ByHand = "call-"

// StatusOf returns the public part of a record.
func StatusOf(r driver.Record) Status {
	st := Status{
		Key: r.Key, State: r.State, Owner: Digest(r.Owner), Holder: r.Holder, Job: r.Job,
		Fence: r.Fence, First: r.First, Since: r.Since, Changed: r.Changed, Renewed: r.Renewed, TTL: r.TTL, EndedAt: r.EndedAt, Now: r.Now, Lease: r.Lease, Reserved: r.Reserved,
		Ended: r.Ended, Reason: r.Reason, Waiters: r.Waiters,
		ByHand: r.Fence == r.First && r.Job == "" && strings.HasPrefix(r.Owner, ByHand),
	}
	if st.Locked() {
		st.Age = max(0, r.Now.Sub(r.Since))
	}
	return st
}
