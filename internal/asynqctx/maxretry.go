// Package asynqctx corrects what asynq's context says about a task.
package asynqctx

import (
	"context"
	"reflect"
	"strings"
	"unsafe"
)

// WithMaxRetry returns a child of ctx in which asynq.GetMaxRetry answers n.
//
// A task that carries locks has one retry more than its author asked for. Handlers, error
// handlers and other people's middleware compare asynq.GetRetryCount with
// asynq.GetMaxRetry to find out whether this attempt is the last. They must get the right
// answer, and asynq has no call for that. Hence a copy of its unexported metadata with one
// field changed. If a later asynq lays that out differently, ctx answers as asynq made it.
func WithMaxRetry(ctx context.Context, n int) context.Context {
	return maxRetryCtx{ctx, n}
}

type maxRetryCtx struct {
	context.Context
	n int
}

func (c maxRetryCtx) Value(key any) any {
	v := c.Context.Value(key)
	if v == nil {
		return nil
	}
	t := reflect.TypeOf(v)
	if t.Kind() != reflect.Struct || t.Name() != "taskMetadata" ||
		!strings.HasSuffix(t.PkgPath(), "hibiken/asynq/internal/context") {
		return v
	}
	field, ok := t.FieldByName("maxRetry")
	if !ok || field.Type.Kind() != reflect.Int {
		return v
	}
	clone := reflect.New(t).Elem()
	clone.Set(reflect.ValueOf(v))
	*(*int)(unsafe.Pointer(clone.FieldByIndex(field.Index).UnsafeAddr())) = c.n
	return clone.Interface()
}
