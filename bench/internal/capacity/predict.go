package capacity

import (
	"math"
	"time"
)

// Need is what a Load needs.
type Need struct {
	Locks  Node // the master of the locks that has most to do
	Asynq  Node // asynq's Redis, or each of several
	Web    Process
	Worker Process
	Keeper Keeper
}

// Node is one server. Rates are per second.
type Node struct {
	Commands    float64
	CPU         float64 // cores. A server uses one core for commands
	Memory      float64 // bytes
	Connections float64
	In, Out     float64 // bytes
}

// Process is one process of the fleet.
type Process struct {
	CPU         float64 // cores, of this library and asynq; without Keeper.CPU
	Locks       float64 // connections to all masters of the locks
	Asynq       float64 // connections to asynq's Redis
	Goroutines  float64 // of a process at rest
	HeldAtATime float64 // locks
}

// Keeper is about the checks of parked locks.
type Keeper struct {
	Round time.Duration // from one check of a lock to the next
	Busy  float64       // the part of the time for which one keeper has calls to asynq's Redis under way
	CPU   float64       // cores, of a worker whose keeper works: beyond Need.Worker
}

// total adds up the parts of one server. A part is a rate times a Part.
type total struct {
	commands, turns, in, out, alone float64
}

func (t *total) add(rate float64, p Part) {
	t.commands += rate * p.Commands
	t.in += rate * p.In
	t.out += rate * p.Out
	t.alone += rate * p.Server / 1e6
	t.turns += rate * p.Turns
}

// leastCrowded is the part of its processor time that a command costs a busy server, at least.
const leastCrowded = 0.25

// cpu returns the processor time of a server that takes alone for all commands, in so many round trips, if each comes
// alone. The time per command falls in proportion to how busy the server is: each round trip costs less, by up to the
// difference between Floor.Alone and Floor.Crowded.
func cpu(f Floor, alone, turns float64) float64 {
	crowded := max(leastCrowded*alone, alone-turns*max(0, f.Alone-f.Crowded)/1e6)
	if crowded >= 1 {
		return crowded // more than a server can do
	}
	return alone / (1 + alone - crowded)
}

// Predict returns what l needs. l is taken with defaults; Load.Check says what Predict cannot be asked.
func Predict(c Costs, l Load) Need {
	p := newPlan(c, l.WithDefaults(c))
	p.calls()
	p.waits()
	p.keepers()
	p.ticks()
	p.servers()
	p.processes()
	p.memory()
	return p.need
}

// plan is a prediction in the making.
type plan struct {
	c Costs
	l Load

	fleet             float64 // processes
	working, standing float64 // keepers: a Run that works holds a lock, and the others wait for one
	held, running     float64 // locks, those of keepers included, and jobs at a time
	masters, asynqs   float64
	extra             float64 // bytes of a task beyond those of the costs

	locks, asynq     total   // of all servers
	web, worker, any float64 // own processor time in µs per second: of all web processes, all workers, all together
	need             Need
}

func newPlan(c Costs, l Load) *plan {
	working := float64(min(l.Keepers, l.Workers))
	return &plan{
		c: c, l: l,
		fleet:   float64(l.Web + l.Workers),
		working: working, standing: float64(l.Workers) - working,
		held: float64(l.Held) + working, running: l.Jobs * l.Work.Seconds(),
		masters: float64(l.Masters), asynqs: float64(l.Asynqs),
		extra: float64(l.Payload - c.Payload),
	}
}

// pay adds the cost of so many operations a second. own is one of p.web, p.worker and p.any.
func (p *plan) pay(own *float64, perSecond float64, cost Cost) {
	p.locks.add(perSecond, cost.Locks)
	p.asynq.add(perSecond, cost.Asynq)
	*own += perSecond * cost.Own
}

// calls adds what the fleet is asked for.
func (p *plan) calls() {
	p.pay(&p.web, p.l.Jobs, p.c.Enqueue)
	p.pay(&p.worker, p.l.Jobs, p.c.Job)
	p.asynq.in += p.l.Jobs * p.extra  // the enqueue
	p.asynq.out += p.l.Jobs * p.extra // the dequeue
	p.pay(&p.any, p.l.Pairs, p.c.Pair)
	p.pay(&p.any, p.l.Handovers, p.c.Handover)
	p.pay(&p.worker, float64(p.l.Workers), p.c.WorkerOwn)
}

