package core

import (
	"context"
	"fmt"

	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock/driver"
)

// Ring returns the keys that seal the locks that tasks carry, or nil for a Locker that is nil or was not made by New.
func (l *Locker) Ring() *seal.Ring {
	if l == nil {
		return nil
	}
	return l.seals
}

func newRing(l *Locker) *seal.Ring {
	return seal.NewRing(seal.Config{Load: l.sealKeys, Sources: l.cfg.Secrets, Where: l.where})
}

// sealKeys reads the seal keys that the store keeps with the locks.
func (l *Locker) sealKeys(ctx context.Context, req driver.SealKeysRequest) ([]driver.SealKey, error) {
	const op = "read seal keys"
	if err := l.open(op, ""); err != nil {
		return nil, err
	}
	keys, err := ask(ctx, l, op, "", l.store.SealKeys, req)
	if err == nil && len(keys) == 0 {
		err = &Error{Code: driver.CodeUnavailable, Op: op, Detail: "the store returned no seal key"}
	}
	return keys, err
}

func (l *Locker) where() string {
	if s, ok := l.store.(fmt.Stringer); ok {
		return s.String()
	}
	return fmt.Sprintf("a %T", l.store)
}
