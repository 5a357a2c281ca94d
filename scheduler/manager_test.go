package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/scheduler/asynqtick"
	"github.com/joblock/toolkit/scheduler/internal/ledger"
)

// provider is a PeriodicTaskConfigProvider whose configs change.
type provider struct {
	mu      sync.Mutex
	configs []*asynq.PeriodicTaskConfig
	err     error
}

func (p *provider) GetConfigs() ([]*asynq.PeriodicTaskConfig, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.configs), p.err
}

func (p *provider) set(err error, configs ...*asynq.PeriodicTaskConfig) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.configs, p.err = configs, err
}

func config(spec, kind string, opts ...asynq.Option) *asynq.PeriodicTaskConfig {
	return &asynq.PeriodicTaskConfig{Cronspec: spec, Task: asynq.NewTask(kind, []byte("{}")), Opts: opts}
}

// managers is nodes that run a PeriodicTaskManager.
type managers struct {
	*cluster
	provider provider
	rdb      *redis.Client
	list     []*asynqtick.PeriodicTaskManager
	stores   []*faultstore.Store

	mu       sync.Mutex
	enqueued map[string]int // by the task's ID
	writes   map[string][]*ledger.Ledger
}

// ledgerStore records the ledgers that the nodes of a managers write.
type ledgerStore struct {
	driver.Store
	m *managers
}

func (s ledgerStore) Renew(ctx context.Context, reqs []driver.RenewRequest) ([]driver.Reply, error) {
	replies, err := s.Store.Renew(ctx, reqs)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	for i, req := range reqs {
		if name, ok := strings.CutPrefix(req.Key, "%cron:cron:"); ok && req.Memo != nil && replies[i].Outcome == driver.OutcomeOK {
			l, err := ledger.Decode(req.Memo)
			if err != nil {
				s.m.Error(err)
			}
			if all := s.m.writes[name]; len(all) == 0 || all[len(all)-1].Spec != l.Spec || all[len(all)-1].From != l.From {
				s.m.writes[name] = append(all, l)
			}
		}
	}
	return replies, err
}

func newManagers(c *cluster) *managers {
	redistest.Ran(c, redistest.MiniBackend())
	return &managers{cluster: c, rdb: redistest.MiniClient(c, redistest.Mini(c)), enqueued: make(map[string]int), writes: make(map[string][]*ledger.Ledger)}
}

// start starts a manager on a node of its own.
func (m *managers) start(opts ...scheduler.Option) *asynqtick.PeriodicTaskManager {
	m.Helper()
	return m.startWith(&m.provider, opts...)
}

// startWith is start with another provider.
func (m *managers) startWith(p *provider, opts ...scheduler.Option) *asynqtick.PeriodicTaskManager {
	m.Helper()
	name := fmt.Sprint("node", len(m.list))
	store := faultstore.New(ledgerStore{m.mem, m})
	locks, err := joblock.New(store, &joblock.Config{TTL: ttl, Holder: name, Logger: m.logs.Text()})
	wantNil(m, "New", err)
	mgr, err := asynqtick.NewPeriodicTaskManager(locks, &scheduler.Config{Scope: "cron", Node: name, Logger: m.logs.Text()},
		asynq.PeriodicTaskManagerOpts{
			PeriodicTaskConfigProvider: p, RedisUniversalClient: m.rdb, SyncInterval: 10 * time.Second,
			SchedulerOpts: &asynq.SchedulerOpts{PostEnqueueFunc: m.count},
		}, opts...)
	wantNil(m, "NewPeriodicTaskManager", err)
	wantNil(m, "Start", mgr.Start())
	m.list, m.stores = append(m.list, mgr), append(m.stores, store)
	m.Cleanup(func() {
		mgr.Shutdown()
		wantNil(m, "Close", locks.Close(context.Background()))
	})
	return mgr
}

