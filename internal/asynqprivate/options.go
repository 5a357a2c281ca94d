package asynqprivate

import (
	"errors"
	"reflect"
	"slices"
	"unsafe"

	"github.com/hibiken/asynq"
)

// Options returns a copy of the options that task was made with. It fails if task is nil, or if this version of asynq
// keeps the options elsewhere; the caller must then refuse the task.
//
// Why: to add a header, package handoff or worker makes a task again, and without its options the new task would lose
// its queue, retries and schedule. Callers could pass options at the enqueue only, but nothing would notice a caller
// who forgets. asynq after v0.26 has the accessor Task.Options, which is tried first.
func Options(task *asynq.Task) ([]asynq.Option, error) {
	if task == nil {
		return nil, errors.New("the task is nil")
	}
	return optionsOf(task)
}

// optionsOf reads the options of task, an *asynq.Task or a test's substitute: from the accessor, or from the field opts
// if that has exactly the expected type.
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
