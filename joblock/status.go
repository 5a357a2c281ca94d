package joblock

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock/driver"
)

// State is the state of a key at an instant of the store's clock. The package comment has the states.
type State = driver.State

// The states of a key.
const (
	StateFree     = driver.StateFree
	StateHeld     = driver.StateHeld
	StateParked   = driver.StateParked
	StateOrphaned = driver.StateOrphaned
	StateForeign  = driver.StateForeign
)

// Ended is how the last ownership of a key ended.
type Ended = driver.Ended

// The ways an ownership ends.
const (
	EndedNone     = driver.EndedNone
	EndedReleased = driver.EndedReleased
	EndedForced   = driver.EndedForced
	EndedLapsed   = driver.EndedLapsed
	EndedDone     = driver.EndedDone
)

// Status is the public part of a key's record. A Status contains no secrets.
type Status struct {
	Key      string        `json:"key"`
	State    State         `json:"state"`
	Owner    string        `json:"owner,omitempty"` // a digest; see Token.Digest
	Holder   string        `json:"holder,omitempty"`
	Job      string        `json:"job,omitempty"` // the job that the lock is bound to, as "queue/taskID"
	Fence    int64         `json:"fence,omitempty"`
	First    int64         `json:"first,omitempty"`   // the fence of the Acquire; tokens made before the Acquire have smaller fences
	Since    time.Time     `json:"since,omitzero"`    // when the key was acquired, by the store's clock, as all times here
	Changed  time.Time     `json:"changed,omitzero"`  // time of the last Acquire, Park, Reclaim, Resume or end of the ownership
	Renewed  time.Time     `json:"renewed,omitzero"`  // when the lease began, or was renewed last; a live holder renews every third of TTL. Zero while parked, and after a release
	TTL      time.Duration `json:"-"`                 // the length of that lease
	EndedAt  time.Time     `json:"ended_at,omitzero"` // when the last ownership of a free key ended, also by lapsing
	Now      time.Time     `json:"-"`                 // when the store read the key; zero if the store knows nothing of the key
	Age      time.Duration `json:"-"`                 // time since Since; 0 unless owned
	Lease    time.Duration `json:"-"`                 // what is left of the lease; 0 unless held
	Reserved time.Duration `json:"-"`                 // time until others can get the key; 0 when free
	Ended    Ended         `json:"ended,omitempty"`   // how the last ownership of a free key ended
	Reason   string        `json:"reason,omitempty"`  // the reason that the release gave
	Waiters  int           `json:"waiters,omitempty"` // places in the queue, of calls and of jobs, for a while with those of dead waiters; see jobs.Line

	byHand bool // see door.IsByHand
}

// MarshalJSON writes durations as whole milliseconds, in ttl_ms, age_ms, lease_ms and reserved_ms.
func (s Status) MarshalJSON() ([]byte, error) {
	type plain Status // without this method
	return json.Marshal(struct {
		plain
		TTL      int64 `json:"ttl_ms,omitempty"`
		Age      int64 `json:"age_ms,omitempty"`
		Lease    int64 `json:"lease_ms,omitempty"`
		Reserved int64 `json:"reserved_ms,omitempty"`
	}{plain(s), s.TTL.Milliseconds(), s.Age.Milliseconds(), s.Lease.Milliseconds(), s.Reserved.Milliseconds()})
}

// Locked reports whether the key is owned: held, parked or orphaned.
func (s Status) Locked() bool {
	return s.State == StateHeld || s.State == StateParked || s.State == StateOrphaned
}

// Status reads the states of keys, and returns the states in the order of keys. A key that nobody owns has StateFree,
// which is no error. A value that is no lock has StateForeign.
//
// Errors: ErrInvalid, ErrUnavailable, ErrClosed. With an error Status returns no states at all: a key that could not be
// read would look free.
func (l *Locker) Status(ctx context.Context, keys ...string) ([]Status, error) {
	const op = "status"
	if err := l.check(op, keys...); err != nil {
		return nil, err
	}
	out := make([]Status, 0, len(keys))
	for part := range slices.Chunk(keys, driver.MaxBatch) {
		recs, err := l.inspectAll(ctx, op, only(keys), driver.InspectRequest{Keys: part})
		if err != nil {
			return nil, err
		}
		for _, rec := range recs {
			out = append(out, statusOf(rec))
		}
	}
	return out, nil
}

// inspectAll reads records. The parameter named is the Key of the error, "" if the error is not about one key.
func (l *Locker) inspectAll(ctx context.Context, op, named string, req driver.InspectRequest) ([]driver.Record, error) {
	recs, err := ask(ctx, l, op, named, l.store.Inspect, req)
	if err != nil {
		return nil, err
	}
	if len(recs) != len(req.Keys) {
		return nil, errorOf(op, named, driver.Reply{})
	}
	return recs, nil
}

func statusOf(r driver.Record) Status {
	st := Status{
		Key: r.Key, State: r.State, Owner: digest(r.Owner), Holder: r.Holder, Job: r.Job,
		Fence: r.Fence, First: r.First, Since: r.Since, Changed: r.Changed, Renewed: r.Renewed, TTL: r.TTL, EndedAt: r.EndedAt, Now: r.Now, Lease: r.Lease, Reserved: r.Reserved,
		Ended: r.Ended, Reason: r.Reason, Waiters: r.Waiters,
		byHand: r.Fence == r.First && r.Job == "" && strings.HasPrefix(r.Owner, door.ByHand),
	}
	if st.Locked() {
		st.Age = max(0, r.Now.Sub(r.Since))
	}
	return st
}