// waits adds polls and renewals. A hand-over makes the periods of both begin anew.
func (p *plan) waits() {
	c, l := p.c, p.l
	contended := float64(min(l.Held, l.Waiting))
	passed := l.Handovers / max(1, contended) // how often each of these locks is passed on, a second
	perKey := max(1, l.Waiting/max(1, l.Held))
	polls := PollsPerSecond(l.TTL, l.Poll, perKey/2)
	waiters := float64(l.Waiting) * polls * Undisturbed(passed/float64(perKey)/polls)
	p.pay(&p.any, c.PollsFactor*(waiters+p.standing*PollsPerSecond(l.TTL, l.Poll, 0)), c.Poll)

	renewed := p.held - contended + contended*Undisturbed(passed/RenewalsPerSecond(l.TTL))
	renewals := c.RenewalsFactor*renewed*RenewalsPerSecond(l.TTL) + l.Jobs*RenewalsOfJob(l.TTL, l.Work)
	p.pay(&p.any, renewals, c.renewal(l, p.held+p.running))
}

// keepers adds the checks of parked locks, and what keepers do for jobs that are over.
func (p *plan) keepers() {
	c, l := p.c, p.l
	p.need.Keeper = keeper(c, l)
	parts := 1
	if l.Masters > 1 {
		parts = Tags
	}
	over := l.Jobs / float64(parts) // jobs that are over, and whose entries a keeper finds: in each part, a second
	asks := NapsPerSecond(l.Every, parts, over)
	p.pay(&p.worker, p.working*float64(parts)*asks, c.Ask)
	checks := c.ChecksFactor * float64(l.Parked) / p.need.Keeper.Round.Seconds()
	p.pay(new(float64), checks, Cost{Locks: c.Check.Locks})
	p.need.Keeper.CPU = checks * c.Check.Own * l.Machine / p.working / 1e6
	if parts > 1 {
		// Fewer locks are checked together than on a single server.
		more := checks * (checkCommands(float64(l.Parked)/Tags) - checkCommands(mostClaimed))
		more += 2 * Tags * min(asks, over)
		p.pay(&p.worker, more, Cost{Locks: Part{Commands: 1, Turns: 1, Server: c.Floor.Alone}, Own: c.Floor.Own})
	}
	p.asynq.add(checks*p.working, c.Check.Asynq) // each keeper that works reads the lists for itself
	p.asynq.out += checks * p.working * p.extra
	// A prolonged reservation costs what a renewal costs: a script in a pipeline.
	p.pay(&p.worker, 2*float64(l.Backlog)/l.Reserve.Seconds(), c.Renewal)
}

// ticks adds the cron entries.
func (p *plan) ticks() {
	if p.l.Cron == 0 {
		return
	}
	ticks, nodes := float64(p.l.Cron)/p.l.CronEvery.Seconds(), float64(p.l.Workers)
	p.pay(&p.worker, ticks, p.c.Tick)
	p.pay(&p.worker, ticks*nodes+nodes/sync.Seconds(), p.c.TickRead)
}

// servers divides what all servers do.
func (p *plan) servers() {
	if p.l.Masters > 1 {
		p.locks.add(2*p.fleet/clusterReload.Seconds(), Part{Commands: 1, Turns: 1, Server: p.c.Floor.Alone})
	}
	p.need.Locks = p.node(p.locks, Largest(p.l.Masters))
	p.need.Asynq = p.node(p.asynq, 1/p.asynqs)
}

func (p *plan) node(t total, share float64) Node {
	on := share * p.l.Machine
	return Node{
		Commands: t.commands * share,
		CPU:      p.c.Idle*p.l.Machine/1e6 + cpu(p.c.Floor, t.alone*on, t.turns*on),
		In:       t.in * share, Out: t.out * share,
	}
}

// processes tells of the processes and of their connections.
func (p *plan) processes() {
	c, l := p.c, p.l
	web, workers := float64(l.Web), float64(l.Workers)
	held := float64(l.Held) / p.fleet
	onWorker := held + p.running/workers
	toAsynq, onWeb, onWork := 1.0, c.Links.Calls, c.Links.Calls
	if l.Jobs > 0 {
		onWeb, onWork = max(onWeb, c.Links.Enqueue), max(onWork, c.Links.Run)
		toAsynq = float64(l.Pool) // the enqueues of a stall open as many as they may
	}
	p.need.Web = Process{
		CPU:        (p.web/web + p.any/p.fleet) * l.Machine / 1e6,
		Locks:      p.masters * c.links(l, onWeb, held, 0),
		Asynq:      p.asynqs * toAsynq,
		Goroutines: c.Goroutines.Web, HeldAtATime: held,
	}
	ofWorker := c.Links.Worker
	if l.Jobs == 0 {
		ofWorker = min(workerAtRest, ofWorker)
	}
	p.need.Worker = Process{
		CPU:        (p.worker/workers + p.any/p.fleet) * l.Machine / 1e6,
		Locks:      p.masters * c.links(l, onWork, onWorker+p.working/workers, p.standing/workers),
		Asynq:      ofWorker + p.asynqs - 1, // the keeper asks all
		Goroutines: c.Goroutines.Worker, HeldAtATime: onWorker,
	}
	p.need.Locks.Connections = (p.need.Web.Locks*web + p.need.Worker.Locks*workers) / p.masters
	p.need.Asynq.Connections = (p.need.Web.Asynq*web + p.need.Worker.Asynq*workers) / p.asynqs
}

