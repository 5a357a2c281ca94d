package handoff

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/nextjob"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/internal/slots"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
)

// Sequence is the line of jobs behind one key. The jobs of a sequence run in the order of their enqueues, one at a
// time or up to Limit at a time. The package comment has the rules.
type Sequence struct {
	// Key names the sequence. Build Key with joblock.Key. Enqueue all jobs of a Key with the same Sequence.
	Key string

	// Lock, unless nil, is a lock that the caller holds. The job gets this lock as with Enqueue, and so comes before
	// all jobs that wait. Key is then "" or the key of Lock, and MaxWaiting does not count.
	Lock *joblock.Lock

	// Limit is how many jobs of the sequence may run at a time, up to 256; 0 means 1. With a Limit above 1, jobs start
	// in the order of the line, and OnFailure must be GoOn. The package comment has more: see Several jobs at a time.
	Limit int

	// MaxWaiting bounds the line: if so many jobs and processes wait, no further job is enqueued. 0 means no bound.
	MaxWaiting int

	// OnFailure is what the final failure of a job does to the jobs behind that job. Default GoOn.
	OnFailure OnFailure
}

// OnFailure says what happens to a sequence when one of its jobs has failed for good: on the last attempt, or with
// asynq.SkipRetry. After asynq.RevokeTask the sequence goes on.
type OnFailure uint8

const (
	// GoOn starts the next job.
	GoOn OnFailure = iota

	// Halt keeps the key for the job that has failed, as long as its task is in asynq's archive. All others wait. The
	// sequence goes on when somebody runs the task again and the job succeeds, or after Client.SkipJob, or when the keeper
	// finds that the task was deleted.
	Halt
)

// ErrLineFull says that Sequence.MaxWaiting jobs and processes wait for the key already. The error also matches
// joblock.ErrHeld.
var ErrLineFull = errors.New("the line is full")

// check refuses a Sequence that EnqueueInSequence does not support.
func (s Sequence) check() error {
	const op = "enqueue"
	key := s.key()
	switch {
	case s.onOtherSlot():
		line, _ := driver.LineOf(key)
		return invalid(op, key, "Sequence.Lock is on a further slot of the sequence %q: only the lock on the key itself can be handed over to a job of the sequence", line)
	case s.Lock != nil && s.Key != "" && s.Key != s.Lock.Key():
		return invalid(op, s.Key, "Sequence.Lock is on another key, %q", s.Lock.Key())
	case s.Limit < 0 || s.Limit > driver.MaxSlots:
		return invalid(op, key, "Sequence.Limit is %d, must be from 0 to %d", s.Limit, driver.MaxSlots)
	case s.Limit > 1 && !slots.Fit(key):
		return invalid(op, key, "key has %d bytes, at most %d are allowed with a Limit above 1", len(key), slots.MaxKeyBytes)
	case s.Limit > 1 && s.OnFailure == Halt:
		return invalid(op, key, "Sequence.OnFailure is Halt and Sequence.Limit is %d: only a sequence whose jobs run one at a time can halt", s.Limit)
	case s.MaxWaiting < 0:
		return invalid(op, key, "Sequence.MaxWaiting is %d, must not be negative", s.MaxWaiting)
	case s.OnFailure > Halt:
		return invalid(op, key, "Sequence.OnFailure is %d, must be GoOn or Halt", s.OnFailure)
	}
	if detail := keyspace.CheckApplication(key); detail != "" {
		return invalid(op, key, "%s", detail)
	}
	return nil
}

// onOtherSlot reports whether Lock is on another slot than the first, as the lock of a job is that runs under such a slot.
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

