// Package memo reads and writes the memo of a key: up to 64 KiB that a holder leaves for
// the next one, kept in the store with the lock. Packages scheduler and singleflight are
// built on it.
//
//	lock, err := locks.Acquire(ctx, "import", memo.WithGrant(), joblock.Retain(30*24*time.Hour))
//	...
//	page := decode(memo.Of(lock))
//	...
//	err = memo.Write(ctx, lock, encode(page+1))
//
// Only the present holder can write the memo. After the lock has ended the store keeps
// the memo for Config.Retain, or for the time that the option joblock.Retain gives. Data
// that must not get lost does not belong in a memo.
package memo

import (
	"context"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// MaxBytes is the length of the longest memo.
const MaxBytes = driver.MaxMemoBytes

// WithGrant is an option of the calls that acquire or resume: the store sends the key's
// memo along with the grant, for Of. This is no default, because a memo may be large and
// most holders do not use it.
func WithGrant() joblock.Option { return door.Use[joblock.Option](door.Option{Memo: true}) }

// Of returns the memo of lock's key: the one that Write last wrote on this lock, or else
// the one that came with the grant. It is nil if there is neither, and for a nil Lock.
// The caller must not change it.
func Of(lock *joblock.Lock) []byte { return door.OfLock(lock).Memo() }

// Write writes the memo of lock's key, at most MaxBytes long, and renews the lease in the
// same step. A nil memo clears it.
//
// Errors, after which Of is as before: ErrInvalid for a memo that is too long and for a
// nil Lock, and the errors of Lock.Renew. After ErrUnavailable the memo may have been
// written.
func Write(ctx context.Context, lock *joblock.Lock, memo []byte) error {
	return door.OfLock(lock).WriteMemo(ctx, memo)
}

// View is a key as Read found it.
type View struct {
	joblock.Status
	Memo []byte
	Now  time.Time // the store's clock at the read; zero if the key has no record, or had no answer
}

// Read reads the state and the memo of several keys, in one round trip where the store
// can, and takes none of the locks. The views are in the order of keys. They may already
// be out of date: before you act on one, take the lock and check again.
//
// Errors: ErrInvalid for a bad key, before anything is sent; ErrClosed; ErrUnavailable if
// at least one key had no answer, along with the views of the others.
func Read(ctx context.Context, locks *joblock.Locker, keys ...string) ([]View, error) {
	const op = "read memos"
	in := door.Of(locks)
	if err := in.Check(op, keys...); err != nil {
		return nil, err
	}
	var recs []driver.Record
	err := in.Call(ctx, op, "", func(ctx context.Context, store driver.Store) (err error) {
		recs, err = store.Inspect(ctx, driver.InspectRequest{Keys: keys, Memo: true})
		return err
	})
	views := make([]View, len(keys))
	for i, key := range keys {
		views[i].Key = key // also of one without an answer
		if i < len(recs) {
			views[i] = View{Status: door.Status[joblock.Status](recs[i]), Memo: recs[i].Memo, Now: recs[i].Now}
		}
	}
	return views, err
}
