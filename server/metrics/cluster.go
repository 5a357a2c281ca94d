package metrics

import (
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/joblock/toolkit/internal/metric"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
)

// cluster collects what all processes do with the locks, jobs and cron jobs of a store.
type cluster struct {
	desk  *ops.Desk
	cfg   Config
	descs map[string]*prometheus.Desc

	ctx    context.Context // the context of the looks; ends when close begins
	cancel context.CancelFunc
	mu     sync.Mutex // ensures that nothing is added to busy after that
	busy   sync.WaitGroup

	locks  look[lockFigures]
	keeper look[ops.Keeper]
	boxes  look[ops.Outboxes]
	cron   look[[]cronFigures]
	set    look[ops.Controls]
	check  look[checkFigures]
	others map[string]*others // by scope; only readCron uses it
}

const (
	// mostGroups is how many groups of keys have a label of their own.
	mostGroups = 200

	walkTime = 30 * time.Minute // bounds a walk over all locks
	readTime = time.Minute      // bounds every other look
)

func newCluster(cfg Config, desk *ops.Desk) *cluster {
	c := &cluster{desk: desk, cfg: cfg, descs: make(map[string]*prometheus.Desc), others: make(map[string]*others)}
	for _, m := range metric.Cluster {
		c.descs[m.Name] = prometheus.NewDesc(m.Prometheus(), m.Help, m.PrometheusLabels(), nil)
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.locks = look[lockFigures]{part: "locks", every: cfg.Every, most: walkTime, read: c.readLocks, log: cfg.Logger}
	c.keeper = look[ops.Keeper]{part: "keeper", every: cfg.Every, most: readTime, read: c.desk.Keeper, log: cfg.Logger}
	c.boxes = look[ops.Outboxes]{part: "outboxes", every: cfg.Every, most: readTime, read: c.desk.Outboxes, log: cfg.Logger}
	c.set = look[ops.Controls]{part: "controls", every: cfg.Every, most: readTime, read: c.desk.Controls, log: cfg.Logger}
	c.cron = look[[]cronFigures]{part: "cron", every: cfg.Every, most: readTime, read: c.readCron, log: cfg.Logger}
	c.check = look[checkFigures]{part: "check", every: cfg.CheckEvery, most: readTime, read: c.readCheck, log: cfg.Logger}
	return c
}

func (c *cluster) close(ctx context.Context) error {
	c.mu.Lock()
	c.cancel()
	c.mu.Unlock()
	return sleep.While(ctx, c.busy.Wait)
}

// run runs f in a goroutine, and reports false after close.
func (c *cluster) run(f func(ctx context.Context)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return false
	}
	c.busy.Go(func() { f(c.ctx) })
	return true
}

// Describe implements prometheus.Collector.
func (c *cluster) Describe(to chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *cluster) Collect(to chan<- prometheus.Metric) {
	c.locks.begin(c.run)
	c.keeper.begin(c.run)
	c.boxes.begin(c.run)
	c.set.begin(c.run)
	c.cron.begin(c.run)
	c.check.begin(c.run)
	late := make(chan struct{})
	defer time.AfterFunc(patience, func() { close(late) }).Stop()

	e := emitter{c, to}
	if v := c.keeper.latest(late); v != nil {
		e.keeper(v)
	}
	if v := c.boxes.latest(late); v != nil {
		for _, b := range v.Outboxes {
			e.outbox(b)
		}
	}
	if v := c.cron.latest(late); v != nil {
		for _, f := range *v {
			e.cron(f)
		}
	}
	if v := c.set.latest(late); v != nil {
		e.emit(metric.Pauses, float64(len(v.Pauses)))
		e.emit(metric.HeldBack, float64(v.Held()))
	}
	if v := c.locks.latest(late); v != nil {
		e.locks(v)
	}
	if v := c.check.latest(late); v != nil {
		for of, n := range v.findings {
			e.emit(metric.CheckFindings, float64(n), of[0], of[1])
		}
		e.emit(metric.CheckTime, unix(v.at))
	}
	for part, n := range map[string]float64{
		"locks": c.locks.failures(), "keeper": c.keeper.failures(), "outboxes": c.boxes.failures(), "controls": c.set.failures(), "cron": c.cron.failures(), "check": c.check.failures(),
	} {
		e.emit(metric.Unread, n, part)
	}
	e.emit(metric.BuildInfo, 1, version(), runtime.Version())
}

// version returns the version of the toolkit that the program was built with. For the command joblock, built in a
// checkout, it is the version of the command, because all modules of a release have the same version.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	const path = "github.com/joblock/toolkit"
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == path && m.Version != "" && m.Version != "(devel)" {
			return m.Version
		}
	}
	if strings.HasPrefix(info.Main.Path, path) && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

// emitter passes values to Prometheus.
type emitter struct {
	*cluster
	to chan<- prometheus.Metric
}

