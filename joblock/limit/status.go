package limit

import (
	"context"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Status is the public state of a key that is used with a Limit.
type Status struct {
	Key     string           `json:"key"`
	Limit   int              `json:"limit"`
	Taken   int              `json:"taken"`             // number of permits that are held, parked or orphaned
	Waiters int              `json:"waiters,omitempty"` // number of waiters; a dead waiter counts for a while
	Permits []joblock.Status `json:"permits"`           // all n permits, by number
}

// Status reads who has the permits of key. If another Limit has a larger n for the same key, Status does not read the
// additional permits of that Limit. Locker.List with the prefix key+"%#" lists all permits. Errors: ErrInvalid,
// ErrUnavailable, ErrClosed.
func (l *Limit) Status(ctx context.Context, key string) (Status, error) {
	const op = "limit status"
	if err := l.check(op, key); err != nil {
		return Status{}, err
	}
	if err := l.locks.Check(op, key); err != nil {
		return Status{}, err
	}
	keys := []string{keyspace.Gate(key)}
	for i := range l.n {
		keys = append(keys, keyspace.Permit(key, i+1))
	}
	recs, err := l.locks.Inspect(ctx, op, key, driver.InspectRequest{Keys: keys})
	if err != nil {
		return Status{}, err
	}
	st := Status{Key: key, Limit: l.n, Waiters: recs[0].Waiters}
	if recs[0].State == driver.StateHeld {
		st.Waiters++ // the first in line, who holds the gate
	}
	for _, rec := range recs[1:] {
		permit := core.StatusOf(rec)
		st.Permits = append(st.Permits, joblock.Status(permit))
		if permit.Locked() {
			st.Taken++
		}
	}
	return st, nil
}
