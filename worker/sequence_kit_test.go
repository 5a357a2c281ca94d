package worker_test

import (
	"context"
	"slices"
	"strings"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/asynqprivate"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/joblock/jobs"
)

// seqKey is the key of the sequence in these tests.
const seqKey = "customer:7"

// line is a web side that enqueues jobs into sequences.
type line struct {
	*rig
	jobs *handoff.Client
}

func (r *rig) line() *line {
	r.t.Helper()
	c, err := handoff.NewClient(r.locks, r.client, r.inspector, &handoff.Config{Logger: r.log.Text(), Reserve: reserve})
	if err != nil {
		r.t.Fatalf("handoff.NewClient: %v", err)
	}
	r.t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			r.t.Errorf("close the Client: %v", err)
		}
	})
	return &line{r, c}
}

// add enqueues the tasks ids into a sequence, one after another.
func (l *line) add(s handoff.Sequence, ids ...string) {
	l.t.Helper()
	for _, id := range ids {
		l.addOne(s, id, asynq.MaxRetry(1))
	}
}

func (l *line) addOne(s handoff.Sequence, id string, opts ...asynq.Option) handoff.Result {
	l.t.Helper()
	if s.Key == "" && s.Lock == nil {
		s.Key = seqKey
	}
	done, err := l.jobs.Enqueue(context.Background(), s, asynq.NewTask(taskType, nil), append([]asynq.Option{asynq.TaskID(id)}, opts...)...)
	if err != nil {
		l.t.Fatalf("enqueue %s: %v", id, err)
	}
	return done
}

// wantLine checks which jobs wait for the key of the sequence.
func (l *line) wantLine(ids ...string) {
	l.t.Helper()
	if got := l.inLine(); !slices.Equal(got, ids) {
		l.t.Errorf("in line wait %q, want %q", got, ids)
	}
}

func (l *line) inLine() (ids []string) {
	l.t.Helper()
	for at, err := range jobs.Line(context.Background(), l.locks, seqKey) {
		if err != nil {
			l.t.Fatalf("read the line: %v", err)
		}
		_, id, _ := envelope.ParseJob(at.Job)
		ids = append(ids, id)
	}
	return ids
}

// wantOrder checks in which order the tasks ran, each run with its task's ID.
func (l *line) wantOrder(p *probe, ids ...string) {
	l.t.Helper()
	var got []string
	fence := int64(0)
	for _, r := range p.all() {
		got = append(got, r.id)
		if r.fence <= fence {
			l.t.Errorf("run %d, of %s, has fence %d after %d", len(got), r.id, r.fence, fence)
		}
		fence = r.fence
	}
	if !slices.Equal(got, ids) {
		l.t.Errorf("ran %q, want %q\n%s", got, ids, l.log)
	}
}

// only is a handler that calls f for the task id, and succeeds for all others.
func only(id string, f func(context.Context, int) error) func(context.Context, int) error {
	return func(ctx context.Context, n int) error {
		if got, _ := asynq.GetTaskID(ctx); got == id {
			return f(ctx, n)
		}
		return nil
	}
}

// run has asynq run a task that waits or has ended.
func (l *line) run(id string) {
	l.t.Helper()
	if err := l.inspector.RunTask(queue, id); err != nil {
		l.t.Fatalf("run %s: %v", id, err)
	}
}

// lostPlace is what the log says of a job that has lost its place.
const lostPlace = "lines up again; jobs that were enqueued after it may run before it"

// wantLostPlace checks that one warning tells of a lost place.
func (r *rig) wantLostPlace() {
	r.t.Helper()
	told := 0
	for line := range strings.Lines(r.log.String()) {
		if strings.Contains(line, "level=WARN") && strings.Contains(line, lostPlace) {
			told++
		}
	}
	if told != 1 {
		r.t.Errorf("%d warnings of a lost place, want 1:\n%s", told, r.log)
	}
}

// next starts the next job as a worker does.
func (r *rig) next() core.Granted {
	s := &jobline.Starter{
		Locks: r.locks, Inspectors: []*asynqprivate.Inspector{asynqprivate.New(r.inspector)}, Logger: r.log.Text(), Go: func(f func()) { go f() },
	}
	return s.Granted
}
