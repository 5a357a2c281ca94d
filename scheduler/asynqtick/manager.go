package asynqtick

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/scheduler/spec"
)

const (
	defaultSync = 3 * time.Minute // as asynq.PeriodicTaskManager

	// forgetEvery is the pause between two looks for jobs that no node has. A job that no node has at two looks in a row
	// is forgotten: a provider that temporarily returns too little must not cost pauses and histories.
	forgetEvery = time.Hour

	maxTypeBytes = 64 // of the task's type in the name of a job
)

// PeriodicTaskManager replaces asynq.PeriodicTaskManager, and runs on all nodes at the same time. Each tick enqueues
// one task, regardless of which nodes are up and what their clocks show. To move an application over, replace the call
// of asynq.NewPeriodicTaskManager:
//
//	mgr, err := asynqtick.NewPeriodicTaskManager(locks, &scheduler.Config{Scope: "shop"}, asynq.PeriodicTaskManagerOpts{
//		RedisConnOpt:               asynq.RedisClientOpt{Addr: "localhost:6379"},
//		PeriodicTaskConfigProvider: provider,
//		SyncInterval:               10 * time.Second,
//	})
//
// Each node asks the provider on its own. The type, payload and options of its task identify a job; the spec does not.
// A config with another Cronspec thus changes the spec of the job: one instant divides the ticks of the old spec from
// those of the new one, on all nodes. Several configs with the same task are one job with several rules, unless such a
// spec is refused; then each config is a job of its own.
//
// With asynq.TaskID among the options of a config, the text of that option is the name of the job. The job then keeps
// its history when the task changes. The ID of each task is the ID of its tick, with or without asynq.TaskID.
//
// The package documentation says why tasks should have asynq.Retention. Differences from asynq's manager:
//
//	@every      ticks are the multiples of the period since 1970, on all nodes, not counted from the start
//	DST         a time of day ticks once on each day; see package spec
//	bad config  that config alone is left out and logged, and its job keeps its spec; asynq ignores all configs if a Task is
//	            nil or a Cronspec empty
//	logging     scheduler.Config.Logger; SchedulerOpts.Logger and LogLevel are not used
//	removal     a removed job keeps its record, with pause and history, for an hour at least and usually two hours at most
//
// As with asynq's manager, ticks that come while no node is up are not executed later. The option scheduler.CatchUpOne
// or CatchUpAll changes that.
type PeriodicTaskManager struct {
	s        *scheduler.Scheduler
	tasks    *Tasks
	provider asynq.PeriodicTaskConfigProvider
	opts     asynq.PeriodicTaskManagerOpts
	jobOpts  []scheduler.Option
	own      redis.UniversalClient // closed at the end; nil: the caller's
	log      *slog.Logger
	now      func() time.Time

	looked  time.Time       // the time of the latest look for jobs that no node has
	orphans map[string]bool // the jobs that no node had then

	applying sync.Mutex        // guards jobs, and what the provider of a Scheduler has
	jobs     map[string]config // by the name of the job

	mu   sync.Mutex
	stop context.CancelFunc // nil: Start was not called
	done chan struct{}
	err  error // of Run
}

// config is what a job was made of.
type config struct {
	asynq.PeriodicTaskConfig
	task string // a digest of task and options
}

// NewPeriodicTaskManager returns a manager. opts are the options of asynq.NewPeriodicTaskManager. The jobs are in the
// scope cfg.Scope, which must be set. Give the manager a scope of its own: it forgets any job of the scope that no node
// has. The zone is cfg.Zone, or if that is nil SchedulerOpts.Location. All jobs have the options jobOpts.
//
// NewPeriodicTaskManager returns joblock.ErrInvalid if the provider or the connection is missing, or if scheduler.New
// refuses locks or cfg.
func NewPeriodicTaskManager(locks *joblock.Locker, cfg *scheduler.Config, opts asynq.PeriodicTaskManagerOpts,
	jobOpts ...scheduler.Option) (*PeriodicTaskManager, error) {
	if opts.PeriodicTaskConfigProvider == nil {
		return nil, invalid("the PeriodicTaskConfigProvider is nil")
	}
	var full scheduler.Config
	if cfg != nil {
		full = *cfg
	}
	if full.Zone == nil && opts.SchedulerOpts != nil {
		full.Zone = opts.SchedulerOpts.Location
	}
	s, err := scheduler.New(locks, &full)
	if err != nil {
		return nil, err
	}
	m := &PeriodicTaskManager{
		s: s, provider: opts.PeriodicTaskConfigProvider, opts: opts, log: cmp.Or(full.Logger, slog.Default()), now: time.Now,
		jobOpts: append([]scheduler.Option{scheduler.CatchUpNone()}, jobOpts...),
		jobs:    make(map[string]config),
	}
	if opts.RedisConnOpt == nil && opts.RedisUniversalClient == nil {
		return nil, invalid("RedisConnOpt and RedisUniversalClient are nil")
	}
	if opts.RedisUniversalClient != nil {
		m.use(opts.RedisUniversalClient)
	}
	return m, nil
}

