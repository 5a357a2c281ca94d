package capacity

import (
	"math"
	"strings"
	"testing"
	"time"
)

// costs are simple, so that needs can be added up by hand.
func costs() Costs {
	part := func(commands float64) Part {
		return Part{Commands: commands, Turns: commands, Server: 20 * commands, In: 100 * commands, Out: 10 * commands}
	}
	return Costs{
		Floor:   Floor{Alone: 18, Crowded: 6, Own: 50},
		Enqueue: Cost{Locks: part(1), Asynq: part(1), Own: 100},
		Job:     Cost{Locks: part(2), Asynq: part(2), Own: 200},
		Pair:    Cost{Locks: part(2), Own: 80}, Handover: Cost{Locks: part(2), Own: 90}, Poll: Cost{Locks: part(1), Own: 40},
		Renewal: Cost{Locks: Part{Commands: 1, Turns: 0.01, Server: 6}, Own: 5},
		Check:   Cost{Locks: Part{Commands: 0.01, Server: 4}, Asynq: Part{Commands: 0.001, Server: 3, Out: 500}, Own: 8},
		Ask:     Cost{Locks: part(1)}, Tick: Cost{Locks: part(4)}, TickRead: Cost{Locks: part(1)},
		WorkerOwn:   Cost{Asynq: part(2)},
		PollsFactor: 1, RenewalsFactor: 1, ChecksFactor: 1, ListMicros: 6, Payload: 100,
		Memory: Bytes{Base: 1e6, BaseAsynq: 1e6, Held: 252, Parked: 452, Task: 900, Released: 152, Waiter: 300, Ledger: 952, Idle: 1000, Busy: 9000},
		Links:  Links{Calls: 4, Enqueue: 5, Run: 9, Worker: 10},
	}
}

// rest is what a fleet with one worker does without any load: the keeper asks and renews its permit.
func rest(l Load) Need {
	return Predict(costs(), Load{Web: l.Web, Workers: l.Workers, TTL: l.TTL, Every: l.Every})
}

func near(got, want float64) bool { return math.Abs(got-want) <= 1e-6*max(1, math.Abs(want)) }

func TestCommandsAddUp(t *testing.T) {
	const fewRound = 30. - 1 - 3 // Every, less a nap and a tenth
	for _, tc := range []struct {
		name         string
		load         Load
		locks, asynq float64 // commands a second, beyond those at rest
	}{
		{"nothing", Load{}, 0, 0},
		{"jobs", Load{Jobs: 10}, 30, 30},
		{"jobs that are renewed once", Load{Jobs: 10, Work: 12 * time.Second}, 40, 30},
		{"pairs", Load{Pairs: 7}, 14, 0},
		{"held locks", Load{Held: 1000}, 100, 0},
		{"held locks with short leases", Load{Held: 1000, TTL: 3 * time.Second}, 1000, 0},
		{"waiters", Load{Held: 100, Waiting: 100}, 10 + 25, 0},
		{"waiters with short leases", Load{Held: 100, Waiting: 100, TTL: 6 * time.Second}, 50 + 100, 0},
		{"parked locks", Load{Parked: 30_000, Share: 1}, 300 / fewRound, 30 / fewRound},
		{"parked locks and two keepers", Load{Parked: 30_000, Share: 1, Workers: 2, Keepers: 2}, 300/fewRound + 1 + 0.1 - 0.25, 60 / fewRound},
		{"parked locks of tasks that are due", Load{Parked: 30_000, Share: 1, Backlog: 18_000}, 300/fewRound + 10, 30 / fewRound},
		{"cron", Load{Cron: 600}, 50 + 0.1, 0},
		{"cron on three nodes", Load{Cron: 600, Workers: 3}, 40 + 30 + 0.3, 0},
	} {
		got, at := Predict(costs(), tc.load), rest(tc.load)
		if locks := got.Locks.Commands - at.Locks.Commands; !near(locks, tc.locks) {
			t.Errorf("%s: %v commands to the locks, want %v", tc.name, locks, tc.locks)
		}
		if asynq := got.Asynq.Commands - at.Asynq.Commands; !near(asynq, tc.asynq) {
			t.Errorf("%s: %v commands to asynq, want %v", tc.name, asynq, tc.asynq)
		}
	}
}

// All masters together do the same whatever their number, and a little more than a single server: the keeper asks each
// part of the index.
func TestMastersShareTheWork(t *testing.T) {
	l := Load{Jobs: 1000, Pairs: 1000, Held: 10_000, Parked: 100_000, Web: 10, Workers: 10}
	one := Predict(costs(), l)
	l.Masters = 2
	two := Predict(costs(), l)
	if got := two.Locks.Commands * 2 / one.Locks.Commands; got < 1 || got > 1.2 {
		t.Errorf("two masters run %v times the commands of one", got)
	}
	for _, masters := range []int{4, 8, 16} {
		l.Masters = masters
		n := Predict(costs(), l)
		if got := n.Locks.Commands * float64(masters) / (two.Locks.Commands * 2); got < 1 || got > 1.05 {
			t.Errorf("%d masters run %v times the commands of two", masters, got)
		}
		if n.Locks.CPU > one.Locks.CPU*1.5/float64(masters)+0.05 {
			t.Errorf("each of %d masters is busy for %v, one for %v", masters, n.Locks.CPU, one.Locks.CPU)
		}
		if n.Web.Locks != two.Web.Locks/2*float64(masters) || n.Asynq != one.Asynq {
			t.Errorf("%d masters: %+v and %+v", masters, n.Web, n.Asynq)
		}
	}
}

