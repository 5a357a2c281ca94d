package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/chain"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// The way from one step of a chain to the next, in the attempt whose handler has returned nil:
//
//	1  park the locks for the job of the next step
//	2  enqueue its task, which carries the steps after it
//	3  return nil, so that asynq records the end of this step
//	4  the next step waits for that write, then resumes the locks
//
// After a crash before 1, this step runs again, as after any crash. After 1 the lock itself shows that this step is
// done: an attempt of this step that finds the lock parked for the next step enqueues the next step's task if it is
// missing, and succeeds without a call of the handler. The keeper keeps a lock whose task is missing as long as the
// previous step's task exists. Because of the wait in 4, no step runs again after later steps have ended.
//
// Alternative that doesn't work: with the task enqueued first, a step that runs again after a crash, and then fails for
// good, leaves a next step behind that must not run.

// chained is an attempt's part in a chain.
type chained struct {
	mu    sync.Mutex
	chain chain.Chain  // Step 1 without Next if the task was not enqueued as a chain
	added []chain.Step // by Then
	over  bool         // the handler has returned
}

type chainKey struct{}

// Then adds tasks to the job of the handler whose context is ctx. When the handler returns nil, tasks run next, one
// after another and under the locks of the job, before the remaining steps of the job's handoff.Chain. Tasks of a later
// call run after those of earlier ones. The job need not have been enqueued as a chain.
//
// The tasks are added by this attempt: an attempt that fails adds nothing, and its retry has to call Then again.
//
// The error matches joblock.ErrInvalid, and nothing is added, if ctx is not the context of a handler inside
// Worker.Middleware, the handler has returned, the job carries no lock, or a task breaks a rule of handoff.Chain.Then.
func Then(ctx context.Context, tasks ...*asynq.Task) error {
	c, ok := ctx.Value(chainKey{}).(*chained)
	if !ok {
		return verdict.Invalid("Then was called with a context that is not from a job with locks")
	}
	var steps []chain.Step
	for i, task := range tasks {
		s, err := chain.Read(task)
		if err != nil {
			return verdict.Invalid("Then: task %d: %s", i, err)
		}
		if len(s.Queue) > driver.MaxLabelBytes/2 {
			return verdict.Invalid("Then: task %d: the queue name has %d bytes, at most %d are allowed", i, len(s.Queue), driver.MaxLabelBytes/2)
		}
		steps = append(steps, s)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return verdict.Invalid("Then was called after the handler had returned")
	}
	if err := chain.Check(slices.Concat(c.added, steps, c.chain.Next)); err != nil {
		return verdict.Invalid("Then: %s", err)
	}
	c.added = append(c.added, steps...)
	return nil
}

// chainOf returns the step that the task is in its chain. A task without a chain is the first step of one: Then may add steps.
func chainOf(env envelope.Envelope) *chained {
	if env.Chain == nil {
		return &chained{chain: chain.Chain{Step: 1}}
	}
	return &chained{chain: *env.Chain}
}

// following returns the steps that follow the attempt. added reports whether the handler has added the first of them.
func (c *chained) following() (steps []chain.Step, added bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	return slices.Concat(c.added, c.chain.Next), len(c.added) > 0
}

// first returns the queue and the ID of the first task of the chain.
func (c *carrier) first() (queue, id string) {
	if c.chained.chain.Step == 1 {
		return c.queue, c.id
	}
	return c.chained.chain.Queue, c.chained.chain.ID
}

// handOn hands s.locks, and all other locks that the task carries, over to the first of steps, and enqueues that step's
// task. An error snoozes this task, or says that its context has ended: the next attempt finishes the rest.
func (s settler) handOn(steps []chain.Step, added bool) error {
	for {
		err := s.tryHandOn(steps, added)
		if err == nil {
			return nil
		}
		s.log().Warn("worker: a step of a chain is done, but the hand-over of its locks to the next step failed; trying again", "next", steps[0].Type, "err", err)
		switch {
		case s.canSnooze():
			return &verdict.Snooze{Err: fmt.Errorf("worker: hand over to the chain's next step: %w", err), Delay: verdict.Jittered(min(s.w.cfg.Snooze, time.Second))}
		case s.canSnoozeByArchive():
			return s.snoozeByArchive(&verdict.Snooze{Err: err, Delay: verdict.Jittered(min(s.w.cfg.Snooze, time.Second))})
		case sleep.For(s.ctx, waitPoll) != nil:
			return errors.Join(context.Cause(s.ctx), err)
		}
	}
}

