package trial

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/joblock/toolkit/bench/internal/capacity"
	"github.com/joblock/toolkit/bench/internal/rig"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// Scale says how much is done.
type Scale struct {
	Rate    float64       // calls a second, of each kind
	Keys    int           // locks that are held, parked or waited for
	Settle  time.Duration // before each observation
	Observe time.Duration
	Rest    time.Duration // instead of Observe for asynq servers at rest, which have something to do every 5 and 8 s
	TTL     time.Duration // of locks that are waited for; others are renewed twice as often
	Every   time.Duration // of the keeper whose checks are measured, twice that of cron entries
	Idle    time.Duration // after which a connection counts as idle; a server looks at its buffers every few seconds
}

// Full is for figures to be shown.
func Full() Scale {
	return Scale{
		Rate: 200, Keys: 4000, Settle: 2 * time.Second, Observe: 6 * time.Second, Rest: 40 * time.Second,
		TTL: 12 * time.Second, Every: 4 * time.Second, Idle: 8 * time.Second,
	}
}

// Quick shows within a minute that everything works. Its figures mean nothing.
func Quick() Scale {
	return Scale{
		Rate: 50, Keys: 100, Settle: 300 * time.Millisecond, Observe: time.Second, Rest: 2 * time.Second,
		TTL: 3 * time.Second, Every: 2 * time.Second, Idle: 100 * time.Millisecond,
	}
}

const (
	payload  = 100 // bytes, of each task
	poolSize = 20  // connections of each client

	jobTime = 20 * time.Millisecond // of each job whose cost is measured
)

// meter measures costs, one kind of load after the other.
type meter struct {
	ctx     context.Context
	program string
	scale   Scale
	say     func(string)
	idle    float64 // Costs.Idle
	looks   float64 // bytes that a server sends for one observation
}

// run runs a load and returns what was seen.
func (m *meter) run(what string, l Load) (Seen, error) {
	m.say(what)
	l.Payload, l.Settle, l.Observe = payload, max(l.Settle, m.scale.Settle), max(l.Observe, m.scale.Observe)
	web, workers := l.Web, l.Workers
	l.Load = l.WithDefaults(capacity.Costs{})
	l.Web, l.Workers = web, workers // none is none
	s, err := Run(m.ctx, m.program, l)
	if err != nil {
		return s, fmt.Errorf("%s: %w", what, err)
	}
	s.looked = m.looks / s.seconds
	return s, nil
}

// cost returns what one of so many operations a second costs, once what an idle server takes and what is
// known of other operations are taken away.
func (s Seen) cost(perSecond, idle float64, known ...known) capacity.Cost {
	locks, asynq, own := s.locks, s.asynq, s.own*1e6
	for _, p := range []*part{&locks, &asynq} {
		p.server -= idle / 1e6
		p.out -= s.looked
	}
	for _, k := range known {
		locks.less(k.rate, k.cost.Locks)
		asynq.less(k.rate, k.cost.Asynq)
		own -= k.rate * k.cost.Own
	}
	return capacity.Cost{Locks: locks.each(perSecond), Asynq: asynq.each(perSecond), Own: max(0, own) / perSecond}
}

// known is a cost that is known already, and how often a second it was paid.
type known struct {
	rate float64
	cost capacity.Cost
}

func (p *part) less(rate float64, c capacity.Part) {
	p.commands -= rate * c.Commands
	p.turns -= rate * c.Turns
	p.server -= rate * c.Server / 1e6
	p.in -= rate * c.In
	p.out -= rate * c.Out
}

func (p part) each(perSecond float64) capacity.Part {
	if p.commands < perSecond/10_000 {
		return capacity.Part{} // the server was busy with nothing but the observation
	}
	each := func(x float64) float64 { return max(0, x) / perSecond }
	return capacity.Part{
		Commands: each(p.commands), Turns: each(p.turns), Server: each(p.server * 1e6),
		In: each(p.in), Out: each(p.out),
	}
}

