package enqueue

import (
	"context"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Debounce is handoff.Debounce.
type Debounce struct {
	Key           string
	Wait, MaxWait time.Duration
	Leading       bool
}

// minDebounce is the shortest Debounce.Wait: asynq keeps whole seconds.
const minDebounce = time.Second

func (b Debounce) plan(ctx context.Context, d *dispatch) (kind, error) {
	if err := b.check(d); err != nil {
		return nil, err
	}
	d.at = time.Now().Add(b.Wait)
	u := Unique{Key: b.Key, OnConflict: KeepLast}
	if b.Leading {
		u.Cooldown = b.Wait
	}
	k, err := u.plan(ctx, d)
	if err != nil {
		return nil, err
	}
	return &debounce{unique: k.(*unique), Debounce: b}, nil
}

// check refuses a Debounce with a bad field, and options that it excludes.
func (b Debounce) check(d *dispatch) error {
	most := driver.MaxPeriod - d.c.reserve
	switch {
	case b.Wait < minDebounce || b.Wait > most:
		return Invalid(opEnqueue, b.Key, "Debounce.Wait is %s, must be from %s to %s", b.Wait, minDebounce, most)
	case b.MaxWait != 0 && b.MaxWait < b.Wait:
		return Invalid(opEnqueue, b.Key, "Debounce.MaxWait is %s, must be 0 for no bound, or at least Debounce.Wait, %s", b.MaxWait, b.Wait)
	case !d.at.IsZero():
		return Invalid(opEnqueue, b.Key, "the options asynq.ProcessAt and ProcessIn cannot be used with a Debounce, which sets the time itself: use Debounce.Wait")
	case d.named && d.call.Owner == "":
		return Invalid(opEnqueue, b.Key, "the option asynq.TaskID cannot be used with a Debounce, whose jobs replace each other, and may wait while an earlier one runs: "+
			"leave it out; Client.Job finds the job of a key")
	case d.grouped:
		return Invalid(opEnqueue, b.Key, "the option asynq.Group cannot be used with a Debounce: asynq would decide when the job runs")
	case !d.until.IsZero() && !d.until.After(time.Now().Add(b.Wait)):
		return Invalid(opEnqueue, b.Key, "the Deadline is %s, must be more than Debounce.Wait, %s, from now: otherwise asynq would never run the task",
			d.until.Format(time.RFC3339), b.Wait)
	}
	return nil
}

// debounce is the kind of a Debounce: a Unique with KeepLast whose job is due later with each enqueue. The lock of the
// job that waits passes from each job to the next that replaces it, so its age is that of the first enqueue.
type debounce struct {
	*unique
	Debounce
}

// mark sets when the task is due: Wait from now, but no later than MaxWait after the lock for the waiting job was taken,
// by the clock of the locks' store.
func (b *debounce) mark(ctx context.Context, env *envelope.Envelope) ([]asynq.Option, error) {
	further, err := b.unique.mark(ctx, env)
	if err != nil {
		return nil, err
	}
	wait := b.Wait
	if b.Leading || b.MaxWait > 0 {
		sts, err := b.c.locks.Status(ctx, b.takenKey(), b.Debounce.Key)
		if err != nil {
			return nil, err
		}
		if b.MaxWait > 0 {
			wait = min(wait, max(0, b.MaxWait-sts[0].Age))
		}
		if b.Leading && b.leads(sts[1]) {
			wait = 0
		}
	}
	due := taskSpec{at: time.Now().Add(wait)}
	return append(further, asynq.ProcessAt(due.wholeSecond())), nil
}

// leads reports whether the task is the first one of a burst: no job holds the key to run under, whose status is run,
// and no job waits that is not yet due. A job that is being replaced may have just taken the key, but does not start.
func (b *debounce) leads(run joblock.Status) bool {
	if b.old == nil {
		return !run.Locked()
	}
	free := !run.Locked() || run.Job == envelope.Job(b.old.Queue, b.old.ID)
	return free && !b.old.NextProcessAt.After(time.Now())
}
