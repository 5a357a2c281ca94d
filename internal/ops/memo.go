package ops

import (
	"context"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// WriteMemo writes memo, of at most driver.MaxMemoBytes, to the key of token, and begins a new lease of ttl in the same
// step. An empty memo clears the key's memo; a nil memo leaves it unchanged.
//
// Errors, after which the memo is unchanged: those of Renew. After ErrUnavailable the memo may have been written; the
// caller can repeat the call.
func WriteMemo(ctx context.Context, locks *joblock.Locker, token joblock.Token, ttl time.Duration, memo []byte) error {
	const op = "write memo"
	in, id, key := (*core.Locker)(locks), core.Token(token), token.Key()
	if len(memo) > driver.MaxMemoBytes {
		return core.Invalid(op, key, "memo has %d bytes, at most %d are allowed", len(memo), driver.MaxMemoBytes)
	}
	ttl = ttl.Truncate(time.Millisecond)
	if err := check(in, op, key, period{"TTL", ttl, driver.MinPeriod, in.Settings().MaxTTL}); err != nil {
		return err
	}
	_, err := send(ctx, in, op, key, driver.Store.Renew, driver.RenewRequest{
		Term: term(key, id), TTL: ttl, Retain: in.Settings().Retain, Memo: memo,
	})
	return err
}
