package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler/internal/records"
	"github.com/joblock/toolkit/scheduler/spec"
)

// Scheduler executes cron jobs. Make one Scheduler per process with New, register jobs with Func and Task, and call
// Run. A Scheduler is safe for concurrent use. Package admin has the operations for people on call.
type Scheduler struct {
	*node
	presence   *presence
	specs      *specs
	dispatcher *dispatcher
	running    bool // Run is running; the mutex of the table guards it
}

// New returns a Scheduler that claims ticks with locks. It sends nothing to the store. It returns joblock.ErrInvalid if
// locks is nil, cfg has no Scope, or a field of cfg is out of bounds. The error names the value and the bound.
func New(locks *joblock.Locker, cfg *Config) (*Scheduler, error) {
	const op = "new"
	full := cfg.withDefaults()
	recs, err := records.New(op, locks, full.Scope, full.Node, "Config.Scope", "Config.Node", full.Logger)
	if err != nil {
		return nil, err
	}
	if err := full.validate(op); err != nil {
		return nil, err
	}
	full.Node = recs.By
	o := new(orders)
	n := &node{
		cfg: full, recs: recs, clock: &storeClock{local: time.Now}, orders: o, table: newTable(o), program: program(),
		slots: make(chan struct{}, full.Concurrency),
	}
	recs.Refresh = n.readOrders
	p := &presence{node: n, changed: make(chan struct{}, 1), listed: make(map[string]int64), found: make(map[string]int64)}
	s := &specs{node: n, presence: p}
	d := &dispatcher{node: n, specs: s, claims: &claims{n, s, p}, standbys: make(chan struct{}, full.Concurrency)}
	return &Scheduler{node: n, presence: p, specs: s, dispatcher: d}, nil
}

func (s *Scheduler) check(op string) error {
	if s == nil || s.node == nil {
		return records.Invalid(op, "", "the Scheduler is nil or was not made by New")
	}
	return nil
}

func (s *Scheduler) checkJob(op, name string) error {
	return cmp.Or(s.check(op), records.CheckName(op, name))
}

// Records returns the records of the scope, for packages admin and asynqtick; nil if s was not made by New.
func (s *Scheduler) Records() *records.Scope {
	if s.check("records") != nil {
		return nil
	}
	return s.recs
}

// Func registers fn. At every tick of spec, one node calls fn; it need not be the same node each time. Package spec
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
// If fn goes on after that, the Scheduler waits for it before calling fn again, so one Scheduler never has more calls
// of fn running than MaxConcurrent allows, by default one. At the end of Run the Scheduler waits for Config.Grace at
// most. If the node is stopped and fn does not return nil, another node executes the tick again. If fn releases its
// lock or hands it over, the execution counts as broken off.
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

// Task registers enqueue. At every tick of spec, one node calls enqueue to put one task into a queue; it need not be
// the same node each time. For asynq, use package asynqtick. An enqueue of your own must use tick.ID() as the
// task's ID. enqueue must return nil if the queue already has a task of that ID: another node has enqueued
// the task and died. If enqueue returns asynq.ErrTaskIDConflict, the tick fails, although the task is in the queue.
//
// Task is like Func, with these differences:
//
//	tick     enqueue also gets the tick.
//	result   a tick whose task is in the queue is scheduler.Enqueued, not scheduler.Done: the task has not run yet, and may fail.
//	         See PauseAfter for which failures count.
//	retries  Task calls a failed enqueue 5 more times, unless the option Retry gives another number.
//	overlap  the job's lock covers only the enqueuing, not the task. A task that still waits or runs at the next tick
//	         overlaps only if the task carries a lock of its own, as the tasks of handoff.Unique do. Then
//	         enqueue returns joblock.ErrHeld. With OverlapSkip the tick is skipped. With OverlapQueue and
//	         OverlapNewest, Task calls enqueue again until the lock is free. A task that fails keeps its lock until its
//	         retries are used up: then every tick overlaps, and admin.Entry.Stuck is set.
//	unclear  enqueue returns joblock.ErrHeld and the lock is reserved for this tick's own task: an earlier enqueue has
//	         failed or died, and it is not known whether the task exists. Task calls enqueue again for up to two minutes,
//	         in addition to the retries. If the queue has the task, enqueue returns nil: see asynqtick.Once.
//
// The errors are those of Func. With OverlapCancel, or with MaxConcurrent above 1, the error is joblock.ErrInvalid.
func (s *Scheduler) Task(name, spec string, enqueue func(ctx context.Context, tick Tick) error, opts ...Option) error {
	o := options{retries: 5, retryFirst: time.Second, retryMost: 30 * time.Second, task: true}
	return s.register("task", name, spec, enqueue, o, opts)
}

