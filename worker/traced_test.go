package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/worker"
)

// tracer is a Tracer whose spans are names. A task names its span in the header "trace".
type tracer struct {
	mu   sync.Mutex
	told []string // in the order of their ends: "parent/op task outcome"
}

type spanKey struct{}

type tracedSpan struct {
	*tracer
	text string
}

func (tr *tracer) Start(ctx context.Context, c event.Call) (context.Context, event.Span) {
	parent, _ := ctx.Value(spanKey{}).(string)
	if c.Op == event.OpRun && parent == "" {
		parent = c.Headers["trace"]
	}
	if parent == "" {
		return ctx, nil
	}
	text := parent + "/" + string(c.Op)
	if c.Op == event.OpRun {
		text += fmt.Sprint(c.Attempt)
	}
	return context.WithValue(ctx, spanKey{}, text), tracedSpan{tr, text}
}

func (tr *tracer) Headers(context.Context) map[string]string { return nil }

func (tr *tracer) Merge(of []map[string]string) map[string]string {
	var names []string
	for _, headers := range of {
		names = append(names, headers["trace"])
	}
	slices.Sort(names)
	return map[string]string{"trace": strings.Join(names, "+")}
}

func (s tracedSpan) AddEvent(event.Event) {}
func (s tracedSpan) Renewed()             {}
func (s tracedSpan) End(outcome string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := s.text
	if outcome != "" {
		text += " " + outcome
	}
	if err != nil && outcome != "lost" {
		text += ": " + strings.TrimSpace(err.Error())
	}
	s.told = append(s.told, text)
}

// ends returns the ends of spans with this text in them.
func (tr *tracer) ends(text string) (some []string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, s := range tr.told {
		if strings.Contains(s, text) {
			some = append(some, s)
		}
	}
	return some
}

// traced returns the rig's Locker with a tracer.
func (r *rig) traced() (*joblock.Locker, *tracer) {
	r.t.Helper()
	tr := new(tracer)
	locks, err := joblock.New(r.faults, &joblock.Config{TTL: r.ttl, Logger: r.log.Text(), Tracer: tr})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := locks.Close(context.Background()); err != nil {
			r.t.Error(err)
		}
	})
	return locks, tr
}

// submitTraced enqueues a task that carries "key-"+id, and whose header names the span id.
func (r *rig) submitTraced(id, payload string, opts ...asynq.Option) {
	r.t.Helper()
	env := envelope.Envelope{Tokens: r.park(id, "key-"+id), Retries: 1}
	headers := map[string]string{envelope.Header: r.header(id, env), "trace": id}
	opts = append(opts, asynq.TaskID(id), asynq.MaxRetry(2))
	if _, err := r.client.Enqueue(asynq.NewTaskWithHeaders(taskType, []byte(payload), headers), opts...); err != nil {
		r.t.Fatal(err)
	}
}

// Each attempt has a span below that of the enqueue, which says how the attempt has ended. The holding and what the
// handler does are below the attempt. WithoutOverlapping adds no second span of the attempt.
func TestAttemptsAreTraced(t *testing.T) {
	virtual(t, func(r *rig) {
		locks, tr := r.traced()
		handler := func(ctx context.Context, task *asynq.Task) error {
			id, _ := asynq.GetTaskID(ctx)
			retried, _ := asynq.GetRetryCount(ctx)
			switch {
			case id == "fails" && retried == 0:
				return errors.New("no")
			case id == "panics" && retried == 0:
				panic("no")
			case id == "revoked":
				return asynq.RevokeTask
			case id == "does":
				return locks.Do(ctx, "other", func(context.Context) error { return nil })
			}
			return nil
		}
		busy, err := r.locks.TryAcquire(context.Background(), "busy", joblock.NoRenew())
		if err != nil {
			t.Fatal(err)
		}
		key := func(task *asynq.Task) string { return string(task.Payload()) }
		r.serve(service{locks: locks, use: []middleware{
			func(w *worker.Worker) asynq.MiddlewareFunc {
				return w.WithoutOverlapping(key, &worker.OverlapConfig{MaxWait: -1})
			},
		}}, handler)
		for _, id := range []string{"fails", "panics", "revoked"} {
			r.submitTraced(id, "")
		}
		r.submitTraced("does", "inner") // the key of WithoutOverlapping
		if _, err := r.client.Enqueue(asynq.NewTaskWithHeaders(taskType, []byte("busy"), map[string]string{"trace": "waits"}), asynq.TaskID("waits")); err != nil {
			t.Fatal(err)
		}
		r.until("a task was snoozed", func() bool { return len(tr.ends("waits/run1 snoozed")) > 0 })
		r.release(busy)
		for _, id := range []string{"fails", "panics", "revoked", "does", "waits"} {
			r.untilTask(id, "gone")
		}
		for text, want := range map[string][]string{
			"fails/run":        {"fails/run1/resume", "fails/run1/park", "fails/run1/hold parked", "fails/run1 failed", "fails/run2/resume", "fails/run2/hold released", "fails/run2/release", "fails/run2 done"},
			"panics/run1 ":     {"panics/run1 panicked: the handler panicked"},
			"panics/run2 ":     {"panics/run2 done"},
			"revoked/run1 ":    {"revoked/run1 revoked: " + asynq.RevokeTask.Error()},
			"does/run1/acq":    {"does/run1/acquire", "does/run1/acquire"},
			"does/run1/hold r": {"does/run1/hold released", "does/run1/hold released", "does/run1/hold released"},
			"run1 done":        {"does/run1 done", "waits/run1 done"},
			"waits/run1/hold":  {"waits/run1/hold released"},
		} {
			got := tr.ends(text)
			for i := range got {
				if text == "fails/run" {
					got[i], _, _ = strings.Cut(got[i], ":")
				}
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("spans with %q in them are\n%s\nwant\n%s", text, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	})
}

// The task of a group names the spans of all members.
func TestTaskOfAGroupIsTraced(t *testing.T) {
	virtual(t, func(r *rig) {
		locks, tr := r.traced()
		r.submitTraced("a", "", asynq.Group("g"))
		r.submitTraced("b", "", asynq.Group("g"))
		r.serve(service{locks: locks, asynq: asynq.Config{
			GroupGracePeriod: 10 * time.Second,
			GroupAggregator: asynq.GroupAggregatorFunc(func(string, []*asynq.Task) *asynq.Task {
				return asynq.NewTask(taskType, nil)
			}),
		}}, func(context.Context, *asynq.Task) error { return nil })
		r.until("the group's task is done", func() bool { return len(tr.ends("run1 done")) > 0 })
		if got := tr.ends("run1 done"); !slices.Equal(got, []string{"a+b/run1 done"}) {
			t.Errorf("spans %q", got)
		}
	})
}