func (e emitter) emit(m metric.Metric, value float64, labels ...string) {
	kind := prometheus.GaugeValue
	if m.Type == metric.Counter {
		kind = prometheus.CounterValue
	}
	e.to <- prometheus.MustNewConstMetric(e.descs[m.Name], kind, value, labels...)
}

func (e emitter) flag(m metric.Metric, is bool, labels ...string) {
	value := 0.0
	if is {
		value = 1
	}
	e.emit(m, value, labels...)
}

func unix(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// lockFigures are the results of a walk over all locks.
type lockFigures struct {
	ended  time.Time
	took   time.Duration
	groups map[string]*groupFigures
}

type groupFigures struct {
	locks, bound map[joblock.State]int
	oldest       map[joblock.State]time.Time
	waiters      int
	longest      int
}

// states are the states of keys that are taken.
var states = []joblock.State{joblock.StateHeld, joblock.StateParked, joblock.StateOrphaned}

func (c *cluster) readLocks(ctx context.Context) (lockFigures, error) {
	began := time.Now()
	f := lockFigures{groups: make(map[string]*groupFigures)}
	for l, err := range c.desk.Locks(ctx, ops.LocksQuery{Own: true, Share: c.cfg.Share}) {
		if err != nil {
			return f, err
		}
		line := l.Waiters
		switch l.Role {
		case ops.RoleLock, ops.RolePermit, ops.RoleSlot, ops.RoleNext:
		case ops.RoleGate:
			line++ // the holder of the gate is the first in line, and also waits for a permit
		default:
			continue
		}
		key := l.Key
		if l.Group != "" {
			key = l.Group
		}
		g := f.group(c.groupOf(key))
		g.waiters += l.Waiters
		g.longest = max(g.longest, line)
		if l.Role == ops.RoleGate || !slices.Contains(states, l.State) {
			continue
		}
		g.locks[l.State]++
		if l.Job != "" {
			g.bound[l.State]++
		}
		since := l.Since.Time
		if l.State != joblock.StateHeld {
			since = l.Changed.Time
		}
		if oldest := g.oldest[l.State]; !since.IsZero() && (oldest.IsZero() || since.Before(oldest)) {
			g.oldest[l.State] = since
		}
	}
	if len(f.groups) == 0 {
		f.group("")
	}
	f.ended, f.took = time.Now(), time.Since(began)
	return f, nil
}

func (c *cluster) groupOf(key string) string {
	if c.cfg.KeyGroup == nil {
		return ""
	}
	return strings.ToValidUTF8(c.cfg.KeyGroup(key), "\uFFFD") // anything else panics
}

func (f *lockFigures) group(name string) *groupFigures {
	g := f.groups[name]
	if g == nil && len(f.groups) >= mostGroups {
		name = metric.Other
		g = f.groups[name]
	}
	if g == nil {
		g = &groupFigures{locks: make(map[joblock.State]int), bound: make(map[joblock.State]int), oldest: make(map[joblock.State]time.Time)}
		f.groups[name] = g
	}
	return g
}

func (e emitter) locks(f *lockFigures) {
	for name, g := range f.groups {
		for _, state := range states {
			e.emit(metric.Locks, float64(g.locks[state]), state.String(), name)
			e.emit(metric.JobLocks, float64(g.bound[state]), state.String(), name)
			if oldest := g.oldest[state]; !oldest.IsZero() {
				e.emit(metric.OldestAcquired, unix(oldest), state.String(), name)
			}
		}
		e.emit(metric.Waiters, float64(g.waiters), name)
		e.emit(metric.LongestLine, float64(g.longest), name)
	}
	e.emit(metric.Snapshot, unix(f.ended))
	e.emit(metric.SnapshotDuration, f.took.Seconds())
}

func (e emitter) keeper(k *ops.Keeper) {
	working := 0
	seen := make(map[string]bool)
	for _, p := range k.Places {
		if !p.Works {
			continue
		}
		if !p.DryRun {
			working++
		}
		if p.Problem != "" || seen[p.Holder] { // there are no stats, or another keeper of the same process was counted
			continue
		}
		seen[p.Holder] = true
		if !p.Asked.IsZero() {
			e.emit(metric.KeeperAsked, unix(p.Asked.Time), p.Holder)
		}
		e.flag(metric.KeeperBehind, p.Behind, p.Holder)
		e.emit(metric.KeeperLate, p.Late.Duration().Seconds(), p.Holder)
		freed := int64(0)
		for reason, n := range p.Freed {
			freed += n
			e.emit(metric.KeeperFreed, float64(n), p.Holder, reason)
		}
		for result, n := range map[string]int64{
			"held": p.Held, "kept": p.Kept, "over": p.Over, "foreign": p.Foreign, "unanswered": p.Unanswered, "freed": freed,
		} {
			e.emit(metric.KeeperChecks, float64(n), p.Holder, result)
		}
	}
	e.emit(metric.KeeperWorking, float64(working))
	e.emit(metric.KeeperStandBy, float64(k.StandBy))
}

func (e emitter) outbox(b ops.Outbox) {
	if b.State != ops.OutboxUnread {
		e.emit(metric.OutboxWaiting, float64(b.Waiting), b.Name)
		e.emit(metric.OutboxOldest, b.Oldest.Duration().Seconds(), b.Name)
		e.emit(metric.OutboxRefused, float64(b.Refused), b.Name)
	}
	e.emit(metric.OutboxSent, float64(b.Sent), b.Name)
	e.emit(metric.OutboxReported, unix(b.At.Time), b.Name)
}

// cronFigures are the results for the cron jobs of a scope.
type cronFigures struct {
	scope     string
	nodes     int
	jobs      []ops.CronJob
	intervals []time.Duration
}

func (c *cluster) readCron(ctx context.Context) ([]cronFigures, error) {
	scopes := c.cfg.CronScopes
	if scopes == nil {
		var err error
		if scopes, err = c.desk.CronScopes(ctx); err != nil {
			return nil, err
		}
	}
	all := []cronFigures{}
	for _, scope := range scopes {
		jobs, err := c.desk.CronJobs(ctx, scope)
		if err != nil {
			return nil, err
		}
		nodes, err := c.desk.CronNodes(ctx, scope)
		if err != nil {
			return nil, err
		}
		f := cronFigures{scope: scope, nodes: len(nodes), jobs: jobs}
		for _, j := range jobs {
			f.intervals = append(f.intervals, interval(j))
		}
		all = append(all, f)
	}
	c.bound(all)
	return all, nil
}

// interval returns the longest gap between consecutive ticks among the next ten of a job, 0 if it is not known.
func interval(j ops.CronJob) time.Duration {
	zone, err := time.LoadLocation(j.Zone)
	if err != nil || j.Spec == "" {
		return 0
	}
	plan, err := ops.CronPreview(j.Spec, zone, j.Now.Time, 10)
	if err != nil {
		return 0
	}
	longest := time.Duration(0)
	for i := 1; i < len(plan.Ticks); i++ {
		longest = max(longest, plan.Ticks[i].At.Sub(plan.Ticks[i-1].At))
	}
	return longest
}

func (e emitter) cron(f cronFigures) {
	e.emit(metric.CronNodes, float64(f.nodes), f.scope)
	for i, j := range f.jobs {
		at := func(m metric.Metric, t ops.Time) {
			if !t.IsZero() {
				e.emit(m, unix(t.Time), f.scope, j.Name)
			}
		}
		for result, n := range map[string]int64{
			"done": j.Counts.Done, "enqueued": j.Counts.Enqueued, "failed": j.Counts.Failed, "cancelled": j.Counts.Cancelled, "lost": j.Counts.Lost,
			"taken_over": j.Counts.TakenOver, "missed": j.Counts.Missed, "overlapped": j.Counts.Overlapped, "paused": j.Counts.Paused,
		} {
			e.emit(metric.CronRuns, float64(n), f.scope, j.Name, result)
		}
		e.lastRuns(f.scope, j)
		at(metric.CronSince, j.Since)
		at(metric.CronNext, j.Next)
		at(metric.CronOverdue, j.Overdue)
		if f.intervals[i] > 0 {
			e.emit(metric.CronInterval, f.intervals[i].Seconds(), f.scope, j.Name)
		}
		e.flag(metric.CronPaused, j.Paused, f.scope, j.Name)
		since := ops.Time{}
		for _, p := range j.Pauses {
			if since.IsZero() || p.Since.Before(since.Time) {
				since = p.Since
			}
		}
		at(metric.CronPausedSince, since)
		at(metric.CronDisagree, j.DisagreeSince)
		at(metric.CronOverlaps, j.OverlapsSince)
		e.emit(metric.CronWaiting, float64(j.Waiting), f.scope, j.Name)
	}
}

// lastRuns emits when the newest successful run ended, which may only have enqueued its task, and how long the newest
// ended run took.
func (e emitter) lastRuns(scope string, j ops.CronJob) {
	done, ended := ops.Time{}, false
	for _, run := range j.Runs() { // the newest first
		if run.Ended.IsZero() {
			continue
		}
		if !ended {
			e.emit(metric.CronLastDuration, run.Took.Duration().Seconds(), scope, j.Name)
		}
		ended = true
		if run.Well() && run.Ended.After(done.Time) {
			done = run.Ended
		}
	}
	if !done.IsZero() {
		e.emit(metric.CronLastSuccess, unix(done.Time), scope, j.Name)
	}
}

// checkFigures are how many findings the doctor has, by severity and subject.
type checkFigures struct {
	at       time.Time
	findings map[[2]string]int
}

func (c *cluster) readCheck(ctx context.Context) (checkFigures, error) {
	checkup, err := c.desk.Doctor(ctx)
	if err != nil {
		return checkFigures{}, err
	}
	f := checkFigures{at: time.Now(), findings: make(map[[2]string]int)}
	for _, found := range checkup.Findings {
		f.findings[[2]string{string(found.Severity), found.Subject}]++
	}
	if ctx.Err() != nil {
		return f, errors.New("the doctor was interrupted")
	}
	return f, nil
}
