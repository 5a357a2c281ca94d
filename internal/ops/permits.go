package ops

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
)

// The kinds of Permits.
const (
	KindLimit    = "limit"    // a key that is used with package limit, or with worker.OverlapConfig.MaxConcurrent
	KindSequence = "sequence" // a key whose jobs run several at a time; see handoff.Sequence
)

// Permits are the permits of a limit, or the slots of a sequence.
type Permits struct {
	Key  string `json:"key"`
	Kind string `json:"kind,omitempty"` // "" if the key is neither a limit nor a sequence with several slots

	// N is how many holders the key may have at a time. For a limit, it is the number that a program using the limit
	// recorded last; for a sequence, it is the number in the task of one of its jobs. 0 means that N is not known.
	// AtLeast is the largest number of a permit or slot that the store remembers.
	//
	// The store does not enforce N: each program that uses a limit counts by its own N. A program that finds a permit
	// taken records its N, unless the same N was recorded in the last twelve hours, or another N in the last minute.
	N       int `json:"n,omitempty"`
	AtLeast int `json:"at_least,omitempty"`

	// The fields below describe the record of N, if the key is that of a limit.
	Said   Time   `json:"n_said,omitzero"`    // when N was last recorded
	By     string `json:"n_by,omitempty"`     // label of the program that last recorded N
	Since  Time   `json:"n_since,omitzero"`   // since when no other number was recorded
	Before int    `json:"n_before,omitempty"` // the number that was recorded before N
	First  string `json:"n_first,omitempty"`  // label of the program that recorded N first; with a Before, the one that changed it

	Taken   int    `json:"taken"`        // how many are held, parked or orphaned
	Waiting int    `json:"waiting"`      // how many callers wait; for a while this includes waiters that have died
	Permits []Lock `json:"items"`        // the taken permits or slots, by Number; the first slot is number 1
	Now     Time   `json:"now,omitzero"` // the store's clock when the permits were read; zero without a Kind
}

// changedLately is how long the previous number may still be in use after a change of N.
const changedLately = time.Hour

// Changed says, in a sentence without a full stop, when N was changed and by whom, or since when it has been unchanged.
// It is "" if no N is known.
func (p *Permits) Changed() string {
	switch {
	case p.Since.IsZero():
		return ""
	case p.Before == 0:
		return fmt.Sprintf("it has been %d for %s at least", p.N, length(p.Now.Sub(p.Since.Time)))
	}
	who := visibleOr(p.First, "a holder without a label")
	return fmt.Sprintf("%s was the first to say %d and not %d, %s ago", who, p.N, p.Before, length(p.Now.Sub(p.Since.Time)))
}

// Doubt says, in a sentence without a full stop, why programs may use different values of N. It is "" if nothing suggests
// that.
func (p *Permits) Doubt() string {
	switch used := max(p.Taken, p.AtLeast); {
	case p.N == 0 || p.Kind != KindLimit:
		return ""
	case p.Taken > p.N:
		return fmt.Sprintf("callers disagree, or the limit was larger before: %d are taken", p.Taken)
	case used > p.N:
		return fmt.Sprintf("callers disagree, or the limit was larger before: number %d was in use in the last minutes", used)
	case p.Before > 0 && p.Now.Sub(p.Since.Time) < changedLately:
		return fmt.Sprintf("callers may disagree: until %s ago the number was %d", length(p.Now.Sub(p.Since.Time)), p.Before)
	}
	return ""
}

// soonest returns the permit that becomes free first if no holder renews. If keeps is true, a keeper works, and extends the
// permits of jobs, so these do not count. ok is false if no permit counts.
func (p *Permits) soonest(keeps bool) (soonest Lock, ok bool) {
	for _, l := range p.Permits {
		if (l.Job == "" || !keeps) && (!ok || l.ReservedUntil.Before(soonest.ReservedUntil.Time)) {
			soonest, ok = l, true
		}
	}
	return soonest, ok
}

// read sets Now to the time at which the latest of the records was read.
func (p *Permits) read(recs []driver.Record) {
	for _, rec := range recs {
		p.Now.Time = latest(p.Now.Time, rec.Now)
	}
}

// Permits returns the permits of the limit on key, or the slots of the sequence on key. For any other key the result has
// no Kind. If the store does not record how many permits there are, Permits.N is n; pass 0 if the caller does not know
// either. The number of a sequence's slots is known only if the task of a job that has a slot can be read. Errors are
// those of Lock.
func (d *Desk) Permits(ctx context.Context, key string, n int) (Permits, error) {
	const op = "permits"
	if err := d.in.Check(op, key); err != nil {
		return Permits{}, err
	}
	if n < 0 || n > max(limit.Max, driver.MaxSlots) {
		return Permits{}, core.Invalid(op, key, "the number of permits is %d, must be from 0 to %d", n, max(limit.Max, driver.MaxSlots))
	}
	p := Permits{Key: key, Permits: []Lock{}}
	role, group, _ := roleOf(key)
	switch role {
	case RolePermit, RoleGate, RoleSize, RoleSlot, RoleKeeper:
		p.Key = group
	}
	if err := d.readLimit(ctx, op, &p, true); err != nil || p.Kind != "" {
		p.N = cmp.Or(p.N, n)
		return p, err
	}
	err := d.readSlots(ctx, op, &p, driver.MaxSlots)
	if p.Kind != "" {
		p.N = cmp.Or(p.N, n)
	}
	return p, err
}

