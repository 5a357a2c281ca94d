package asynqtick

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
)

// With returns an option for an entry of a Scheduler, for a config of a PeriodicTaskManager, and for Tasks.Add. The
// tasks of the entry then carry a lock. With replaces asynq.Unique, whose key lapses under a task that waits or runs
// for longer than its TTL, and outlasts a task that fails. The parameters are those of EnqueueWith:
//
//	report := asynq.NewTask("report", nil)
//	unique := handoff.Unique{Key: handoff.TaskKey(report)}
//	entryID, err := s.Register("0 3 * * *", report, asynq.MaxRetry(5), asynqtick.With(jobs, unique))
//
// A tick that comes while the task of an earlier tick waits or runs is treated as by EnqueueWith: with Unique it
// overlaps, and by default is skipped, which is no failure; with Sequence its task joins the line. The workers need the
// middleware of package worker.
//
// An entry is refused with joblock.ErrInvalid if it has both With and asynq.Unique, if jobs or how is nil, or if how is
// a Debounce, or a Chain under one. Of several With the last one counts. The fields of how that are not zero are among
// the options that identify a job; asynq's Inspector does not show them. SchedulerOpts.PostEnqueueFunc gets the new
// task. Only this package knows the option: an asynq.Client or asynq.Scheduler ignores it silently.
func With(jobs *handoff.Client, how handoff.How) asynq.Option {
	var enqueue enqueueFunc
	if jobs != nil && how != nil {
		enqueue = func(ctx context.Context, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
			done, err := jobs.Enqueue(ctx, how, task, opts...)
			return done.Task, err
		}
	}
	return &with{enqueue, debounces(how), fmt.Sprintf("With(%s)", describe(how))}
}

type enqueueFunc func(context.Context, *asynq.Task, ...asynq.Option) (*asynq.TaskInfo, error)

// with is the option of With.
type with struct {
	enqueue   enqueueFunc // nil: an argument of With is nil, which split refuses
	debounces bool        // which split refuses
	text      string
}

// withOpt is no type of asynq's options.
const withOpt asynq.OptionType = -1

func (w *with) String() string         { return w.text }
func (w *with) Type() asynq.OptionType { return withOpt }
func (w *with) Value() any             { return w.text }

// split returns the options that asynq knows, and the option With, or nil if there is none. The error says why the
// options are refused.
func split(opts []asynq.Option) (own []asynq.Option, w *with, err error) {
	unique := false
	for _, opt := range opts {
		switch o := opt.(type) {
		case nil: // asynq.Client skips it
		case *with:
			w = o
		default:
			unique = unique || o.Type() == asynq.UniqueOpt
			own = append(own, o)
		}
	}
	switch {
	case w == nil:
	case w.enqueue == nil:
		err = invalid("an argument of With is nil")
	case w.debounces:
		err = invalid("%s cannot debounce: each task has the ID of its tick, and the jobs of a Debounce have none", w)
	case unique:
		err = invalid("the options asynq.Unique and %s are two kinds of uniqueness, use one", w)
	}
	return own, w, err
}

// describe returns a text for how a task is enqueued. The text identifies the job, on all nodes and in later releases
// of the package that has how's type, so it has no addresses, and no fields that are not set.
func describe(how handoff.How) string {
	if chain, ok := how.(handoff.Chain); ok && chain.Under != nil {
		text := "handoff.Chain, " + describe(chain.Under)
		for _, task := range chain.Then {
			if task != nil {
				text += ", then " + task.Type()
			}
		}
		return text
	}
	v := reflect.ValueOf(how)
	if v.Kind() != reflect.Struct {
		return fmt.Sprintf("%T: %v", how, how)
	}
	text := []string{v.Type().String()}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if value := v.Field(i); f.IsExported() && !value.IsZero() && value.Kind() != reflect.Pointer {
			text = append(text, fmt.Sprintf("%s: %v", f.Name, value))
		}
	}
	return strings.Join(text, ", ")
}
