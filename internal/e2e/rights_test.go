//go:build servers

package e2e

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/worker"
)

// The rights that redisstore documents are enough for web side, workers, keeper and
// scheduler: the server denies them nothing.
func TestDocumentedRightsAreEnoughForJobs(t *testing.T) {
	rules := redistest.Rules(t, "../../joblock/redisstore/doc.go", "Permissions")
	rules = append([]string{"~joblock:*", "resetchannels", "&joblock:*"}, rules...)
	optional := func(rule string) bool { // for what is not here
		return slices.Contains([]string{"+cluster|slots", "+asking", "+spublish", "+ssubscribe", "+sunsubscribe", "+pubsub|shardnumsub",
			"+cluster|shards", "+cluster|myid", "+wait"}, rule)
	}
	t.Run("one server", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		redistest.Ran(t, s.Backend())
		s.SetUser(t, "locks", slices.DeleteFunc(slices.Clone(rules), optional)...)
		rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), Username: "locks", Password: redistest.Password})
		defer rdb.Close()
		liveAsJobs(t, rdb)
		if denied := s.Denied(t); len(denied) > 0 {
			t.Errorf("denied %q", denied)
		}
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t, 3, 0)
		redistest.Ran(t, "cluster of "+c.Node(0).Backend())
		of := slices.DeleteFunc(slices.Clone(rules), func(rule string) bool { return rule == "+wait" })
		for i := range 3 {
			c.Node(i).SetUser(t, "locks", of...)
		}
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), Username: "locks", Password: redistest.Password})
		defer rdb.Close()
		liveAsJobs(t, rdb)
		for i := range 3 {
			if denied := c.Node(i).Denied(t); len(denied) > 0 {
				t.Errorf("node %d denied %q", i, denied)
			}
		}
	})
}

// liveAsJobs has jobs run, fail, be archived, share limits and be scheduled, with locks
// on rdb and asynq elsewhere.
func liveAsJobs(t *testing.T, rdb redis.UniversalClient) {
	ctx := t.Context()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	quiet := slog.New(slog.NewTextHandler(t.Output(), nil))
	opt := asynq.RedisClientOpt{Addr: redistest.Start(t).Addr()}
	client, inspector := asynq.NewClient(opt), asynq.NewInspector(opt)
	defer client.Close()
	defer inspector.Close()
	store := testkit.Must(redisstore.New(rdb, nil))
	defer store.Close()
	locks, err := joblock.New(store, &joblock.Config{TTL: 5 * time.Second, JobGrace: 100 * time.Millisecond, Logger: quiet})
	must("new", err)
	jobs, err := handoff.NewClient(locks, client, inspector, &handoff.Config{Logger: quiet})
	must("handoff", err)
	w, err := worker.New(locks, inspector, &worker.Config{Snooze: time.Second, Logger: quiet, Keeper: worker.KeeperConfig{Interval: 100 * time.Millisecond}})
	must("worker", err)

	var done, failed, ticks atomic.Int32
	mux := asynq.NewServeMux()
	mux.Use(w.Middleware, w.WithoutOverlapping(func(task *asynq.Task) string {
		if task.Type() == "limited" {
			return "limited"
		}
		return ""
	}, &worker.OverlapConfig{MaxConcurrent: 2}))
	mux.HandleFunc("done", func(context.Context, *asynq.Task) error { done.Add(1); return nil })
	mux.HandleFunc("limited", func(context.Context, *asynq.Task) error { time.Sleep(20 * time.Millisecond); done.Add(1); return nil })
	mux.HandleFunc("failed", func(context.Context, *asynq.Task) error { failed.Add(1); return errors.New("no") })
	server := asynq.NewServer(opt, w.Configure(asynq.Config{
		Concurrency: 8, RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 }, LogLevel: asynq.FatalLevel,
		TaskCheckInterval: 100 * time.Millisecond, DelayedTaskCheckInterval: 100 * time.Millisecond,
	}))
	must("start", server.Start(mux))
	keeping, stop := context.WithCancel(ctx)
	ended := make(chan error, 2)
	go func() { ended <- w.RunKeeper(keeping) }()

	nightly, err := scheduler.New(locks, &scheduler.Config{Scope: "shop", Sync: time.Second, Logger: quiet})
	must("scheduler", err)
	must("func", nightly.Func("rollup", "@every 1s", func(context.Context) error { ticks.Add(1); return nil }))
	go func() { ended <- nightly.Run(keeping) }()

	enqueue := func(kind, key string, opts ...asynq.Option) *asynq.TaskInfo {
		lock, err := locks.TryAcquire(ctx, key)
		must("acquire", err)
		done, err := jobs.Enqueue(ctx, handoff.Carry(lock), asynq.NewTask(kind, nil, opts...))
		must("enqueue", err)
		return done.Task
	}
	enqueue("done", "1")
	enqueue("failed", "2", asynq.MaxRetry(1))
	forgotten := enqueue("done", "3", asynq.ProcessIn(time.Hour))
	must("delete", inspector.ArchiveTask(forgotten.Queue, forgotten.ID))
	for range 2 {
		_, err := jobs.Enqueue(ctx, handoff.Unique{Key: "4", OnConflict: handoff.KeepLast}, asynq.NewTask("done", nil))
		must("enqueue unique", err)
	}
	for range 6 {
		_, err := client.Enqueue(asynq.NewTask("limited", nil))
		must("enqueue", err)
	}
	for _, key := range []string{"1", "2", "3", "4"} {
		await(t, key+" to be free", func() bool {
			st, err := testkit.One(locks.Status(ctx, key))
			must("status", err)
			return !st.Locked()
		})
	}
	await(t, "all jobs", func() bool { return done.Load() >= 1+1+6 && failed.Load() == 2 && ticks.Load() >= 2 })
	_, err = admin.Of(nightly).Entry(ctx, "rollup")
	must("entry", err)

	stop()
	must("keeper or scheduler", errors.Join(<-ended, <-ended))
	server.Shutdown()
	bounded, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	must("close", errors.Join(w.Close(bounded), jobs.Close(bounded), locks.Close(bounded)))
}
