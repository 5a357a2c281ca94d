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
//	package spec       the syntax of a spec, and when it ticks
//	[Option]           time zones, policies, timeouts, retries
//	package asynqtick  tasks of asynq
//	[RunSingleton]     services that have a Start and a Shutdown
//
// # One tick
//
// A tick is an instant of the spec in UTC, the same one for all nodes. Each job has a lock,
// and the memo of the lock is the job's ledger. The ledger says up to which tick the job
// has come. When a tick is due, each node
//
//	waits     for the job's jitter and a random time up to 50 ms, so that one node is first
//	reads     the ledgers of all jobs that are due, in one round trip
//	is done   if the ledger already has the tick
//	takes     the lock; the grant comes with the latest ledger
//	writes    "running" into the ledger
//	calls     the function, while the lock is renewed
//	writes    "done" or "failed" into the ledger, and releases the lock
//
// The ledger's latest tick only grows, and only the holder of the lock writes it. So a tick
// is claimed once, however short the job and however wrong the clocks: a late node finds
// the tick in the ledger.
//
// The store's clock alone decides what is due. Each node estimates it from the store's
// answers, and by its own monotonic clock between them. So a node whose wall clock is wrong
// still comes at the right time.
//
// # When a node stops or dies
//
// If an execution is broken off, another node takes the tick over: it executes the tick
// again. Half a second into an execution, one of the other nodes starts to wait for the lock.
//
//	the node is stopped    the context of its function ends with cause ErrStopped, the tick
//	                       is marked as interrupted, and the waiting node gets the lock at
//	                       once
//	the node dies          the waiting node gets the lock when the lease ends, at most a TTL
//	                       later
//	the node is paused     as if it had died; when it is back, the context of its function
//	or cut off             has ended with cause joblock.ErrLost, and its fence is outdated
//
// So a claimed tick is executed at least once. With AtMostOnce it is executed at most once:
// an execution that was broken off is written off as lost. Without it a tick is lost after
// eleven broken executions, because its function may be what crashes the nodes. An
// execution also counts as broken off if the store is away when it ends, for longer than
// the lease. The fence of the lock (joblock.FromContext) tells executions of a tick apart.
//
// A panic in a function is logged and counts as a failure. If it ended the program, the
// tick would be taken over and end one node after the other.
//
// # Tasks of a queue
//
// A node may die after it has enqueued the task of a tick and before the ledger says so. The
// next node enqueues the task again. Tick.ID as the task's ID prevents a second task: the
// queue refuses it. The function that is passed to Task must return nil then. It must not
// return asynq.ErrTaskIDConflict, which counts as a failure like any other error. Package
// asynqtick takes care of this.
//
// # Ticks that are not executed in time
//
//	missed      no node claimed it within a minute or before the next tick, whichever is
//	            first: the cluster was down, or the store was away. Policies: CatchUpNone,
//	            CatchUpAll, and by default CatchUpOne, which executes the newest.
//	overlapped  it came while the job was running on any node. Policies: OverlapQueue,
//	            which keeps the newest, OverlapCancel, and by default OverlapSkip.
//	paused      it came while the job was paused: it is skipped.
//
// The ledger counts them, and Config.Observe is told. At most 10,000 ticks are counted as
// missed at a time. Ticks that are caught up with wait in the ledger. Their number is
// bounded over all outages; the oldest beyond the bound count as missed.
//
// # The ledger
//
// The ledger is JSON. In redis-cli, HGET joblock:%cron:shop:rollup memo shows it. It is kept
// for 366 days after the last write; a job with longer pauses (29 February) starts anew each
// time. A job without a ledger is new: ticks count from when the first node has seen it.
//
// # When the store's clock is set back
//
// Ticks wait until the clock is where it was, because each would be executed a second time.
// Triggers do not wait. Each node reports this once per job, as EventClock and in the log,
// and Entry.Behind shows it. A ledger that is more than a day ahead was written while the
// clock was wrong: it starts anew, and that is reported. A job is silent for at most a day.
//
// # Deploys
//
// A node ignores jobs that it has no function for. During a deploy, nodes may have different
// jobs, or different specs for a job of one name. Each node comes at the ticks of its own
// spec; an instant that both specs have is executed once. Nothing is caught up with after a
// change of the spec: its ticks count from when the first node with it has started. A ledger
// of a later version than a node knows is left to newer nodes.
//
// A removed job is executed as long as a node is up that has it. A renamed job is two jobs:
// while nodes of both releases are up, both are executed. To avoid that, pause the old name
// before the deploy. Ticks missed under the old name are not caught up with under the new
// one. The old name stays on record for 366 days; Entry.Overdue shows that it is unclaimed.
//
// # Applications that share a store
//
// Two applications on one store need different scopes. Within a scope a job is known by its
// name, so each application would execute some ticks of the other's. Nodes notice this: the
// ledger records by which definition it was written (spec, options, module of the program).
// A new definition is a deploy, reported once as EventRedefined. If two definitions take
// turns for more than a quarter of an hour, that is reported as EventContested, about once
// an hour, and Entry.Contested is set.
//
// # Pausing and triggering
//
// Pause, Resume and Trigger work from any process with the same store and Config.Scope, also
// for jobs that it does not have. They write to one record, which all nodes read together
// with the ledgers. A pause or resumption takes effect at the next tick. Like a ledger, the
// record is kept for 366 days after the last request; longer pauses are forgotten.
//
// # Cost
//
// A node at rest sends one command per Config.Sync, 10 s by default, to learn the time and
// find triggers. Besides the read, the first node at a tick sends four commands. A later one
// sends only its share of a pipeline, and of a second one if the execution takes more than
// half a second. During a longer execution each node reads the ledger once per lease, and
// the one that waits for the lock sends a command per joblock.Config.Poll. For a thousand
// short jobs that are due at the same instant, three nodes read 3,800 ledgers in 130 round
// trips and send 4,200 commands to claim, settle and release.
//
// # What is not promised
//
//   - Exactly-once execution: a function that finished as its node died is called again.
//   - Anything about ticks from before the store lost its data.
//   - That a function does not overlap with the execution that has taken over from it, if
//     it ignores its context and does not use the fence.
//   - Ticks to the millisecond: they come some tens of milliseconds late, and later if the
//     store is slow.
//   - That the task of a tick is enqueued if the node dies inside handoff's EnqueueUnique,
//     between taking the lock and enqueuing. The next node finds the lock reserved for the
//     tick's own task, and takes the tick for done. The keeper frees the lock a minute later.
//   - That nodes with different time zone data agree: an instant that only some of them
//     know as a tick is an additional tick.
package scheduler
