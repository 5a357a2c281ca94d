package joblock

import (
	"context"
	"github.com/joblock/toolkit/joblock/driver"
	"time"
)

// View is a key as Peek saw it.
type View struct {
	Status
	Memo []byte    // what the last holder left; see Lock.SetMemo
	Now  time.Time // the store's clock at the read; zero where there is no record, or no answer
}

// Peek reads the state and the memo of several keys, in one round trip where the store
// can, and takes none of them. The views are in the order of the keys. By the time they
// are read they may be out of date: what is decided on them has to be checked again
// under the lock.
//
// Errors: ErrInvalid for a bad key, before anything is sent; ErrUnavailable if at least
// one key had no answer, the others being returned all the same; ErrClosed.
func (l *Locker) Peek(ctx context.Context, keys ...string) ([]View, error) {
	const op = "peek"
	if err := l.open(op, ""); err != nil {
		return nil, err
	}
	for _, key := range keys {
		if err := checkKey(op, key); err != nil {
			return nil, err
		}
	}
	var recs []driver.Record
	err := l.call(ctx, op, "", func(ctx context.Context) (err error) {
		recs, err = l.store.Inspect(ctx, driver.InspectRequest{Keys: keys, Memo: true})
		return err
	})
	views := make([]View, len(keys))
	for i, key := range keys {
		views[i].Key = key // also of one without an answer
		if i < len(recs) {
			views[i] = View{Status: statusOf(recs[i]), Memo: recs[i].Memo, Now: recs[i].Now}
		}
	}
	return views, err
}
