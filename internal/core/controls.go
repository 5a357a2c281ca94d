package core

import (
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/internal/controls"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock/driver"
)

// Controls returns the reader of what operators have set. The Locker must come from New.
func (l *Locker) Controls() *controls.Reader { return l.set }

func (l *Locker) readControls(ctx context.Context) (rec controls.Record, err error) {
	const op = "read controls"
	if err := l.open(op, ""); err != nil {
		return rec, err
	}
	recs, err := l.Inspect(ctx, op, "", driver.InspectRequest{Keys: []string{keyspace.Controls}, Memo: true})
	if err != nil {
		return rec, err
	}
	return controls.Record{Memo: recs[0].Memo, Written: recs[0].Changed, Now: recs[0].Now}, nil
}

// controlsWait bounds how long a change of the registry waits for another change.
const controlsWait = 10 * time.Second

// ChangeControls changes the registry under its lock, and wakes the processes that use it. change gets the fence of the
// write and the store's time. If change returns an error, ChangeControls changes nothing and returns that error. Other
// errors are those of Acquire, and ErrInvalid if the registry would be too large. After ErrUnavailable the registry may
// have been changed.
func (l *Locker) ChangeControls(ctx context.Context, by string, change func(set *controls.Set, fence int64, now time.Time) error) (err error) {
	const op = "change controls"
	lock, err := l.Acquire(ctx, keyspace.Controls, Options{
		OwnKey: true, Memo: true, Silent: true, Holder: by, Retain: driver.MaxPeriod, Bounded: true, MaxWait: controlsWait,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release(context.WithoutCancel(ctx), Release{})) }()
	set, err := controls.Decode(lock.Memo())
	if err != nil {
		return Invalid(op, "", "the registry cannot be read: %s", err)
	}
	if err := change(&set, lock.Fence(), lock.AsOf()); err != nil {
		return err
	}
	text := set.Encode()
	if len(text) > driver.MaxMemoBytes {
		return Invalid(op, "", "all pauses and limits together have %d bytes, at most %d are allowed: end some pauses, or clear some limits",
			len(text), driver.MaxMemoBytes)
	}
	if err := lock.WriteMemo(ctx, text); err != nil {
		return err
	}
	_, _ = l.set.Fresh(ctx) // this process sees the change at once
	l.pushControls(ctx)
	return nil
}

// pushControls wakes the processes that listen to driver.JobsInbox. A process that misses the push reads the registry
// within a second. To cause the push, pushControls releases a lock for which a job waits in line: the store then
// announces the grant to that job.
func (l *Locker) pushControls(ctx context.Context) {
	const op, job, brief = "change controls", "%changed", time.Second
	lock, err := l.Acquire(ctx, keyspace.ControlsChanged, Options{OwnKey: true, Silent: true, TTL: brief, NoRenew: true, Bounded: true})
	if err != nil {
		return
	}
	taken := l.Take(ctx, op, []Take{{Key: lock.Key(), Job: job, Reserve: brief, Patience: brief}})[0]
	_ = lock.Release(ctx, Release{})
	if taken.Err == nil {
		_ = l.FreeJobs(ctx, nil, []JobRelease{{Key: lock.Key(), Job: job}})
	}
}
