package e2e

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/dice"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// Jobs of sequences go through four worker processes, of which one after the other is killed and replaced. In the end
// every job is done, and the jobs of each sequence were done in the order of their enqueues, one at a time. A job whose
// worker died may have been done twice, but never after a job behind.
func TestSequencesSurviveKilledWorkers(t *testing.T) {
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
	want := make(map[string][]string)
	var items []handoff.Item
	const sequences = 16
	for i := range sequences * int(plan.kill/(200*time.Millisecond)) { // a job takes some 150 ms
		key, id := fmt.Sprintf("seq-%03d", i%sequences), fmt.Sprintf("job-%05d", i)
		want[key] = append(want[key], id)
		items = append(items, handoff.Item{
			Task:     asynq.NewTask("job", nil, asynq.TaskID(id), asynq.MaxRetry(100), asynq.Timeout(time.Minute)),
			Sequence: handoff.Sequence{Key: key},
		})
	}
	for part := range slices.Chunk(items, handoff.MaxItems) {
		results, err := web.EnqueueMany(ctx, part)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range results {
			if r.Err != nil {
				t.Fatalf("item %d: %v", i, r.Err)
			}
		}
	}
	kills := 0
	for end := time.Now().Add(plan.kill); time.Now().Before(end); kills++ {
		time.Sleep(plan.pause/2 + dice.N(plan.pause))
		i := dice.Perm(len(procs))[0]
		procs[i].kill()
		if plan.cut {
			cutLeases(t, rdb, slices.Concat(procs[:i], procs[i+1:]))
		}
		procs[i] = startWorker(t, server.Addr())
	}
	start := time.Now()
	for deadline := start.Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) { // asynq takes two to find the dead out
		info, err := inspector.GetQueueInfo("default")
		if err != nil {
			t.Fatal(err)
		}
		if info.Size == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v, and locks %v are left", info, left(t, locks))
		}
	}
	t.Logf("%d jobs in %d sequences, %d kills; all done %s after the last", len(items), sequences, kills, time.Since(start).Round(time.Millisecond))
	for _, p := range procs {
		if err := p.stop(); err != nil {
			t.Errorf("a worker process ended with %v", err)
		}
	}
	if twice, err := rdb.LRange(ctx, "twice", 0, -1).Result(); err != nil || len(twice) != 0 {
		t.Errorf("two held a key at once: %v, %v", twice, err)
	}
	again := 0
	for key, ids := range want {
		ends, err := rdb.LRange(ctx, "ends:"+key, 0, -1).Result()
		if err != nil {
			t.Fatal(err)
		}
		once := slices.Compact(slices.Clone(ends)) // a job that was done again was done again before the next
		again += len(ends) - len(once)
		if !slices.Equal(once, ids) {
			t.Errorf("%s was done in the order %q, want %q", key, ends, ids)
		}
	}
	if again > kills*8 {
		t.Errorf("%d jobs were done again after %d kills of 8 workers each", again, kills)
	}
	t.Logf("%d jobs were done twice: killed between their last write and its report", again)
}
