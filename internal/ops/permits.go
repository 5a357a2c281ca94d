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

	// N is how many may have the key at a time: for a limit, what a program that uses the limit said last; for a
	// sequence, what the task of one of its jobs says. 0 means that it is not known. AtLeast is the largest number of a
	// permit or slot that the store remembers.
	//
	// The store does not enforce N: each program that uses a limit counts by its own N. A program that finds a permit
	// taken records its N, unless the same N was recorded in the last twelve hours, or another N in the last minute.
	N       int `json:"n,omitempty"`
	AtLeast int `json:"at_least,omitempty"`

	// What the store knows about N, if the key is that of a limit.
	Said   Time   `json:"n_said,omitzero"`    // when N was said last
	By     string `json:"n_by,omitempty"`     // label of the program that said so
	Since  Time   `json:"n_since,omitzero"`   // since when no other number was said
	Before int    `json:"n_before,omitempty"` // the number that was said before
	First  string `json:"n_first,omitempty"`  // label of the program that said N first: the one that changed it, if there is a Before

	Taken   int    `json:"taken"`        // how many are held, parked or orphaned
	Waiting int    `json:"waiting"`      // how many wait; for a while this includes waiters that have died
	Permits []Lock `json:"items"`        // those that are taken, by Number; the first slot is number 1
	Now     Time   `json:"now,omitzero"` // the store's clock when the permits were read; zero without a Kind
}

// changedLately is how long after a change of N the previous number may still be in use.
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
	who := cmpText(p.First, "a holder without a label")
	return fmt.Sprintf("%s was the first to say %d and not %d, %s ago", who, p.N, p.Before, length(p.Now.Sub(p.Since.Time)))
}

// Doubt says, in a sentence without a full stop, why callers may use different values of N. It is "" if there is no sign
// of that.
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

// soonest returns the permit that is free for others first, unless it is renewed or prolonged. With keeps, a keeper works,
// which prolongs the permits of jobs: they do not count. ok is false if no permit counts.
func (p *Permits) soonest(keeps bool) (soonest Lock, ok bool) {
	for _, l := range p.Permits {
		if (l.Job == "" || !keeps) && (!ok || l.ReservedUntil.Before(soonest.ReservedUntil.Time)) {
			soonest, ok = l, true
		}
	}
	return soonest, ok
}

// read notes when the records were read.
func (p *Permits) read(recs []driver.Record) {
	for _, rec := range recs {
		p.Now.Time = latest(p.Now.Time, rec.Now)
	}
}

// Permits reads who has the permits of the limit on key, or the slots of the sequence on key. For any other key the
// result has no Kind. If the store does not know how many permits there are, Permits.N is n; an n of 0 means that the
// caller does not know either. The number of a sequence's slots is known if the task of a job that has a slot can be
// read. Errors are those of Lock.
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

// permitsForKey reads the permits for a query about the key itself. A key that has a record of its own is rarely also
// that of a limit, so its permits are read only if a caller waits for one, or was refused one in the last day, and its
// slots only if jobs have or want the key. If the task of its job is known, only about as many slots are read as the task
// says that the sequence has. Otherwise each look at a lock would read 512 records.
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

// readLimit sets p if its key is that of a limit. Unless seek is true, it misses a limit for whose permits no caller
// waits or was refused in the last day.
func (d *Desk) readLimit(ctx context.Context, op string, p *Permits, seek bool) error {
	if len(keyspace.Permit(p.Key, limit.Max)) > driver.MaxKeyBytes {
		return nil
	}
	recs, err := d.inspect(ctx, op, p.Key, []string{keyspace.Gate(p.Key), keyspace.Size(p.Key)})
	if err != nil {
		return err
	}
	gate, size := lockOf(recs[0]), recs[1]
	// No Said if another program has written the record.
	if said, ok := keyspace.ParseSaid(size.Holder); ok && said.N <= limit.Max {
		p.Kind, p.N, p.Before, p.First, p.By = KindLimit, said.N, said.Before, said.First, said.By
		p.Said, p.Since = Time{size.Since}, Time{cmp.Or(said.Since, size.Since)}
	}
	if gate.State != driver.StateFree || gate.Waiters > 0 {
		p.Kind, p.Waiting = KindLimit, gate.Waiters
		if gate.State == driver.StateHeld {
			p.Waiting++ // the first in line
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

// readSlots sets p if the store knows a slot of its key other than the first, among as many as slots says.
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

// take adds the records of taken keys, and sets Kind and AtLeast by those that the store remembers. number is that of the
// first record.
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
