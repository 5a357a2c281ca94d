package enqueue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
)

// Unique is handoff.Unique.
type Unique struct {
	Key          string
	UntilStarted bool
	OnConflict   OnConflict
	Limit        int
	Cooldown     time.Duration
}

// OnConflict is handoff.OnConflict.
type OnConflict uint8

const (
	Reject OnConflict = iota
	Skip
	Replace
	KeepLast
	CancelInProgress
)

func (u Unique) plan(ctx context.Context, d *dispatch) (kind, error) {
	err := u.check()
	if err == nil && d.unique {
		err = badTask("the option asynq.Unique and handoff.Unique are two kinds of uniqueness, use one; " +
			"asynq.Unique may be among the options of asynq.NewTask")
	}
	if name := envelope.Cooling(d.job); err == nil && u.Cooldown > 0 && len(name) > driver.MaxLabelBytes {
		err = badTask("queue and task ID are %d bytes too long for a job with a cooldown", len(name)-driver.MaxLabelBytes)
	}
	if err == nil {
		err = d.c.checkCarried(ctx, u)
	}
	if u.Limit > 0 {
		return &permit{parking: parking{dispatch: d}, of: u}, err
	}
	return &unique{taking: taking{d}, Unique: u}, err
}

// check refuses a Unique with a bad field.
func (u Unique) check() error {
	switch {
	case u.OnConflict > CancelInProgress:
		return Invalid(opEnqueue, u.Key, "Unique.OnConflict is %d, must be Reject, Skip, Replace, KeepLast or CancelInProgress", u.OnConflict)
	case u.waits() && u.UntilStarted:
		return Invalid(opEnqueue, u.Key, "Unique.UntilStarted is set, which KeepLast and CancelInProgress do not support: use Replace")
	case u.Limit < 0 || u.Limit > limit.Max:
		return Invalid(opEnqueue, u.Key, "Unique.Limit is %d, must be from 0 to %d", u.Limit, limit.Max)
	case u.Limit > 0 && (u.UntilStarted || u.OnConflict != Reject):
		return Invalid(opEnqueue, u.Key, "Unique.Limit is %d: Unique.UntilStarted must then be false, and Unique.OnConflict must be Reject", u.Limit)
	}
	if u.Cooldown != 0 {
		if u.Limit > 0 {
			return Invalid(opEnqueue, u.Key, "Unique.Cooldown is %s and Unique.Limit is %d, use one: a permit has no cooldown", u.Cooldown, u.Limit)
		}
		if u.Cooldown < minCooldown || u.Cooldown > driver.MaxPeriod {
			return Invalid(opEnqueue, u.Key, "Unique.Cooldown is %s, must be from %s to %s, or 0 for none", u.Cooldown, minCooldown, driver.MaxPeriod)
		}
	}
	if detail := keyspace.CheckApplication(u.Key); detail != "" {
		return Invalid(opEnqueue, u.Key, "%s", detail) // a Take may be for one of the toolkit's own keys, like that of takenKey
	}
	return nil
}

// minCooldown is the shortest Unique.Cooldown: stores report what is left of a cooldown in milliseconds.
const minCooldown = driver.MinPeriod

// takenKey returns the key that an enqueue takes for the job: Key, or the one under which a job of KeepLast waits.
func (u Unique) takenKey() string {
	if u.waits() && u.Key != "" {
		return keyspace.Next(u.Key)
	}
	return u.Key
}

// replaces reports whether a job that waits is replaced.
func (u Unique) replaces() bool { return u.OnConflict == Replace || u.waits() }

// waits reports whether the job waits while another one runs.
func (u Unique) waits() bool { return u.OnConflict == KeepLast || u.OnConflict == CancelInProgress }

// checkCarried refuses a unique job if ctx carries the lock on its key, or all permits of the key: otherwise each such
// call would return ErrHeld because of a lock of its own caller.
func (c *Client) checkCarried(ctx context.Context, u Unique) error {
	carried := 0
	for _, lock := range joblock.LocksFromContext(ctx) {
		key := lock.Key()
		if u.Limit > 0 {
			key, _ = keyspace.Limit(key)
		}
		if key == u.takenKey() && owns(c.locks, lock) && lock.Err() == nil {
			carried++
		}
	}
	if carried < max(1, u.Limit) {
		return nil
	}
	err := Invalid(opEnqueue, u.Key, "the request or job that enqueues has this lock itself, so the new job cannot get it: hand "+
		"the lock over with handoff.Carry, claim another key or none (Claim.NoLock) for the request, or in the handler of a job use KeepLast or CancelInProgress")
	c.logger.ErrorContext(ctx, "handoff: a job was not enqueued, because its caller has the lock on its key", "key", u.Key, "err", err)
	return err
}

// unique is the kind of a Unique without a Limit.
type unique struct {
	taking
	Unique

	hasTurn      bool            // the enqueue goes before other enqueues that may replace the job; see enter
	old          *asynq.TaskInfo // the task that is being replaced, for debounce.mark; nil if none is
	contendUntil time.Time       // when to give up replacing a job that other calls replace; zero before enter
}

func (u *unique) keys() (named, alone []string) { return []string{u.Key}, []string{u.takenKey()} }

func (u *unique) ask(b *batch) {
	b.take(take{Key: u.takenKey()}, func(t taken) {
		if u.askErr = t.Err; t.Err == nil {
			u.tokens = []joblock.Token{tokenOf(t)}
		}
	})
}

