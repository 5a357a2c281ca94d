// Package asynqtask reads the options that a task was made with, which asynq v0.26 does not
// export. To add a header to a task means to make the task again, and without its options
// the new one would silently lose its queue, its retries and its schedule.
//
// The roads not taken: to ask callers to pass options at the enqueue only, as nobody would
// notice when one does not; and to link to asynq's internals, which the linker refuses, and
// which would not notice a change of layout.
package asynqtask

import (
	"errors"
	"reflect"
	"slices"
	"unsafe"

	"github.com/hibiken/asynq"
)

// Options returns a copy of the options that task was made with. It returns an error
// for a nil task, and when this build of asynq keeps them where they cannot be read:
// the caller must refuse the task then rather than guess.
func Options(task *asynq.Task) ([]asynq.Option, error) {
	if task == nil {
		return nil, errors.New("the task is nil")
	}
	return optionsOf(task)
}

// optionsOf reads the options of a pointer to a task-like struct. Later versions
// of asynq have an accessor; of the present one only the field is left, which is
// read where it has exactly the expected type.
func optionsOf(task any) ([]asynq.Option, error) {
	if t, ok := task.(interface{ Options() []asynq.Option }); ok {
		return slices.Clone(t.Options()), nil
	}
	field := reflect.ValueOf(task).Elem().FieldByName("opts")
	if !field.IsValid() || field.Type() != reflect.TypeFor[[]asynq.Option]() {
		return nil, errors.New("the options that the task was made with cannot be read in this version of asynq, " +
			"and the task cannot be given a header without them")
	}
	// Reflection reads unexported fields but does not hand their values out; the
	// type was checked, so the address may be used as what it is.
	return slices.Clone(*(*[]asynq.Option)(unsafe.Pointer(field.UnsafeAddr()))), nil
}
