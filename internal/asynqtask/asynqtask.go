// Package asynqtask reaches what asynq v0.26 does not export: the options that a task was made with, and the number of
// retries in the context of a handler.
//
// To add a header, package handoff or worker makes a task again. Without its options the new task would lose queue,
// retries and schedule.
//
// Roads not taken: callers could pass options at the enqueue only, but nobody would notice a caller who forgets. The
// linker refuses links to asynq's internals, which would also not notice a change of layout.
package asynqtask

import (
	"errors"
	"reflect"
	"slices"
	"unsafe"

	"github.com/hibiken/asynq"
)

// Options returns a copy of the options that task was made with. Options fails if task is nil, or if this version of
// asynq keeps the options elsewhere. The caller must then refuse the task.
func Options(task *asynq.Task) ([]asynq.Option, error) {
	if task == nil {
		return nil, errors.New("the task is nil")
	}
	return optionsOf(task)
}

// optionsOf reads the options of task, an *asynq.Task or a test's substitute. Later versions of asynq have an accessor.
// In asynq v0.26, optionsOf reads the field opts, if opts has exactly the expected type.
func optionsOf(task any) ([]asynq.Option, error) {
	if t, ok := task.(interface{ Options() []asynq.Option }); ok {
		return slices.Clone(t.Options()), nil
	}
	field := reflect.ValueOf(task).Elem().FieldByName("opts")
	if !field.IsValid() || field.Type() != reflect.TypeFor[[]asynq.Option]() {
		return nil, errors.New("the options that the task was made with cannot be read in this version of asynq, " +
			"and the task cannot be given a header without them")
	}
	// Reflection does not return the values of unexported fields. With the type checked, the conversion is safe.
	return slices.Clone(*(*[]asynq.Option)(unsafe.Pointer(field.UnsafeAddr()))), nil
}
