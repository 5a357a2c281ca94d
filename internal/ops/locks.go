package ops

import (
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// LocksQuery says which locks Desk.Locks shows: those that match all fields that are set. The zero value shows every lock
// that is held, parked or orphaned, but no keys that only the toolkit itself uses.
type LocksQuery struct {
	Prefix    string          `query:"prefix"`                                              // keys that begin with Prefix
	Contains  string          `query:"contains" jsonschema:"maxLength=512"`                 // keys that contain this text; the walk reads the records of all keys under Prefix
	States    []joblock.State `query:"state"`                                               // one of these; none means held, parked and orphaned
	OlderThan time.Duration   `query:"older_ms" jsonschema:"minimum=0,maximum=31622400000"` // the key has been locked for at least that long
	Waiters   int             `query:"waiters" jsonschema:"minimum=0,maximum=1000000"`      // at least that many callers or jobs wait

	// Jobs shows only locks that are bound to a job. Then Locks reads the index of jobs instead of all keys of the store.
	// Queue, unless empty, is the asynq queue of the job; it implies Jobs.
	Jobs  bool   `query:"job"`
	Queue string `query:"queue"`

	Ended bool `query:"ended"` // also free keys that the store still remembers
	Own   bool `query:"own"`   // also keys that only the toolkit itself uses; see Role

	// Share is the largest fraction of the time during which the walk may have a call to one server of the store under
	// way, from 0.001 to 1. The default is 0.25. See joblock.ListOptions.
	Share float64

	// Progress, unless nil, is called with the completed fraction of the walk, from 0 to 1, in the goroutine of the loop.
	Progress func(done float64)
}

// Locks iterates over the locks that match q, in no particular order. It yields the first locks as soon as it has read a
// page. The walk may miss a lock that changes meanwhile, or yield it twice. An error ends the walk: joblock.ErrInvalid
// for a bad query, joblock.ErrUnavailable, joblock.ErrClosed.
func (d *Desk) Locks(ctx context.Context, q LocksQuery) iter.Seq2[Lock, error] {
	return func(yield func(Lock, error) bool) {
		if err := checkContains("list", q.Contains); err != nil {
			yield(Lock{}, err)
			return
		}
		for lock, err := range d.walk(ctx, q) {
			if err != nil {
				yield(Lock{}, err)
				return
			}
			if q.wants(lock) && !yield(lock, nil) {
				return
			}
		}
	}
}

func checkContains(op, text string) error {
	return core.CheckText(op, "", "contains", text, 0, driver.MaxKeyBytes)
}

// walk iterates over all locks that may match q.
func (d *Desk) walk(ctx context.Context, q LocksQuery) iter.Seq2[Lock, error] {
	if q.Jobs || q.Queue != "" {
		return d.index().locks(ctx, q)
	}
	return func(yield func(Lock, error) bool) {
		opts := joblock.ListOptions{Prefix: q.Prefix, Ended: q.free(), Share: q.Share, Progress: q.Progress}
		for st, err := range d.cfg.Locks.List(ctx, opts) {
			if !yield(show(st), err) || err != nil {
				return
			}
		}
	}
}

// free reports whether q may show keys that are free.
func (q *LocksQuery) free() bool { return q.Ended || slices.Contains(q.States, joblock.StateFree) }

func (q *LocksQuery) wants(l Lock) bool {
	switch {
	case !strings.HasPrefix(l.Key, q.Prefix), !strings.Contains(l.Key, q.Contains):
	case l.Role.inner() && !q.Own:
	case len(q.States) > 0 && !slices.Contains(q.States, l.State) && !(q.Ended && l.State == joblock.StateFree):
	case len(q.States) == 0 && !l.Locked() && !(q.Ended && l.State == joblock.StateFree):
	case l.Age.Duration() < q.OlderThan:
	case l.Waiters < q.Waiters:
	default:
		return true
	}
	return false
}
