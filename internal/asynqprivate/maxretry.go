package asynqprivate

import (
	"context"
	"reflect"
	"strings"
	"unsafe"
)

// WithMaxRetry returns a child of ctx in which asynq.GetMaxRetry returns n.
//
// Why: a task that carries locks has one retry more than its author asked for; see package envelope. Handlers, error
// handlers and other middleware compare asynq.GetRetryCount with asynq.GetMaxRetry to find out whether an attempt is
// the last, and asynq has no call that changes the maximum. So WithMaxRetry copies asynq's unexported metadata and
// changes one field. With another layout, asynq.GetMaxRetry returns asynq's own number, which is one too high.
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