// Measure measures the costs once, with servers of that program.
func Measure(ctx context.Context, program string, scale Scale, say func(string)) (c capacity.Costs, err error) {
	m := &meter{ctx: ctx, program: program, scale: scale, say: say}
	machine := rig.ThisMachine()
	c.Machine = fmt.Sprintf("%s, %d cores, %s, %s", machine.CPU, machine.Cores, machine.Kernel, machine.Go)
	c.Payload = payload
	if c.Floor, err = Floor(ctx, program); err != nil {
		return c, err
	}
	for _, step := range []func(*capacity.Costs) error{
		m.rest, m.asks, m.workers, m.enqueues, m.jobs, m.renewals, m.pairs, m.waiters, m.handovers, m.checks, m.ticks,
	} {
		if err := step(&c); err != nil {
			return c, err
		}
	}
	c.Runs = 1
	return c, nil
}

// rest observes processes that do nothing.
func (m *meter) rest(c *capacity.Costs) error {
	const n = 8
	s, err := m.run("processes at rest", Load{Load: capacity.Load{Web: n}, After: func(ctx context.Context, f *Fleet) (err error) {
		if c.Server, err = f.Locks[0].Version(ctx); err != nil {
			return err
		}
		c.Memory.Busy, c.Memory.Idle, err = f.memoryOfConnection(ctx, m.scale.Idle)
		return err
	}})
	if err != nil {
		return err
	}
	// Scripts and the first keys belong to the base.
	c.Memory.Base = float64(s.now.locks.Memory) - float64(s.now.locks.Clients)*c.Memory.Idle
	c.Memory.BaseAsynq = float64(s.now.asynq.Memory) - float64(s.now.asynq.Clients)*c.Memory.Idle
	c.Goroutines.Web = float64(s.bare.goroutines-s.empty.goroutines) / n
	c.Idle = (s.locks.server + s.asynq.server) / 2 * 1e6
	m.looks = s.locks.out * s.seconds
	m.idle = c.Idle
	return nil
}

// asks has a keeper's question asked over and over.
func (m *meter) asks(c *capacity.Costs) error {
	s, err := m.run("questions of a keeper", Load{Load: capacity.Load{Web: 2}, Asks: m.scale.Rate})
	if err == nil {
		c.Ask = s.cost(s.Asks, m.idle)
	}
	return err
}

// workers observes asynq servers without tasks.
func (m *meter) workers(c *capacity.Costs) error {
	const n = 4
	l := Load{Load: capacity.Load{Web: 1, Workers: n}, Observe: m.scale.Rest}
	s, err := m.run("workers at rest", l)
	if err != nil {
		return err
	}
	// One keeper works and asks, the others wait for its permit: that is no cost of an asynq server.
	keepers := known{capacity.NapsPerSecond(s.load.Every, 1, 0) + (n-1)*capacity.PollsPerSecond(s.load.TTL, s.load.Poll, 0), c.Ask}
	c.WorkerOwn = s.cost(n, m.idle, keepers)
	c.WorkerOwn.Locks = capacity.Part{}
	c.Goroutines.Worker = (float64(s.bare.goroutines-s.empty.goroutines) - c.Goroutines.Web) / n
	return nil
}

func (m *meter) enqueues(c *capacity.Costs) error {
	const n = 8
	s, err := m.run("enqueues", Load{Load: capacity.Load{Web: n, Jobs: m.scale.Rate}})
	if err != nil {
		return err
	}
	c.Links.Enqueue = float64(s.now.locks.Clients) / n
	c.Enqueue = s.cost(s.Enqueued, m.idle)
	return nil
}

