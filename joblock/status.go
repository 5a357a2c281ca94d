package joblock

import (
	"context"
	"encoding/json"
	"iter"
	"slices"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// State is the state of a key at an instant of the store's clock; see the package
// comment.
type State = driver.State

// The states of a key.
const (
	StateFree     = driver.StateFree
	StateHeld     = driver.StateHeld
	StateParked   = driver.StateParked
	StateOrphaned = driver.StateOrphaned
	StateForeign  = driver.StateForeign
)

// Ended tells how the last ownership of a key ended.
type Ended = driver.Ended

// The ways an ownership ends.
const (
	EndedNone     = driver.EndedNone
	EndedReleased = driver.EndedReleased
	EndedForced   = driver.EndedForced
	EndedLapsed   = driver.EndedLapsed
	EndedDone     = driver.EndedDone
)

// Status is what anyone may see of a key. It contains no secrets.
type Status struct {
	Key       string        `json:"key"`
	State     State         `json:"state"`
	Owner     string        `json:"owner,omitempty"` // a digest, see Token.Digest
	Holder    string        `json:"holder,omitempty"`
	Job       string        `json:"job,omitempty"` // "queue/taskID" the lock is bound to
	Fence     int64         `json:"fence,omitempty"`
	First     int64         `json:"first,omitempty"`   // the fence of its Acquire; tokens of earlier acquisitions have smaller ones
	Since     time.Time     `json:"since,omitzero"`    // acquired at, by the store's clock
	Changed   time.Time     `json:"changed,omitzero"`  // last acquired, parked, taken back, resumed or ended at, by the same clock
	Age       time.Duration `json:"-"`                 // since Since, by the same clock; 0 when free
	Remaining time.Duration `json:"-"`                 // of the lease; 0 unless held
	Reserved  time.Duration `json:"-"`                 // until others can have the key; 0 when free
	Ended     Ended         `json:"ended,omitempty"`   // of a free key: how its last ownership ended
	Reason    string        `json:"reason,omitempty"`  // given with the release
	Waiters   int           `json:"waiters,omitempty"` // places in the queue; those of dead waiters count for a while
}

// MarshalJSON writes the durations as whole milliseconds: age_ms, remaining_ms
// and reserved_ms.
func (s Status) MarshalJSON() ([]byte, error) {
	type plain Status // without this method
	return json.Marshal(struct {
		plain
		Age       int64 `json:"age_ms,omitempty"`
		Remaining int64 `json:"remaining_ms,omitempty"`
		Reserved  int64 `json:"reserved_ms,omitempty"`
	}{plain(s), s.Age.Milliseconds(), s.Remaining.Milliseconds(), s.Reserved.Milliseconds()})
}

// Locked reports whether the key is owned: held, parked or orphaned.
func (s Status) Locked() bool {
	return s.State == StateHeld || s.State == StateParked || s.State == StateOrphaned
}

// Status reads the states of keys, in their order. A key that nobody owns, known or
// not, has StateFree, which is no error. A value that is no lock has StateForeign.
//
// Errors: ErrInvalid, ErrUnavailable, ErrClosed. With an error no Status is returned,
// because a key that could not be read would look free.
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

func (l *Locker) inspect(ctx context.Context, op, key string) (driver.Record, error) {
	recs, err := l.inspectAll(ctx, op, key, driver.InspectRequest{Keys: []string{key}})
	return only(recs), err
}

// inspectAll reads records. Errors name the key named, or none if it is "".
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

// ListOptions narrows List. The zero value lists every lock that is owned.
type ListOptions struct {
	// Prefix restricts the list to keys that begin with it.
	Prefix string
	// Ended includes keys that are free but not yet forgotten by the store.
	Ended bool
}

// List walks over the locks in the store, page by page, in no particular order. It is
// for people and tools: it costs as much as a walk over all keys of the store. A lock
// that changes meanwhile may be missed or seen twice. An error, ErrInvalid,
// ErrUnavailable or ErrClosed, ends the walk.
func (l *Locker) List(ctx context.Context, opts ListOptions) iter.Seq2[Status, error] {
	const op = "list"
	return func(yield func(Status, error) bool) {
		if err := checkText(op, "", "ListOptions.Prefix", opts.Prefix, 0, driver.MaxKeyBytes); err != nil {
			yield(Status{}, err)
			return
		}
		req := driver.ListRequest{Prefix: opts.Prefix, Count: 500}
		for {
			var page driver.ListPage
			err := l.open(op, "")
			if err == nil {
				page, err = ask(ctx, l, op, "", l.store.List, req)
			}
			if err != nil {
				yield(Status{}, err)
				return
			}
			for _, rec := range page.Records {
				st := statusOf(rec)
				if (st.Locked() || opts.Ended && st.State == StateFree) && !yield(st, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			req.Cursor = page.Next
		}
	}
}

func statusOf(r driver.Record) Status {
	st := Status{
		Key: r.Key, State: r.State, Owner: digest(r.Owner), Holder: r.Holder, Job: r.Job,
		Fence: r.Fence, First: r.First, Since: r.Since, Changed: r.Changed, Remaining: r.Lease, Reserved: r.Reserved,
		Ended: r.Ended, Reason: r.Reason, Waiters: r.Waiters,
	}
	if st.Locked() {
		st.Age = max(0, r.Now.Sub(r.Since))
	}
	return st
}
