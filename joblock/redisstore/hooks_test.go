package redisstore

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

// tracer is a hook that notes the names of commands, and of the pipelines that they
// come in, and what a context has for it.
type tracer struct {
	mu   sync.Mutex
	seen []string
	got  any
	fail error
}

type traceKey struct{}

func (h *tracer) note(ctx context.Context, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen, h.got = append(h.seen, name), ctx.Value(traceKey{})
}

// take returns what was seen since the last call.
func (h *tracer) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := h.seen
	h.seen = nil
	return seen
}

func (h *tracer) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *tracer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.note(ctx, cmd.Name())
		if h.fail != nil {
			return h.fail
		}
		return next(ctx, cmd)
	}
}

func (h *tracer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.note(ctx, "pipeline")
		for _, cmd := range cmds {
			h.note(ctx, cmd.Name())
		}
		return next(ctx, cmds)
	}
}

// The hooks that a client has when it is given to New see the calls of the Store, and
// the client itself is not changed.
func TestHooksOfTheClientSeeTheCalls(t *testing.T) {
	onBoth(t, func(t *testing.T, k *kit) {
		rdb := k.rdb.(*redis.Client)
		hook := &tracer{}
		rdb.AddHook(hook)
		k = newKit(t, rdb)
		first := k.acquire("a") // the script may be unknown
		second := k.acquire("b")
		hook.take()

		ctx := context.WithValue(t.Context(), traceKey{}, "a span")
		r, err := k.Acquire(ctx, driver.AcquireRequest{Key: "a", Owner: "o", Nonce: k.nonce(), TTL: long, Retain: long})
		wantOutcome(t, "acquire", r, err, driver.OutcomeHeld)
		if seen := hook.take(); !slices.Equal(seen, []string{"evalsha"}) || hook.got != "a span" {
			t.Errorf("of Acquire the hook saw %v, with %v in the context", seen, hook.got)
		}
		for range 2 { // the first may bring the script along
			rs, err := k.Renew(ctx, []driver.RenewRequest{k.renewal(first), k.renewal(second)})
			wantOutcomes(t, "renew", rs, err, 2, driver.OutcomeOK)
			if seen := hook.take(); !slices.Equal(seen[:3], []string{"pipeline", "evalsha", "evalsha"}) {
				t.Errorf("of Renew the hook saw %v", seen)
			}
		}
		if _, err := k.List(ctx, driver.ListRequest{}); err != nil {
			t.Fatal(err)
		}
		if seen := hook.take(); !slices.Contains(seen, "scan") {
			t.Errorf("of List the hook saw %v", seen)
		}

		if err := k.store.Close(); err != nil {
			t.Fatal(err)
		}
		if err := rdb.Ping(ctx).Err(); err != nil {
			t.Errorf("after Close of the Store its client says %v", err)
		}
		if seen := hook.take(); len(slices.DeleteFunc(seen, func(name string) bool { return name != "ping" })) != 1 {
			t.Errorf("of a PING of the application the hook saw %v", seen)
		}
	})
}

// A hook's error is the answer, as with any call of that client.
func TestHookThatFailsACall(t *testing.T) {
	redistest.Ran(t, redistest.MiniBackend())
	rdb := redis.NewClient(&redis.Options{Addr: redistest.MiniServer(t).Addr()})
	t.Cleanup(func() { rdb.Close() })
	hook := &tracer{fail: context.Canceled}
	rdb.AddHook(hook)
	k := newKit(t, rdb)
	r, err := k.Acquire(t.Context(), driver.AcquireRequest{Key: "a", Owner: "o", Nonce: k.nonce(), TTL: long, Retain: long})
	if err != hook.fail || r.Outcome != driver.OutcomeUnknown {
		t.Errorf("Acquire: %+v, %v; want the hook's error", r, err)
	}
}

// A hook that panics fails its call, also one that is made in the background.
func TestHookThatPanics(t *testing.T) {
	redistest.Ran(t, redistest.MiniBackend())
	rdb := redis.NewClient(&redis.Options{Addr: redistest.MiniServer(t).Addr()})
	t.Cleanup(func() { rdb.Close() })
	rdb.AddHook(bomb{})
	k := newKit(t, rdb)
	r, err := k.Acquire(t.Context(), driver.AcquireRequest{Key: "a", Owner: "o", Nonce: k.nonce(), TTL: long, Retain: long})
	if err == nil || !strings.Contains(err.Error(), "hook of the application's client panicked: boom") || r.Outcome != driver.OutcomeUnknown {
		t.Errorf("Acquire: %+v, %v", r, err)
	}
	term := driver.Term{Key: "a", Owner: "o", Fence: 1}
	rs, err := k.Renew(t.Context(), []driver.RenewRequest{{Term: term, TTL: long, Retain: long}, {Term: term, TTL: long, Retain: long}})
	if err == nil || slices.ContainsFunc(rs, func(r driver.Reply) bool { return r.Outcome != driver.OutcomeUnknown }) {
		t.Errorf("Renew: %+v, %v", rs, err)
	}
}

// bomb is a hook that panics.
type bomb struct{}

func (bomb) DialHook(next redis.DialHook) redis.DialHook { return next }

func (bomb) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error { panic("boom") }
}

func (bomb) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(context.Context, []redis.Cmder) error { panic("boom") }
}

// The hooks see the answer to the command that they see, whatever the server answers to the others of the pipeline.
func TestHooksSeeTheAnswerToTheirCommand(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	rdb := redistest.MiniClient(t, redistest.Mini(t))
	if err := rdb.HSet(ctx, "hash", "field", "value").Err(); err != nil {
		t.Fatal(err)
	}
	send := (&divert{to: rdb}).ProcessHook(nil)
	other, shown := redis.NewCmd(ctx, "get", "hash"), redis.NewCmd(ctx, "get", "absent")
	if err := send(ctx, &bundle{shown, []*redis.Cmd{other, shown}}); err != redis.Nil {
		t.Errorf("the answer was %v, and that to another command %v: the hook got %v", shown.Err(), other.Err(), err)
	}
}
