package asynqprivate_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/asynqprivate"
	"github.com/joblock/toolkit/internal/redistest"
)

// inTask calls f with the context that asynq gives a handler of a task "id-1" in
// queue "slow" with 7 retries.
func inTask(t *testing.T, f func(t *testing.T, ctx context.Context)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rdb := redistest.MiniClient(t, redistest.Mini(t))
		client := asynq.NewClientFromRedisClient(rdb)
		_, err := client.Enqueue(asynq.NewTask("type", nil), asynq.TaskID("id-1"), asynq.Queue("slow"), asynq.MaxRetry(7))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		srv := asynq.NewServerFromRedisClient(rdb, asynq.Config{Queues: map[string]int{"slow": 1}, LogLevel: asynq.FatalLevel})
		err = srv.Start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			defer close(done)
			f(t, ctx)
			return nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		<-done
		srv.Shutdown()
	})
}

type meta struct {
	id, queue       string
	retried, max    int
	idOK, queueOK   bool
	retriedOK, okay bool
}

func metaOf(ctx context.Context) (m meta) {
	m.id, m.idOK = asynq.GetTaskID(ctx)
	m.queue, m.queueOK = asynq.GetQueueName(ctx)
	m.retried, m.retriedOK = asynq.GetRetryCount(ctx)
	m.max, m.okay = asynq.GetMaxRetry(ctx)
	return m
}

// This test fails when asynq lays out its metadata in another way: WithMaxRetry
// then changes nothing, and handlers would see the spare retry as one of theirs.
func TestWithMaxRetryChangesTheOneNumber(t *testing.T) {
	inTask(t, func(t *testing.T, ctx context.Context) {
		before := metaOf(ctx)
		if want := (meta{"id-1", "slow", 0, 7, true, true, true, true}); before != want {
			t.Fatalf("asynq's context says %+v, want %+v", before, want)
		}
		want := before
		want.max = 6
		changed := asynqprivate.WithMaxRetry(ctx, 6)
		if got := metaOf(changed); got != want {
			t.Errorf("with 6 retries the context says %+v, want %+v: has asynq changed its layout?", got, want)
		}
		if got := metaOf(ctx); got != before {
			t.Errorf("the original says %+v now, it said %+v", got, before)
		}
		want.max = 0
		if got := metaOf(asynqprivate.WithMaxRetry(changed, 0)); got != want {
			t.Errorf("changed twice it says %+v, want %+v", got, want)
		}
	})
}

func TestWithMaxRetryKeepsTheRestOfTheContext(t *testing.T) {
	type key struct{}
	inTask(t, func(t *testing.T, ctx context.Context) {
		ctx = context.WithValue(ctx, key{}, "mine")
		changed := asynqprivate.WithMaxRetry(ctx, 3)
		if got := changed.Value(key{}); got != "mine" {
			t.Errorf("a value of the parent is %v", got)
		}
		deadline, ok := ctx.Deadline()
		if got, gotOK := changed.Deadline(); got != deadline || gotOK != ok {
			t.Errorf("deadline %v, %t; want %v, %t", got, gotOK, deadline, ok)
		}
		derived, cancel := context.WithTimeout(context.WithValue(changed, key{}, 1), time.Second)
		if got := metaOf(derived); got.max != 3 || got.id != "id-1" {
			t.Errorf("a derived context says %+v, want 3 retries of id-1", got)
		}
		if got := metaOf(context.WithoutCancel(derived)); got.max != 3 {
			t.Errorf("a detached context says %+v, want 3 retries", got)
		}
		cancel()
		if changed.Err() != nil || derived.Err() == nil {
			t.Error("cancelling the child did not end the child alone")
		}
		parent, end := context.WithCancelCause(ctx)
		child, stop := context.WithCancel(asynqprivate.WithMaxRetry(parent, 3))
		defer stop()
		end(context.DeadlineExceeded)
		if got := context.Cause(child); got != context.DeadlineExceeded {
			t.Errorf("the cause that reached the child is %v", got)
		}
	})
}

// Values of other packages are handed through, whatever they look like.
func TestWithMaxRetryOutsideATask(t *testing.T) {
	type key struct{}
	type taskMetadata struct{ maxRetry int }
	for _, v := range []any{"text", 5, taskMetadata{1}, &taskMetadata{1}} {
		ctx := asynqprivate.WithMaxRetry(context.WithValue(context.Background(), key{}, v), 3)
		if got := ctx.Value(key{}); got != v {
			t.Errorf("value %v came out as %v", v, got)
		}
	}
	if n, ok := asynq.GetMaxRetry(asynqprivate.WithMaxRetry(context.Background(), 3)); ok {
		t.Errorf("outside a task GetMaxRetry gave %d", n)
	}
}
