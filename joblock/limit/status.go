package limit

import (
	"context"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Status is what anyone may see of a key that is used with a Limit.
type Status struct {
	Key     string           `json:"key"`
	Limit   int              `json:"limit"`
	Taken   int              `json:"taken"`             // permits that are owned: held, parked or orphaned
	Waiting int              `json:"waiting,omitempty"` // in line; dead waiters count for a while
	Permits []joblock.Status `json:"permits"`           // all of them, by number
}

// Status reads who has the permits of key. If a larger limit is or was in use, its higher
// permits are not read; Locker.List shows all, with key+"%#" as its prefix. Errors:
// ErrInvalid, ErrUnavailable, ErrClosed.
func (l *Limit) Status(ctx context.Context, key string) (Status, error) {
	const op = "limit status"
	if err := l.check(op, key); err != nil {
		return Status{}, err
	}
	if err := l.in.Check(op, key); err != nil {
		return Status{}, err
	}
	keys := []string{keyspace.Gate(key)}
	for i := range l.n {
		keys = append(keys, keyspace.Permit(key, i+1))
	}
	recs, err := l.in.Inspect(ctx, op, key, driver.InspectRequest{Keys: keys})
	if err != nil {
		return Status{}, err
	}
	st := Status{Key: key, Limit: l.n, Waiting: recs[0].Waiters}
	if recs[0].State == driver.StateHeld {
		st.Waiting++ // the one at the gate
	}
	for _, rec := range recs[1:] {
		permit := door.Status[joblock.Status](rec)
		st.Permits = append(st.Permits, permit)
		if permit.Locked() {
			st.Taken++
		}
	}
	return st, nil
}
