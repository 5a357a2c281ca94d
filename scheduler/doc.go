// Package scheduler runs jobs by the clock on a cluster of nodes: every tick of a job
// on one node, once, whichever nodes are up. It needs a joblock.Locker and nothing
// else; there is no leader, no table, and no node that the others depend on.
//
//	s, err := scheduler.New(locks, &scheduler.Config{Scope: "shop"})
//	...
//	err = s.Func("rollup", "0 3 * * *", rollup)            // run rollup(ctx) on one node
//	err = s.Task("digest", "@every 1m", enqueue)           // enqueue one task
//	err = s.Run(ctx)                                       // until ctx ends
//
// All nodes run the same lines. See package spec for what a spec may be, [Option] for what
// can be said of a job, [RunSingleton] for services that have a Start and a Shutdown.
//
// # One tick
//
// A tick is an instant of the spec in UTC: all nodes mean the same one. A job's lock
// has the job's ledger as its memo, and the ledger says up to which tick the job has
// come. When a tick is due, each node
//
//	waits       the job's jitter, and up to 50 ms of its own, so that one is first
//	reads       the ledgers of all jobs that are due, in one round trip
//	is done     if the ledger has the tick already: one command, shared by the batch
//	takes       the lock, and reads the ledger again, which came with the grant
//	writes      "running" into the ledger
//	runs        the function, while the lock is renewed
//	writes      "done" or "failed" into the ledger, and releases the lock
//
// The first node takes four commands for a tick besides the read. The ledger's tick
// only grows, and only the holder of the lock writes it, so a tick is claimed once
// however short the job, and however wrong the clocks: a node that comes late finds
// the tick in the ledger. What is due is decided by the store's clock alone. Each node
// follows it, by the time in the answers it gets and by its own monotonic clock in
// between, so that a node whose clock is wrong comes at the right time all the same.
//
// # When a node stops or dies
//
// A tick that was claimed and not finished is taken over: another node runs it again.
// About half a second into a run one of the other nodes gets in line for the lock, so
//
//	the node is stopped    its function's context ends with cause ErrStopped; the tick is
//	                       marked as interrupted, and the next node is told at once
//	the node dies          its lease ends, at most a TTL later; the node in line is told
//	the node is paused     as if it had died; when it wakes up its context has ended
//	or cut off             with cause joblock.ErrLost, and its fence is an old one
//
// Functions therefore run at least once per tick, and with AtMostOnce at most once: an
// unfinished tick is then written off as lost. So is a tick whose run was broken off
// eleven times: it may be what ends the nodes. What ended while the store was away for
// longer than the lease counts as unfinished too. joblock.FromContext gives a function
// its lock, whose fence tells the two runs of a tick apart where that matters.
//
// A function that panics has failed; the panic is logged and goes no further, for the
// tick would be taken over and end one node after the other.
//
// # What becomes of other ticks
//
//	missed      nobody claimed it within a minute, or before the next one was due (the
//	            cluster was down, the store was away): CatchUpNone, CatchUpAll, or by
//	            default CatchUpOne: the newest of them is run once
//	overlapped  it came while the job was running, anywhere: OverlapQueue, which keeps
//	            the newest, OverlapCancel, or by default OverlapSkip
//	paused      it came while the job was paused: skipped
//
// Each is counted in the ledger and told to Config.Observe. Of what was missed in one
// go at most 10,000 are counted. What is to be caught up with waits in the ledger: as many
// ticks as CatchUpAll allows, however many outages they are of. The oldest of more than
// these count as missed.
//
// # The ledger
//
// It is JSON, so HGET joblock:%cron:shop:rollup memo in redis-cli shows it, and its decoder needs
// no defence against lengths that lie. It is kept for 366 days after it was last written;
// a spec with longer pauses (29 February) starts anew each time. A job without a ledger is
// a new job: its ticks count from when the first node has seen it, and nothing before is
// caught up with.
//
// # When the store's clock is set back
//
// A job's ticks wait until the clock is where it was: each would be run a second time, and
// that each is run once comes first. Each node tells it once per job, as EventClock and
// in the log, and Entry.Behind shows it; a trigger is run all the same. A ledger that is more
// than a day ahead was written while the clock was wrong: it starts anew, and that is told
// too. So a job is silent for a day at most.
//
// # Deploys, and applications that share a store
//
// A node leaves alone what it has no function for. During a deploy, nodes that know
// different jobs, or different specs for a job of the same name, get along: each comes at
// the ticks of its own spec, and of an instant that both mean only one is run. After a
// change of the spec nothing is caught up with: ticks of the new spec count from when the
// first node with it was started. A ledger of a later version than a node understands is
// left to the nodes that do.
//
// A job that is removed is run for as long as a node is up that has it. A job that is
// renamed is two jobs to the cluster. While nodes of both releases are up, both are run,
// and an instant that both mean is run under either name. Where that must not be, pause the
// old name before the deploy. What the old name had missed is not caught up with under the
// new one. The old name stays on record for 366 days; Entry.Overdue shows that no node comes
// for it any more.
//
// Two applications on one store need different scopes: in one scope a job is known by its
// name, and each application would run some ticks of the other's. Nodes notice it. The
// ledger says whose definition it goes by: spec, options, and the module that the program was
// built from. A new definition is told once, as EventRedefined: that is a deploy. Two that
// take turns for longer than a quarter of an hour are told as EventContested, a warning,
// about once an hour, and Entry.Contested shows it.
//
// # Time zones
//
// Specs ask the zone for its offset at an instant, and for nothing else, so a node needs no
// more than any zone data that its Go reads, time/tzdata among them. Nodes should have the
// same: an instant that the data of two nodes disagree on is two ticks.
//
// # Pausing and triggering
//
// Pause, Resume and Trigger work from any process with the same store and Config.Scope,
// for jobs that it need not know. They write to one record that all nodes read together
// with the ledgers: a pause or resumption holds from the next tick on. A trigger is run at
// once by the node that was asked, if it has the job; by another within Config.Sync if
// not; and after the present run if there is one. Triggers that come in before the job
// could be run are one. A paused job can be triggered. The record is kept for 366 days
// after the last request, as ledgers are: a pause that lasts longer is forgotten.
//
// # What it costs
//
// A node at rest sends one command per Config.Sync, 10 s by default: it keeps the
// node's idea of the time right and finds triggers. A tick costs each node that comes
// too late its part of one pipeline, and a second one if the run lasts more than half
// a second; for a longer run each looks once per lease, and one of them waits in line,
// which costs one command per joblock.Config.Poll. A thousand short jobs that are due at
// the same instant on three nodes: 3,800 ledgers read in 130 round trips, and 4,200
// commands to claim, settle and release.
//
// # What is not promised
//
// Exactly-once execution: a function that finished as its node died runs again. A tick
// of a store that lost its data: the ledger is then what the store still has. That
// functions which heed neither their context nor the fence do not overlap with the run
// that has taken over from them. Ticks to the millisecond: they come some tens of
// milliseconds late, and later where the store is slow. A Task tick whose node dies
// inside handoff's EnqueueUnique, between taking the lock and enqueuing: the next node
// finds the lock with the tick's own task and takes that for done. The lock is freed by
// the keeper, a minute later.
package scheduler