// EnqueueInSequence enqueues task as a job of the sequence s. If the key is free, the job gets the key. Otherwise the
// job gets the last place in the key's line, and the task is scheduled at a time that is far away. When the job's turn
// comes, whoever gives the key to the job runs the task. A job that waits occupies no worker.
//
// opts and the new task are those of Enqueue; the package comment says how other options of asynq go together with a
// sequence. Without Sequence.Lock, EnqueueInSequence makes two round trips: one to the locks' store and one to asynq.
//
// An error matches:
//
//	ErrLineFull and joblock.ErrHeld       MaxWaiting jobs and processes wait: not enqueued
//	asynq.ErrTaskIDConflict               a task with this TaskID exists, in this sequence or not: not enqueued
//	asynq.ErrDuplicateTask                another task has the lock of asynq.Unique: not enqueued
//	joblock.ErrHeld alone                 another call is enqueuing a task with this TaskID into this sequence, or has
//	                                      died while it did, or a worker has died just after it did such a task: not
//	                                      enqueued; try again, for two minutes at most where a keeper runs
//	joblock.ErrUnavailable                the locks' store has not answered, or it is unknown whether the task exists;
//	                                      see "The errors of Enqueue". The job keeps its place while that is unknown
//	joblock.ErrInvalid                    the arguments are bad
//	with Lock, any error of Enqueue       lock.Err tells who has the lock
//
// A job that was not enqueued has no place. EnqueueInSequence returns at most three seconds after the end of ctx. For
// many tasks see EnqueueMany.
func (c *Client) EnqueueInSequence(ctx context.Context, s Sequence, task *asynq.Task, opts ...asynq.Option) (Enqueued, error) {
	h, err := c.sequenceHandover(s, task, opts)
	if err != nil {
		return Enqueued{}, err
	}
	return h.run(ctx)
}

// sequenceHandover returns the handover of the key of s, or of a place in its line, to task. An error says that the
// arguments are bad.
func (c *Client) sequenceHandover(s Sequence, task *asynq.Task, opts []asynq.Option) (*handover, error) {
	var locks joblock.Locks
	h, err := c.newHandover(task, opts, func(spec *taskSpec) error {
		switch err := s.check(); {
		case err != nil:
			return err
		case spec.grouped:
			return invalid("enqueue", s.key(), "the option asynq.Group and a sequence exclude each other: asynq would make one task of several jobs")
		case s.Lock == nil:
			return nil
		}
		locks = joblock.Locks{s.Lock}
		return c.checkLocks(locks, spec)
	})
	if err != nil {
		return nil, err
	}
	h.locks, h.sequence = locks, &s
	return h, nil
}

// placed puts the result of a Take for the sequence of h into h.
func (h *handover) placed(taken door.Taken) error {
	if taken.Err != nil {
		if taken.Full {
			return fmt.Errorf("%w: %w", ErrLineFull, taken.Err)
		}
		return taken.Err
	}
	token := taken.Token.(joblock.Token)
	if h.waits = taken.Waits; h.waits != nil {
		// A token without a fence: the fence of the Take is that of another job's ownership.
		id, err := door.IdentityOf(token), error(nil)
		if token, err = joblock.NewToken(token.Key(), id.Owner, id.TTL); err != nil {
			return err
		}
	}
	h.tokens = []joblock.Token{token}
	return nil
}

// markSequence writes into env, for the worker, what part the job has in its sequence.
func (d *dispatch) markSequence(env *envelope.Envelope) {
	if d.sequence == nil {
		return
	}
	env.Sequence = &envelope.Sequence{Token: d.tokens[0], Halt: d.sequence.OnFailure == Halt}
	if d.sequence.Limit > 1 {
		env.Sequence.Limit = d.sequence.Limit
	}
	if d.waits != nil {
		env.Sequence.Waits, env.Sequence.NotBefore = true, d.wholeSecond()
	}
}

// enqueueInSequence enqueues the task of h, which has the key of its sequence or a place in line. The parameter err is
// the result of Client.prepare.
func (h *handover) enqueueInSequence(ctx context.Context, err error) (done Enqueued, _ error) {
	for try, pause := 1, uniquePause; err != nil && h.locks == nil; try, pause = try+1, 2*pause {
		again, refused := h.refusedPlace(ctx, err)
		if !again || try == uniqueTries {
			return done, refused
		}
		if cause := sleep.For(ctx, pause); cause != nil {
			return done, h.wrap(cause)
		}
		err = h.c.prepare(ctx, h)[0]
	}
	done.Task, err = h.enqueue(ctx, err)
	if h.waits != nil && err == nil {
		done.Waits, done.Ahead = true, h.waits.Ahead
	}
	return done, err
}

