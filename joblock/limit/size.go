package limit

import (
	"cmp"
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock/driver"
)

const (
	// sizeKept is how long the store remembers the number of permits after an acquisition has written the number.
	sizeKept = 24 * time.Hour

	// sizePause is the least time between two writes, because both numbers are in use while a deployment changes n.
	sizePause = time.Minute
)

// recordSize writes the number of permits into a record of its own, unless that record, which the caller passes as old,
// has the number already. Only people read the record. A call that has to read the permits anyway reads old with them,
// so an acquisition that gets a permit at once pays nothing.
//
// The record belongs to a lock whose lease ends at once. The number is in its holder label, as the text of a
// keyspace.Said. So one call writes the record, and no release is needed. If the call fails, a later acquisition writes
// the number.
func (p *permits) recordSize(ctx context.Context, old driver.Record) {
	said, known := keyspace.ParseSaid(old.Holder)
	age := old.Now.Sub(old.Since)
	if old.Fence != 0 && (age < sizePause || known && said.N == p.n && age < sizeKept/2) {
		return
	}
	if said.N == p.n {
		said.Since = cmp.Or(said.Since, old.Since)
	} else {
		said = keyspace.Said{N: p.n, Before: said.N, First: p.asked.Holder}
	}
	said.By = p.asked.Holder
	key := keyspace.Size(p.key)
	err := p.locks.Call(ctx, "acquire", key, func(ctx context.Context, store driver.Store) error {
		_, err := store.Acquire(ctx, driver.AcquireRequest{
			Key: key, Owner: random(), Nonce: random(), TTL: driver.MinPeriod, Retain: sizeKept, Holder: said.String(),
		})
		return err
	})
	if err != nil {
		p.locks.Settings().Logger.Debug("limit: could not store the number of permits, which is for display only", "key", p.key, "err", err)
	}
}

func random() string { return strconv.FormatUint(rand.Uint64(), 36) }
