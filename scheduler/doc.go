// Package scheduler executes cron jobs on a cluster of nodes. Each tick of a job is executed once, by one of the nodes
// that are up. The package needs only a joblock.Locker. There is no leader, no table, and no node on which the other
// nodes depend.
//
//	s, err := scheduler.New(locks, &scheduler.Config{Scope: "shop"})
//	...
//	err = s.Func("rollup", "0 3 * * *", rollup)   // call rollup(ctx) on one node
//	err = s.Task("digest", "@every 1m", enqueue)  // enqueue one task
//	err = s.Run(ctx)                              // until ctx ends
//
// All nodes run the same lines. Package spec has the syntax of a spec. See [Option] for policies, timeouts and retries.
// Package asynqtick enqueues asynq tasks, and its RunSingleton runs services that have a Start and a Shutdown.
//
// # One tick
//
// A tick is an instant of the spec in UTC, the same instant for all nodes. Each job has a lock, and the memo of the
// lock is the job's ledger. The ledger has the latest tick that a node has claimed or skipped. When a tick is due, each
// node
//
//	waits     for the job's jitter and a random time up to 50 ms, so that one node is first
//	reads     the ledgers of all jobs that are due, in one round trip
//	stops     if the ledger already has the tick
//	takes     the lock; the grant comes with the latest ledger
//	writes    "running" into the ledger
//	calls     the function, while the Locker renews the lock
//	writes    "done" or "failed" into the ledger, and releases the lock
//
// The ledger's latest tick only grows, and only the holder of the lock writes the ledger. So nodes claim a tick once,
// however short the job is and however wrong the clocks are: a late node finds the tick in the ledger.
//
// The store's clock alone decides what is due. Each node estimates it from the store's answers and its own monotonic
// clock, so a node whose wall clock is wrong is still on time.
//
// # When a node stops or dies
//
// If an execution is broken off, another node takes the tick over, that is, executes it again. Half a second after an
// execution has begun, one of the other nodes starts to wait for the lock.
//
//	the node is stopped     the context of its function ends with cause ErrStopped; the node marks the tick as
//	                        interrupted; the waiting node gets the lock at once
//	the node dies           the waiting node gets the lock when the lease ends, at most a TTL later
//	the node is suspended   the waiting node gets the lock when the lease ends; the context of the first node's
//	or cut off              function ends with cause joblock.ErrLost, and the function's fence is outdated
//
// So nodes execute a claimed tick at least once, and with AtMostOnce at most once. After eleven broken executions a
// tick is lost, because its function may be what crashes the nodes. An execution is also broken off if at its end the
// store does not answer for longer than the lease. Each execution has a fence of its own (joblock.FromContext).
//
// A function that goes on for more than 5 s after the end of its context holds the job up: its ticks overlap, and no
// other node takes the job over. The node then reports Overrun, which is logged as a warning, and
// admin.Execution.Overrun is set as long as that lasts. When the node is stopped, this applies only after Config.Grace
// has passed; see Run.
//
// A panic in a function is logged and counts as a failure: if it ended the program, the nodes would take the tick over
// and end one after the other.
//
// A node may die after it has enqueued the task of a tick and before it has written the ledger. The next node enqueues
// the task again. With Tick.ID as the task's ID the queue refuses the second task; see Task.
//
// # Ticks that are not executed in time
//
//	missed      no node claimed the tick within a minute or before the next tick, whichever is first: the cluster was
//	            down, or the store did not answer. Policies: CatchUpNone, CatchUpAll, and by default CatchUpOne, which
//	            executes the newest missed tick. A tick also counts as missed if its StartDeadline has passed.
//	overlapped  the tick came while a node executed the job. Policies: OverlapQueue, OverlapNewest, OverlapCancel, and by
//	            default OverlapSkip.
//	paused      the tick came while the job was paused. The tick is skipped.
//
// If an execution, or the task of a Task, does not end, each further tick is skipped as overlapped. After three ticks
// and 10 minutes a node reports Stuck, which is logged as a warning, and admin.Entry.Stuck is set.
//
// The ledger counts these ticks, at most 10,000 missed ticks at a time, and Config.Observe gets an Event. The node that
// executes the job writes the ticks that come meanwhile into the ledger as they come. During a long execution the pause
// between two such writes is a twentieth of the time since its start, 10 s at most; and the ticks of a minute are
// reported as one Event. Missed ticks that a node will execute wait in the ledger. Their number is bounded over all
// outages; the oldest ticks beyond the bound are skipped as missed.
//
// # Policies
//
// Ticks that come during an execution:
//
//	OverlapSkip      all are skipped as overlapped
//	OverlapQueue(n)  a tick waits if fewer than n ticks wait already; the others are skipped as overlapped
//	OverlapNewest    the newest waits; the others are skipped as overlapped
//	OverlapCancel    the first tick ends the context of the function; then as OverlapNewest
//
// Ticks that wait, because of the overlap policy, or because they were missed and are executed late:
//
//	the execution was broken off  the ticks go on waiting. With OverlapQueue, OverlapNewest and OverlapCancel, the ticks
//	                              from then until another node takes the execution over wait as if they had come during
//	                              the execution. With OverlapSkip they are missed ticks.
//	another node                  the ticks wait in the ledger, so every node can execute them
//	the job is paused             the ticks wait for the end of the pause
//	StartDeadline has passed      the tick is skipped as missed, and leaves its place to another tick
//
// # Several executions at once
//
// With MaxConcurrent(n), up to n executions of the job run at the same time. Each runs in a lane, under a lock of its
// own. The ledger has the executions that run. A node holds the job's lock only while it changes the ledger: to begin,
// to take over or to end an execution. So the overlap policies concern only the ticks that come while n executions run.
//
//	fewer than n executions run     a due tick, start or trigger begins at once
//	n executions run                the overlap policy decides about a tick when it comes, not when an execution ends
//	an execution ends               the oldest tick that waits begins
//	a node is stopped or dies       its executions are taken over one by one, as under "When a node stops or dies"; until
//	                                then they count among the n
//	all n executions are broken     with OverlapQueue and OverlapNewest, the ticks that came are overlapped ticks; with
//	off                             OverlapSkip they are missed ticks
//	the job is paused               the executions go on, and no tick begins
//	a backfill is asked for         one lane at a time executes ticks of the backfill
//	n is changed by a deploy        no node begins an execution, or takes one over, while as many run as its own n
//	                                allows
//
// # Backfills
//
// Backfill of package admin executes the ticks of a range of the past: at most 10,000 ticks, each once, one after the
// other, the oldest first. The ledger has the backfill's cursor, the latest tick that has begun. The node that begins a
// tick writes the cursor and the execution in one step. So nodes begin no tick of the range twice, except to take it
// over. A job has one backfill at a time.
//
//	nothing else is due                   the next tick of the range is executed
//	a tick, start or trigger is due       it is executed first
//	a tick comes during an execution of   the tick waits for the end of the execution: with OverlapQueue as always, with
//	the backfill                          all other policies if it is the newest
//	an execution of it was broken off     another node takes the tick over, and goes on from the cursor
//	the job is paused                     the backfill goes on
//	a missed or overlapped tick of the    that tick is left to the backfill
//	range waits
//	a new spec comes into force           the rest of the range has the ticks of the new spec, until 10,000 ticks of the
//	                                      backfill have begun; Event.Err says which ticks of the range are left out
//	StopBackfill                          the backfill ends before its next tick
//
// # What other schedulers call it
//
// The names of these policies in other schedulers:
//
//	this package     Temporal                Kubernetes CronJob       Quartz
//	OverlapSkip      SKIP                    Forbid                   @DisallowConcurrentExecution, DO_NOTHING
//	OverlapQueue(1)  BUFFER_ONE              -                        -
//	OverlapQueue(n)  BUFFER_ALL              -                        @DisallowConcurrentExecution, IGNORE_MISFIRES
//	OverlapNewest    -                       -                        @DisallowConcurrentExecution, FIRE_ONCE_NOW
//	OverlapCancel    CANCEL_OTHER            Replace                  -
//	-                TERMINATE_OTHER         -                        -
//	MaxConcurrent(n) ALLOW_ALL, without n    Allow, without n         the default, without n
//	CatchUpNone      catchup window 10 s     -                        DO_NOTHING
//	CatchUpOne       -                       always                   FIRE_ONCE_NOW
//	CatchUpAll       catchup window          -                        IGNORE_MISFIRES
//	StartDeadline    catchup window          startingDeadlineSeconds  misfireThreshold
//	Backfill         backfill, BUFFER_ALL    -                        -
//	KeepHistory      10 executions           *JobsHistoryLimit        -
//
// There is no policy like TERMINATE_OTHER, because no Go function can be ended from outside.
//
// # The ledger
//
// The ledger is JSON. In redis-cli, HGET joblock:%cron:shop:rollup memo shows the ledger. The store keeps a ledger, and
// the record of pauses and triggers, for 366 days after the last write. A node that is up with the job writes them at
// least every two weeks. So an outage of all nodes may last for 350 days, whatever the spec is; after a longer one,
// pauses and ledgers are gone. With a new ledger, ticks count from the time at which the first node saw the job. If the
// list of jobs shows that the job had a ledger, the node logs a warning.
//
// # When the store's clock is set back
//
// Ticks wait until the clock is where it was, because nodes would execute each tick a second time. Triggers do not
// wait. Each node reports the clock once per job, as ClockSetBack and in the log, and admin.Entry.Behind shows it. A ledger
// that is more than a day ahead was written while the clock was wrong: its ticks count from now on, and ClockSetBack
// reports that too, so a job is silent for at most a day.
//
// # Deploys
//
// A node ignores jobs for which it has no function. During a deploy, nodes may have different jobs, or different specs
// for a job of one name.
//
// At each instant one spec is in force, the one in the ledger. All nodes that have the job execute the ticks of that
// spec, whatever their own spec is. The node that was the last to register the job decides which: by starting its Run,
// or by a call while Run is running. A deploy therefore ends with the new spec, because each node starts with it.
//
// The decision lasts as long as that node is up and has the job. After that, the spec of the youngest node that is up
// and has the job comes into force; the youngest node is the one whose Run has begun last. A node with another spec
// checks this every 3 × Config.Sync.
//
//	the node that has decided is up           nothing changes, until a node registers another spec
//	it is stopped, or removes the job         the youngest node decides at its next look, some 30 s later
//	it dies                                   the youngest node decides when the record of the dead node has ended, 90 s
//	                                          later, at its next look
//	the youngest node has the spec in force   nothing changes
//	the records of nodes cannot be read, or   nothing changes
//	a node was cut off less than 90 s ago
//
// So if a node of the old release starts late in a deploy, the old spec is in force until that node stops, and if the
// only node of a new release dies, the old spec comes back. Two nodes that are up never alternate. admin.Entry.SpecBy
// is the node that has decided, and admin.Entry.OtherSpecs has the nodes that are up and have another spec.
//
// A change takes place as soon as the node gets the job's lock, so not during an execution. Ticks up to the change are
// those of the old spec, later ticks are those of the new one, so each tick of either spec is handled once. Ticks of
// the old spec that no node has claimed are missed ticks, or overlapped ones; ticks with jitter that have come are due
// at once. The ledger has the time of the change, and a node reports SpecChanged. The other nodes read the change
// within Config.Sync, so that they execute the new spec's ticks even if all nodes that registered it die. Options are
// not in the ledger: the node that executes or skips a tick uses its own.
//
// A node that cannot parse the spec in force leaves the job to newer nodes, and so does a node that finds a ledger of a
// later version. admin.Entry.Problem says so. A node that cannot read the record of pauses and triggers, or gets no
// answer for it, obeys those that it has read before. If it has read none since it started, it executes no jobs: they
// may be paused.
//
// Remove, SetSpec and the option Replace change the jobs of a node without a restart.
//
// A removed job is executed as long as a node is up that has the job. A renamed job is two jobs: while nodes of both
// releases are up, both jobs are executed. To avoid that, pause the old name before the deploy. Ticks missed under the
// old name are not executed under the new name. The record of the old name stays for 366 days, or until Forget of
// package admin.
//
// # Applications that share a store
//
// Two applications on one store need different scopes. Within a scope the name alone identifies a job, so each
// application would execute some ticks of the other one. Nodes notice a second definition of a job: another spec, other
// options, or another module of the program. A new definition is a deploy, reported once as Redefined. If two
// definitions alternate for more than a quarter of an hour, a node reports Contested and sets admin.Entry.Contested. A
// node that is up with a spec other than the one in force for that long also sets admin.Entry.Contested.
//
// # Monitoring and control
//
// Package admin monitors and controls all jobs of a scope from any process, with only the Locker and the scope.
//
// A job is in the list of jobs before it has a ledger. Each node that is up has a record with its jobs, which ends when
// the node is stopped, or 90 s after the node has died. A removed job therefore has no admin.Entry.Nodes from then on.
// If the store loses everything, a node notices at the next renewal of its record, at most 30 s later, and writes all
// records again. The schedule does not depend on the records of jobs and nodes.
//
// # Cost
//
// An idle node sends one command per Config.Sync, 10 s by default, to get the time and to find triggers, and two
// commands a minute to renew its record. Each week one node sends two commands for each job that has had no tick in
// that week. A node with jobs whose spec is not the one in force sends two more commands a minute: each reads the
// record of the node that has decided. If that node is not up, one such command is followed by two that read the
// records of all nodes. Entries of package admin reads 34 records, and one more for each node and for each job. At a
// tick, the first node sends four commands in addition to the read. A later node sends only its share of a pipeline,
// and its share of a second pipeline if the execution takes more than half a second. During a longer execution the node
// that executes sends two commands when a tick comes, each node reads the ledger once per lease, and the node that
// waits for the lock sends a command per joblock.Config.Poll. For a thousand short jobs that are due at the same
// instant, three nodes read 3,800 ledgers in 130 round trips and send 4,200 commands to claim, settle and release. With
// MaxConcurrent an execution costs nine commands instead of four.
//
// # What is not promised
//
//   - Exactly-once execution: if a node dies as its function returns, another node calls the function again.
//   - Anything about ticks from before the store lost its data.
//   - That an execution has ended when another node takes its tick over. A function that ignores its context goes on,
//     and only the fence can keep its writes out.
//   - Ticks to the millisecond: an execution begins some tens of milliseconds late, and later if the store is slow.
//   - That the task of a tick is enqueued if the node dies inside an enqueue under handoff.Unique or handoff.Sequence,
//     between taking the lock and enqueuing, and no keeper of package worker runs. The next node finds the lock
//     reserved for the tick's own task, which does not exist. It calls enqueue again for two minutes, and the tick then
//     fails. A keeper frees the lock within that time.
//   - That nodes with different time zone data agree: if only some nodes know an instant as a tick, they execute an
//     additional tick.
package scheduler
