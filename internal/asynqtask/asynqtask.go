// Package asynqtask reads the options that a task was made with, which asynq v0.26 does not export. To add a header,
// the task must be made again; without its options it would silently lose its queue, its retries and its schedule.
//
// The roads not taken: callers could pass options at the enqueue only, but nobody would notice one who does not. To
// link to asynq's internals is refused by the linker, and would not notice a change of layout.
package asynqtask

import (
	"errors"
	"reflect"
	"slices"
	"unsafe"

	"github.com/hibiken/asynq"
)

// Options returns a copy of the options that task was made with. It returns an error for a nil task, and if this
// version of asynq keeps them elsewhere: the caller must then refuse the task, not guess.
func Options(task *asynq.Task) ([]asynq.Option, error) {
	if task == nil {
		return nil, errors.New("the task is nil")
	}
	return optionsOf(task)
}

// optionsOf reads the options from a pointer to a task-like struct. Later versions of asynq have an accessor. In the
// present one the field is read, if it has exactly the expected type.
func optionsOf(task any) ([]asynq.Option, error) {
	if t, ok := task.(interface{ Options() []asynq.Option }); ok {
		return slices.Clone(t.Options()), nil
	}
	field := reflect.ValueOf(task).Elem().FieldByName("opts")
	if !field.IsValid() || field.Type() != reflect.TypeFor[[]asynq.Option]() {
		return nil, errors.New("the options that the task was made with cannot be read in this version of asynq, " +
			"and the task cannot be given a header without them")
	}
	// Reflection reads unexported fields but does not hand their values out; the type was checked, so the address may
	// be used as what it is.
	return slices.Clone(*(*[]asynq.Option)(unsafe.Pointer(field.UnsafeAddr()))), nil
}