// refusedPlace returns the error for a job that has got neither the key nor a place because of err. If a job of the
// same name is in line, or has the key, its task most likely exists: then the error is that of asynq. Otherwise again is
// true: a job of that name has just ended, and its worker is about to release the key.
func (h *handover) refusedPlace(ctx context.Context, err error) (again bool, _ error) {
	var e *joblock.Error
	if !errors.As(err, &e) || errors.Is(err, ErrLineFull) || !errors.Is(err, joblock.ErrHeld) && !errors.Is(err, joblock.ErrNotOwner) {
		return false, h.wrap(err)
	}
	dctx, cancel := settling(ctx)
	defer cancel()
	if _, terr := h.c.taskInfo(dctx, h.queue, h.id); terr == nil {
		return false, h.wrap(fmt.Errorf("%w; its job is in the sequence of key %q already", asynq.ErrTaskIDConflict, h.sequence.key()))
	}
	held := *e
	held.Code = joblock.CodeOf(joblock.ErrHeld)
	detail := "another call is enqueuing task " + h.job + " into this sequence, or has died while it did, or an earlier task of that name has just ended"
	return true, foreign(&held, detail)
}

// serveSlots gives free slots to the jobs that wait, and so perhaps to those of hs. The errors are only logged: a job
// that has no slot waits for the next release.
//
// As a rule, the slots are in use if more jobs wait than the sequence has slots: whoever releases a slot passes it on.
// But a slot may be free although many wait: Limit was raised, or nobody could pass the slot on. So in a long line one
// of askOf places asks, too.
func (c *Client) serveSlots(ctx context.Context, hs []*handover) {
	waiting := make(map[string]*handover) // by job
	seen := make(map[string]bool)
	var free []string // slots that may be free
	for _, h := range hs {
		if h.sequence == nil || h.sequence.Limit < 2 || h.waits == nil {
			continue
		}
		waiting[h.job] = h
		key := h.sequence.key()
		if seen[key] || h.waits.Ahead%(askOf*h.sequence.Limit) >= h.sequence.Limit {
			continue
		}
		seen[key] = true
		free = append(free, slots.Keys(key, 2, h.sequence.Limit)...)
	}
	if len(free) == 0 {
		return
	}
	ctx = door.WithStarter(ctx, func(slot, job string) {
		if h := waiting[job]; h != nil {
			h.tokens[0], h.waits = door.TokenOfSlot(h.tokens[0], slot), nil
			return
		}
		c.next.Granted(slot, job)
	})
	if err := door.Of(c.locks).PassOn(ctx, "enqueue", free); err != nil {
		c.logger.WarnContext(ctx, "handoff: could not look for a free slot of a sequence; the job waits for the next release", "err", err)
	}
}

// askOf is of how many places in a long line one asks for free slots. An eighth costs little, and a line that has become
// long while its slots were free is served soon.
const askOf = 8

// leave gives up the place of a task that does not exist, or the key if the job's turn has come meanwhile.
func (h *handover) leave(ctx context.Context) error {
	return unlessGone(h.c.leaveLine(ctx, h.tokens[0], h.job, h.sequence.Limit, reasonNotEnqueued))
}

// leaveLine gives up the place that a job without a task has in the line of a sequence with this Limit, or the key or the
// slot that the job has got meanwhile. If the job has none of these, lockGone is true for the error.
func (c *Client) leaveLine(ctx context.Context, token joblock.Token, job string, limit int, reason string) error {
	ctx = c.next.In(ctx)
	release := jobs.Release{Key: token.Key(), Job: job, Reason: reason}
	err := jobs.Free(ctx, c.locks, release)[0]
	if !lockGone(err) || limit < 2 {
		return err
	}
	// A slot was given to the job. A task with the same name may have another slot, so the owner decides.
	got, serr := slots.Of(ctx, c.locks, token, job, slots.Keys(token.Key(), 2, limit))
	if serr != nil {
		return serr
	}
	if len(got) == 0 {
		return err
	}
	release.Key, release.Fence = got[0].Key, got[0].Fence
	return jobs.Free(ctx, c.locks, release)[0]
}

