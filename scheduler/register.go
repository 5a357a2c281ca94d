package scheduler

import (
	"context"
	"time"
	"unicode/utf8"

	"github.com/joblock/toolkit/scheduler/spec"
)

const maxNameBytes = 128

// Func registers fn. At every tick of spec, one node calls fn, and at the next tick perhaps another node. Package spec
// has the syntax. The name identifies the job in the whole cluster: 1 to 128 bytes of UTF-8. You can register, replace
// and remove jobs before Run and while Run is running.
//
// The context of fn carries the job's lock (joblock.FromContext) and the tick (TickFrom). The context may end early,
// with one of these causes (context.Cause):
//
//	joblock.ErrLost           the lock was lost
//	ErrStopped                the context of Run has ended
//	ErrOverlapped             the next tick has come, with OverlapCancel
//	context.DeadlineExceeded  after Timeout
//
// If fn goes on after that, the Scheduler waits for fn before it calls fn again. So one Scheduler never runs fn more often at
// the same time than AtOnce allows, by default once. At the end of Run the Scheduler waits for Config.Grace at most. If
// the node is stopped and fn does not return nil, another node executes the tick again. If fn releases its lock or hands the
// lock over, the execution counts as broken off.
//
// Func returns joblock.ErrInvalid in these cases, and the job is then not registered:
//
//	name     is bad, or a job of this Scheduler has the name and the option Replace is not given
//	spec     is bad or has no ticks
//	fn       is nil
//	options  one is nil or out of bounds, or its comment excludes it here
func (s *Scheduler) Func(name, spec string, fn func(ctx context.Context) error, opts ...Option) error {
	var call func(context.Context, Tick) error
	if fn != nil {
		call = func(ctx context.Context, _ Tick) error { return fn(ctx) }
	}
	return s.register("func", name, spec, call, options{}, opts)
}

// Task registers enqueue. At every tick of spec, one node calls enqueue to put one task into a queue, and at the next
// tick perhaps another node does. For asynq, use package asynqtick. An enqueue of your own must use tick.ID() as the
// task's ID. The function enqueue must return nil if the queue already has a task of that ID: another node has enqueued
// the task and died. If enqueue returns asynq.ErrTaskIDConflict, the tick fails, although the task is in the queue.
//
// Task is like Func, with these differences:
//
//	tick     enqueue also gets the tick.
//	result   a tick whose task is in the queue is StateEnqueued, not StateDone: the task has not run yet, and may fail.
//	         See PauseAfter for which failures count.
//	retries  Task calls a failed enqueue 5 more times, unless the option Retry gives another number.
//	overlap  the job's lock covers only the enqueuing, not the task. A task that still waits or runs at the next tick
//	         overlaps only if the task carries a lock of its own, as the tasks of handoff's EnqueueUnique do. Then
//	         enqueue returns joblock.ErrHeld. With OverlapSkip the tick is skipped. With OverlapQueue and
//	         OverlapNewest, Task calls enqueue again until the lock is free. A task that fails keeps its lock until its
//	         retries are used up: then every tick overlaps, and Entry.Stuck is set.
//	unclear  enqueue returns joblock.ErrHeld and the lock is reserved for this tick's own task: an earlier enqueue has
//	         failed or died, and nobody knows whether the task exists. Task calls enqueue again for up to two minutes,
//	         besides the retries. If the queue has the task, enqueue returns nil: see asynqtick.Once.
//
// Errors are those of Func. OverlapCancel is joblock.ErrInvalid.
func (s *Scheduler) Task(name, spec string, enqueue func(ctx context.Context, tick Tick) error, opts ...Option) error {
	o := options{retries: 5, retryFirst: time.Second, retryMost: 30 * time.Second, task: true}
	return s.register("task", name, spec, enqueue, o, opts)
}

// register adds a job and makes the job due. The parameter o has the defaults of Func or Task.
func (s *Scheduler) register(op, name, text string, fn func(context.Context, Tick) error, o options, opts []Option) error {
	if err := s.checkJob(op, name); err != nil {
		return err
	}
	if fn == nil {
		return invalid(op, name, "the function is nil")
	}
	o.zone = s.cfg.Zone
	CatchUpOne()(&o)
	KeepHistory(10, 10)(&o)
	AtOnce(1)(&o)
	for _, opt := range opts {
		if opt == nil {
			return invalid(op, name, "an option is nil")
		}
		opt(&o)
	}
	if err := o.validate(op, name); err != nil {
		return err
	}
	j, err := s.newJob(op, name, text, fn, o)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.jobs[name]; other != nil && !o.replace {
		return invalid(op, name, "the name is taken by a job with spec %q; the option Replace replaces that job", other.SpecText)
	}
	s.add(j)
	return nil
}

// newJob returns a job that is not registered yet. The options in the parameter o are valid.
func (s *Scheduler) newJob(op, name, text string, fn func(context.Context, Tick) error, o options) (*job, error) {
	var err error
	if o.Spec, err = spec.Parse(text, o.zone); err != nil {
		return nil, invalid(op, name, "%s", err)
	}
	o.SpecText = o.Spec.String() // with the zone, whose name may be long
	if o.Spec.Next(time.Unix(0, 0)).IsZero() {
		return nil, invalid(op, name, "spec %q has no ticks", text)
	}
	if warning := o.Spec.Warning(); warning != "" {
		s.cfg.Logger.Warn("scheduler: the spec may have been copied from another scheduler", "job", name, "spec", text, "words", o.Spec.Words(), "warning", warning)
	}
	o.Program, o.Delay = s.program, delayOf(name, o.jitter)
	o.Fingerprint, o.Policies = o.fingerprint(), o.words()
	return &job{options: o, name: name, key: s.keyOf(name), fn: fn, ordered: make(chan struct{}, 1), index: -1}, nil
}

func (s *Scheduler) checkJob(op, name string) error {
	if err := s.check(op); err != nil {
		return err
	}
	switch {
	case name == "":
		return invalid(op, "", "the name of the job is empty")
	case len(name) > maxNameBytes:
		return invalid(op, name, "the name of the job has %d bytes, at most %d are allowed", len(name), maxNameBytes)
	case !utf8.ValidString(name):
		return invalid(op, "", "the name of the job is not valid UTF-8")
	}
	return nil
}