func TestSeveralRedisServersForAsynq(t *testing.T) {
	l := Load{Jobs: 1000, Parked: 100_000, Web: 10, Workers: 10}
	one := Predict(costs(), l)
	l.Asynqs = 5
	n := Predict(costs(), l)
	if !near(n.Asynq.Commands*5, one.Asynq.Commands) || n.Locks != one.Locks {
		t.Errorf("%+v, and one %+v", n, one)
	}
	if n.Asynq.Connections*5 < one.Asynq.Connections || n.Asynq.Memory > one.Asynq.Memory/2 {
		t.Errorf("%+v, and one %+v", n.Asynq, one.Asynq)
	}
	l.Workers = 4
	if err := l.WithDefaults(costs()).Check(); err == nil || !strings.Contains(err.Error(), "-asynqs is 5, must be at most -workers, 4") {
		t.Error(err)
	}
}

// A process has connections to each master: for calls, for renewals, and one for pushes if somebody waits.
func TestConnectionsOfAProcess(t *testing.T) {
	for _, tc := range []struct {
		name               string
		load               Load
		web, worker, asynq float64 // asynq: of a web process
	}{
		{"at rest", Load{}, 1, 1 + 1, 1},
		{"at rest, one of two keepers stands by", Load{Workers: 2}, 1, 1 + 1 + 0.5, 1},
		{"pairs", Load{Pairs: 1}, 4, 4 + 1, 1},
		{"jobs", Load{Jobs: 10}, 5, 9 + 1, 20},
		{"held locks", Load{Held: 500}, 4 + 3, 4 + 3, 1},
		{"waiters", Load{Held: 2, Waiting: 1}, 4 + 1 + 1, 4 + 1 + 1, 1},
		{"a cluster", Load{Pairs: 1, Masters: 3}, 3 * 20, 3 * (20 + 1), 1},
		{"a cluster and small pools", Load{Jobs: 1, Masters: 3, Pool: 5}, 3 * 5, 3 * (5 + 1), 5},
	} {
		n := Predict(costs(), tc.load)
		if !near(n.Web.Locks, tc.web) || !near(n.Worker.Locks, tc.worker) || !near(n.Web.Asynq, tc.asynq) {
			t.Errorf("%s: web %+v, worker %+v, want %v and %v, and %v to asynq", tc.name, n.Web, n.Worker, tc.web, tc.worker, tc.asynq)
		}
	}
}

func TestMemoryAddsUp(t *testing.T) {
	at := rest(Load{}).Locks.Memory
	for _, tc := range []struct {
		name string
		load Load
		want float64 // beyond that at rest, without connections
	}{
		{"held", Load{Held: 1000}, 300 * 1000},
		{"waiting", Load{Held: 1000, Waiting: 2000}, 300*1000 + 300*2000},
		{"parked", Load{Parked: 1000}, 500 * 1000},
		{"jobs are remembered", Load{Jobs: 10}, 200*10*300 + 200*10*20},
		{"and for how long is configured", Load{Jobs: 10, Retain: time.Second, Grace: time.Second}, 200*10 + 200*10},
		{"pairs are remembered for seconds", Load{Pairs: 10}, 200 * 10 * 6},
		{"cron", Load{Cron: 5}, 1000 * 5},
	} {
		got := Predict(costs(), tc.load)
		links := (got.Locks.Connections - rest(tc.load).Locks.Connections) * costs().Memory.Idle
		links += (min(got.Locks.Connections, 8) - min(rest(tc.load).Locks.Connections, 8)) * (costs().Memory.Busy - costs().Memory.Idle)
		if grown := got.Locks.Memory - at - links; !near(grown, tc.want) {
			t.Errorf("%s: %v bytes, want %v", tc.name, grown, tc.want)
		}
	}
	if got := Predict(costs(), Load{Parked: 1000, Payload: 1100}).Asynq.Memory - rest(Load{}).Asynq.Memory; !near(got, 1000*1900) {
		t.Errorf("tasks with large payloads take %v bytes", got)
	}
}

// A command costs a busy server less, but never less than what the floor shows.
func TestBusyServerReadsSeveralCommandsAtATime(t *testing.T) {
	f := Floor{Alone: 20, Crowded: 5}
	last := 0.0
	for _, perSecond := range []float64{1, 1000, 10_000, 50_000, 100_000, 500_000} {
		alone, turns := perSecond*25/1e6, perSecond
		got := cpu(f, alone, turns)
		crowded := alone - turns*15/1e6
		if got > alone || got < crowded || got <= last {
			t.Errorf("%v a second: %v of a core, want more than %v, from %v to %v", perSecond, got, last, crowded, alone)
		}
		last = got
	}
	if got := cpu(f, 0.0025, 100); got < 0.99*0.0025 {
		t.Errorf("a server at rest takes %v of a core for what it does alone in 0.0025", got)
	}
	if got := cpu(f, 2.5, 100_000); !near(got, 1) {
		t.Errorf("a server takes %v of a core for what fills it", got)
	}
}

