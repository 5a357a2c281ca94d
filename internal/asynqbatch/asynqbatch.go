// Package asynqbatch makes the calls of an asynq.Inspector cheaper where many goroutines call at the same time. The
// commands are those of asynq itself. Two things differ:
//
//	the check whether a queue exists  is left out. For a queue that does not exist, GetTaskInfo and RunTask return
//	                                  asynq.ErrTaskNotFound
//	calls at the same time            share pipelines. While two calls are under way, further calls wait, and then go
//	                                  together. So few calls take more than two round trips, as many as the two commands
//	                                  of an Inspector's call. One call that hangs does not hold up the others
//
// Where the locks are in the same Redis as the tasks, a job of a sequence needs no such calls when it ends: the method Ends
// puts both into the script of the release.
//
// The calls of a pipeline are separate steps, as single calls are. Calls to a cluster share no pipeline: a node that
// hangs would hold up the calls to all other nodes.
package asynqbatch

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// most is how many calls a pipeline has at most. All replies of a pipeline must arrive within one ReadTimeout of the client,
// 3 s by default, and a reply may be a whole task. On a link of 2 MB/s, 16 tasks of 100 KB take 0.8 s and 100 tasks 5 s. A
// longer pipeline would also keep asynq's Redis from its other work for long.
const most = 16

// lanes is how many calls or pipelines are under way at most.
const lanes = 2

// Inspector makes some of the calls of an asynq.Inspector, cheaply. Make an Inspector with New. There are no other methods:
// they would be told that every queue exists.
type Inspector struct {
	inner   *asynq.Inspector
	guarded *asynq.Inspector // RunTask runs scheduled tasks only; nil as batcher
	steps   *steps           // nil if Ends has to return nil, and if CanPostpone is false
	batcher *batcher         // nil if this version of asynq keeps the client of an Inspector elsewhere
}

// New returns an Inspector for the same Redis as in, on the same connections. If this version of asynq keeps the client
// of an Inspector elsewhere, the calls cost as much as those of in.
func New(in *asynq.Inspector) *Inspector {
	client := clientOf(in)
	if client == nil {
		return &Inspector{inner: in}
	}
	_, one := client.(*redis.Client)
	b := &batcher{UniversalClient: client, share: one}
	var known *steps
	if !Unknown.Load() {
		known = stepsOnce()
	}
	return &Inspector{asynq.NewInspectorFromRedisClient(b), asynq.NewInspectorFromRedisClient(newGuard(b)), known, b}
}

// Unknown is for tests: New then returns Inspectors as with a version of asynq whose scripts are not known here.
var Unknown atomic.Bool

// All returns the result of New for each of ins.
func All(ins []*asynq.Inspector) []*Inspector {
	out := make([]*Inspector, len(ins))
	for i, in := range ins {
		out[i] = New(in)
	}
	return out
}

// GetTaskInfo is that of asynq.Inspector. If the queue does not exist, the error is asynq.ErrTaskNotFound, or
// asynq.ErrQueueNotFound.
func (in *Inspector) GetTaskInfo(queue, id string) (*asynq.TaskInfo, error) {
	return in.inner.GetTaskInfo(queue, id)
}

// RunTask is that of asynq.Inspector. If the queue does not exist, the error is as with GetTaskInfo.
func (in *Inspector) RunTask(queue, id string) error { return in.inner.RunTask(queue, id) }

// RunScheduled is RunTask for a task that is scheduled, in one step. If the task is in any other state or does not exist,
// RunScheduled does nothing, and the error is asynq.ErrTaskNotFound: GetTaskInfo knows more.
func (in *Inspector) RunScheduled(queue, id string) error {
	if in.guarded == nil {
		return asynq.ErrTaskNotFound
	}
	return in.guarded.RunTask(queue, id)
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

// batcher is a client whose calls of scripts share pipelines.
type batcher struct {
	redis.UniversalClient
	share bool // if false, each call goes at once

	mu       sync.Mutex // guards the fields below
	underway int        // how many calls and pipelines are under way, at most lanes
	waiting  []*batch
}

// batch is a number of calls that go together.
type batch struct {
	pipe redis.Pipeliner // guarded by the mutex of the batcher until the pipeline is sent
	cmds []redis.Cmder   // likewise
	done chan struct{}   // closed when all calls have their answers or errors
}

// SIsMember answers asynq's question whether a queue exists: yes. For what the Inspector asks next, a task of such a queue
// does not exist.
func (b *batcher) SIsMember(ctx context.Context, key string, member any) *redis.BoolCmd {
	cmd := redis.NewBoolCmd(ctx, "sismember", key, member)
	cmd.SetVal(true)
	return cmd
}

// EvalSha makes a call of a script, as the function share does.
func (b *batcher) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	return share(b, func(c redis.Cmdable) *redis.Cmd { return c.EvalSha(ctx, sha, keys, args...) })
}

// The function share makes a call at once if a lane is free. Otherwise the call waits until a call under way has ended, and
// goes in a pipeline.
func share[C redis.Cmder](b *batcher, call func(redis.Cmdable) C) C {
	p, cmd := enter(b, call)
	if p == nil {
		defer b.leave()
		return call(b.UniversalClient)
	}
	<-p.done
	return cmd
}

// The function enter adds a call to a batch and returns the batch. The result is nil if the call must go at once.
func enter[C redis.Cmder](b *batcher, call func(redis.Cmdable) C) (p *batch, cmd C) {
	if !b.share {
		return nil, cmd
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.underway < lanes {
		b.underway++
		return nil, cmd
	}
	n := len(b.waiting)
	if n == 0 || len(b.waiting[n-1].cmds) == most {
		b.waiting = append(b.waiting, &batch{pipe: b.Pipeline(), done: make(chan struct{})})
		n++
	}
	p = b.waiting[n-1]
	cmd = call(p.pipe)
	p.cmds = append(p.cmds, cmd)
	return p, cmd
}

// The method leave sends the next batch when a call has ended.
func (b *batcher) leave() {
	if !b.share {
		return
	}
	if p := b.next(); p != nil {
		go b.send(p)
	}
}

// The method next returns the batch to send now, or nil if none waits.
func (b *batcher) next() *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) == 0 {
		b.underway--
		return nil
	}
	p := b.waiting[0]
	b.waiting = b.waiting[1:]
	return p
}

// The method send sends p, and then the batches that have come meanwhile.
func (b *batcher) send(p *batch) {
	for ; p != nil; p = b.next() {
		_, err := p.pipe.Exec(context.Background())
		failed := func(cmd redis.Cmder) bool { return cmd.Err() != nil }
		if err != nil && !slices.ContainsFunc(p.cmds, failed) { // a hook has failed the pipeline before the pipeline was sent
			for _, cmd := range p.cmds {
				cmd.SetErr(err)
			}
		}
		close(p.done)
	}
}
