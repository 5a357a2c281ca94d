// Package memo reads and writes the memo of a key: up to 64 KiB that a holder leaves for the next holder, and that the
// store keeps with the lock. Packages scheduler and singleflight are built on package memo.
//
//	lock, err := locks.Acquire(ctx, "import", memo.WithGrant(), joblock.Retain(30*24*time.Hour))
//	...
//	page := decode(memo.Of(lock))
//	...
//	err = memo.Write(ctx, lock, encode(page+1))
//
// Only the present holder can write the memo. After the lock has ended, the store keeps the memo for Config.Retain,
// or for the time that the option joblock.Retain gives. Data that must not get lost does not belong in a memo.
package memo

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// MaxBytes is the largest length of a memo.
const MaxBytes = driver.MaxMemoBytes

// WithGrant is an option of the calls that acquire or resume a lock. The store sends the key's memo along with the
// grant, and Of returns that memo. The option is not the default, because a memo may be large and most holders do not
// use it.
func WithGrant() joblock.Option { return core.With(func(o *core.Options) { o.Memo = true }) }

// Of returns the memo of lock's key: the memo that Write last wrote with lock or, before the first Write, the memo that
// came with the grant. Of returns nil if there is no such memo, and for a nil Lock. The caller must not change it.
func Of(lock *joblock.Lock) []byte { return (*core.Lock)(lock).Memo() }

// Load reads the memo of lock's key from the store, and Of returns that memo from then on. Load is for a lock that was
// taken without WithGrant, such as the lock of a job, which the worker has resumed:
//
//	lock, _ := joblock.FromContext(ctx)
//	left, err := memo.Load(ctx, lock) // by an earlier attempt, or by an earlier holder
//
// Do not Load and Write at the same time. Errors: ErrInvalid for a nil Lock, ErrUnavailable, ErrClosed, and lock.Err if
// the lock has ended.
func Load(ctx context.Context, lock *joblock.Lock) ([]byte, error) {
	return (*core.Lock)(lock).LoadMemo(ctx)
}

// Write writes the memo of lock's key, at most MaxBytes long, and renews the lease in the same step. A nil memo
// clears the key's memo.
//
// Errors: ErrInvalid for a memo that is too long and for a nil Lock, and the errors of Lock.Renew. After an error, Of
// returns the same memo as before. After ErrUnavailable the store may have written the memo.
func Write(ctx context.Context, lock *joblock.Lock, memo []byte) error {
	return (*core.Lock)(lock).WriteMemo(ctx, memo)
}

// View is a key as Read found it.
type View struct {
	joblock.Status
	Memo []byte // nil if the key has none
}

// MarshalJSON writes the fields of Status and, in memo, the Memo in base64.
func (v View) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(v.Status)
	if err != nil || len(v.Memo) == 0 {
		return text, err
	}
	memo, err := json.Marshal(v.Memo)
	return slices.Concat(text[:len(text)-1], []byte(`,"memo":`), memo, []byte("}")), err
}

// Read reads the states and the memos of several keys, 1000 in a call to the store. Read takes no lock. The views are in
// the order of keys. A view may already be out of date: before you act on a view, take the lock and check again.
//
// Errors: ErrInvalid for a bad key, before Read sends anything; ErrUnavailable; ErrClosed. On error Read returns no
// views at all, because a key that could not be read would look free.
func Read(ctx context.Context, locks *joblock.Locker, keys ...string) ([]View, error) {
	const op = "read memos"
	in := (*core.Locker)(locks)
	if err := in.Check(op, keys...); err != nil {
		return nil, err
	}
	named := "" // the Key of an error
	if len(keys) == 1 {
		named = keys[0]
	}
	views := make([]View, 0, len(keys))
	for part := range slices.Chunk(keys, driver.MaxBatch) {
		recs, err := in.Inspect(ctx, op, named, driver.InspectRequest{Keys: part, Memo: true})
		if err != nil {
			return nil, err
		}
		for _, rec := range recs {
			views = append(views, View{joblock.Status(core.StatusOf(rec)), rec.Memo})
		}
	}
	return views, nil
}
