//go:build servers

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/jitter"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
)

const (
	tortureTTL   = 3 * time.Second
	tortureGrace = time.Second
	tortureEvery = 2 * time.Second
)

// torture is how TestJobsSurviveKilledWorkers is run: in short, with asynq's leases
// on the tasks of the dead cut short, which otherwise takes it two minutes; or, with
// JOBLOCK_JOBTORTURE set to a time, for so long and with nothing cut short.
type torture struct {
	jobs, keys int
	kill       time.Duration // for how long workers are killed
	pause      time.Duration // between two kills, on average
	cut        bool
}

func tortureOf(t *testing.T) torture {
	t.Helper()
	text := os.Getenv("JOBLOCK_JOBTORTURE")
	if text == "" {
		return torture{jobs: 120, keys: 30, kill: 8 * time.Second, pause: time.Second, cut: true}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("JOBLOCK_JOBTORTURE: %v", err)
	}
	return torture{jobs: 1000, keys: 200, kill: d, pause: 3 * time.Second}
}

// Jobs with locks go through four worker processes, of which one after the other
// is killed and replaced, the leading keeper among them. In the end every job is
// done, no lock is left, and never did two hold one key at once.
func TestJobsSurviveKilledWorkers(t *testing.T) {
	testkit.Seed(t, testkit.EnvSeed(t))
	plan := tortureOf(t)
	server := redistest.Start(t)
	redistest.Ran(t, server.Backend())
	rdb := server.Client(t)
	ctx := t.Context()
	opt := asynq.RedisClientOpt{Addr: server.Addr()}
	client, inspector := asynq.NewClient(opt), asynq.NewInspector(opt)
	defer client.Close()
	defer inspector.Close()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	locks := newLocks(t, server.Addr(), &joblock.Config{TTL: tortureTTL, JobGrace: tortureGrace, Logger: quiet})
	web, err := handoff.NewClient(locks, client, inspector, &handoff.Config{Reserve: time.Minute, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close(context.Background())

	procs := make([]*workerProc, 4)
	for i := range procs {
		procs[i] = startWorker(t, server.Addr())
	}
	var feeding sync.WaitGroup
	feeding.Go(func() {
		for i := range plan.jobs {
			feed(t, locks, web, fmt.Sprintf("key-%03d", i%plan.keys), fmt.Sprintf("job-%04d", i))
			time.Sleep(plan.kill / time.Duration(plan.jobs))
		}
	})
	kills := 0
	for end := time.Now().Add(plan.kill); time.Now().Before(end); kills++ {
		time.Sleep(plan.pause/2 + jitter.N(plan.pause))
		i := jitter.Perm(len(procs))[0]
		procs[i].kill()
		if plan.cut {
			cutLeases(t, rdb, slices.Concat(procs[:i], procs[i+1:]), func(string) {})
		}
		procs[i] = startWorker(t, server.Addr())
	}
	feeding.Wait()

	start := time.Now()
	deadline := start.Add(5 * time.Minute) // a guard: asynq takes two to find the dead out
	for {
		info, err := inspector.GetQueueInfo("default")
		if err != nil {
			t.Fatal(err)
		}
		if info.Archived > 0 {
			t.Fatalf("%d jobs were archived", info.Archived)
		}
		jobsLock := func(lock string) bool { return !strings.HasPrefix(lock, keyspace.Keepers+"%") }
		if info.Size == 0 && !slices.ContainsFunc(left(t, locks), jobsLock) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v, and locks %v are left", info, left(t, locks))
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Logf("%d jobs on %d keys, %d kills; all done and all locks free %s after the last",
		plan.jobs, plan.keys, kills, time.Since(start).Round(100*time.Millisecond))
	for _, p := range procs {
		if err := p.stop(); err != nil {
			t.Errorf("a worker process ended with %v", err)
		}
	}
	// The permit of the keepers may have been granted to one that had died in the queue.
	await(t, "no lock to be left", func() bool { return len(left(t, locks)) == 0 })
	twice, err := rdb.LRange(ctx, "twice", 0, -1).Result()
	if err != nil || len(twice) != 0 {
		t.Errorf("two held a key at once: %v, %v", twice, err)
	}
	done, err := rdb.HGetAll(ctx, "done").Result()
	if err != nil {
		t.Fatal(err)
	}
	again := 0
	for i := range plan.jobs {
		switch done[fmt.Sprintf("job-%04d", i)] {
		case "":
			t.Errorf("job %d was lost", i)
		case "1":
		default:
			again++
		}
	}
	t.Logf("%d jobs were done twice or more: killed between their last write and its report", again)
}

// feed hands the lock on key over to a new job. Of the jobs that find the key taken
// by one that waits, every other has it taken away from that one: both then want it.
func feed(t *testing.T, locks *joblock.Locker, web *handoff.Client, key, id string) {
	var held *joblock.Error
	for try := 0; t.Context().Err() == nil; try++ {
		_, err := web.Enqueue(t.Context(), handoff.Unique{Key: key}, asynq.NewTask("job", nil), asynq.TaskID(id), asynq.MaxRetry(100), asynq.Timeout(time.Minute))
		switch {
		case err == nil:
			return
		case !errors.Is(err, joblock.ErrHeld):
			t.Errorf("enqueue %s: %v", id, err)
			return
		case errors.As(err, &held) && held.Job != "" && jitter.N(2) == 0:
			// Refused while a job runs.
			_ = jobs.Free(t.Context(), locks, jobs.Release{Key: key, Job: held.Job, Reason: "for another job"})[0]
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// cutLeases ends asynq's leases on the tasks that none of procs is at work on, so
// that the next server that starts recovers them. Those that one of them is about
// to begin with, or has just ended, are delivered twice then, which is as well. before is
// called with each task first.
func cutLeases(t *testing.T, rdb *redis.Client, procs []*workerProc, before func(id string)) {
	t.Helper()
	ctx := context.Background()
	ids, err := rdb.ZRange(ctx, "asynq:{default}:lease", 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	var working []string
	for _, p := range procs {
		working = append(working, "work:"+p.pid())
	}
	busy, err := rdb.SUnion(ctx, working...).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if slices.Contains(busy, id) {
			continue
		}
		before(id)
		past := redis.Z{Member: id, Score: float64(time.Now().Add(-time.Hour).Unix())}
		if err := rdb.ZAddXX(ctx, "asynq:{default}:lease", past).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// left returns the keys that are locked.
func left(t *testing.T, locks *joblock.Locker) (keys []string) {
	t.Helper()
	for st, err := range locks.List(t.Context(), joblock.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, fmt.Sprintf("%s %s %s", st.Key, st.State, st.Job))
	}
	return keys
}