// count is a PostEnqueueFunc.
func (m *managers) count(info *asynq.TaskInfo, err error) {
	if err != nil {
		m.Error(err)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.enqueued[info.ID]++
}

// ids returns the enqueued tasks, as "name@time since start".
func (m *managers) ids(start time.Time) (all []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, n := range m.enqueued {
		name, at, _ := strings.Cut(id, "@")
		var sec int64
		fmt.Sscan(at, &sec)
		if kind, _, ok := strings.Cut(name, "-"); ok {
			name = kind
		}
		all = append(all, fmt.Sprintf("%s@%s", name, time.Unix(sec, 0).Sub(start)))
		if n != 1 {
			m.Errorf("%s was enqueued %d times", id, n)
		}
	}
	slices.Sort(all)
	return all
}

// A provider that adds, changes and removes entries, on three nodes.
func TestPeriodicTaskManager(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		m := newManagers(c)
		start := time.Now()
		m.provider.set(nil, config("@every 10m", "a"), config("@every 20m", "b"), config("@every 30m", "b"),
			config("@every 10m", "c", asynq.TaskID("named")), nil, config("", "x"), config("bad", "y"))
		for range 3 {
			m.start()
		}
		until(start, 15*min)
		m.provider.set(errors.New("away"))
		until(start, 25*min)
		m.provider.set(nil, config("@every 4m", "a"), config("@every 20m", "b"), config("@every 30m", "b"), config("@every 30m", "d", asynq.TaskID("named")))
		until(start, 31*min)
		m.provider.set(nil, config("@every 4m", "a"))
		until(start, 41*min)
		want := []string{"a@10m0s", "a@20m0s", "a@28m0s", "a@32m0s", "a@36m0s", "a@40m0s", "b@20m0s", "b@30m0s", "named@10m0s", "named@20m0s", "named@30m0s"}
		if got := m.ids(start); !slices.Equal(got, want) {
			t.Errorf("enqueued %v, want %v", got, want)
		}
		all, err := admin.Of(m.list[0].Scheduler()).Entries(c.Context())
		wantNil(t, "AllEntries", err)
		if len(all) != 3 || len(all[0].Nodes) != 3 || len(all[1].Nodes)+len(all[2].Nodes) != 0 {
			t.Errorf("entries %+v", all)
		}
		until(start, 59*min)
		if all, err = admin.Of(m.list[0].Scheduler()).Entries(c.Context()); err != nil || len(all) != 3 {
			t.Errorf("%d entries, %v, want those of removed jobs, too", len(all), err)
		}
		until(start, 2*hour+5*min) // the removed jobs are forgotten
		all, err = admin.Of(m.list[0].Scheduler()).Entries(c.Context())
		wantNil(t, "AllEntries", err)
		if len(all) != 1 || !strings.HasPrefix(all[0].Name, "a-") {
			t.Errorf("entries %+v, want that of a", all)
		}
		for _, text := range []string{"skipped a config: the config or its Task is nil", `task \"y\" at \"bad\"`, "could not get the provider's configs"} {
			if !strings.Contains(c.logs.String(), text) {
				t.Errorf("not in the log: %s", text)
			}
		}
	})
}

// Jobs are forgotten whose configs were removed shortly before all nodes were restarted, and while no node was up.
func TestRemovedConfigsAreForgottenAfterARestart(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		m := newManagers(c)
		start := time.Now()
		stay := config("@every 10m", "stay")
		m.provider.set(nil, stay, config("@every 10m", "before"), config("@every 10m", "while"))
		m.start()
		m.start()
		until(start, 15*min)
		m.provider.set(nil, stay, config("@every 10m", "while"))
		until(start, 20*min+sec)
		for _, mgr := range m.list {
			mgr.Shutdown()
		}
		m.provider.set(nil, stay)
		until(start, 25*min)
		m.start()
		last := m.start()
		names := func() (all []string) {
			entries, err := admin.Of(last.Scheduler()).Entries(c.Context())
			wantNil(t, "AllEntries", err)
			for _, e := range entries {
				kind, _, _ := strings.Cut(e.Name, "-")
				all = append(all, kind)
			}
			return all
		}
		until(start, 80*min)
		if got := names(); !slices.Equal(got, []string{"before", "stay", "while"}) {
			t.Errorf("within the hour the jobs are %v", got)
		}
		until(start, 95*min)
		if got := names(); !slices.Equal(got, []string{"stay"}) {
			t.Errorf("jobs %v, want the one with a config", got)
		}
	})
}

// A bad spec, and more specs than one job may have, cost no other config of the same task its ticks.
func TestConfigsOfOneTaskThatAreNotOneJob(t *testing.T) {
	virtual(t, func(c *cluster) {
		m := newManagers(c)
		start := time.Now()
		many := []*asynq.PeriodicTaskConfig{config("@every 10m", "good"), config("bad", "good")}
		for i := range 33 {
			many = append(many, config(fmt.Sprintf("%d 0 * * *", i+1), "many"))
		}
		m.provider.set(nil, many...)
		m.start()
		until(start, 59*min)
		var want []string
		for i := range 33 {
			want = append(want, fmt.Sprintf("many@%dm0s", i+1))
		}
		for i := range 5 {
			want = append(want, fmt.Sprintf("good@%dm0s", 10*(i+1)))
		}
		slices.Sort(want)
		if got := m.ids(start); !slices.Equal(got, want) {
			c.Errorf("enqueued %v, want %v", got, want)
		}
	})
}

