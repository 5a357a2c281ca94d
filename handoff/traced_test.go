package handoff_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
)

type spanKey struct{}

// tracer is a Tracer whose spans are names, and begin below any span that ctx has.
type tracer struct {
	mu   sync.Mutex
	told []string // the ends of enqueues
}

func (tr *tracer) Start(ctx context.Context, c event.Call) (context.Context, event.Span) {
	parent, _ := ctx.Value(spanKey{}).(string)
	if parent == "" {
		return ctx, nil
	}
	s := tracedSpan{tr, c}
	return context.WithValue(ctx, spanKey{}, parent+"/"+string(c.Op)), s
}

func (tr *tracer) Headers(ctx context.Context) map[string]string {
	if name, _ := ctx.Value(spanKey{}).(string); name != "" {
		return map[string]string{"trace": name}
	}
	return nil
}

func (tr *tracer) Merge([]map[string]string) map[string]string { return nil }

type tracedSpan struct {
	*tracer
	event.Call
}

func (tracedSpan) AddEvent(event.Event) {}
func (tracedSpan) Renewed()             {}
func (s tracedSpan) End(_ string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Op == event.OpEnqueue {
		s.told = append(s.told, fmt.Sprintf("%s %s %s error %t", strings.Join(s.Keys, ","), s.Job, s.Task, err != nil))
	}
}

// A task names the span of its enqueue, if the caller's context is in a trace; else it keeps the headers that it has. One call
// is one span, also for many tasks.
func TestTasksNameTheSpanOfTheirEnqueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMiniWeb(t)
		tr := new(tracer)
		locks, err := joblock.New(w.store, &joblock.Config{Holder: "test", Logger: slog.New(slog.DiscardHandler), Tracer: tr})
		if err != nil {
			t.Fatal(err)
		}
		jobs, err := handoff.NewClient(locks, w.client, w.inspector, &handoff.Config{Logger: w.log.JSON()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := jobs.Close(context.Background()); err != nil {
				t.Error(err)
			}
			if err := locks.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		traced := context.WithValue(t.Context(), spanKey{}, "request")
		task := func(id string) *asynq.Task {
			return asynq.NewTaskWithHeaders("export", nil, map[string]string{"trace": "earlier", "tenant": "acme"}, asynq.TaskID(id))
		}
		for id, c := range map[string]struct {
			ctx  context.Context
			want string
		}{"in-a-trace": {traced, "request/enqueue"}, "in-none": {t.Context(), "earlier"}} {
			if _, err := jobs.Enqueue(c.ctx, handoff.Carry(acquire(t, locks, id)), task(id)); err != nil {
				t.Fatal(err)
			}
			info, err := w.inspector.GetTaskInfo("default", id)
			if err != nil {
				t.Fatal(err)
			}
			if got := info.Headers; got["trace"] != c.want || got["tenant"] != "acme" {
				t.Errorf("%s: headers %v, want the trace %q", id, got, c.want)
			}
		}
		if _, err := jobs.Enqueue(traced, handoff.Unique{Key: "in-a-trace"}, task("u")); err == nil {
			t.Error("a key that is taken was taken again")
		}
		if _, err := jobs.Enqueue(traced, handoff.Sequence{Key: "line"}, task("s")); err != nil {
			t.Error(err)
		}
		items := manyItems(2)
		if _, err := jobs.EnqueueMany(traced, items); err != nil {
			t.Fatal(err)
		}
		want := []string{
			"in-a-trace default/in-a-trace export error false", "in-a-trace default/u export error true",
			"line default/s export error false", "key-0,key-1   error false",
		}
		if got := strings.Join(tr.told, "\n"); got != strings.Join(want, "\n") {
			t.Errorf("spans\n%s\nwant\n%s", got, strings.Join(want, "\n"))
		}
	})
}
