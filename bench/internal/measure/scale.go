package measure

import "time"

// Crowd is how many wait for one lock, spread over how many processes.
type Crowd struct{ Waiters, Processes int }

// PairLoad is how many pairs of acquire and release are done in a round, on how many
// goroutines.
type PairLoad struct{ Goroutines, Pairs int }

// Scale says how much is done.
type Scale struct {
	Rounds int

	Pairs []PairLoad

	Crowds   []Crowd
	Settle   time.Duration // until all have found the lock held
	Handover time.Duration // how long the lock is then handed round, at the least

	Waiting []Crowd
	Idle    time.Duration // how long these are observed while the lock is held

	Order int // hand-overs whose order is looked at

	Locks   int           // held at the same time
	TTL     time.Duration // of those; renewed every third of it
	Periods int           // renewal periods observed

	Jobs    int             // enqueued, then processed
	Work    []time.Duration // what each of them takes where they do something
	Enqueue int             // tasks enqueued in a round, where nobody processes them

	Successions []Succession
	Lines       []int // how many wait in each sequence
	LineRuns    int   // jobs that are enqueued into such lines, and that run from them
	Slots       Slots

	Memos int // renewals, waits, and locks in a list, with a memo and without

	Walk  Walk
	Fleet Fleet

	Growth Growth

	Masters     []int // of each cluster
	ClusterKeys int

	Again time.Duration // see peer.Options
}

// Walk is what a list of all locks walks over.
type Walk struct {
	Locks, Others int           // keys
	Slice         time.Duration // the walk goes on for Slice, and stands still for Slice
	Commands      int           // of the command line, each for one lock
}

// Fleet is many keys, each with a holder and a waiter in different processes.
type Fleet struct {
	Keys, Processes int
	Rate            int           // hand-overs per second, all processes together
	Settle          time.Duration // after all wait, and before the first hand-over
	Turns           int           // how often each fleet hands over for Turn
	Turn            time.Duration
}

// Succession is how jobs follow one another: in so many chains, each of so many jobs.
type Succession struct {
	Chains, Jobs int
	Work         time.Duration // of each job, on average
	Probe        time.Duration // between two tasks that are enqueued beside, on average
	Others       int           // tasks that run all the time, so that the queue is never empty
	Few          bool          // it takes seconds, so the rounds are fewer
}

// Slots is how many jobs wait in one sequence, and how many others run beside.
type Slots struct{ Waiting, Others int }

// Growth is the smaller amount of work for each kind of it; the larger is
// GrowthFactor times as much.
type Growth struct{ Keys, Waiters, Locks, Jobs int }

// GrowthFactor is by how much the work is enlarged.
const GrowthFactor = 10

// Few is the number of rounds of what takes long and has no aim: a third of Rounds.
func (s Scale) Few() int { return max(1, s.Rounds/3) }

// Fewest is the number of rounds of what takes a minute each: a ninth of Rounds.
func (s Scale) Fewest() int { return max(1, s.Rounds/9) }

// Full is for figures to be shown.
func Full() Scale {
	return Scale{
		Rounds: 9,
		Pairs:  []PairLoad{{1, 800}, {32, 1600}},
		Crowds: []Crowd{{2, 1}, {2, 2}, {16, 1}, {16, 4}, {128, 1}, {128, 4}},
		Settle: 50 * time.Millisecond, Handover: 160 * time.Millisecond,
		Waiting: []Crowd{{2, 1}, {128, 1}, {128, 4}}, Idle: time.Second,
		Order: 4000,
		Locks: 10_000, TTL: 6 * time.Second, Periods: 2,
		Jobs: 1000, Work: []time.Duration{time.Millisecond, 10 * time.Millisecond},
		Enqueue: 1000,
		Successions: []Succession{
			{Chains: 5, Jobs: 10, Work: 250 * time.Millisecond, Probe: 100 * time.Millisecond, Few: true},
			{Chains: 10, Jobs: 60, Work: time.Millisecond, Probe: 2 * time.Millisecond},
			{Chains: 10, Jobs: 60, Work: time.Millisecond, Probe: 2 * time.Millisecond, Others: 20},
		},
		Lines: []int{1, 10, 10_000}, LineRuns: 1000,
		Slots:   Slots{Waiting: 10_000, Others: 3000},
		Memos:   100,
		Walk:    Walk{Locks: 100_000, Others: 2_000_000, Slice: 200 * time.Millisecond, Commands: 50},
		Fleet:   Fleet{Keys: 10_000, Processes: 4, Rate: 200, Settle: 10 * time.Second, Turns: 12, Turn: time.Second},
		Growth:  Growth{Keys: 1000, Waiters: 12, Locks: 1000, Jobs: 500},
		Masters: []int{3, 6, 12}, ClusterKeys: 10_000,
	}
}

// Quick shows within seconds that everything works. Its figures mean nothing.
func Quick() Scale {
	return Scale{
		Rounds: 1,
		Pairs:  []PairLoad{{1, 100}, {32, 320}},
		Crowds: []Crowd{{2, 1}, {6, 2}},
		Settle: 50 * time.Millisecond, Handover: 50 * time.Millisecond,
		Waiting: []Crowd{{2, 1}}, Idle: 50 * time.Millisecond,
		Order: 200,
		Locks: 100, TTL: 6 * time.Second, Periods: 1,
		Jobs: 50, Work: []time.Duration{time.Millisecond},
		Enqueue: 50,
		Successions: []Succession{
			{Chains: 3, Jobs: 3, Work: 20 * time.Millisecond, Probe: 100 * time.Millisecond, Few: true},
			{Chains: 10, Jobs: 5, Work: time.Millisecond, Probe: time.Millisecond, Others: 5},
		},
		Lines: []int{1, 10}, LineRuns: 40,
		Slots:   Slots{Waiting: 30, Others: 20},
		Memos:   5,
		Walk:    Walk{Locks: 300, Others: 30_000, Slice: 2 * time.Millisecond, Commands: 3},
		Fleet:   Fleet{Keys: 40, Processes: 2, Rate: 40, Settle: 500 * time.Millisecond, Turns: 2, Turn: 250 * time.Millisecond},
		Growth:  Growth{Keys: 20, Waiters: 2, Locks: 10, Jobs: 10},
		Masters: []int{3, 4}, ClusterKeys: 100,
		Again: 5 * time.Second,
	}
}
