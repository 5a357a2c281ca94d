// Package redisstore keeps locks in Redis: on one server, with Sentinel or in a Cluster. The servers need Redis 7.0 or
// later, or Valkey 8.0 or later, on a 64-bit machine. The tests run on Redis 7.0, 8.0 and 8.6 and on Valkey 8.0
// and 9.1.
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	store, err := redisstore.New(rdb, nil)
//	if err != nil {
//		return err
//	}
//	locks, err := joblock.New(store, nil)
//
// # Records
//
// A lock is one string at prefix + key; for a cluster, see below. The string is a text of lines, which redis-cli shows
// unchanged:
//
//	jobH<fence>   H, N: owned; R, F, D: released, forced, done; the fence is a number that grows
//	              with every Acquire, Take, Park and Resume
//	owner         the owner of the lock, present or last; a secret
//	holder        label of the holder, present or last
//	job           "queue/taskID" of the job that the lock is bound to
//	reason        given with the release
//	first         the fence that the present ownership began with
//	since         when the ownership began; empty if that is the same number as first
//	nonce         of the call that began the present term
//	last          nonce of the last call that ended an ownership
//	the times     when the lock was last acquired, taken, parked, resumed or ended; how the
//	              previous ownership ended; if owned, when the lease began, and how long the
//	              lease and the reservation are from then on
//
// A record that was written without a script has no times: they follow from the expiry of its key, as
// scripts/record.lua explains.
//
// Times are in µs since 1970, lengths in ms. The numbers have a fixed width, so most calls read a field by its position
// in the text. The script of such a call runs three commands. The record of a key that was used once takes some 230
// bytes until Redis expires the record.
//
// A lock with waiters, or with a memo, is a hash instead. The field s of the hash is the text. The
// other fields are memo, and q, q<n>, w<call> and g<n> for the queue of waiters. A release that leaves no waiters
// and no memo makes the lock a string again.
//
// A fence is the larger of two numbers: the key's last fence plus 1, and the server's clock in microseconds. So fences
// still grow after the record has expired, or was lost in a restart or a fail-over. There are two exceptions: the clock
// was set back in the meantime, or a fail-over led to a server whose clock is behind by more than the time that the
// fail-over took. Fences stay below 2^53: Lua, JSON and JavaScript keep such integers exactly.
//
// A record outlives its ownership. Then Redis expires the record: see Retention in package driver.
//
// A value at the key that is not a record is reported as foreign, and no call writes to the value.
//
// # Names in a cluster
//
// With a *redis.ClusterClient a lock is at prefix + "{tag}" + key, such as "joblock:{227}export:acct-7". The tag is one
// of 256 numbers, and the CRC-16 of the key decides which one. The slots of the 256 tags are evenly spaced, so the
// masters of a cluster get even shares of the locks. A lock and the part of the index that has its entries are in the
// same slot. Tags never change. In a cluster the prefix must not contain braces. Braces in a key have no meaning.
//
// The type of the client decides which names are used, not the type of the server. So all processes that share locks
// need the same type of client: a process with a *redis.Client does not see the locks of a process with a
// *redis.ClusterClient. With Sentinel use redis.NewFailoverClient: redis.NewFailoverClusterClient returns a
// *redis.ClusterClient.
//
// # The index of the locks of jobs
//
// The index is a sorted set at the bare prefix ("joblock:"). In a cluster the index has 256 parts. A part is at the
// prefix and a tag ("joblock:{227}"), so a part is in the slot of its locks. No lock has these names, because keys are
// not empty. A member of the set has two lines: a job and a key. The member's score is the time at which the entry is
// due, in µs since 1970.
//
// One script writes the entry and binds the record to the job. There are three exceptions, in which a separate call
// writes the entry first. The first is a client that is neither a *redis.Client nor a *redis.ClusterClient. The second
// is a slot that migrates, while the old master has the index and the new master has the record, or the reverse. The
// third is a *redis.Client of a proxy in front of several servers: the proxy refuses the script (CROSSSLOT).
//
// A call that writes an entry also drops entries that have been due for a day. An entry takes some 170 bytes. The cost
// of Due depends only on the number of returned entries: 0.2 ms for 100 entries, out of 1,000 or of 100,000.
//
// # The seal keys
//
// The seal keys are a sorted set at the prefix and "%seal" ("joblock:%seal"). Package joblock reserves that name. The
// members are the keys in hexadecimal. A member's score is the time at which that key was made, in µs since 1970. A
// client that can read a seal key can forge the locks that tasks carry.
//
// # Calls
//
// Every transition is one Lua script, with two exceptions that are described below. A transition reads no clock but the
// server's. A script has one key, the record, or two keys, the record and its part of the index. Locks can be taken,
// renewed, parked and released while their slot migrates. Then a server may refuse a script with two keys (TRYAGAIN),
// and the Store uses two scripts with one key each.
//
// Two transitions need no script on Redis 8.4 or later and Valkey 8.1 or later, which have SET with IFEQ: the Acquire
// of a free key, and the Release of a lock that was not renewed, whether or not a job has it. Without a script they
// cost the server less: bench/README.md has figures. A script decides in every other case: the key has waiters or had
// them seconds ago, the lock has a memo or is a slot of several, the call is late or repeated, or the record is not the
// one that this process knows. A script also decides with [Config].Replicas, and for any client other than a
// *redis.Client.
//
// In a Cluster there are no calls without a script, because the records there are hashes. With Sentinel there are: a
// replica gets each SET with the time of its expiry, so a promoted replica derives the same times as its master. After
// its first calls the Store asks the server whether it has IFEQ. The Store asks again after a refusal, and once a
// minute while the server lacks IFEQ. [Config].ScriptsOnly switches these calls off, and [Check] says whether a server
// supports them. Processes with and without them share the same locks. Such an Acquire is a SET, a PEXPIRETIME and a
// GETRANGE in one pipeline; such a Release is a PTTL and a SET. Hooks see only the SET, unless the pipeline is shared
// with other calls.
//
//	Acquire                           one round trip
//	a batch of Take, Park             one pipeline
//	a batch of Resume                 one pipeline; one more if a reservation has run out
//	a batch of any other call         one pipeline
//	any of these, about a job         two more pipelines for the calls that got TRYAGAIN
//
// While four calls to one server (not a cluster) are under way, further calls wait and are then sent together in
// pipelines. These pipelines save most of the calls' system calls. Hooks do not see the context values of the merged
// calls.
//
// A server may not know a script: after a restart, a SCRIPT FLUSH or a fail-over. Then the Store sends the call again,
// with the script.
//
// go-redis sends a command again if the reply was lost. Scripts recognise such a call by its nonce, and answer as in
// the first run.
//
// Methods return the errors of go-redis, and the Locker turns each into ErrUnavailable. An error matches
// joblock.ErrInvalid if it is about a bad Config, a nil client or a forged List cursor, or about a value of another
// kind in the place of the index or of the seal keys.
//
// # Connections
//
// New makes two clients, with the options of the client that New is given. The two clients connect at the first call.
// The first waiter adds one connection, for the pushes to all waiters. joblock.Config.WatchForced adds another. If
// nothing comes through such a connection for 3 s, the Store sends a PING. Without an answer within 3 s the Store
// replaces the connection.
//
// In a cluster pushes go to shard channels, each of which involves only one node. The Store has one more connection to
// each node that has keys for which this process waits. A push goes to all nodes only if there is no subscriber of the
// shard channel at that moment: while a slot migrates, just after the first wait for a key of a part, or if the waiter
// has died. A server or a user without shard channels sends each push to all nodes.
//
// A SPUBLISH crashes a server of version 7.2 or later that has read a nodes.conf written by an older server. The Store
// finds such a node with CLUSTER SHARDS, and does not use its shard channels until the node has restarted.
//
// The first client is for everything but renewals. These are the differences from the application's client:
//
//   - The deadline of a context ends a call (ContextTimeoutEnabled).
//   - No connections are kept idle from the start. There is no client-side cache and no CLIENT SETINFO.
//   - Pipelines use the pool of single calls (PipelinePoolSize is -1), so PoolSize bounds all connections to a server.
//   - In a cluster this client calls only masters, and does not send COMMAND first. This client reads the topology
//     every 2 s rather than every minute, so that a fail-over does not outlast a lease.
//
// The second client is for renewals, so that other calls cannot use up its connections and cost a lease. The second
// client has the differences above. In addition, it has at most 4 connections per node, timeouts of at most 1 s, one
// attempt per dial, no re-sends (the Locker tries again itself), no Limiter and no maintenance notifications.
//
// Both clients keep OnConnect, Dialer, TLS, credentials providers and ClientName. The dialer of a Sentinel client works
// through that client: close the Store before the client.
//
// Calls also run through the hooks that a *redis.Client has when New is called. So the tracing of that client shows
// the calls. A hook that fails a command, or panics, fails the call. Hooks do not see how connections are made, nor
// what [Check] asks the servers. New cannot read the hooks of a *redis.ClusterClient, so those hooks do not see
// the calls. Hooks that ClusterOptions.NewClient adds to a node do see the calls.
//
// For any other redis.UniversalClient, a wrapper or a mock, New makes no clients: the Store sends every call through
// that client. Such a client should have ContextTimeoutEnabled. Do not wrap a *redis.ClusterClient: behind a wrapper
// locks have the names of a single server, and other processes do not see these locks. Do not keep locks in a
// *redis.Ring: when a shard goes down, its keys move to another shard, where every lock is free.
//
// # Permissions
//
// An ACL user needs the keys and channels under the prefix, and these commands:
//
//	ACL SETUSER locks reset on >password ~joblock:* resetchannels &joblock:*
//	    +eval +evalsha +time +exists +type +mget +set +del +hmget +hget +hset +hdel +pexpire +pttl
//	    +pexpiretime +getrange
//	    +zadd +zrem +zscore +zmscore +zrangebyscore
//	    +zcount +zremrangebyscore +zrevrangebyscore
//	    +publish +subscribe +unsubscribe +ping +pubsub|numsub
//	    +scan +zscan
//	    +cluster|slots +asking +spublish +ssubscribe +sunsubscribe +pubsub|shardnumsub
//	    +cluster|shards +cluster|myid
//	    +wait
//
// The first two lines of commands are for every lock, the third is for the locks of jobs, the fourth, together with the
// third, is for rate limits, and the fifth is for waiting and joblock.Config.WatchForced. PUBSUB NUMSUB is for waiters
// that have died (see Waiting in package joblock); a cluster uses PUBSUB SHARDNUMSUB instead. SCAN is for List, and
// ZSCAN is for lists of the locks of jobs. The two lines after SCAN are only for a cluster. CLUSTER SLOTS and ASKING
// are for every lock there. Without one of the other commands in these two lines, each push goes to all nodes. WAIT is
// only for Config.Replicas. The names of the channels begin with the prefix, as the names of the keys do.
//
// The Store sends no other commands, unless the options of the client ask for more: SELECT for a DB, CLIENT SETNAME
// for a ClientName. [Check] names the missing permissions. A journal, the lock server and operators also use streams:
// docs/operate.md in the repository says what they need.
//
// Do not leave out resetchannels. Channels belong to no database and obey no key pattern, and before Redis 7 a user had
// all channels by default. A message names a key that was released by force, a call that was granted, a key and the
// waiting job that has got the key, or a key whose holder must check whether a newer job has replaced its job. A
// message has no owner and no memo. Strangers who publish on the channels make processes read their own locks and ask
// for their own grants, a few times a second at most. Strangers can neither get nor end a lock in this way.
//
// # How to configure Redis
//
// [Check] looks at the servers and reports which of these are missing:
//
//   - maxmemory-policy noeviction. An evicted record is a lost lock. With noeviction a full server refuses new
//     records. The records that the server has can still be renewed, parked, resumed and released.
//   - Persistence. A server without persistence forgets at a restart who holds what. Then two processes may hold a key
//     for what is left of a lease.
//   - A clock that is not stepped. A step forward by more than a lease frees locks, and a step backward makes locks
//     last longer. If a record has expired, and the clock is then set back to before the record's last fence, the next
//     fences are smaller. If every process that may ask for a record knows of its release, the record expires seconds
//     after the release. Where fences matter and the clock may step, take locks with the option joblock.Retain.
//   - Safe replication. Replication is asynchronous: a fail-over can lose a lock that was granted, and a master that is
//     cut off from its cluster still grants locks for a while. After that, two holders may have the same key, with
//     different fences: the resource can refuse the smaller fence. The section Replicas says what more can be done.
//
// # How to move slots
//
// The slots of a cluster may be moved at any time. What happens if a master dies during a move is up to the servers.
// Redis 7 notifies no replica of a move. If the slot's old master dies, the promoted replica treats the keys that have
// moved as free, until the move is set up again. Set the move up again at once (CLUSTER SETSLOT STABLE, IMPORTING and
// MIGRATING), before anything else. Then every lock is where it was. If the slot's new master dies, calls for the keys
// that have moved fail until the move is set up again with the promoted replica.
//
// # Replicas
//
// With [Config].Replicas = n, a grant, a Park, a renewal or a job's place in the queue counts only when n replicas have
// acknowledged it (WAIT). Otherwise the call returns an error, and the outcome of the call is unknown. The Locker
// cleans up or tries again, as after any error. So while fewer than n replicas can be reached, no lock can be taken,
// and held locks are lost: the holders find out in time, and no other caller gets the locks.
//
// The gain was measured: masters were killed under load 50 times. With Replicas 1 the promoted replica had all of
// 10,160 granted locks. With Replicas 0 the promoted replica lacked 1,075 of 10,171, in 19 of the 50 fail-overs. (One
// replica, one machine, Redis 7.0: JOBLOCK_FAILOVERS=50 go test -run FailoverLosesNo ./joblock/redisstore.)
//
// Replicas does not rule out a loss: n replicas have the write, but a replica without the write may be promoted. Set n
// to the number of all replicas, or choose by replica-priority which replicas may be promoted. Set
// min-replicas-to-write as well: a master that is cut off can still get the acknowledgement of a replica that does not
// know the new master yet.
//
// The cost is one WAIT for each call, even a refused call, and one WAIT for each batch of renewals. While a slot of a
// cluster migrates, and for a moment afterwards, a call for a key that has moved goes to the old node first. Then the
// call goes to the new node, through a new connection.
package redisstore
