package measure

import "time"

// Crowd is how many wait for one lock, spread over how many processes.
type Crowd struct{ Waiters, Processes int }

// Scale says how much is done.
type Scale struct {
	Rounds int

	Ops      int   // pairs of acquire and release in one sample
	Parallel []int // goroutines that do them

	Crowds   []Crowd
	Settle   time.Duration // until all have found the lock held, before they are observed
	Idle     time.Duration // how long the lock is held while all wait
	Handover time.Duration // how long it is then handed round, at the least

	Order int // hand-overs whose order is looked at

	Locks   int           // held at the same time
	TTL     time.Duration // of those; renewed every third of it
	Periods int           // renewal periods observed

	Jobs int             // enqueued, then processed
	Work []time.Duration // what each of them takes

	Growth Growth

	Again time.Duration // see peer.Options
}

// Growth is the smaller amount of work for each kind of it; the larger is
// GrowthFactor times as much.
type Growth struct{ Keys, Waiters, Locks, Jobs int }

// GrowthFactor is by how much the work is enlarged.
const GrowthFactor = 10

// Full is for figures to be shown. It takes about ten minutes.
func Full() Scale {
	return Scale{
		Rounds: 5,
		Ops:    6000, Parallel: []int{1, 32},
		Crowds: []Crowd{{2, 1}, {2, 2}, {16, 1}, {16, 4}, {128, 1}, {128, 4}},
		Settle: 300 * time.Millisecond, Idle: time.Second, Handover: 1500 * time.Millisecond,
		Order: 4000,
		Locks: 10_000, TTL: 6 * time.Second, Periods: 2,
		Jobs: 3000, Work: []time.Duration{0, time.Millisecond, 10 * time.Millisecond},
		Growth: Growth{Keys: 1000, Waiters: 12, Locks: 1000, Jobs: 500},
	}
}

// Short shows within seconds that everything works. Its figures mean nothing.
func Short() Scale {
	return Scale{
		Rounds: 1,
		Ops:    200, Parallel: []int{1, 8},
		Crowds: []Crowd{{2, 1}, {6, 2}},
		Settle: 50 * time.Millisecond, Idle: 50 * time.Millisecond, Handover: 50 * time.Millisecond,
		Order: 200,
		Locks: 100, TTL: 3 * time.Second, Periods: 1,
		Jobs: 50, Work: []time.Duration{0, time.Millisecond},
		Growth: Growth{Keys: 20, Waiters: 2, Locks: 10, Jobs: 10},
		Again:  5 * time.Second,
	}
}