func (u *unique) unkept() (keys []string, ok bool) { return []string{u.Key, u.takenKey()}, true }

// mark records which lock the job has only until its start, under which lock it runs, whether a newer job replaces it,
// and whether Key cools down.
func (u *unique) mark(_ context.Context, env *envelope.Envelope) ([]asynq.Option, error) {
	token := env.Tokens[0]
	if u.UntilStarted || u.waits() {
		env.UntilStart = []joblock.Token{token}
	}
	if u.replaces() && !u.UntilStarted { // then one that has started may run again after newer ones
		env.Newest = []joblock.Token{token}
	}
	env.Cancel = u.OnConflict == CancelInProgress
	env.OwnQueue = env.Cancel && u.ownQueue
	if u.waits() {
		run, err := forKey(token, u.Key)
		if err != nil {
			return nil, err
		}
		env.Tokens = append(env.Tokens, run)
		env.FromStart = []joblock.Token{run}
		token = run
	}
	if u.Cooldown > 0 {
		env.Cooldowns = []envelope.Cooldown{{Token: token, For: u.Cooldown}}
	}
	return nil, nil
}

// An enqueue tries again while the conflict is likely to end soon: another call has taken the key and is about to
// enqueue its job, or the other job is being replaced. The pauses double; all pauses together, a round, are a third of a
// second. While other calls are replacing the job, further tries follow, one after each laterPause or so.
const (
	uniquePause = 5 * time.Millisecond
	uniqueTries = 7
	uniqueRound = (1<<(uniqueTries-1) - 1) * uniquePause
	laterPause  = 40 * time.Millisecond
)

// proceed enqueues the task as the only job of its key, and notifies the job that it supersedes.
func (u *unique) proceed(ctx context.Context, err error) (Result, error) {
	done, err := u.proceedQuietly(ctx, err)
	if err == nil && u.OnConflict == CancelInProgress && u.delay() == 0 {
		if nerr := (*core.Locker)(u.c.locks).Notify(ctx, u.Key); nerr != nil { // the worker of that job checks later, without a notice
			u.c.logger.DebugContext(ctx, "handoff: could not notify the running job of a newer one", "key", u.Key, "err", nerr)
		}
	}
	return done, err
}

// proceedQuietly is proceed without the notice. err is the result of the first try to take the key. While the key is
// not free, proceedQuietly acts on the job that has it (see conflict), and tries again.
func (u *unique) proceedQuietly(ctx context.Context, err error) (Result, error) {
	if err != nil { // from EnqueueMany, which has not called enter; otherwise u has its turn, and does not wait
		leave, late := u.enter(ctx)
		if late != nil {
			return Result{}, late
		}
		defer leave(nil)
	}
	for try, pause := 1, uniquePause; ; try, pause = try+1, 2*pause {
		done, again, failed := u.tryUnique(ctx, err)
		if failed == nil || again == never {
			return done, failed
		}
		if try >= uniqueTries {
			switch contended, cerr := u.isContended(ctx, again); {
			case cerr != nil:
				return done, fmt.Errorf("%w; could not read whether other calls are replacing its job: %w", failed, cerr)
			case !contended:
				return done, failed
			case !time.Now().Before(u.contendUntil):
				var held *joblock.Error
				if errors.As(failed, &held) {
					failed = u.contended(held)
				}
				return done, failed
			}
			pause = laterPause/2 + rand.N(laterPause)
		}
		if cause := sleep.For(ctx, pause); cause != nil {
			return Result{}, u.wrap(cause)
		}
		err = u.c.prepare(ctx, u.dispatch)[0]
	}
}

// again says whether another try may succeed where a try has met a conflict.
type again uint8

const (
	never      again = iota
	soon             // in a moment, or not at all
	taskActive       // as soon, and the other job's task is active
	changing         // for as long as other calls are replacing the job, or are about to enqueue it
	taskWaits        // as changing, and the other job's task waits: a lease on its lock belongs to another call
)

// isContended reports whether the conflict is one with other calls that also replace the job: the lock has just changed
// hands, or is held although its task waits. A call without competitors sees neither for long.
func (u *unique) isContended(ctx context.Context, met again) (bool, error) {
	if !u.replaces() || met == soon {
		return false, nil
	}
	sts, err := u.c.locks.Status(ctx, u.takenKey())
	if err != nil {
		return false, err
	}
	st, recent := sts[0], settleFor
	if met == taskActive {
		recent = uniqueRound // a job that has run for longer is not being replaced
	}
	return !st.Locked() || st.Now.Sub(st.Changed) < recent || met == taskWaits && st.State == joblock.StateHeld, nil
}

// tryUnique is one try of proceedQuietly: err is the result of taking the key. If err is nil, tryUnique enqueues the task;
// if the key is held, conflict acts on the job that has it. The second result says whether another try may succeed.
func (u *unique) tryUnique(ctx context.Context, err error) (done Result, _ again, _ error) {
	var held *joblock.Error
	switch {
	case err == nil:
		done.Task, err = u.enqueue(ctx, nil)
		return done, never, err
	case errors.As(err, &held) && errors.Is(held, joblock.ErrHeld):
		return u.conflict(ctx, held)
	}
	return Result{}, never, err
}
