//go:build servers

package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/scheduler/asynqtick"
)

// entryTable is a PeriodicTaskConfigProvider.
type entryTable struct {
	mu      sync.Mutex
	configs []*asynq.PeriodicTaskConfig
}

func (p *entryTable) GetConfigs() ([]*asynq.PeriodicTaskConfig, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.configs), nil
}

// Three managers with many entries start, one hundredth of the entries changes, and everything is seen. The log has the
// times. JOBLOCK_ENTRIES is the number of entries.
func TestManyEntriesFromAProvider(t *testing.T) {
	entries := 300
	if text := os.Getenv("JOBLOCK_ENTRIES"); text != "" {
		var err error
		if entries, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	server := redistest.Start(t)
	rdb, ctx := server.Client(t), context.Background()
	config := func(i int, spec string) *asynq.PeriodicTaskConfig {
		return &asynq.PeriodicTaskConfig{Cronspec: spec, Task: asynq.NewTask("job", fmt.Appendf(nil, `{"n":%d}`, i)),
			Opts: []asynq.Option{asynq.TaskID(fmt.Sprint("job", i)), asynq.Retention(time.Minute)}}
	}
	var table entryTable
	for i := range entries {
		table.configs = append(table.configs, config(i, "0 3 1 1 *"))
	}
	start := func(name string) *asynqtick.PeriodicTaskManager {
		mgr, err := asynqtick.NewPeriodicTaskManager(newLocks(t, server.Addr(), nil),
			&scheduler.Config{Scope: "shop", Node: name, Sync: time.Second, Logger: slog.New(slog.DiscardHandler)},
			asynq.PeriodicTaskManagerOpts{PeriodicTaskConfigProvider: &table, RedisConnOpt: asynq.RedisClientOpt{Addr: server.Addr()},
				SyncInterval: time.Second, SchedulerOpts: &asynq.SchedulerOpts{HeartbeatInterval: time.Second}})
		if err != nil {
			t.Fatal(err)
		}
		if err := mgr.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(mgr.Shutdown)
		return mgr
	}
	seen := func(s *scheduler.Scheduler, nodes int, spec string) (n int) {
		all, err := admin.Of(s).Entries(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			if len(e.Nodes) == nodes && e.Spec == "CRON_TZ=UTC "+spec && !e.Next.IsZero() {
				n++
			}
		}
		return n
	}
	took := func(what string, done func() bool) {
		t.Helper()
		begun := time.Now()
		await(t, what, done)
		t.Logf("%d entries: %s after %s", entries, what, time.Since(begun).Round(10*time.Millisecond))
	}
	first := start("node0")
	took("the first node has written all ledgers", func() bool { return seen(first.Scheduler(), 1, "0 3 1 1 *") == entries })
	start("node1")
	start("node2")
	took("two more nodes have all jobs", func() bool { return seen(first.Scheduler(), 3, "0 3 1 1 *") == entries })
	inspector := asynq.NewInspectorFromRedisClient(redis.UniversalClient(rdb))
	took("asynq's Inspector shows all jobs, each once", func() bool {
		all, err := inspector.SchedulerEntries()
		return err == nil && len(all) == entries
	})
	table.mu.Lock()
	table.configs = slices.Clone(table.configs)
	for i := range entries / 100 {
		table.configs[i*100] = config(i*100, "30 4 1 1 *")
	}
	table.mu.Unlock()
	took("a hundredth of the specs has changed", func() bool { return seen(first.Scheduler(), 3, "30 4 1 1 *") == entries/100 })
}