// register adds a job and makes the job due. o has the defaults of Func or Task.
func (s *Scheduler) register(op, name, text string, fn func(context.Context, Tick) error, o options, opts []Option) error {
	if err := s.checkJob(op, name); err != nil {
		return err
	}
	if fn == nil {
		return records.Invalid(op, name, "the function is nil")
	}
	o.zone = s.cfg.Zone
	CatchUpOne()(&o)
	KeepHistory(10, 10)(&o)
	MaxConcurrent(1)(&o)
	for _, opt := range opts {
		if opt == nil {
			return records.Invalid(op, name, "an option is nil")
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
	s.table.do(func() {
		if other := s.table.jobs[name]; other != nil && !o.replace {
			err = records.Invalid(op, name, "the name is taken by a job with spec %q; the option Replace replaces that job", other.SpecText)
			return
		}
		s.add(j)
	})
	return err
}

// add puts j into the table, replacing a job of the same name. The caller has locked the table.
func (s *Scheduler) add(j *job) {
	if s.running && s.clock.synced() {
		j.date(s.clock.now())
	} else {
		s.table.undated = append(s.table.undated, j)
	}
	s.table.add(j)
	s.presence.touch()
}

// newJob returns a job that is not registered yet. o must be valid.
func (s *Scheduler) newJob(op, name, text string, fn func(context.Context, Tick) error, o options) (j *job, err error) {
	if o.Spec, err = spec.Parse(text, o.zone); err != nil {
		return nil, records.Invalid(op, name, "%s", err)
	}
	o.SpecText = o.Spec.String() // with the zone, whose name may be long
	if o.Spec.Next(time.Unix(0, 0)).IsZero() {
		return nil, records.Invalid(op, name, "spec %q has no ticks", text)
	}
	if warning := o.Spec.Warning(); warning != "" {
		s.cfg.Logger.Warn("scheduler: the spec may have been copied from another scheduler", "job", name, "spec", text, "words", o.Spec.Words(), "warning", warning)
	}
	o.Program, o.Delay = s.program, delayOf(name, o.jitter)
	o.Fingerprint, o.Policies = o.fingerprint(), o.words()
	return &job{options: o, name: name, key: s.recs.LaneKey(name, 0), fn: fn, ordered: make(chan struct{}, 1), index: -1}, nil
}

// Remove removes a job from this Scheduler. No execution begins here after Remove has returned; one that has begun goes
// on, with its retries. The other nodes that have the job still execute its ticks. So a job ends when the last node has
// removed it, and admin.Admin.Forget then removes its record. A job that is registered again later goes on where its
// record ends: ticks in between are missed ticks, unless Forget was called.
//
// Errors: joblock.ErrNotFound if this Scheduler does not have the job, and joblock.ErrInvalid for a bad name.
func (s *Scheduler) Remove(name string) error {
	const op = "remove"
	if err := s.checkJob(op, name); err != nil {
		return err
	}
	if !s.table.remove(name) {
		return unregistered(op, name)
	}
	s.presence.doubt(name)
	s.presence.touch()
	return nil
}

// SetSpec gives a job of this Scheduler another spec. Its function and options do not change. The spec is read in
// Config.Zone, unless it names a zone. The package documentation, under Deploys, says when the new spec comes into
// force here and on the other nodes.
//
// Errors: joblock.ErrNotFound if this Scheduler does not have the job, and joblock.ErrInvalid for a bad name or spec.
// The job then stays as it is.
func (s *Scheduler) SetSpec(name, spec string) error {
	const op = "set the spec of"
	if err := s.checkJob(op, name); err != nil {
		return err
	}
	err := unregistered(op, name)
	s.table.do(func() {
		if old := s.table.jobs[name]; old != nil {
			var j *job
			if j, err = s.newJob(op, name, spec, old.fn, old.options); err == nil {
				s.add(j)
			}
		}
	})
	return err
}

func unregistered(op, job string) error {
	return &records.Error{Text: fmt.Sprintf("%s %q: this Scheduler does not have the job", op, job), Sentinel: joblock.ErrNotFound}
}

// Job is a job that is registered with a Scheduler.
type Job struct {
	Name   string
	Spec   string        // the job's spec on this node, with its zone, in the form of spec.Spec.String
	Jitter time.Duration // from a tick until the tick is due

	// Problem is why this node cannot execute the job: the ledger cannot be decoded or written, or the store does not
	// answer. It is nil if this node can.
	Problem error
}

// Jobs returns the jobs that are registered with this Scheduler, sorted by name. It sends nothing to the store.
func (s *Scheduler) Jobs() []Job {
	var jobs []Job
	s.table.do(func() {
		for name, j := range s.table.jobs {
			jobs = append(jobs, Job{name, j.SpecText, j.Delay, j.trouble})
		}
	})
	slices.SortFunc(jobs, func(a, b Job) int { return cmp.Compare(a.Name, b.Name) })
	return jobs
}
