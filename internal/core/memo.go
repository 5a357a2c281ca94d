package core

import (
	"context"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// Memo is memo.Of, as LoadMemo and WriteMemo are memo.Load and memo.Write of the lock.
func (k *Lock) Memo() []byte {
	if k.none() {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.memo
}

func (k *Lock) LoadMemo(ctx context.Context) ([]byte, error) {
	const op = "load memo"
	if k.none() {
		return nil, nilLock(op)
	}
	if err := k.l.open(op, k.Key()); err != nil {
		return nil, err
	}
	recs, err := k.l.Inspect(ctx, op, k.Key(), driver.InspectRequest{Keys: []string{k.Key()}, Memo: true})
	if err == nil {
		err = k.Err() // else the memo may be a later holder's
	}
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.memo = recs[0].Memo
	return k.memo, nil
}

func (k *Lock) WriteMemo(ctx context.Context, memo []byte) error {
	const op = "write memo"
	if len(memo) > driver.MaxMemoBytes {
		return Invalid(op, k.Key(), "memo has %d bytes, at most %d are allowed", len(memo), driver.MaxMemoBytes)
	}
	return k.renewNow(ctx, op, append([]byte{}, memo...))
}

// Store returns the store of the Locker that made the lock, or nil for a lock that no Locker made.
func (k *Lock) Store() driver.Store {
	if k.none() {
		return nil
	}
	return k.l.store
}

// AsOf returns the store's time at the grant of the lock. The memo that came with the grant is from that time.
func (k *Lock) AsOf() time.Time { return k.asOf }

// RememberFor keeps the memo for at least d after the lock's end.
func (k *Lock) RememberFor(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.h.remembered(d)
}
