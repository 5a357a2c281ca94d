package capacity

import (
	"math"
	"time"
)

// Need is what a Load needs.
type Need struct {
	Locks  Node // the master of the locks that has most to do
	Asynq  Node // asynq's Redis
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
	CPU         float64 // cores, of this library and asynq
	Locks       float64 // connections to all masters of the locks
	Asynq       float64 // connections to asynq's Redis
	Goroutines  float64 // of a process at rest
	HeldAtATime float64 // locks
}

// Keeper is about the checks of parked locks.
type Keeper struct {
	Round time.Duration // from one check of a lock to the next
	Busy  float64       // the part of the time for which one keeper has calls to asynq's Redis under way
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
	l = l.WithDefaults(c)
	var locks, asynq total
	processes := float64(l.Web + l.Workers)
	extra := float64(l.Payload - c.Payload)

	// A Run of a keeper that works holds a lock. The others wait for one.
	working := float64(min(l.Keepers, l.Workers))
	standing := float64(l.Workers) - working
	held := float64(l.Held) + working
	running := l.Jobs * l.Work.Seconds()

	// own is processor time per second, in µs: of all web processes, of all workers, and of all together.
	var web, worker, any float64
	both := func(own *float64, rate float64, cost Cost) {
		locks.add(rate, cost.Locks)
		asynq.add(rate, cost.Asynq)
		*own += rate * cost.Own
	}
	both(&web, l.Jobs, c.Enqueue)
	both(&worker, l.Jobs, c.Job)
	asynq.in += l.Jobs * extra  // the enqueue
	asynq.out += l.Jobs * extra // the dequeue
	both(&any, l.Pairs, c.Pair)
	both(&any, l.Handovers, c.Handover)
	passed := 0.0 // how often a lock is passed on, a second
	if l.Held > 0 {
		passed = l.Handovers / float64(l.Held)
	}
	both(&worker, float64(l.Workers), c.WorkerOwn)

	perKey := 0
	if l.Held > 0 {
		perKey = l.Waiting / l.Held
	}
	polls := PollsPerSecond(l.TTL, l.Poll, perKey/2)
	waiters := float64(l.Waiting) * polls * Undisturbed(passed/max(1, float64(perKey))/polls)
	both(&any, c.PollsFactor*(waiters+standing*PollsPerSecond(l.TTL, l.Poll, 0)), c.Poll)

	renewals := c.RenewalsFactor*held*RenewalsPerSecond(l.TTL)*Undisturbed(passed/RenewalsPerSecond(l.TTL)) + l.Jobs*RenewalsOfJob(l.TTL, l.Work)
	both(&any, renewals, c.renewal(l, held+running))

	need := Need{Keeper: keeper(c, l)}
	parts := 1
	if l.Masters > 1 {
		parts = Tags
	}
	both(&worker, working*float64(parts)*NapsPerSecond(l.Every, parts), c.Ask)
	checks := c.ChecksFactor * float64(l.Parked) / need.Keeper.Round.Seconds()
	both(&worker, checks, c.Check)
	asynq.out += checks * extra
	// A prolonged reservation costs what a renewal costs: a script in a pipeline.
	both(&worker, 2*float64(l.Backlog)/l.Reserve.Seconds(), c.Renewal)

	ticks := float64(l.Cron) / l.CronEvery.Seconds()
	both(&worker, ticks, c.Tick)
	reads := ticks * float64(l.Workers)
	if l.Cron > 0 {
		reads += float64(l.Workers) / sync.Seconds()
	}
	both(&worker, reads, c.TickRead)

	share := 1.0
	if l.Masters > 1 {
		share = Largest(l.Masters)
		locks.add(2*processes/clusterReload.Seconds(), Part{Commands: 1, Turns: 1, Server: c.Floor.Alone})
	}
	need.Locks = node(c, l, locks, share)
	need.Asynq = node(c, l, asynq, 1)

	masters := float64(l.Masters)
	heldHere := float64(l.Held)/processes + running/float64(l.Workers)
	need.Web = Process{
		CPU:        (web/float64(l.Web) + any/processes) * l.Machine / 1e6,
		Locks:      c.links(l, float64(l.Held)/processes, 0) * masters,
		Asynq:      min(max(1, c.Links.Pile*l.Jobs/float64(l.Web)), float64(l.Pool)),
		Goroutines: c.Goroutines.Web, HeldAtATime: float64(l.Held) / processes,
	}
	need.Worker = Process{
		CPU:   (worker/float64(l.Workers) + any/processes) * l.Machine / 1e6,
		Locks: c.links(l, heldHere+working/float64(l.Workers), standing/float64(l.Workers)) * masters, Asynq: c.Links.Worker,
		Goroutines: c.Goroutines.Worker, HeldAtATime: heldHere,
	}
	if l.Jobs == 0 {
		need.Worker.Asynq = min(workerAtRest, need.Worker.Asynq)
	}
	need.Locks.Connections = (need.Web.Locks*float64(l.Web) + need.Worker.Locks*float64(l.Workers)) / masters
	need.Asynq.Connections = need.Web.Asynq*float64(l.Web) + need.Worker.Asynq*float64(l.Workers)

	// A job's lock is a held one while the job runs, and is remembered for Retain after. A pair's is remembered for
	// seconds. The index has the entry of a job that is over until a keeper asks for it.
	m := c.Memory
	keys := (held+running)*(m.Held+PerKey) + float64(l.Waiting)*m.Waiter + float64(l.Parked)*(m.Parked+PerKey) +
		(l.Jobs*l.Retain.Seconds()+(l.Pairs+l.Handovers)*min(brief, l.Retain).Seconds())*(m.Released+PerKey) +
		l.Jobs*l.Grace.Seconds()*max(0, m.Parked-m.Held) + float64(l.Cron)*(m.Ledger+PerKey)
	links := func(n, busy float64) float64 { return n*m.Idle + min(n, busy)*(m.Busy-m.Idle) }
	need.Locks.Memory = m.Base + keys*share + links(need.Locks.Connections, processes*c.Links.Calls)
	busy := processes
	if l.Jobs > 0 {
		busy = need.Asynq.Connections
	}
	need.Asynq.Memory = m.BaseAsynq + (float64(l.Parked)+running)*(m.Task+extra) + links(need.Asynq.Connections, busy)
	return need
}