// tryHandOn is one try of handOn.
func (s settler) tryHandOn(steps []chain.Step, added bool) error {
	ctx := context.WithoutCancel(s.ctx)
	now := time.Now()
	step, due := steps[0], steps[0].Due(now)
	queue, id := s.first()
	link := chain.NewLink(s.chained.chain.Step+1, added, s.asked[0].Digest(), queue, id)
	job := envelope.Job(step.Queue, link.String())
	env, err := s.parkFor(ctx, job, s.w.reservation(max(0, due.Sub(now))))
	if err != nil {
		return err
	}
	env.Retries = step.Retries
	env.Chain = &chain.Chain{Step: link.Step, Queue: queue, ID: id, Prev: s.job, Next: steps[1:]}
	header, err := env.Seal(ctx, s.w.ring, job, step.Type)
	if err != nil {
		return err
	}
	headers := make(map[string]string)
	maps.Copy(headers, step.Headers)
	maps.Copy(headers, (*core.Locker)(s.w.locks).TraceHeaders(s.ctx))
	headers[envelope.Header] = header
	task := asynq.NewTaskWithHeaders(step.Type, step.Payload, headers)
	if _, err = s.w.batched.Enqueue(ctx, task, step.Options(link.String(), due)...); errors.Is(err, asynq.ErrTaskIDConflict) {
		return nil // an earlier try has enqueued the task: no other chain has the ID
	}
	return err
}

// parkFor parks the locks in s.locks for job, and returns the envelope of job's task. The envelope also has the tokens
// of locks that were lost or released before: the attempt of that task decides about them. An error matches
// joblock.ErrUnavailable or joblock.ErrClosed.
func (s settler) parkFor(ctx context.Context, job string, reserve time.Duration) (envelope.Envelope, error) {
	env, _ := s.ctx.Value(envelopeKey{}).(envelope.Envelope)
	env.UntilStart, env.FromStart, env.Newest = nil, nil, nil
	parked := make(map[string]joblock.Token)
	mine := slices.DeleteFunc(slices.Clone(s.locks), func(lock *core.Lock) bool { return lock.Err() != nil })
	tokens, errs := (*core.Locker)(s.w.locks).Park(ctx, mine, func(int) core.Park { return core.Park{Reserve: reserve, Job: job} })
	for i, lock := range mine {
		switch err := errs[i]; {
		case err == nil:
			parked[lock.Key()] = joblock.Token(tokens[i])
		case errors.Is(err, joblock.ErrUnavailable), errors.Is(err, joblock.ErrClosed):
			lock.StopRenewing() // the reservation that this attempt already has remains in force
			return env, err
		default:
			s.report(lock, "hand over", err)
		}
	}
	env.Tokens, env.Cooldowns = nil, nil
	for _, token := range s.asked {
		if slices.Contains(s.untilStart, token) {
			continue
		}
		with := token
		if got, ok := parked[token.Key()]; ok {
			with = got
		}
		env.Tokens = append(env.Tokens, with)
		if cools := s.cooldown(token); cools > 0 {
			env.Cooldowns = append(env.Cooldowns, envelope.Cooldown{Token: with, For: cools})
		}
		if s.inSequence(token) {
			seq := *s.sequence
			seq.Token, seq.Waits, seq.NotBefore = with, false, time.Time{} // the chain has had its turn
			env.Sequence = &seq
		}
	}
	return env, nil
}

// errHandedOn says that the lock of a step is parked for the next step, whose task does not exist yet.
var errHandedOn = errors.New("the lock is parked for the next step of the chain")

