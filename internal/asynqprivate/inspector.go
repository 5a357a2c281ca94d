package asynqprivate

import (
	"context"
	"errors"
	"reflect"
	"unsafe"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// Inspector makes calls of an asynq.Inspector with one command each, and moves tasks as asynq does: see move.go. Make an
// Inspector with New.
//
// Why: an asynq.Inspector asks before each call whether the queue exists. Without that question, and with RunScheduled, a
// job of a sequence costs asynq's Redis two commands instead of six.
type Inspector struct {
	inner  *asynq.Inspector
	client redis.UniversalClient // nil if this version of asynq keeps the client of an Inspector elsewhere
	sender *asynq.Client         // on client; nil if client is nil
	moves  *moves                // nil if the scripts of this version of asynq are not known here
}

// New returns an Inspector for the same Redis as in, on the same connections. If this version of asynq keeps the client
// of an Inspector elsewhere, the calls go through in, RunScheduled finds no task, CanPostpone is false, and Enqueue
// fails.
func New(in *asynq.Inspector) *Inspector {
	client := clientOf(in)
	if client == nil {
		return &Inspector{inner: in}
	}
	return &Inspector{
		asynq.NewInspectorFromRedisClient(everyQueue{client}), client, asynq.NewClientFromRedisClient(client), movesOfThisAsynq(),
	}
}

// All returns the result of New for each of ins.
func All(ins []*asynq.Inspector) []*Inspector {
	out := make([]*Inspector, len(ins))
	for i, in := range ins {
		out[i] = New(in)
	}
	return out
}

// GetTaskInfo does what asynq.Inspector.GetTaskInfo does. If the queue does not exist, the error is
// asynq.ErrTaskNotFound, or asynq.ErrQueueNotFound.
func (in *Inspector) GetTaskInfo(queue, id string) (*asynq.TaskInfo, error) {
	return in.inner.GetTaskInfo(queue, id)
}

// RunTask does what asynq.Inspector.RunTask does. If the queue does not exist, the error is as with GetTaskInfo.
func (in *Inspector) RunTask(queue, id string) error { return in.inner.RunTask(queue, id) }

// Enqueue does what asynq.Client.EnqueueContext does, on the connections of the Inspector: a Worker enqueues the next
// steps of chains, and has no Client. With an asynq that keeps the client of an Inspector elsewhere, Enqueue returns an
// error.
func (in *Inspector) Enqueue(ctx context.Context, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	if in.sender == nil {
		return nil, errors.New("this version of asynq keeps the Redis client of an Inspector elsewhere, so the task cannot be enqueued")
	}
	return in.sender.EnqueueContext(ctx, task, opts...)
}

// clientOf returns the client of in, an *asynq.Inspector or a test's substitute, or nil. asynq has no accessor: the field
// rdb has a type of an internal package, whose method Client returns the client.
func clientOf(in any) redis.UniversalClient {
	field := reflect.ValueOf(in).Elem().FieldByName("rdb")
	if !field.IsValid() || field.Kind() != reflect.Pointer || field.IsNil() {
		return nil
	}
	// Reflection does not call methods on the values of unexported fields. The conversion keeps the field's type.
	rdb, ok := reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem().Interface().(interface{ Client() redis.UniversalClient })
	if !ok {
		return nil
	}
	return rdb.Client()
}

// everyQueue is a client that answers yes when asynq asks whether a queue exists. The call that follows then finds no
// task, as for a task that does not exist.
type everyQueue struct{ redis.UniversalClient }

func (everyQueue) SIsMember(ctx context.Context, key string, member any) *redis.BoolCmd {
	cmd := redis.NewBoolCmd(ctx, "sismember", key, member)
	cmd.SetVal(true)
	return cmd
}