// permitsForKey reads the permits or slots of a key that Lock shows. Reading all of them takes 512 records, and a key
// that has a record of its own is rarely also the key of a limit. So permitsForKey reads the permits of such a key only
// if a caller waits for one, or was refused one in the last day, and the slots only if jobs have or want the key. If
// asynq has the task of the key's job, it reads only about as many slots as the task says that the sequence has.
func (d *Desk) permitsForKey(ctx context.Context, lock Lock) (Permits, error) {
	if lock.Fence == 0 || lock.Role != "" {
		return d.Permits(ctx, lock.Key, 0)
	}
	const op = "permits"
	p := Permits{Key: lock.Key, Permits: []Lock{}}
	if err := d.readLimit(ctx, op, &p, false); err != nil || p.Kind != "" {
		return p, err
	}
	ofJobs := func(w Waiter) bool { return w.Job != "" }
	if lock.Job == "" && !slices.ContainsFunc(lock.Line, ofJobs) && len(lock.Line) == lock.Waiters {
		return p, nil
	}
	slots := driver.MaxSlots
	if lock.Task != nil && lock.Task.Type != "" { // asynq has the task
		slots = max(inspectFew, lock.Task.Limit)
	}
	err := d.readSlots(ctx, op, &p, slots)
	return p, err
}

// readLimit sets p if its key is that of a limit. If seek is false, it misses a limit for which no caller waits, and was
// refused in the last day.
func (d *Desk) readLimit(ctx context.Context, op string, p *Permits, seek bool) error {
	if len(keyspace.Permit(p.Key, limit.Max)) > driver.MaxKeyBytes {
		return nil
	}
	recs, err := d.inspect(ctx, op, p.Key, []string{keyspace.Gate(p.Key), keyspace.Size(p.Key)})
	if err != nil {
		return err
	}
	gate, size := lockOf(recs[0]), recs[1]
	// Said is not set if another program has written the record.
	if said, ok := keyspace.ParseSaid(size.Holder); ok && said.N <= limit.Max {
		p.Kind, p.N, p.Before, p.First, p.By = KindLimit, said.N, said.Before, said.First, said.By
		p.Said, p.Since = Time{size.Since}, Time{cmp.Or(said.Since, size.Since)}
	}
	if gate.State != driver.StateFree || gate.Waiters > 0 {
		p.Kind, p.Waiting = KindLimit, gate.Waiters
		if gate.State == driver.StateHeld {
			p.Waiting++ // the caller that is first in line has the gate
		}
	}
	p.read(recs)
	if p.Kind == "" && !seek {
		return nil
	}
	var keys []string
	for i := range limit.Max {
		keys = append(keys, keyspace.Permit(p.Key, i+1))
	}
	if recs, err = d.inspect(ctx, op, p.Key, keys); err != nil {
		return err
	}
	p.take(recs, 1, KindLimit)
	p.read(recs)
	return nil
}

// readSlots sets p if the store knows a slot of its key other than the first. It looks at that many slots.
func (d *Desk) readSlots(ctx context.Context, op string, p *Permits, slots int) error {
	if len(driver.SlotKey(p.Key, driver.MaxSlots)) > driver.MaxKeyBytes {
		return nil
	}
	var keys []string
	for i := range slots {
		keys = append(keys, driver.SlotKey(p.Key, i+1))
	}
	recs, err := d.inspect(ctx, op, p.Key, keys)
	if err != nil {
		return err
	}
	p.take(recs[1:], 2, KindSequence)
	p.read(recs)
	if p.Kind == "" {
		return nil
	}
	p.Waiting = recs[0].Waiters
	if first := lockOf(recs[0]); first.Locked() {
		first.Number = 1
		p.Permits, p.Taken = slices.Insert(p.Permits, 0, first), p.Taken+1
	}
	for _, l := range p.Permits {
		if p.N = d.asynq().limitOf(ctx, l.Job); p.N > 0 {
			return nil
		}
	}
	return nil
}

// take adds the records of taken keys to p. It sets Kind if the store remembers any of the keys, and AtLeast to the
// largest number among these. number is the number of the first record.
func (p *Permits) take(recs []driver.Record, number int, kind string) {
	for i, rec := range recs {
		l := lockOf(rec)
		if l.Fence != 0 {
			p.Kind, p.AtLeast = kind, number+i
		}
		if l.Locked() {
			p.Permits, p.Taken = append(p.Permits, l), p.Taken+1
		}
	}
}