// workerAtRest is how many connections an asynq server has that has no tasks.
const workerAtRest = 4

// links returns the connections of a process to one master of the locks: of a process that holds so many locks. standing
// is the part of such processes whose keepers stand by.
func (c Costs) links(l Load, held, standing float64) float64 {
	n := 1.0
	if l.Jobs+l.Pairs+l.Handovers > 0 || l.Held+l.Waiting+l.Cron > 0 {
		n = c.Links.Calls
	}
	bursts := float64(l.Waiting)/float64(l.Web+l.Workers) > burst || l.Cron > burst
	n += RenewalLinks(l.TTL, held, bursts)
	if l.Waiting > 0 {
		standing = 1
	}
	return n + standing*c.Links.Push
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

// RenewalIn returns the cost of a renewal in a fleet whose only locks are those of Load.Held.
func (c Costs) RenewalIn(l Load) Cost { return c.renewal(l.WithDefaults(c), float64(l.Held)) }

func node(c Costs, l Load, t total, share float64) Node {
	return Node{
		Commands: t.commands * share,
		CPU:      c.Idle*l.Machine/1e6 + cpu(c.Floor, t.alone*share*l.Machine, t.turns*share*l.Machine),
		In:       t.in * share, Out: t.out * share,
	}
}

// keeper returns how long a round takes. A round takes Every, or longer if Share does not leave enough of asynq's Redis.
func keeper(c Costs, l Load) Keeper {
	if l.Parked == 0 {
		return Keeper{Round: l.Every}
	}
	// Each keeper that works lists the queues for itself.
	calls := float64(l.Parked) * c.ListMicros * l.Machine / 1e6
	round := max(l.Every.Seconds(), calls/l.Share)
	return Keeper{Round: time.Duration(math.Round(round * float64(time.Second))), Busy: calls / round}
}
