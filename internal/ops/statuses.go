package ops

import (
	"context"
	"slices"

	"github.com/joblock/toolkit/joblock/driver"
)

// Statuses reads the records of keys, in the order of keys, and nothing else: Lock also reads the line, the permits and
// the job. Statuses takes one call for every driver.MaxBatch keys. With an error there are no locks. Errors are those of
// Lock.
func (d *Desk) Statuses(ctx context.Context, keys ...string) ([]Lock, error) {
	const op = "status"
	if err := d.in.Check(op, keys...); err != nil {
		return nil, err
	}
	locks := make([]Lock, 0, len(keys))
	for part := range slices.Chunk(keys, driver.MaxBatch) {
		recs, err := d.in.Inspect(ctx, op, "", driver.InspectRequest{Keys: part})
		if err != nil {
			return nil, err
		}
		for _, rec := range recs {
			locks = append(locks, lockOf(rec))
		}
	}
	return locks, nil
}
