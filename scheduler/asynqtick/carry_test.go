package asynqtick_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/scheduler/asynqtick"
)

// bench has locks and a Redis of asynq with no worker, in virtual time.
type bench struct {
	*testing.T
	locks *joblock.Locker
	rdb   redis.UniversalClient
	jobs  *handoff.Client
}

func withoutWorkers(t *testing.T, f func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		redistest.Ran(t, redistest.MiniBackend())
		b := &bench{T: t, rdb: redistest.MiniClient(t, redistest.Mini(t))}
		var err error
		b.locks, err = joblock.New(memstore.New(&memstore.Config{Silent: true}), &joblock.Config{Logger: slog.New(slog.DiscardHandler)})
		testkit.WantNil(t, "joblock.New", err)
		b.jobs, err = handoff.NewClient(b.locks, asynq.NewClientFromRedisClient(b.rdb), asynq.NewInspectorFromRedisClient(b.rdb), &handoff.Config{Logger: slog.New(slog.DiscardHandler)})
		testkit.WantNil(t, "NewClient", err)
		f(b)
		testkit.WantNil(t, "Close", b.jobs.Close(context.Background()))
		testkit.WantNil(t, "Close", b.locks.Close(context.Background()))
	})
}

func (b *bench) config() *scheduler.Config {
	return &scheduler.Config{Scope: "shop", Logger: slog.New(slog.DiscardHandler)}
}

// The tasks of all ticks join the line of a sequence, without a bound: no tick overlaps. With MaxWaiting a tick that finds the
// line full overlaps, as a tick does whose predecessor's unique task is not done.
func TestTicksOfTasksThatCarryLocks(t *testing.T) {
	digest := asynq.NewTask("digest", nil)
	for name, tc := range map[string]struct {
		enqueue    func(b *bench) func(context.Context, scheduler.Tick) error
		opts       []scheduler.Option
		enqueued   int64
		overlapped int64
		waiting    int // in the line, in addition to the job that has the key
	}{
		"in a sequence": {func(b *bench) func(context.Context, scheduler.Tick) error {
			return asynqtick.EnqueueWith(b.jobs, handoff.Sequence{Key: "k"}, digest)
		}, nil, 10, 0, 9},
		"in a sequence with a bound": {func(b *bench) func(context.Context, scheduler.Tick) error {
			return asynqtick.EnqueueWith(b.jobs, handoff.Sequence{Key: "k", MaxWaiting: 3}, digest)
		}, nil, 4, 6, 3},
		"in a sequence with a bound, and ticks wait": {func(b *bench) func(context.Context, scheduler.Tick) error {
			return asynqtick.EnqueueWith(b.jobs, handoff.Sequence{Key: "k", MaxWaiting: 3}, digest)
		}, []scheduler.Option{scheduler.OverlapQueue(100)}, 4, 0, 3},
		"unique": {func(b *bench) func(context.Context, scheduler.Tick) error {
			return asynqtick.EnqueueWith(b.jobs, handoff.Unique{Key: "k"}, digest)
		}, nil, 1, 9, 0},
		"unique, and a duplicate is no error": {func(b *bench) func(context.Context, scheduler.Tick) error {
			return asynqtick.EnqueueWith(b.jobs, handoff.Unique{Key: "k", OnConflict: handoff.Skip}, digest)
		}, nil, 1, 9, 0},
	} {
		t.Run(name, func(t *testing.T) {
			withoutWorkers(t, func(b *bench) {
				t := b.T
				s, err := scheduler.New(b.locks, b.config())
				testkit.WantNil(t, "scheduler.New", err)
				testkit.WantNil(t, "Task", s.Task("digest", "@every 1m", tc.enqueue(b), tc.opts...))
				ctx, cancel := context.WithCancel(t.Context())
				ran := make(chan error)
				go func() { ran <- s.Run(ctx) }()
				time.Sleep(10*time.Minute + 30*time.Second)
				e, err := admin.Of(s).Entry(t.Context(), "digest")
				testkit.WantNil(t, "Entry", err)
				inLine := 0
				for _, err := range jobs.Line(t.Context(), b.locks, "k") {
					testkit.WantNil(t, "Line", err)
					inLine++
				}
				if e.Counts.Enqueued != tc.enqueued || e.Counts.Overlapped != tc.overlapped || e.Counts.Failed != 0 || inLine != tc.waiting {
					t.Errorf("%+v, %d wait in line; want %d enqueued, %d overlapped, %d in line", e.Counts, inLine, tc.enqueued, tc.overlapped, tc.waiting)
				}
				cancel()
				testkit.WantNil(t, "Run", <-ran)
			})
		})
	}
}

