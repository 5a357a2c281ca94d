package joblock

import (
	"context"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock/driver"
)

// LimitStatus is what anyone may see of a key that is used with Limit.
type LimitStatus struct {
	Key     string   `json:"key"`
	Limit   int      `json:"limit"`
	Taken   int      `json:"taken"`             // permits that are owned: held, parked or orphaned
	Waiting int      `json:"waiting,omitempty"` // in line; those that died count for a while
	Permits []Status `json:"permits"`           // all of them, by number
}

// LimitStatus reads who has the permits of key under Limit(n). Permits beyond n,
// of a larger limit that is or was in use, are not looked at; List shows all, with
// key+"%#" as its prefix. Errors: ErrInvalid, ErrUnavailable, ErrClosed.
func (l *Locker) LimitStatus(ctx context.Context, key string, n int) (LimitStatus, error) {
	const op = "limit status"
	if err := l.open(op, key); err != nil {
		return LimitStatus{}, err
	}
	if err := checkKey(op, key); err != nil {
		return LimitStatus{}, err
	}
	o := options{limit: n, hasLimit: true}
	if err := o.checkLimit(op, key); err != nil {
		return LimitStatus{}, err
	}
	keys := []string{keyspace.Gate(key)}
	for i := range n {
		keys = append(keys, keyspace.Permit(key, i+1))
	}
	recs, err := l.inspectAll(ctx, op, key, driver.InspectRequest{Keys: keys})
	if err != nil {
		return LimitStatus{}, err
	}
	st := LimitStatus{Key: key, Limit: n, Waiting: recs[0].Waiters}
	if recs[0].State == StateHeld {
		st.Waiting++ // the one at the gate, who is in the queues of the permits
	}
	for _, rec := range recs[1:] {
		permit := statusOf(rec)
		st.Permits = append(st.Permits, permit)
		if permit.Locked() {
			st.Taken++
		}
	}
	return st, nil
}
