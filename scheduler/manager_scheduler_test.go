package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/scheduler/asynqtick"
)

// entry is a call of Register.
type entry struct {
	spec string
	task *asynq.Task
	opts []asynq.Option
}

func task(kind string) *asynq.Task { return asynq.NewTask(kind, []byte("{}")) }

// startScheduler starts an asynqtick.Scheduler with entries on a node of its own. The IDs are those of entries.
func (m *managers) startScheduler(opts asynq.SchedulerOpts, entries ...entry) (*asynqtick.Scheduler, []string) {
	m.Helper()
	name := fmt.Sprint("node", len(m.stores))
	store := faultstore.New(ledgerStore{m.mem, m})
	locks, err := joblock.New(store, &joblock.Config{TTL: ttl, Holder: name, Logger: m.logs.Text()})
	wantNil(m, "New", err)
	if opts.PostEnqueueFunc == nil {
		opts.PostEnqueueFunc = m.count
	}
	s := asynqtick.NewScheduler(locks, &scheduler.Config{Scope: "cron", Node: name, Logger: m.logs.Text()}, m.rdb, &opts)
	var ids []string
	for _, e := range entries {
		id, err := s.Register(e.spec, e.task, e.opts...)
		wantNil(m, "Register", err)
		ids = append(ids, id)
	}
	wantNil(m, "Start", s.Start())
	m.stores = append(m.stores, store)
	m.Cleanup(func() {
		s.Shutdown()
		wantNil(m, "Close", locks.Close(context.Background()))
	})
	return s, ids
}

// An application's asynq.Scheduler on three nodes: each tick is enqueued once, in whatever order the nodes register.
func TestAsynqtickScheduler(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		m := newManagers(c)
		start := time.Now()
		berlin, err := time.LoadLocation("Europe/Berlin")
		wantNil(t, "LoadLocation", err)
		entries := []entry{
			{"@every 10m", task("a"), nil},
			{"@every 20m", task("b"), nil},
			{"@every 30m", task("b"), nil},                                // one task at two specs
			{"25 1 * * *", task("c"), []asynq.Option{asynq.Queue("low")}}, // in Berlin: 25 minutes after the start
		}
		zone := asynq.SchedulerOpts{Location: berlin}
		var nodes []*asynqtick.Scheduler
		var ids [][]string
		for range 3 {
			s, id := m.startScheduler(zone, entries...)
			nodes, ids = append(nodes, s), append(ids, id)
			slices.Reverse(entries)
		}
		slices.Reverse(ids[1])
		if !slices.Equal(ids[0], ids[1]) || !slices.Equal(ids[0], ids[2]) {
			t.Errorf("the IDs of the nodes differ: %q", ids)
		}
		until(start, 31*min)
		want := []string{"a@10m0s", "a@20m0s", "a@30m0s", "b@20m0s", "b@30m0s", "c@25m0s"}
		if got := m.ids(start); !slices.Equal(got, want) {
			t.Errorf("enqueued %v, want %v", got, want)
		}

		for i, s := range nodes {
			wantNil(t, "Unregister", s.Unregister(ids[i][0])) // a
			wantNil(t, "Unregister", s.Unregister(ids[i][2])) // b at 30 minutes
			if err := s.Unregister(ids[i][2]); !errors.Is(err, joblock.ErrNotFound) {
				t.Errorf("the second Unregister returned %v, want joblock.ErrNotFound", err)
			}
			if _, err := s.Register("@every 5m", task("late")); err != nil {
				t.Error(err)
			}
		}
		until(start, 46*min) // many syncs later
		want = append(want, "b@40m0s", "late@35m0s", "late@40m0s", "late@45m0s")
		slices.Sort(want)
		if got := m.ids(start); !slices.Equal(got, want) {
			t.Errorf("after Unregister and Register enqueued %v, want %v", got, want)
		}
		wantNil(t, "Ping", nodes[0].Ping())
	})
}

// A tick whose task is asynq's duplicate is skipped, and has not failed.
func TestATickWhoseTaskIsADuplicateIsSkipped(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		m := newManagers(c)
		start := time.Now()
		var duplicates int
		s, _ := m.startScheduler(asynq.SchedulerOpts{PostEnqueueFunc: func(info *asynq.TaskInfo, err error) {
			if errors.Is(err, asynq.ErrDuplicateTask) {
				duplicates++
				return
			}
			m.count(info, err)
		}}, entry{"@every 10m", task("a"), []asynq.Option{asynq.Unique(hour)}})
		until(start, 35*min) // no worker works
		all, err := admin.Of(s.Scheduler()).Entries(c.Context())
		wantNil(t, "AllEntries", err)
		if got := m.ids(start); !slices.Equal(got, []string{"a@10m0s"}) || duplicates != 2 {
			t.Errorf("enqueued %v, and %d duplicates; want the first tick and 2", got, duplicates)
		}
		if n := all[0].Counts; n.Failed != 0 || n.Overlapped != 2 {
			t.Errorf("counts %+v, want 2 overlapped and none failed", n)
		}
	})
}

// What NewScheduler and Register refuse, and that nothing is registered then.
func TestAsynqtickSchedulersThatAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), nil)
		wantNil(t, "New", err)
		defer locks.Close(t.Context())
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		defer rdb.Close()
		cfg := &scheduler.Config{Scope: "shop"}
		for name, s := range map[string]*asynqtick.Scheduler{
			"no Locker": asynqtick.NewScheduler(nil, cfg, rdb, nil),
			"no scope":  asynqtick.NewScheduler(locks, nil, rdb, nil),
			"no Redis":  asynqtick.NewScheduler(locks, cfg, nil, nil),
		} {
			_, register := s.Register("@daily", task("a"))
			for call, err := range map[string]error{
				"Register": register, "Unregister": s.Unregister("a"), "Start": s.Start(), "Run": s.Run(), "Ping": s.Ping(),
			} {
				if !errors.Is(err, joblock.ErrInvalid) {
					t.Errorf("%s: %s: %v, want joblock.ErrInvalid", name, call, err)
				}
			}
			if s.Shutdown(); s.Scheduler() != nil {
				t.Errorf("%s: there is a Scheduler", name)
			}
		}

		s := asynqtick.NewScheduler(locks, cfg, rdb, nil)
		for name, e := range map[string]entry{
			"no task":       {"@daily", nil, nil},
			"bad spec":      {"nonsense", task("a"), nil},
			"no ticks":      {"0 0 30 2 *", task("a"), nil},
			"no job's name": {"@daily", task("a"), []asynq.Option{asynq.TaskID(strings.Repeat("x", 10000))}},
		} {
			if id, err := s.Register(e.spec, e.task, e.opts...); id != "" || !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("%s: %q, %v, want joblock.ErrInvalid", name, id, err)
			}
		}
		first, err := s.Register("@daily", task("a"))
		wantNil(t, "Register", err)
		if second, err := s.Register("@daily", task("a")); second != first || err != nil {
			t.Errorf("the same entry again: %q, %v, want %q", second, err, first)
		}
		entries, err := admin.Of(s.Scheduler()).Entries(t.Context())
		if err != nil || len(entries) != 1 {
			t.Errorf("%d jobs, %v, want one", len(entries), err)
		}
	})
}