// jobs has jobs run that take some time. Of jobs that take none, asynq processes all that have come since its last look
// at the queue in one go, and each command costs a server that is so busy a third of what the command costs alone.
func (m *meter) jobs(c *capacity.Costs) error {
	l := Load{Load: capacity.Load{
		Web: 2, Workers: 2, Jobs: m.scale.Rate, Work: jobTime, Every: m.scale.Every / 2, Grace: m.scale.Every / 4,
	}}
	l.Settle = m.scale.Every // so that keepers find the entries of jobs that are over
	l.After = func(_ context.Context, f *Fleet) error {
		for _, p := range f.works {
			const subscription = 1 // asynq's, which is not in the pool
			c.Links.Worker += (float64(p.asynqRdb.PoolStats().TotalConns) + subscription) / float64(len(f.works))
		}
		return nil
	}
	s, err := m.run("jobs", l)
	if err != nil {
		return err
	}
	// Each worker has one connection for renewals, and the worker whose keeper stands by has one for pushes.
	workers := float64(l.Workers)
	c.Links.Run = (float64(s.now.locks.Clients)-float64(l.Web)*c.Links.Enqueue-1)/workers - 1
	c.Job = s.cost(s.Ran, m.idle, append(m.keeping(c, s.load), known{s.Enqueued, c.Enqueue})...)
	return nil
}

// keeping returns what the workers of a load cost that have neither jobs nor parked locks.
func (m *meter) keeping(c *capacity.Costs, l Load) []known {
	return []known{
		{float64(l.Workers), c.WorkerOwn},
		{capacity.NapsPerSecond(l.Every, 1, 0), c.Ask}, {float64(l.Workers-1) * capacity.PollsPerSecond(l.TTL, l.Poll, 0), c.Ask},
	}
}

func (m *meter) pairs(c *capacity.Costs) error {
	const n = 2
	s, err := m.run("acquire and release", Load{Load: capacity.Load{Web: n, Pairs: m.scale.Rate}, After: func(ctx context.Context, f *Fleet) (err error) {
		c.Memory.Held, c.Memory.Released, err = f.memoryOfLock(ctx)
		return err
	}})
	if err != nil {
		return err
	}
	c.Links.Calls = float64(s.now.locks.Clients) / n
	c.Pair = s.cost(s.Paired, m.idle)
	return nil
}

// renewals holds locks with leases so short that they are renewed all the time.
func (m *meter) renewals(c *capacity.Costs) error {
	const n = 2
	l := Load{Load: capacity.Load{Web: n, Held: m.scale.Keys, TTL: m.scale.TTL / 2}}
	s, err := m.run("held locks", l)
	if err != nil {
		return err
	}
	expected := float64(l.Held) * capacity.RenewalsPerSecond(l.TTL)
	c.RenewalsFactor = s.locks.commands / expected // a renewal is a command
	c.Renewal = s.cost(s.locks.commands, m.idle)
	return nil
}

func (m *meter) waiters(c *capacity.Costs) error {
	const n = 2
	l := Load{Load: capacity.Load{Web: n, Held: m.scale.Keys / 4, Waiting: m.scale.Keys / 4, TTL: m.scale.TTL, Poll: m.scale.TTL / 12}}
	l.After = func(ctx context.Context, f *Fleet) error {
		waited, err := f.Locks[0].Key(ctx, redisstore.DefaultPrefix+f.tables[0].key)
		c.Memory.Waiter = float64(waited.Bytes) - c.Memory.Held
		return err
	}
	s, err := m.run("waiters", l)
	if err != nil {
		return err
	}
	renewals := float64(l.Held) * capacity.RenewalsPerSecond(l.TTL) * c.RenewalsFactor
	polls := s.locks.commands - renewals
	c.PollsFactor = polls / (float64(l.Waiting) * capacity.PollsPerSecond(l.TTL, l.Poll, 0))
	c.Poll = s.cost(polls, m.idle, known{renewals, c.RenewalIn(l.Load)})
	return nil
}