// use sets the Redis that has asynq's queues.
func (m *PeriodicTaskManager) use(rdb redis.UniversalClient) {
	m.tasks = New(m.s, rdb)
	m.tasks.hooks = m.opts.SchedulerOpts
}

// Scheduler returns the Scheduler of the manager, to monitor and control the jobs.
func (m *PeriodicTaskManager) Scheduler() *scheduler.Scheduler { return m.s }

// Run starts the manager, waits for SIGTERM or SIGINT, like asynq.PeriodicTaskManager.Run, and then stops it. Errors
// are those of Start and of scheduler.Scheduler.Run.
func (m *PeriodicTaskManager) Run() error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	if err := m.Start(); err != nil {
		return err
	}
	select {
	case <-signals:
	case <-m.done: // the Scheduler has failed
	}
	m.Shutdown()
	return m.err
}

// Start calls the provider, whose error it returns, and begins to execute jobs. A manager can be started once.
func (m *PeriodicTaskManager) Start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stop != nil {
		return errors.New("asynqtick: the manager was started before")
	}
	if m.tasks == nil {
		rdb, ok := m.opts.RedisConnOpt.MakeRedisClient().(redis.UniversalClient)
		if !ok {
			return invalid("RedisConnOpt is a %T, which makes no redis.UniversalClient", m.opts.RedisConnOpt)
		}
		m.own = rdb
		m.use(rdb)
	}
	if err := m.sync(); err != nil {
		if m.own != nil {
			err = errors.Join(err, m.own.Close())
			m.own, m.tasks = nil, nil
		}
		return fmt.Errorf("asynqtick: the first call of GetConfigs: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	m.stop, m.done = stop, make(chan struct{})
	go m.run(ctx, stop)
	return nil
}

// run executes jobs until ctx ends.
func (m *PeriodicTaskManager) run(ctx context.Context, stop context.CancelFunc) {
	defer close(m.done)
	var parts sync.WaitGroup
	parts.Go(func() { m.syncUntil(ctx) })
	parts.Go(func() {
		interval := time.Duration(0)
		if m.opts.SchedulerOpts != nil {
			interval = m.opts.SchedulerOpts.HeartbeatInterval
		}
		m.tasks.Show(ctx, interval)
	})
	m.err = m.s.Run(ctx)
	stop()
	parts.Wait()
	if m.own != nil {
		m.err = errors.Join(m.err, m.own.Close())
	}
}

// Shutdown stops the manager, and waits for enqueues under way. Without a Start it does nothing.
func (m *PeriodicTaskManager) Shutdown() {
	m.mu.Lock()
	stop := m.stop
	m.mu.Unlock()
	if stop == nil {
		return
	}
	stop()
	<-m.done
}

// syncUntil calls the provider repeatedly until ctx ends.
func (m *PeriodicTaskManager) syncUntil(ctx context.Context) {
	ticker := time.NewTicker(cmp.Or(max(m.opts.SyncInterval, 0), defaultSync))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := m.sync(); err != nil {
			m.log.Error("asynqtick: could not get the provider's configs; the jobs stay unchanged", "err", err)
			continue
		}
		m.forget(ctx)
	}
}

// sync calls the provider, and applies its configs. The error is the provider's.
func (m *PeriodicTaskManager) sync() error {
	m.applying.Lock()
	defer m.applying.Unlock()
	configs, err := m.provider.GetConfigs()
	if err == nil {
		m.applyAndLog(configs)
	}
	return err
}

// applyAndLog calls apply, and logs the errors, because no caller waits for them.
func (m *PeriodicTaskManager) applyAndLog(configs []*asynq.PeriodicTaskConfig) {
	for _, err := range m.apply(configs) {
		m.log.Error("asynqtick: a config was skipped, or a job was not removed", "err", err)
	}
}

// apply registers, changes and removes jobs, so that the jobs are those of configs. The errors are about jobs that were
// not changed. The caller holds applying.
func (m *PeriodicTaskManager) apply(configs []*asynq.PeriodicTaskConfig) (failed []error) {
	jobs := m.group(configs)
	for name := range m.jobs {
		if _, ok := jobs[name]; ok {
			continue
		}
		if err := m.tasks.Remove(name); err != nil {
			failed = append(failed, err)
			continue
		}
		delete(m.jobs, name)
	}
	for name, c := range jobs {
		have, ok := m.jobs[name]
		var err error
		switch {
		case ok && have.task == c.task && have.Cronspec == c.Cronspec:
			continue
		case ok && have.task == c.task:
			err = m.s.SetSpec(name, c.Cronspec)
		default:
			err = m.tasks.Add(name, c.Cronspec, c.Task, c.Opts, append(slices.Clip(m.jobOpts), scheduler.Replace())...)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("asynqtick: task %q at %q: %w", c.Task.Type(), c.Cronspec, err))
			continue
		}
		m.jobs[name] = c
	}
	return failed
}

