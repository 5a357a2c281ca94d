package ops

import (
	"context"
	"slices"

	"github.com/joblock/toolkit/joblock/driver"
)

// Statuses reads only the records of keys, in the order of keys; Lock also reads the line, the permits and the job. With
// an error it returns no locks. Errors are those of Lock.
func (d *Desk) Statuses(ctx context.Context, keys ...string) ([]Lock, error) {
	const op = "status"
	if err := d.in.Check(op, keys...); err != nil {
		return nil, err
	}
	recs, err := d.inspect(ctx, op, "", keys)
	if err != nil {
		return nil, err
	}
	locks := make([]Lock, len(recs))
	for i, rec := range recs {
		locks[i] = lockOf(rec)
	}
	return locks, nil
}

// inspectFew is how many records a single call reads. A Redis store serves no other client during a call, which takes
// some hundredths of a millisecond for 32 records.
const inspectFew = 32

// inspect reads many records, inspectFew at a time. The parameter key becomes the Key of an error.
func (d *Desk) inspect(ctx context.Context, op, key string, keys []string) ([]driver.Record, error) {
	recs := make([]driver.Record, 0, len(keys))
	for part := range slices.Chunk(keys, inspectFew) {
		some, err := d.in.Inspect(ctx, op, key, driver.InspectRequest{Keys: part})
		if err != nil {
			return nil, err
		}
		recs = append(recs, some...)
	}
	return recs, nil
}