// handedOn decides about the lock of token if it still has token's owner, but is bound to another job. If that job is
// the next step of the chain, this step is done, and the results are:
//
//	nil, nil          its task exists: this task must succeed without a call of the handler
//	nil, errHandedOn  its task does not exist, and this task carries the step
//	a lock            its task does not exist, and an attempt that has crashed had added the step: this step runs again
//
// mine is false if the job is not the next step.
func (r resumer) handedOn(ctx context.Context, token joblock.Token, st joblock.Status) (lock *core.Lock, mine bool, err error) {
	queue, id, ok := envelope.ParseJob(st.Job)
	link, chained := chain.ParseID(id)
	first, firstID := r.first()
	if !ok || !chained || !st.Locked() || st.Owner != token.Digest() ||
		!link.Follows(r.chained.chain.Step, r.asked[0].Digest(), first, firstID) {
		return nil, false, nil
	}
	_, err = r.w.batched.GetTaskInfo(queue, id)
	switch {
	case err == nil:
		r.log().Info("worker: a step of a chain succeeds without running again, because its locks were already handed over", "next", st.Job)
		return nil, true, nil
	case !verdict.NoTask(err):
		return nil, true, &verdict.Error{
			Text: fmt.Sprintf("cannot ask asynq for the next step of the chain: %s", err),
			Err:  &joblock.Error{Code: joblock.CodeOf(joblock.ErrUnavailable), Key: token.Key(), Err: err},
		}
	case link.Added:
		lock, err = r.takeBack(ctx, token, st.Job)
		return lock, true, err
	}
	return nil, true, errHandedOn
}

// takeBack resumes the lock of token, which is parked for the job from, and binds it to the attempt's job again.
func (r resumer) takeBack(ctx context.Context, token joblock.Token, from string) (*core.Lock, error) {
	lock, err := (*core.Locker)(r.w.locks).Resume(ctx, core.Tokens([]joblock.Token{token}), core.Options{Job: from, Reserve: r.w.cfg.Reserve})
	if err[0] != nil {
		return nil, err[0]
	}
	parked, perr := lock[0].Park(ctx, core.Park{Reserve: r.w.reservation(0), Job: r.job})
	if perr != nil {
		lock[0].StopRenewing()
		return nil, perr
	}
	locks, errs := r.resume(ctx, []joblock.Token{joblock.Token(parked)})
	return locks[0], errs[0]
}

const (
	// prevWait is the last pause of awaitPrev: asynq records the end of a step at once, unless its Redis is slow.
	prevWait = 256 * time.Millisecond

	prevText = "asynq has not recorded the previous step as done yet"
)

// awaitPrev waits up to half a second for asynq to record the end of the previous step; if that is not enough, it
// returns an error that snoozes the task. If the previous step waits for a retry, because its worker died after the
// hand-over, awaitPrev runs it: it succeeds without a call of the handler.
func (r resumer) awaitPrev() *verdict.Snooze {
	queue, id, ok := envelope.ParseJob(r.chained.chain.Prev)
	if !ok {
		return nil
	}
	for pause := firstLook; ; pause *= 2 {
		info, err := r.w.batched.GetTaskInfo(queue, id)
		switch {
		case verdict.NoTask(err):
			return nil
		case err != nil:
			return &verdict.Snooze{Err: err, Delay: verdict.Jittered(r.w.cfg.Snooze)}
		case verdict.PrevEnded(info, r.asked[0].Digest()):
			return nil
		case info.State == asynq.TaskStateRetry:
			if err := r.w.batched.RunTask(queue, id); err != nil {
				r.log().Debug("worker: could not run the previous step again", "prev", r.chained.chain.Prev, "err", err)
			}
		}
		if pause > prevWait || sleep.For(r.ctx, pause) != nil {
			return &verdict.Snooze{Err: errors.New(prevText), Delay: verdict.Jittered(min(r.w.cfg.Snooze, time.Second))}
		}
	}
}
