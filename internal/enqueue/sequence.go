package enqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/controls"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Sequence is handoff.Sequence.
type Sequence struct {
	Key           string
	Lock          *joblock.Lock
	Limit         int
	LimitName     string
	MaxWaiting    int
	HaltOnFailure bool
}

func (s Sequence) plan(ctx context.Context, d *dispatch) (kind, error) {
	err := s.check()
	if err == nil && s.LimitName != "" {
		s.Limit = limitNow(ctx, d.c.locks, s.LimitName, max(1, s.Limit))
	}
	if err == nil && d.grouped {
		err = Invalid(opEnqueue, s.key(), "the option asynq.Group and a sequence exclude each other: asynq would make one task of several jobs")
	}
	if s.Lock == nil {
		return &inLine{taking: taking{d}, Sequence: s}, err
	}
	locks := joblock.Locks{s.Lock}
	if err == nil {
		err = d.checkLocks(locks)
	}
	return &firstInLine{parking: parking{dispatch: d, locks: locks}, of: s}, err
}

// check refuses a Sequence with a bad field.
func (s Sequence) check() error {
	key := s.key()
	switch {
	case s.onOtherSlot():
		line, _ := driver.LineOf(key)
		return Invalid(opEnqueue, key, "Sequence.Lock is on a further slot of the sequence %q: only the lock on the key itself can be handed over to a job of the sequence", line)
	case s.Lock != nil && s.Key != "" && s.Key != s.Lock.Key():
		return Invalid(opEnqueue, s.Key, "Sequence.Lock is on another key, %q", s.Lock.Key())
	case s.Limit < 0 || s.Limit > driver.MaxSlots:
		return Invalid(opEnqueue, key, "Sequence.Limit is %d, must be from 0 to %d", s.Limit, driver.MaxSlots)
	case len(s.LimitName) > controls.MaxName:
		return Invalid(opEnqueue, key, "Sequence.LimitName has %d bytes, at most %d are allowed", len(s.LimitName), controls.MaxName)
	case (s.Limit > 1 || s.LimitName != "") && !jobline.SlotsFit(key):
		return Invalid(opEnqueue, key, "key has %d bytes, at most %d are allowed with a Limit above 1 or a LimitName", len(key), jobline.MaxSlotKeyBytes)
	case s.LimitName != "" && s.HaltOnFailure:
		return Invalid(opEnqueue, key, "Sequence.HaltOnFailure and Sequence.LimitName are both set: only a sequence whose jobs run one at a time can halt")
	case s.Limit > 1 && s.HaltOnFailure:
		return Invalid(opEnqueue, key, "Sequence.HaltOnFailure is set and Sequence.Limit is %d: only a sequence whose jobs run one at a time can halt", s.Limit)
	case s.MaxWaiting < 0:
		return Invalid(opEnqueue, key, "Sequence.MaxWaiting is %d, must not be negative", s.MaxWaiting)
	}
	if detail := keyspace.CheckApplication(key); detail != "" {
		return Invalid(opEnqueue, key, "%s", detail)
	}
	return nil
}

// onOtherSlot reports whether Lock is on a slot other than the first, like the lock of a job that runs under such a
// slot.
func (s Sequence) onOtherSlot() bool {
	if s.Lock == nil {
		return false
	}
	_, other := driver.LineOf(s.Lock.Key())
	return other
}

func (s Sequence) key() string {
	if s.Lock != nil {
		return s.Lock.Key()
	}
	return s.Key
}

// unkept leaves a job that halts its sequence to the keeper.
func (s Sequence) unkept() (keys []string, ok bool) { return nil, !s.HaltOnFailure }

// part returns the part that the job of env has in the sequence.
func (s Sequence) part(env *envelope.Envelope) *envelope.Sequence {
	seq := &envelope.Sequence{Token: env.Tokens[0], Halt: s.HaltOnFailure, LimitName: s.LimitName}
	if s.Limit > 1 {
		seq.Limit = s.Limit
	}
	return seq
}

// firstInLine is the kind of a Sequence with a Lock: the job has the key, and comes before all that wait.
type firstInLine struct {
	parking
	of Sequence
}

func (f *firstInLine) mark(_ context.Context, env *envelope.Envelope) ([]asynq.Option, error) {
	env.Sequence = f.of.part(env)
	return f.dueOnTime(), nil
}

func (f *firstInLine) unkept() (keys []string, ok bool) { return f.of.unkept() }

// dueOnTime returns the option by which a task that has its key is not started before its time.
func (s *taskSpec) dueOnTime() []asynq.Option {
	if s.at.IsZero() {
		return nil
	}
	return []asynq.Option{asynq.ProcessAt(s.wholeSecond())}
}

// inLine is the kind of a Sequence without a Lock: the job gets the key, or the last place in its line.
type inLine struct {
	taking
	Sequence
	waits *place // nil if the job has the key
}

// keys leaves the key out of alone: the places of several jobs in one line are taken together, in their order.
func (l *inLine) keys() (named, alone []string) { return []string{l.Key}, nil }

func (l *inLine) ask(b *batch) {
	b.take(take{Key: l.Key, Patience: envelope.Patience, Most: l.MaxWaiting}, func(t taken) {
		if l.askErr = l.placed(t); l.askErr == nil && l.waits != nil {
			l.askForSlot(b)
		}
	})
}