func (m *meter) handovers(c *capacity.Costs) error {
	const n = 2
	l := Load{Load: capacity.Load{Web: n, Held: m.scale.Keys / 20, Waiting: m.scale.Keys / 20, Handovers: m.scale.Rate, TTL: m.scale.TTL}}
	s, err := m.run("hand-overs", l)
	if err != nil {
		return err
	}
	full := l.WithDefaults(*c)
	// A lock that is passed on is renewed less often, and who begins to wait begins to count anew.
	perLock := s.Passed / float64(l.Held)
	renewals := float64(l.Held) * capacity.RenewalsPerSecond(l.TTL) * c.RenewalsFactor * capacity.Undisturbed(perLock/capacity.RenewalsPerSecond(l.TTL))
	rate := capacity.PollsPerSecond(full.TTL, full.Poll, 0)
	polls := float64(l.Waiting) * rate * c.PollsFactor * capacity.Undisturbed(perLock/rate)
	c.Handover = s.cost(s.Passed, m.idle, known{renewals, c.RenewalIn(l.Load)}, known{polls, c.Poll})
	return nil
}

// checks has a keeper look after parked locks.
func (m *meter) checks(c *capacity.Costs) error {
	l := Load{Load: capacity.Load{Web: 1, Workers: 1, Parked: 2 * m.scale.Keys, Every: m.scale.Every, Grace: time.Second, Share: 1}}
	l.Settle, l.Observe = m.scale.Every+2*time.Second, 3*m.scale.Every
	l.After = func(ctx context.Context, f *Fleet) (err error) {
		if c.Memory.Parked, err = f.memoryOfParked(ctx); err != nil {
			return err
		}
		c.ListMicros, err = f.listMicros(ctx)
		return err
	}
	s, err := m.run("parked locks", l)
	if err != nil {
		return err
	}
	if s.Checked == 0 {
		return errors.New("no parked lock was checked")
	}
	c.Check = s.cost(s.Checked, m.idle, m.keeping(c, s.load)...)
	c.ChecksFactor = 1
	c.ChecksFactor = s.Checked / (float64(l.Parked) / capacity.Predict(*c, s.load.Load).Keeper.Round.Seconds())
	c.Memory.Task = float64(s.now.asynq.Memory-s.bare.asynq.Memory) / float64(l.Parked)
	return nil
}

// ticks has cron entries executed, by one node and by three. The difference is what further nodes read.
func (m *meter) ticks(c *capacity.Costs) error {
	var costs [2]capacity.Cost
	for i, nodes := range []int{1, 3} {
		l := Load{Load: capacity.Load{Workers: nodes, Cron: int(2 * m.scale.Rate), CronEvery: m.scale.Every / 2}}
		l.Observe = 3 * l.CronEvery
		l.After = func(ctx context.Context, f *Fleet) (err error) {
			c.Memory.Ledger, err = f.memoryOfLedger(ctx)
			return err
		}
		s, err := m.run(fmt.Sprintf("cron entries, %d nodes", nodes), l)
		if err != nil {
			return err
		}
		if s.Ticked == 0 {
			return errors.New("no cron entry was executed")
		}
		costs[i] = s.cost(s.Ticked, m.idle, m.keeping(c, s.load)...)
	}
	c.TickRead = combined(costs[1], 0.5, costs[0], -0.5)
	c.Tick = combined(costs[0], 1, c.TickRead, -1)
	return nil
}

// combined returns x times a and y times b.
func combined(a capacity.Cost, x float64, b capacity.Cost, y float64) capacity.Cost {
	sum := func(a, b float64) float64 { return max(0, x*a+y*b) }
	parts := func(a, b capacity.Part) capacity.Part {
		return capacity.Part{
			Commands: sum(a.Commands, b.Commands), Turns: sum(a.Turns, b.Turns), Server: sum(a.Server, b.Server),
			In: sum(a.In, b.In), Out: sum(a.Out, b.Out),
		}
	}
	return capacity.Cost{Locks: parts(a.Locks, b.Locks), Asynq: parts(a.Asynq, b.Asynq), Own: sum(a.Own, b.Own)}
}
