// Package redisstore keeps locks in Redis: on one server, with Sentinel or in a Cluster.
// It needs Redis 7.0 or Valkey 8.0, or later, on a 64-bit machine. The tests run on Redis
// 7.0 and 8.0 and on Valkey 8.0.
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	locks, err := joblock.New(redisstore.New(rdb, nil), nil)
//
// # Records
//
// A lock is one string at prefix + key. It is a text of lines, which redis-cli shows as they
// are:
//
//	jobH<fence>   H: owned; R, F, D: released, forced, done; the fence is a number that grows
//	              with every Acquire, Take, Park and Resume
//	owner         the token's owner, now or last; a secret
//	holder        label of who holds the lock, now or last
//	job           "queue/taskID" of the job that the lock is bound to
//	reason        given with the release
//	first         the fence that the present ownership began with
//	since         when the ownership began; empty if that is the same number as first
//	nonce         of the call that began the term
//	last          nonce of the last call that ended an ownership
//	the times     when the lock was last acquired, taken, parked, resumed or ended; how the
//	              ownership before ended; if owned, when the lease began, and how long the
//	              lease and the reservation are from then on
//
// Times are in µs since 1970, lengths in ms. The numbers have a fixed width: most calls find
// what they need at its place, and take three commands. A key that was used once costs some
// 230 bytes until it is forgotten.
//
// A lock that somebody waits for, or that has a memo, is a hash instead. Its field s is the
// text. The other fields are memo, and q, q<n>, w<call> and g<n> for the queue of waiters. A
// release that leaves nobody waiting, and no memo, makes the lock a string again.
//
// A fence is the last one plus 1, or the server's clock in microseconds if that is more.
// So fences go on growing after the record was forgotten, and after a restart or a fail-over
// that lost it. They do not if the clock was set back meanwhile, or if the clock of the
// promoted server is behind by more than the fail-over took. They stay below 2^53: up to
// there Lua, JSON and JavaScript are exact.
//
// Redis expires a record after its ownership, as package driver says under Retention.
//
// A value at the key that is no record is reported as foreign
// and never written to.
//
// # The index of the locks of jobs
//
// The index is a sorted set at the bare prefix ("joblock:"). No lock has that name, as
// keys are not empty. A member is a job and a key, a line each. Its score is when the entry
// is due, in µs since 1970.
//
// An entry is written before the record is bound to the job. With a *redis.Client the same
// script does both. With any other client it is a call of its own, because in a cluster the
// whole index is in one slot.
//
// An entry that has been due for a day is dropped when others are written. An entry takes
// some 170 bytes. The cost of Due depends only on how many it returns: 0.2 ms for 100
// entries, out of 1,000 or of 100,000.
//
// # The seal keys
//
// The seal keys are a sorted set at the prefix and "%seal" ("joblock:%seal"), a name that
// joblock reserves. The members are the keys in hexadecimal. The scores are when they were
// made, in µs since 1970. Whoever can read one can forge what a task carries.
//
// # Calls
//
// Every transition is one Lua script and goes by the server's clock alone. In a cluster it
// has one key: so no hash tags are needed, and locks can be taken, renewed and released while
// their slot migrates. With a second key that would fail with TRYAGAIN.
//
//	Acquire                           one round trip
//	a batch of Take, Park             one pipeline; for jobs in a cluster two
//	a batch of Resume                 one pipeline; two more if a reservation has run out
//	a batch of any other call         one pipeline
//
// While four calls to one server (not a cluster) are under way, further ones wait and go
// together in pipelines. That saves most of their system calls. Hooks do not see the context
// values of the merged calls.
//
// A server may not know a script: after a restart, a SCRIPT FLUSH or a fail-over. Then the
// call is sent again with the script.
//
// go-redis sends a command again when its reply was lost. Scripts recognise such a call by
// its nonce, and the answer is that of the first run.
//
// Errors of go-redis are returned, and the Locker makes them ErrUnavailable. An error
// matches joblock.ErrInvalid if it is about a bad Config, a nil client, a forged List cursor,
// or a value of another kind in the place of the index or the seal keys.
//
// # Connections
//
// New makes two clients with the options of the client that it is given. They connect at
// the first call. The first waiter adds one connection, for the pushes to all waiters, and
// joblock.Config.WatchForced another.
//
// One client is for everything but renewals. It differs from the application's client:
//
//   - The deadline of a context ends a call (ContextTimeoutEnabled).
//   - No connections are kept idle from the start. There is no client-side cache and no
//     CLIENT SETINFO.
//   - In a cluster it calls only masters, and does not send COMMAND first. It reads the
//     topology every 2 s rather than every minute, so that a fail-over does not outlast a
//     lease.
//
// The other client is for renewals, so that a full pool elsewhere cannot cost a lease. In
// addition it has at most 4 connections per node, timeouts of at most 1 s, one attempt per
// dial, no re-sends (the Locker tries again itself), no Limiter and no maintenance
// notifications.
//
// OnConnect, Dialer, TLS, credentials providers and ClientName stay. The dialer of a
// Sentinel client works through that client: close the Store first.
//
// Calls also run through the hooks that a *redis.Client has when New gets it. So its tracing
// shows them, and a hook that fails a command, or panics, fails the call. Hooks do not see how
// connections are made, nor what [Store.Check] asks the servers. The hooks of a
// *redis.ClusterClient cannot be read, so they do not see the calls. Those that
// ClusterOptions.NewClient adds to a node do.
//
// Any other redis.UniversalClient, a wrapper or a mock, is used itself for everything. It
// should have ContextTimeoutEnabled. Do not keep locks in a *redis.Ring: when a shard goes
// down its keys move to another, where every lock is free.
//
// # Permissions
//
// An ACL user needs the keys and channels under the prefix, and these commands:
//
//	ACL SETUSER locks reset on >password ~joblock:* resetchannels &joblock:*
//	    +eval +evalsha +time +exists +type +mget +set +del +hmget +hget +hset +hdel +pexpire +pttl
//	    +zadd +zrem +zscore +zrangebyscore
//	    +publish +subscribe +unsubscribe +ping
//	    +scan
//	    +cluster|slots +asking
//	    +wait
//
// The first line of commands is for every lock, the second for the locks of jobs, the
// third for waiting and joblock.Config.WatchForced. SCAN is for List. The last two lines
// are only for a cluster and for Config.Replicas. The channels begin with the prefix, as
// the keys do.
//
// Nothing else is sent, unless the options of the client ask for it: SELECT for a DB,
// CLIENT SETNAME for a ClientName. [Store.Check] names what is missing.
//
// Begin with resetchannels. Channels belong to no database and obey no key pattern, and
// before Redis 7 a user had all channels by default. A message says which key was released
// by force or which call was granted; it has no owner and no memo. Strangers who publish
// there make processes read their locks and ask for their grants, a few times a second at
// most. They can neither get nor end a lock.
//
// # How to configure Redis
//
// [Store.Check] looks at the servers and reports which of these are missing:
//
//   - maxmemory-policy noeviction. An evicted record is a lost lock. With noeviction a full
//     server refuses new records, and those it has can still be renewed, parked, resumed
//     and released.
//   - Persistence. Without it a restart forgets who holds what, and two may hold a key for
//     what is left of a lease.
//   - A clock that is not stepped. A step forward by more than a lease frees locks, a step
//     backward makes them last longer. If a record was forgotten, and the clock is then set
//     back to before its last fence, the next fences are smaller. Some locks are forgotten
//     seconds after their release, because nobody else can ask for them. Where fences matter
//     and the clock may step, give locks a joblock.Retain.
//   - Safe replication. It is asynchronous: a fail-over can lose a lock that was granted, and
//     a master that is cut off from its cluster goes on granting for a while. Fences still
//     differ; that is what they are for. The next section says what more can be done.
//
// # Replicas
//
// With [Config].Replicas = n a grant, a Park or a renewal counts only when n replicas have
// acknowledged it (WAIT). Otherwise the call is an error and its outcome unknown; the Locker
// cleans up or tries again, as after any error. So while fewer than n replicas can be
// reached, no lock can be taken, and held locks are lost: their holders are told in time,
// and nobody else gets them.
//
// What it gains: masters were killed under load 50 times. With Replicas 1 the promoted
// replica had all of 10,160 granted locks. Without, it lacked 1,075 of 10,171, in 19 of
// the 50 fail-overs. (One replica, one machine, Redis 7.0: JOBLOCK_FAILOVERS=50 go test
// -run FailoverLosesNo ./joblock/redisstore.)
//
// What it does not prove: n replicas have the write, but another one may be promoted. Set n
// to all replicas, or choose those that may be promoted (replica-priority). Set
// min-replicas-to-write as well: a master that is cut off can still count a replica that has
// not been told of the new master.
//
// What it costs: one WAIT for each call, refusals too, and for each batch of renewals. While
// a slot of a cluster migrates, and for a moment afterwards, a call for a key that has moved
// goes to the old node first. Then it goes to the new one, through a new connection.
package redisstore