// placed notes the result of a take.
func (l *inLine) placed(t taken) error {
	switch {
	case t.Full:
		return fmt.Errorf("%w: %w", ErrLineFull, t.Err)
	case t.Err != nil:
		return t.Err
	}
	token := tokenOf(t)
	if l.waits = t.Waits; l.waits != nil {
		// A token without a fence: the fence of the take belongs to another job's ownership.
		var err error
		if token, err = forKey(token, token.Key()); err != nil {
			return err
		}
	}
	l.tokens = []joblock.Token{token}
	return nil
}

// askOf is how many places of a long line share one request for free slots. An eighth costs little, and a line that has
// become long while its slots were free is served soon.
const askOf = 8

// askForSlot asks for a free slot for the first jobs in line, and so perhaps for this one.
//
// As a rule, the slots are in use if more jobs wait than the sequence has slots, because the release of a slot passes
// it on. But a slot may be free although many wait, if Limit was raised or the slot could not be passed on, so in a
// long line one of askOf places asks, too.
func (l *inLine) askForSlot(b *batch) {
	if l.Limit < 2 {
		return
	}
	b.waiting[l.job] = func(slot string) { l.tokens[0], l.waits = onSlot(l.tokens[0], slot), nil }
	if !b.asked[l.Key] && l.waits.Ahead%(askOf*l.Limit) < l.Limit {
		b.asked[l.Key] = true
		b.slots = append(b.slots, jobline.SlotKeys(l.Key, 2, l.Limit)...)
	}
}

func (l *inLine) mark(_ context.Context, env *envelope.Envelope) ([]asynq.Option, error) {
	env.Sequence = l.part(env)
	if l.waits == nil {
		return l.dueOnTime(), nil
	}
	env.Sequence.Waits, env.Sequence.NotBefore = true, l.wholeSecond()
	return []asynq.Option{asynq.ProcessAt(time.Now().Add(envelope.Wait))}, nil
}

func (l *inLine) proceed(ctx context.Context, err error) (done Result, _ error) {
	for try, pause := 1, uniquePause; err != nil; try, pause = try+1, 2*pause {
		again, refused := l.refusedPlace(ctx, err)
		if !again || try == uniqueTries {
			return done, refused
		}
		if cause := sleep.For(ctx, pause); cause != nil {
			return done, l.wrap(cause)
		}
		err = l.c.prepare(ctx, l.dispatch)[0]
	}
	if done.Task, err = l.enqueue(ctx, nil); err != nil {
		return done, err
	}
	done.Receipt = l.receipt()
	if l.waits != nil {
		done.Waits, done.Ahead = true, l.waits.Ahead
		done.Receipt.waits, done.Receipt.limit = true, l.Limit
	}
	return done, nil
}

// refusedPlace returns the error for a job that has got neither the key nor a place because of err. If a job of the
// same name is in line, or has the key, its task most likely exists: then the error is asynq's. Otherwise again is
// true: a job of that name has just ended, and its worker is about to release the key.
func (l *inLine) refusedPlace(ctx context.Context, err error) (again bool, _ error) {
	var e *joblock.Error
	if !errors.As(err, &e) || errors.Is(err, ErrLineFull) || !errors.Is(err, joblock.ErrHeld) && !errors.Is(err, joblock.ErrNotOwner) {
		return false, l.wrap(err)
	}
	dctx, cancel := settling(ctx)
	defer cancel()
	if _, terr := l.c.taskInfo(dctx, l.queue, l.id); terr == nil {
		return false, l.wrap(fmt.Errorf("%w; its job is in the sequence of key %q already", asynq.ErrTaskIDConflict, l.Key))
	}
	held := *e
	held.Code = joblock.CodeOf(joblock.ErrHeld)
	detail := "another call is enqueuing task " + l.job + " into this sequence, or has died while it did, or an earlier task of that name has just ended"
	return true, heldWith(&held, detail)
}

func (l *inLine) undo(ctx context.Context) error {
	if l.leftToCopies(ctx, l.waits != nil) {
		return nil
	}
	return l.leave(ctx)
}

func (l *inLine) abandon(ctx context.Context) error { return ifUnavailable(l.leave(ctx)) }

// leave gives up the place of a task that does not exist, or the key if the job's turn has come meanwhile.
func (l *inLine) leave(ctx context.Context) error {
	if l.waits == nil {
		return l.release(ctx)
	}
	return unlessGone(l.c.leaveLine(ctx, l.tokens[0], l.job, l.Limit, reasonNotEnqueued))
}

func (l *inLine) unkept() (keys []string, ok bool) {
	return nil, l.waits == nil && !l.HaltOnFailure
}

// leaveLine gives up the place that a job without a task has in the line of a sequence with this Limit, or the key or
// the slot that the job has got meanwhile. If the job has none of these, lockGone is true for the error.
func (c *Client) leaveLine(ctx context.Context, token joblock.Token, job string, limit int, reason string) error {
	release := core.JobRelease{Key: token.Key(), Job: job, Reason: reason}
	err := c.starter.Free(ctx, release)[0]
	if !lockGone(err) || limit < 2 {
		return err
	}
	// A slot was given to the job. A task with the same name may have another slot, so the owner decides.
	got, serr := jobline.SlotsOf(ctx, c.locks, token, job, jobline.SlotKeys(token.Key(), 2, limit))
	if serr != nil {
		return serr
	}
	if len(got) == 0 {
		return err
	}
	release.Key, release.Fence = got[0].Key, got[0].Fence
	return c.starter.Free(ctx, release)[0]
}
