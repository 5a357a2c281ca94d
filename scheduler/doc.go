// Package scheduler executes jobs by the clock on a cluster of nodes: every tick of a job
// on one node, once, whichever nodes are up. It needs a joblock.Locker and nothing else.
// There is no leader, no table, and no node that the others depend on.
//
//	s, err := scheduler.New(locks, &scheduler.Config{Scope: "shop"})
//	...
//	err = s.Func("rollup", "0 3 * * *", rollup)   // call rollup(ctx) on one node
//	err = s.Task("digest", "@every 1m", enqueue)  // enqueue one task
//	err = s.Run(ctx)                              // until ctx ends
//
// All nodes run the same lines. For more see
//
//	package spec       what a spec may be, and when it ticks
//	[Option]           what can be said about a job
//	package asynqtick  tasks of asynq
//	[RunSingleton]     services that have a Start and a Shutdown
//
// # One tick
//
// A tick is an instant of the spec in UTC, the same one for all nodes. Each job has a lock,
// and the memo of the lock is the job's ledger. The ledger says up to which tick the job
// has come. When a tick is due, each node
//
//	waits     for the job's jitter, and for up to 50 ms of its own, so that one node is first
//	reads     the ledgers of all jobs that are due, in one round trip
//	is done   if the ledger already has the tick
//	takes     the lock; the grant comes with the latest ledger
//	writes    "running" into the ledger
//	calls     the function, while the lock is renewed
//	writes    "done" or "failed" into the ledger, and releases the lock
//
// The first node needs four commands for a tick besides the read; a later one needs its
// share of the read. The ledger's latest tick only grows, and only the holder of the lock
// writes it. So a tick is claimed once, however short the job and however wrong the clocks:
// a late node finds the tick in the ledger.
//
// The store's clock alone decides what is due. Each node follows it by the times in the
// answers that it gets, and by its own monotonic clock in between. So a node whose clock is
// wrong still comes at the right time.
//
// # When a node stops or dies
//
// A tick that was claimed and not finished is taken over: another node executes it again.
// Half a second into an execution, one of the other nodes gets in line for the lock.
//
//	the node is stopped    the context of its function ends with cause ErrStopped, the tick
//	                       is marked as interrupted, and the next node gets the lock at once
//	the node dies          its lease ends, at most a TTL later, and the node in line gets
//	                       the lock
//	the node is paused     as if it had died; when it is back, the context of its function
//	or cut off             has ended with cause joblock.ErrLost, and its fence is outdated
//
// So a function is called at least once per tick, and with AtMostOnce at most once: an
// unfinished tick is then written off as lost. So is a tick whose execution was broken off
// eleven times, because it may be what ends the nodes. An execution also counts as
// unfinished if it ended while the store was away for longer than the lease. To tell two
// executions of a tick apart, use the fence of the lock (joblock.FromContext).
//
// A function that panics has failed. The panic is logged and goes no further: otherwise the
// tick would be taken over and end one node after the other.
//
// # Ticks that are not executed in time
//
//	missed      no node claimed it within a minute, or before the next one was due: the
//	            cluster was down, or the store was away. Policies: CatchUpNone,
//	            CatchUpAll, and by default CatchUpOne: the newest is executed.
//	overlapped  it came while the job was running on any node. Policies: OverlapQueue,
//	            which keeps the newest, OverlapCancel, and by default OverlapSkip.
//	paused      it came while the job was paused: it is skipped.
//
// Each is counted in the ledger and reported to Config.Observe. At most 10,000 ticks are
// counted as missed at a time. Ticks that are caught up with wait in the ledger. Their
// number is bounded over all outages; if there are too many, the oldest count as missed.
//
// # The ledger
//
// The ledger is JSON. In redis-cli, HGET joblock:%cron:shop:rollup memo shows it. It is kept
// for 366 days after the last write; a spec with longer pauses (29 February) starts anew
// each time. A job without a ledger is new: its ticks count from when the first node has
// seen it.
//
// # When the store's clock is set back
//
// Ticks wait until the clock is where it was, because each would be executed a second time.
// Each node reports this once per job, as EventClock and in the log, and Entry.Behind shows
// it. Triggers are executed. A ledger that is more than a day ahead was written while the
// clock was wrong: it starts anew, which is reported too. So a job is silent for a day at
// most.
//
// # Deploys
//
// A node leaves alone what it has no function for. During a deploy, nodes may know different
// jobs, or different specs for a job of one name. Each comes at the ticks of its own spec;
// an instant that both specs have is executed once. After a change of the spec nothing is
// caught up with: ticks of the new spec count from when the first node with it has started.
// A ledger of a later version than a node knows is left to newer nodes.
//
// A job that was removed is executed as long as a node is up that has it. A renamed job is
// two jobs: while nodes of both releases are up, both are executed. To avoid that, pause the
// old name before the deploy. What the old name has missed is not caught up with under the
// new one. The old name stays on record for 366 days; Entry.Overdue shows that no node comes
// for it any more.
//
// # Applications that share a store
//
// Two applications on one store need different scopes. Within a scope a job is known by its
// name, so each application would execute some ticks of the other's. Nodes notice this: the
// ledger records the definition it goes by, which is spec, options, and the module that the
// program was built from. A new definition is reported once, as EventRedefined: that is a
// deploy. Two definitions that take turns for more than a quarter of an hour are reported as
// EventContested, with a warning, about once an hour, and Entry.Contested is set.
//
// # Pausing and triggering
//
// Pause, Resume and Trigger work from any process with the same store and Config.Scope, also
// for jobs that it does not have. They write to one record, which all nodes read together
// with the ledgers. A pause or resumption takes effect at the next tick. A trigger is
// executed at once by the node that was asked, if it has the job; otherwise by another node
// within Config.Sync; and if the job is running, after that. Triggers that come before the
// job could be executed count as one. A paused job can be triggered. Like a ledger, the
// record is kept for 366 days after the last request; longer pauses are forgotten.
//
// # Cost
//
// A node at rest sends one command per Config.Sync, 10 s by default. It keeps the node's
// estimate of the time right and finds triggers. A node that comes too late for a tick sends
// its share of one pipeline, and of a second one if the execution takes more than half a
// second. During a longer execution each node reads the ledger once per lease, and one of
// them stands in line, which costs a command per joblock.Config.Poll. For a thousand short
// jobs that are due at the same instant, three nodes read 3,800 ledgers in 130 round trips
// and send 4,200 commands to claim, settle and release.
//
// # What is not promised
//
// Exactly-once execution: a function that finished as its node died is called again.
//
// Anything about ticks from before the store lost its data.
//
// That a function does not overlap with the execution that has taken over from it, if it
// ignores its context and does not use the fence.
//
// Ticks to the millisecond: they come some tens of milliseconds late, and later if the store
// is slow.
//
// That the task of a tick is enqueued if the node dies inside handoff's EnqueueUnique,
// between taking the lock and enqueuing. The next node finds the lock reserved for the
// tick's own task, and takes the tick for done. The keeper frees the lock a minute later.
//
// That nodes with different time zone data agree: an instant that only some of them know as
// a tick is an additional tick.
package scheduler
