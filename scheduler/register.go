package scheduler

import (
	"context"
	"time"
	"unicode/utf8"

	"github.com/joblock/toolkit/scheduler/spec"
)

const maxNameBytes = 128

// Func registers fn to be called on one node at every tick of spec; package spec has the
// syntax. name identifies the job in the whole cluster: 1 to 128 bytes of UTF-8. Jobs can
// be registered before Run and while it runs.
//
// The context of fn carries the job's lock (joblock.FromContext) and the tick (TickFrom).
// It may end early, with one of these causes (context.Cause):
//
//	joblock.ErrLost           the lock was lost
//	ErrStopped                the context of Run has ended
//	ErrOverlapped             the next tick has come, with OverlapCancel
//	context.DeadlineExceeded  after Timeout
//
// The Scheduler waits for an fn that goes on after that, so fn never runs twice at a time in
// one process. If the node is stopped and fn does not return nil, another node executes the
// tick again. If fn releases its lock or hands it over, the execution counts as broken off.
//
// Func returns joblock.ErrInvalid if the name is bad or taken, fn is nil, the spec is bad
// or has no ticks, or an option is bad. The job is then not registered.
func (s *Scheduler) Func(name, spec string, fn func(ctx context.Context) error, opts ...Option) error {
	var call func(context.Context, Tick) error
	if fn != nil {
		call = func(ctx context.Context, _ Tick) error { return fn(ctx) }
	}
	return s.register("func", name, spec, call, options{}, opts)
}

// register adds a job and makes it due. o has the defaults of Func or Task.
func (s *Scheduler) register(op, name, text string, fn func(context.Context, Tick) error, o options, opts []Option) error {
	if err := s.check(op); err != nil {
		return err
	}
	if fn == nil {
		return invalid(op, name, "the function is nil")
	}
	if err := checkName(op, name); err != nil {
		return err
	}
	CatchUpOne()(&o)
	for _, opt := range opts {
		if opt == nil {
			return invalid(op, name, "an option is nil")
		}
		opt(&o)
	}
	if err := o.validate(op, name); err != nil {
		return err
	}
	if !o.hasZone {
		o.zone = s.cfg.Zone
	}
	parsed, err := spec.Parse(text, o.zone)
	if err != nil {
		return invalid(op, name, "%s", err)
	}
	full := parsed.String() // with the zone, whose name may be long
	if len(full) > spec.MaxBytes {
		return invalid(op, name, "spec %.80q has %d bytes with its zone, at most %d are allowed", full, len(full), spec.MaxBytes)
	}
	if parsed.Next(time.Unix(0, 0)).IsZero() {
		return invalid(op, name, "spec %q has no ticks", text)
	}
	o.Spec, o.SpecText, o.Program, o.Delay = parsed, full, s.program, delayOf(name, o.jitter)
	o.Fingerprint = o.fingerprint()
	j := &job{options: o, name: name, key: s.keyOf(name), fn: fn, index: -1}
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.jobs[name]; other != nil {
		return invalid(op, name, "the name is taken by a job with spec %q", other.SpecText)
	}
	s.jobs[name] = j
	s.due.put(j, time.Time{})
	s.wake()
	return nil
}

func checkName(op, name string) error {
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