// forget forgets the jobs of the scope that no node has had at two looks in a row, including those whose config was
// removed while no node was up.
func (m *PeriodicTaskManager) forget(ctx context.Context) {
	if m.now().Sub(m.looked) < forgetEvery {
		return
	}
	m.looked = m.now()
	a := admin.Of(m.s)
	entries, err := a.Entries(ctx)
	if err != nil {
		if ctx.Err() == nil {
			m.log.Warn("asynqtick: could not look up the jobs without a node; their records stay for now", "err", err)
		}
		return
	}
	orphans := make(map[string]bool)
	for _, e := range entries {
		if e.Here || len(e.Nodes) > 0 {
			continue
		}
		if !m.orphans[e.Name] {
			orphans[e.Name] = true
			continue
		}
		switch err := a.Forget(ctx, e.Name); {
		case err == nil, errors.Is(err, joblock.ErrNotFound): // another node was first
		case ctx.Err() == nil:
			orphans[e.Name] = true
			m.log.Warn("asynqtick: could not delete the record of a removed job; it stays for now", "job", e.Name, "err", err)
		}
	}
	m.orphans = orphans
}

// group returns the jobs of configs, by name.
func (m *PeriodicTaskManager) group(configs []*asynq.PeriodicTaskConfig) map[string]config {
	type task struct{ name, digest string }
	specs := make(map[task][]string)
	tasks := make(map[task]*asynq.PeriodicTaskConfig)
	count := make(map[string]int) // tasks of each name
	for _, c := range configs {
		if c == nil || c.Task == nil || c.Cronspec == "" {
			m.log.Error("asynqtick: skipped a config: the config or its Task is nil, or its Cronspec is empty")
			continue
		}
		name, digest := identify(c)
		t := task{name, digest}
		if specs[t] == nil {
			count[name]++
		}
		specs[t], tasks[t] = append(specs[t], c.Cronspec), c
	}
	jobs := make(map[string]config)
	for t, c := range tasks {
		name := t.name
		if count[name] > 1 {
			name += "-" + t.digest // several tasks with one asynq.TaskID
		}
		all := slices.Compact(slices.Sorted(slices.Values(specs[t])))
		joined, ok := join(all)
		if ok {
			all = []string{joined}
		}
		for _, text := range all {
			own := name
			if !ok {
				own += "-" + digestOf(text)
			}
			jobs[own] = config{asynq.PeriodicTaskConfig{Cronspec: text, Task: c.Task, Opts: c.Opts}, t.digest}
		}
	}
	return jobs
}

// join joins specs to one spec with several rules. It returns false if there is no such spec: their zones differ, one
// has limits, which would hold for all rules, one is bad, or there are too many.
func join(specs []string) (string, bool) {
	zone, rules := "", make([]string, len(specs))
	for i, text := range specs {
		own, rule := "", strings.TrimSpace(text)
		if first, rest, ok := strings.Cut(rule, " "); ok && strings.Contains(first, "TZ=") {
			own, rule = first+" ", rest
		}
		if len(specs) > 1 && (i > 0 && own != zone || strings.Contains(rule, ";")) {
			return "", false
		}
		zone, rules[i] = own, rule
	}
	joined := zone + strings.Join(rules, "; ")
	if len(specs) > 1 {
		if _, err := spec.Parse(joined, time.UTC); err != nil {
			return "", false
		}
	}
	return joined, true
}

// identify returns the name of a config's job, and a digest of task and options. Neither depends on the Cronspec.
func identify(c *asynq.PeriodicTaskConfig) (name, digest string) {
	var opts []string
	for _, opt := range c.Opts {
		if opt == nil { // asynq.Client skips it
			continue
		}
		if id, ok := opt.Value().(string); ok && opt.Type() == asynq.TaskIDOpt {
			name = id
		}
		opts = append(opts, opt.String())
	}
	slices.Sort(opts)
	digest = digestOf(append([]string{c.Task.Type(), string(c.Task.Payload())}, opts...)...)
	if name == "" {
		kind := strings.ToValidUTF8(c.Task.Type(), "?")
		name = strings.ToValidUTF8(kind[:min(len(kind), maxTypeBytes)], "") + "-" + digest
	}
	return name, digest
}

// digestOf returns the first 16 hexadecimal digits of a hash of texts.
func digestOf(texts ...string) string {
	h := sha256.New()
	for _, text := range texts {
		fmt.Fprintf(h, "%d:%s", len(text), text)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("asynqtick: %w: %s", joblock.ErrInvalid, fmt.Sprintf(format, args...))
}