// With works among the options of a config of a PeriodicTaskManager, and so does a TaskID, which is the name of the job.
func TestWithInAConfigOfAManager(t *testing.T) {
	withoutWorkers(t, func(b *bench) {
		t := b.T
		task := asynq.NewTask("report", nil)
		m, err := asynqtick.NewPeriodicTaskManager(b.locks, b.config(), asynq.PeriodicTaskManagerOpts{
			RedisUniversalClient: b.rdb,
			PeriodicTaskConfigProvider: configs{{Cronspec: "@every 1m", Task: task, Opts: []asynq.Option{
				asynqtick.With(b.jobs, handoff.Unique{Key: handoff.TaskKey(task)}), asynq.TaskID("report"),
			}}},
		})
		testkit.WantNil(t, "NewPeriodicTaskManager", err)
		testkit.WantNil(t, "Start", m.Start())
		time.Sleep(5*time.Minute + 30*time.Second)
		st, err := b.locks.Status(t.Context(), handoff.TaskKey(task))
		testkit.WantNil(t, "Status", err)
		s, err := scheduler.New(b.locks, b.config())
		testkit.WantNil(t, "scheduler.New", err)
		e, err := admin.Of(s).Entry(t.Context(), "report")
		testkit.WantNil(t, "Entry", err)
		if !strings.HasPrefix(st[0].Job, "default/report@") || e.Counts.Enqueued != 1 || e.Counts.Overlapped != 4 {
			t.Errorf("the key is that of %q; %+v, want one enqueued and four overlapped", st[0].Job, e.Counts)
		}
		m.Shutdown()
	})
}

type configs []*asynq.PeriodicTaskConfig

func (c configs) GetConfigs() ([]*asynq.PeriodicTaskConfig, error) { return c, nil }

// The task is enqueued with the same lock and options at each tick, under the tick's ID. A second node that runs the tick
// finds the task, which is no error.
func TestEnqueueWith(t *testing.T) {
	withoutWorkers(t, func(b *bench) {
		t := b.T
		opts := append(make([]asynq.Option, 0, 8), asynq.TaskID("mine"), asynq.Queue("low"))
		digest := asynqtick.EnqueueWith(b.jobs, handoff.Sequence{Key: "k"}, asynq.NewTask("digest", nil), opts...)
		tick := scheduler.Tick{Name: "digest", At: time.Date(2026, 1, 1, 3, 0, 0, 0, time.UTC), Cause: scheduler.CauseTick}
		for range 2 {
			testkit.WantNil(t, "the tick", digest(t.Context(), tick))
		}
		st, err := b.locks.Status(t.Context(), "k")
		testkit.WantNil(t, "Status", err)
		if st[0].Job != "low/"+tick.ID() || st[0].Waiters != 0 {
			t.Errorf("%+v, want the key with the one job of the tick", st[0])
		}
		testkit.WantNil(t, "Close", b.rdb.Close())
		tick.At = tick.At.Add(time.Hour)
		if err := digest(t.Context(), tick); err == nil {
			t.Error("no error without a connection")
		}
		for _, how := range []handoff.How{
			handoff.Debounce{Key: "k", Wait: time.Second}, &handoff.Debounce{Key: "k", Wait: time.Second},
			handoff.Chain{Under: handoff.Debounce{Key: "k", Wait: time.Second}}, &handoff.Chain{Under: handoff.Debounce{Key: "k", Wait: time.Second}},
		} {
			if asynqtick.EnqueueWith(b.jobs, how, asynq.NewTask("digest", nil)) != nil {
				t.Errorf("EnqueueWith accepts %+v, which fails at each tick", how)
			}
		}
		if asynqtick.EnqueueWith(nil, handoff.Unique{}, asynq.NewTask("digest", nil)) != nil ||
			asynqtick.EnqueueWith(b.jobs, nil, asynq.NewTask("digest", nil)) != nil ||
			asynqtick.EnqueueWith(b.jobs, handoff.Unique{}, nil) != nil {
			t.Error("a function is made of an argument that is nil")
		}
	})
}