// memory tells of the servers' memory. A job's lock is held while the job runs, and remembered for Retain after. A
// pair's is remembered for seconds. The index has the entry of a job that is over until a keeper asks for the entry.
func (p *plan) memory() {
	l, m := p.l, p.c.Memory
	keys := (p.held+p.running)*(m.Held+PerKey) + float64(l.Waiting)*m.Waiter + float64(l.Parked)*(m.Parked+PerKey) +
		(l.Jobs*l.Retain.Seconds()+(l.Pairs+l.Handovers)*min(brief, l.Retain).Seconds())*(m.Released+PerKey) +
		l.Jobs*l.Grace.Seconds()*max(0, m.Parked-m.Held) + float64(l.Cron)*(m.Ledger+PerKey)
	links := func(n, busy float64) float64 { return n*m.Idle + min(n, busy)*(m.Busy-m.Idle) }
	p.need.Locks.Memory = m.Base + keys*Largest(l.Masters) + links(p.need.Locks.Connections, p.fleet*toMaster(l, p.c.Links.Calls))
	busy := p.fleet
	if l.Jobs > 0 {
		busy = p.need.Asynq.Connections
	}
	p.need.Asynq.Memory = m.BaseAsynq + (float64(l.Parked)+p.running)*(m.Task+p.extra)/p.asynqs + links(p.need.Asynq.Connections, busy)
}

// workerAtRest is how many connections an asynq server has that has no tasks.
const workerAtRest = 4

// links returns the connections of a process to one master of the locks: of a process that holds so many locks, and has
// so many connections for calls. standing is the part of such processes whose keepers stand by. A process with waiters
// has a connection for pushes.
func (c Costs) links(l Load, calls, held, standing float64) float64 {
	n := 1.0
	if l.Jobs+l.Pairs+l.Handovers > 0 || l.Held+l.Waiting+l.Parked+l.Cron > 0 {
		n = toMaster(l, calls)
	}
	if l.Waiting > 0 {
		standing = 1
	}
	return n + RenewalLinks(held) + standing
}

// toMaster returns the connections of a process to one master of the locks, for calls: toOne if the master is a single
// server, where single calls share pipelines when many come together. Calls to a cluster do not, and batches nowhere do.
func toMaster(l Load, toOne float64) float64 {
	if l.Masters > 1 {
		return float64(l.Pool)
	}
	return toOne
}

// batched returns the cost of an operation that was measured in batches, in batches of another size: turns is the
// number of round trips per operation.
func batched(cost Cost, f Floor, turns float64) Cost {
	more := turns - cost.Locks.Turns
	cost.Locks.Turns = turns
	cost.Locks.Server = max(leastCrowded*cost.Locks.Server, cost.Locks.Server+more*f.Alone)
	cost.Own = max(0, cost.Own+more*f.Own)
	return cost
}

// renewal returns the cost of a renewal where the fleet holds so many locks.
func (c Costs) renewal(l Load, held float64) Cost {
	batch := RenewalBatch(l.TTL, held/float64(l.Web+l.Workers))
	return batched(c.Renewal, c.Floor, Nodes(l.Masters, batch)/batch)
}

// RenewalIn returns the cost of a renewal in a fleet whose only locks are those of Load.Held. The fleet has a process.
func (c Costs) RenewalIn(l Load) Cost {
	web, workers := l.Web, l.Workers
	l = l.WithDefaults(c)
	l.Web, l.Workers = web, workers // one of them may be 0
	return c.renewal(l, float64(l.Held))
}

// keeper returns how long a round takes. A round takes somewhat less than Every, so that a check comes in time. If Share
// does not leave enough of asynq's Redis for that, the lists are read all the time. The checks themselves take time, too.
func keeper(c Costs, l Load) Keeper {
	parked := float64(l.Parked)
	every, nap := l.Every.Seconds(), min(l.Every/wakeups, longestNap).Seconds()
	calls := parked * c.ListMicros * l.Machine / 1e6 // each keeper that works reads the lists for itself
	took := calls / l.Share
	round := max(every-nap-every*spare, took)
	checks := parked * (c.Check.Own + c.Check.Locks.Server) * l.Machine / 1e6
	round = max(round, checks/float64(min(l.Keepers, l.Workers)))
	return Keeper{Round: time.Duration(math.Round(round * float64(time.Second))), Busy: calls / round}
}