// unlessGone returns err, or nil if err says that the lock is gone.
func unlessGone(err error) error {
	if lockGone(err) {
		return nil
	}
	return err
}

// SkipRequest names the failed job that SkipJob passes over.
type SkipRequest struct {
	Key    string // of the sequence
	Job    string // "queue/taskID" of the job that has failed, as Status shows it
	Reason string // for Status and the events, at most 256 bytes; "" is "its job was skipped"
}

// SkipJob moves a sequence on past the job that has failed and halts the sequence: SkipJob frees the key, and the next job
// in line gets the key and is started. The task of the job that has failed stays in asynq's archive.
//
// A call passes over that one job at most: a second call for the job, or a call again after ErrUnavailable, does no harm.
// Errors, with which the sequence stays as it is:
//
//	joblock.ErrNotFound  nobody has the key
//	joblock.ErrNotOwner  another job has the key, or a request: somebody has passed over the job, or has run it again
//	joblock.ErrBusy      the job has the key and has not failed
//	joblock.ErrInvalid   a field is bad, or this build cannot read the record of the key
//	joblock.ErrClosed
//
// joblock.ErrUnavailable can mean that asynq has not answered: then the sequence stays as it is, too. Or the locks' store
// has not: then the sequence may have moved on.
func (c *Client) SkipJob(ctx context.Context, req SkipRequest) error {
	const op = "skip"
	if err := c.check(op); err != nil {
		return err
	}
	queue, id, ok := envelope.ParseJob(req.Job)
	if !ok {
		return invalid(op, req.Key, "SkipRequest.Job is %q, must be a queue and a task ID as in default/7", req.Job)
	}
	if err := door.CheckText(op, req.Key, "SkipRequest.Reason", req.Reason, 0, driver.MaxLabelBytes); err != nil {
		return err
	}
	sts, err := c.locks.Status(ctx, req.Key)
	if err != nil {
		return err
	}
	st := sts[0]
	switch {
	case st.State == joblock.StateForeign:
		return skipError(st, joblock.ErrInvalid, "the value at this key is no record of a lock: "+door.ErrForeign.Error())
	case !st.Locked():
		return skipError(st, joblock.ErrNotFound, "nobody has the key")
	case st.Job != req.Job:
		return skipError(st, joblock.ErrNotOwner, "the key is not that of job "+strconv.Quote(req.Job))
	}
	dctx, cancel := settling(ctx)
	defer cancel()
	info, err := c.taskInfo(dctx, queue, id)
	switch {
	case err != nil && !isGone(err):
		e := skipError(st, joblock.ErrUnavailable, "the job's task could not be read")
		e.(*ownError).err.Err = err
		return e
	case err == nil && nextjob.InArchive(info):
		return skipError(st, joblock.ErrBusy, "the job has not failed: its task is in the archive for a pause only")
	case err == nil && info.State != asynq.TaskStateArchived && info.State != asynq.TaskStateCompleted:
		return skipError(st, joblock.ErrBusy, "the job has not failed: its task is "+info.State.String())
	case err != nil && st.Age < envelope.EnqueueGrace:
		return skipError(st, joblock.ErrBusy, "the job's task does not exist, perhaps not yet")
	}
	return jobs.Free(c.next.In(ctx), c.locks, jobs.Release{
		Key: req.Key, Job: st.Job, Fence: st.Fence, Reason: cmp.Or(req.Reason, reasonSkipped),
	})[0]
}

func skipError(st joblock.Status, kind error, detail string) error {
	return own(&joblock.Error{Code: joblock.CodeOf(kind), Op: "skip", Key: st.Key, Job: st.Job, Detail: detail})
}