// Few locks are checked a little more often than Every. With more locks the lists are read all the time, and no faster
// than Share allows. With more still, the checks themselves take longer than Every, and further keepers help.
func TestRoundsOfAKeeper(t *testing.T) {
	for _, tc := range []struct {
		name    string
		load    Load
		seconds float64
	}{
		{"few", Load{Parked: 1000}, 30 - 1 - 3},
		{"many", Load{Parked: 500_000}, 30},
		{"three times as many", Load{Parked: 1_500_000}, 90},
		{"with more of asynq's Redis", Load{Parked: 1_500_000, Share: 0.3}, 30},
		{"too many to check", Load{Parked: 5_000_000, Share: 1}, 60},
		{"too many to check for one", Load{Parked: 5_000_000, Share: 1, Keepers: 2, Workers: 5}, 30},
	} {
		k := Predict(costs(), tc.load).Keeper
		if !near(k.Round.Seconds(), tc.seconds) || !near(k.Busy, float64(tc.load.Parked)*6e-6/tc.seconds) {
			t.Errorf("%s: %+v, want rounds of %v s", tc.name, k, tc.seconds)
		}
		if keepers := float64(max(1, tc.load.Keepers)); !near(k.CPU, float64(tc.load.Parked)*8e-6/tc.seconds/keepers) {
			t.Errorf("%s: %+v", tc.name, k)
		}
	}
}

func TestPeriodsOfCalls(t *testing.T) {
	for _, tc := range []struct {
		name      string
		got, want float64
	}{
		{"polls", PollsPerSecond(30*time.Second, 4*time.Second, 0), 0.25},
		{"polls in a short lease", PollsPerSecond(6*time.Second, 4*time.Second, 0), 1},
		{"polls far back in a short lease", PollsPerSecond(6*time.Second, 4*time.Second, 100), 0.25},
		{"renewals", RenewalsPerSecond(30 * time.Second), 0.1},
		{"renewals of a short job", RenewalsOfJob(30*time.Second, 9*time.Second), 0},
		{"renewals of a long job", RenewalsOfJob(30*time.Second, 25*time.Second), 2},
		{"batch of few", RenewalBatch(30*time.Second, 50), 1},
		{"batch of some", RenewalBatch(30*time.Second, 5000), 50},
		{"batch of many", RenewalBatch(30*time.Second, 1e6), 100},
		{"connections for none", RenewalLinks(0), 0},
		{"connections for few", RenewalLinks(10), 1},
		{"connections for many", RenewalLinks(1e6), 4},
		{"naps", NapsPerSecond(30*time.Second, 1, 0), 1},
		{"short naps", NapsPerSecond(time.Second, 1, 0), 10},
		{"naps of a part", NapsPerSecond(30*time.Second, Tags, 0), 0.1},
		{"naps of a part with jobs", NapsPerSecond(30*time.Second, Tags, 0.2), 0.3},
		{"naps of a part with many jobs", NapsPerSecond(30*time.Second, Tags, 80), 1},
		{"checks of many", checkCommands(1e6), 0.004},
		{"checks of few", checkCommands(10), 0.2},
		{"checks of one", checkCommands(0.1), 2},
		{"one master", Largest(1), 1},
		{"twelve masters", Largest(12), 22.0 / 256},
		{"nodes of one", Nodes(12, 1), 1},
		{"nodes of many", Nodes(12, 1e6), 12},
		{"never disturbed", Undisturbed(0), 1},
		{"disturbed once per period", Undisturbed(1), 1 / (math.E - 1)},
	} {
		if !near(tc.got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, tc.got, tc.want)
		}
	}
}

func TestLoadsThatNobodyHasAreRefused(t *testing.T) {
	for _, tc := range []struct {
		load Load
		want string
	}{
		{Load{Jobs: -1}, "-jobs is -1"},
		{Load{Jobs: math.NaN()}, "-jobs is NaN"},
		{Load{Masters: 257}, "-masters is 257, must be at most 256"},
		{Load{Parked: 1, Backlog: 2}, "-backlog is 2, must be at most -parked, 1"},
		{Load{Waiting: 1}, "set -held"},
		{Load{Held: 1, Handovers: 1}, "set -waiting"},
		{Load{Share: 2}, "-share is 2"},
		{Load{CronEvery: time.Millisecond}, "-cron-every is 0.001, must be at least 1"},
	} {
		if err := tc.load.WithDefaults(costs()).Check(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v, want %q", tc.load, err, tc.want)
		}
	}
	if err := (Load{}).WithDefaults(costs()).Check(); err != nil {
		t.Errorf("no load: %v", err)
	}
}