// asynq's Inspector shows each job once, with its next and its previous tick, whatever nodes come and go.
func TestTheInspectorShowsTheJobs(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		m := newManagers(c)
		start := time.Now()
		m.provider.set(nil, config("@every 10m", "a", asynq.Queue("low"), asynq.MaxRetry(3), asynq.Retention(min)),
			&asynq.PeriodicTaskConfig{Cronspec: "CRON_TZ=Europe/Berlin 0 3 * * *", Task: asynq.NewTask("b", []byte("\x00\xff"))})
		for range 3 {
			m.start()
		}
		inspector := asynq.NewInspectorFromRedisClient(m.rdb)
		see := func(at time.Duration, prevA time.Duration) {
			t.Helper()
			until(start, at)
			entries, err := inspector.SchedulerEntries()
			wantNil(t, "SchedulerEntries", err)
			slices.SortFunc(entries, func(a, b *asynq.SchedulerEntry) int { return strings.Compare(a.Task.Type(), b.Task.Type()) })
			if len(entries) != 2 {
				t.Errorf("after %s %d entries, want 2", at, len(entries))
				return
			}
			a, b := entries[0], entries[1]
			wantPrev := time.Time{}
			if prevA > 0 {
				wantPrev = start.Add(prevA)
			}
			if a.Spec != "@every 10m0s" || fmt.Sprint(a.Opts) != `[Queue("low") MaxRetry(3) Retention(1m0s)]` || string(a.Task.Payload()) != "{}" ||
				!a.Next.Equal(start.Add(prevA+10*min)) || !a.Prev.Equal(wantPrev) || !strings.HasPrefix(a.ID, "a-") {
				t.Errorf("after %s: %+v", at, a)
			}
			if b.Spec != "CRON_TZ=Europe/Berlin 0 3 * * *" || b.Task.Type() != "b" || string(b.Task.Payload()) != "\x00\xff" || !b.Next.Equal(start.Add(2*hour)) || !b.Prev.IsZero() {
				t.Errorf("after %s: %+v", at, b)
			}
		}
		see(30*sec, 0)
		see(15*min, 10*min)
		m.list[0].Shutdown() // the node that shows the jobs
		see(15*min+30*sec, 10*min)
		m.stores[1].Set(faultstore.Fault{}, faultstore.Acquire, faultstore.Renew, faultstore.Release, faultstore.Inspect)
		see(23*min, 20*min)
		m.list[2].Shutdown()
		until(start, 24*min)
		if entries, err := inspector.SchedulerEntries(); err != nil || len(entries) != 0 {
			t.Errorf("%d entries of nodes that are gone, %v", len(entries), err)
		}
		if !strings.Contains(c.logs.String(), "asynq's Inspector does not show the jobs of this node") {
			t.Error("the logger of the Scheduler has not got the problem")
		}
		m.stores[1].Clear()
	})
}

// Thousands of entries from a provider that changes one in a hundred of them every ten seconds: other specs, new entries,
// entries that go and come back. Each tick of each spec in force is enqueued once. JOBLOCK_ENTRIES is the number of
// entries.
func TestAProviderThatChangesAllTheTime(t *testing.T) {
	entries := testkit.Size(100, 500)
	if text := os.Getenv("JOBLOCK_ENTRIES"); text != "" {
		var err error
		entries, err = strconv.Atoi(text)
		wantNil(t, "JOBLOCK_ENTRIES", err)
	}
	const nodes, minutes = 3, 10
	virtual(t, func(c *cluster) {
		t := c.T
		m := newManagers(c)
		dice := rand.New(rand.NewPCG(1, 2))
		spec := func() string {
			return []string{"@every 5m", "*/7 * * * *", "30 */4 * * * *", "@hourly", "0 3 * * *"}[dice.IntN(5)]
		}
		var configs []*asynq.PeriodicTaskConfig
		next := 0
		add := func() {
			configs = append(configs, config(spec(), "job", asynq.TaskID(fmt.Sprint("job", next)), asynq.Retention(hour)))
			next++
		}
		for range entries {
			add()
		}
		m.provider.set(nil, configs...)
		start := time.Now()
		for range nodes {
			m.start(scheduler.CatchUpAll(24*hour, 1000))
		}
		calls := func() (n int) {
			for _, s := range m.stores {
				n += s.Calls("")
			}
			return n
		}
		until(start, min)
		began := calls()
		changes := 0
		var gone []*asynq.PeriodicTaskConfig
		goneAt := make(map[string]time.Time)
		nameOf := func(c *asynq.PeriodicTaskConfig) string { return c.Opts[0].Value().(string) }
		for time.Since(start) < minutes*min {
			time.Sleep(10*sec + time.Duration(dice.IntN(1000))*time.Millisecond)
			configs = slices.Clone(configs)
			for range entries / 100 {
				changes++
				i := dice.IntN(len(configs))
				switch dice.IntN(6) {
				case 0:
					gone = append(gone, configs[i])
					goneAt[nameOf(configs[i])] = time.Now()
					configs = slices.Delete(configs, i, i+1)
				case 1:
					add()
				case 2:
					if len(gone) > 0 {
						configs = append(configs, gone[0])
						delete(goneAt, nameOf(gone[0]))
						gone = gone[1:]
						break
					}
					fallthrough
				default:
					changed := *configs[i]
					changed.Cronspec = spec()
					configs[i] = &changed
				}
			}
			m.provider.set(nil, configs...)
		}
		time.Sleep(15 * sec)
		total := calls()
		end := time.Now().Add(-2 * sec)
		m.mu.Lock()
		defer m.mu.Unlock()
		want := make(map[string]int)
		for name, writes := range m.writes {
			var all []period
			for i, l := range writes {
				if l.Spec == "" {
					continue
				}
				p := period{spec: l.Spec, from: time.UnixMilli(l.From)}
				if i+1 < len(writes) {
					p.until = time.UnixMilli(writes[i+1].From)
				}
				all = append(all, p)
			}
			for tick := range ticksIn(t, all, end) {
				id := fmt.Sprintf("%s@%d", name, tick)
				// Nodes remove a job within ten seconds. No node may have later ticks.
				if at, ok := goneAt[name]; !ok || time.Unix(tick, 0).Before(at) || m.enqueued[id] > 0 && time.Unix(tick, 0).Before(at.Add(11*sec)) {
					want[id] = 1
				}
			}
		}
		lost, doubled, early := 0, 0, 0
		for id := range want {
			if m.enqueued[id] == 0 {
				lost++
			}
		}
		for id, n := range m.enqueued {
			if n > 1 {
				doubled++
			}
			if want[id] == 0 && !strings.HasSuffix(id, fmt.Sprint(end.Unix()+1)) && !strings.HasSuffix(id, fmt.Sprint(end.Unix()+2)) {
				early++
			}
		}
		t.Logf("%d entries, %d changes, %d entries gone at the end; %d ticks, %d lost, %d doubled, %d of no spec", entries, changes, len(gone), len(want), lost, doubled, early)
		t.Logf("commands of %d nodes: %d in the first minute, then %d a minute, tasks not counted", nodes, began, (total-began)/minutes)
		if lost+doubled+early > 0 {
			t.Error("a tick was lost, doubled or of no spec in force")
		}
	})
}

// PauseAfter counts how the tasks end that the manager has enqueued, not that they are enqueued.
func TestPauseAfterTasksThatFail(t *testing.T) {
	virtual(t, func(c *cluster) {
		t := c.T
		m := newManagers(c)
		start := time.Now()
		m.provider.set(nil, config("@every 10m", "bad"), config("@every 10m", "low", asynq.Queue("low")), config("@every 10m", "mixed"),
			config("@every 10m", "slow"))
		for range 2 {
			m.start(scheduler.PauseAfter(3))
		}
		inspector := asynq.NewInspectorFromRedisClient(m.rdb)
		for i := 1; i <= 15; i++ {
			until(start, time.Duration(i)*10*min+min)
			pending := func(queue string) []*asynq.TaskInfo {
				all, err := inspector.ListPendingTasks(queue, asynq.PageSize(100))
				wantNil(t, "ListPendingTasks", err)
				return all
			}
			for _, task := range append(pending("default"), pending("low")...) {
				switch {
				case task.Type == "slow":
				case task.Type == "mixed" && i%3 == 0:
					wantNil(t, "DeleteTask", inspector.DeleteTask(task.Queue, task.ID)) // as asynq does when it is done
				default:
					wantNil(t, "ArchiveTask", inspector.ArchiveTask(task.Queue, task.ID))
				}
			}
		}
		entries, err := admin.Of(m.list[0].Scheduler()).Entries(t.Context())
		wantNil(t, "AllEntries", err)
		for _, e := range entries {
			kind, _, _ := strings.Cut(e.Name, "-")
			want := map[string]int64{"bad": 4, "low": 4, "mixed": 15, "slow": 15}[kind]
			if e.Counts.Enqueued != want || e.Paused != (want == 4) || e.Paused && !strings.HasPrefix(e.Pauses[0].Note, "3 executions in a row have failed, the last one with: task "+e.Name+"@") {
				t.Errorf("%s: %+v, pauses %+v; want %d enqueued", kind, e.Counts, e.Pauses, want)
			}
		}
		if len(entries) != 4 {
			t.Errorf("%d entries", len(entries))
		}
	})
}
