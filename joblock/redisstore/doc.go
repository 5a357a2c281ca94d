// Package redisstore is the driver.Store on Redis: one server, Sentinel or
// Cluster, Redis 7.0 or later or Valkey 8.0 or later, on 64-bit machines. The tests
// run on Redis 7.0 and 8.0 and on Valkey 8.0.
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	locks, err := joblock.New(redisstore.New(rdb, nil), nil)
//
// # Records
//
// All there is to a lock is one hash at prefix + key. Its field s is the state, a
// line each, readable in redis-cli:
//
//	fence    integer that grows with every Acquire, Park and Resume
//	lease    ms since 1970 until which somebody runs; 0: nobody does
//	until    ms since 1970 until which the key is reserved
//	since    ms since 1970 at which the owner acquired it
//	ended    "", "released", "forced" or "done"; lapsed is not written but follows from until
//	owner    token chain that owns the key, or was the last to; a secret
//	nonce    the last call that changed the owner, the fence or the end
//	last     the last call that ended an ownership
//	prior    how the ownership before ended: "", "released", "forced", "lapsed" or "done"
//	holder   label of who holds it, or held it last
//	job      "queue/taskID" that it is bound to
//	reason   given with the release
//
// Twelve fields would be plainer, and make every call half as slow again: all of
// the state is read and most of it is written each time. The field memo is what
// was left for the next owner; it is read only for those who ask. The fields q, q<n>, w<call> and g<n> are the queue of
// those who wait, and only there while somebody does.
//
// A fence is the greater of the previous one plus 1 and the server's clock in
// microseconds. So fences go on growing after the record was forgotten, after a
// restart without persistence, and after a fail-over that lost the record,
// unless the clock was set back since, or that of the promoted server is behind by more
// than the fail-over took. They stay below 2^53, which Lua, JSON and JavaScript keep exactly.
//
// A record outlives its ownership by the Retain of the last call, or by its Brief if
// that is enough, then Redis expires it. One with a memo is not expired sooner for a release. So what keys cost that are used once goes by
// their rate: some 400 bytes each for as long as they are remembered. A value of another kind at the key, or a hash without a proper
// fence, is reported as foreign and never written to.
//
// # The index of the locks of jobs
//
// A sorted set at the bare prefix ("joblock:"), which is no lock's name, as keys are
// not empty. A member is a job and a key, a line each, its score the µs since 1970
// at which the lock is to be looked at next. An entry is written before the record
// is bound to the job: by the same script on one server; by a call before it in a
// cluster, where all of the index is in one slot, and through clients that are not
// go-redis' own. It is taken out by Forget, so it also has locks that have ended;
// what nobody looks at for a day after it was due goes as others come. An entry
// takes some 170 bytes. What Due costs goes by what is due: 0.2 ms for 100 entries,
// among 1,000 as among 100,000.
//
// # The seal keys
//
// A sorted set at the prefix and "%seal" ("joblock:%seal"), a name that joblock reserves.
// Its members are the keys, in hexadecimal, with which packages handoff and worker seal
// what tasks carry, its scores the µs since 1970 at which they were made. Mostly it has
// one; it does not expire. Who may read it can forge what a task carries.
//
// # Calls
//
// Every transition is one Lua script on that one key, and all time is the
// server's. One key per script means that no hash tags are needed, and that
// locks can be taken, renewed and released while their slot migrates, when a
// second key would fail with TRYAGAIN. Acquire, Park and Resume take one round
// trip (Park for a job in a cluster two), a batch of renewals, releases, reservations
// or looks takes one pipeline. Against one server (not a cluster), the calls of
// goroutines that come while four are under way go together in one pipeline, too,
// which is most of their system calls saved; such a call does not see the values of
// its context in hooks. A server that does not know a script, after a restart, SCRIPT
// FLUSH or a fail-over, is sent it along with the call.
//
// Scripts recognise a call that arrives again by its nonce, as go-redis sends
// commands again when a reply is lost: the answer is that of the first run.
//
// Errors of go-redis are returned as they are; the Locker makes ErrUnavailable
// of them. Only a bad Config, a nil client and a forged List cursor are
// joblock.ErrInvalid here.
//
// # Connections
//
// New makes two clients with the options of the one that it is given, and opens
// no connection before the first call. The first waiter adds one connection, for
// the pushes to all, and joblock.Config.WatchForced another.
//
//   - One for everything but renewals. Differences: deadlines of a context end a
//     call (ContextTimeoutEnabled), no connections are kept idle from the start,
//     no client-side cache, no CLIENT SETINFO, and in a cluster only masters are
//     asked, without COMMAND in front, and the topology is looked at every 2 s at
//     the latest, not every minute, so that a fail-over does not outlast a lease.
//   - One for renewals: at most 4 connections per node, timeouts of at most 1 s,
//     one attempt per dial, no re-sends (the Locker tries again itself), no
//     Limiter and no maintenance notifications. Whatever fills the other pools
//     cannot cost a lease.
//
// OnConnect, Dialer, TLS, credentials providers and ClientName stay. The dialer of a
// Sentinel client works through that client: close the Store first.
//
// Calls also run through the hooks that a *redis.Client has when it is given to New, so
// its tracing shows them; a hook that fails a command fails the call. Hooks do not see
// connections being made, nor what Check asks the servers. The hooks of a
// *redis.ClusterClient cannot be had from it; those that ClusterOptions.NewClient adds to
// a node see the calls.
//
// Any other redis.UniversalClient, a wrapper or a mock, is used as it is for
// everything; such a client should have ContextTimeoutEnabled. That goes for
// *redis.Ring too, but do not keep locks in a Ring: when a shard goes down it
// moves the keys to another, where every lock is free.
//
// # Permissions
//
// An ACL user needs the keys and channels under the prefix, and these commands:
//
//	ACL SETUSER locks reset on >password ~joblock:* resetchannels &joblock:*
//	    +eval +evalsha +time +exists +type +hmget +hget +hset +hdel +hexists +pexpire +pttl
//	    +zadd +zrem +zscore +zrangebyscore
//	    +publish +subscribe +unsubscribe +ping
//	    +scan
//	    +cluster|slots +asking
//	    +wait
//
// The first line of commands is for every lock, the second for the locks of jobs, the third
// for waiting and joblock.Config.WatchForced, and SCAN is for List. The last two are for a
// cluster and for Config.Replicas, and not needed without. The channels begin with the
// prefix, as the keys do.
//
// Nothing else is sent, save what the options of the client ask for: SELECT for a DB,
// CLIENT SETNAME for a ClientName. [Store.Check] names what is missing.
//
// Begin with resetchannels: before Redis 7 a user has all channels unless told
// otherwise, and publishing knows neither databases nor key patterns. What is
// published tells which keys are forced away and which call was granted, and no owner
// token and no memo. Whoever else publishes there makes processes look at their locks
// and ask for their grants, a few times a second at the most, and gets or ends none.
//
// # What Redis has to be told
//
// [Store.Check] looks at the servers and says what of this is missing:
//
//   - maxmemory-policy noeviction: an evicted record is a lost lock. A full
//     server then refuses new records; those it has can still be renewed, parked,
//     resumed and released.
//   - Persistence, or the patience of a lease after a crash: without it a restart
//     forgets who holds what.
//   - A clock that is not stepped. Forward by more than a lease frees locks,
//     backward makes them last longer. If a record was forgotten, and then the clock is
//     set back to before its last fence, the key's next fences are smaller than those
//     were: a lock that nobody else could ask for is forgotten seconds after its release.
//     Where fences matter and clocks are not slewed, give its locks a joblock.Retain.
//   - Replication is asynchronous: a fail-over can lose a lock that was granted,
//     and a master cut off from its cluster goes on granting for a while. Fences
//     still differ; that is what they are for. See below for what can be done.
//
// # Replicas
//
// With [Config].Replicas = n a grant, a Park or a renewal counts only once n
// replicas have acknowledged it (WAIT); otherwise the call is an error whose outcome
// is unknown, and is cleaned up or tried again like any other. So when n replicas cannot be reached no lock is to
// be had, and those that are held are lost: told in time, and free for nobody.
//
// What it is worth: over 50 fail-overs induced by killing the master under load, of
// 10,160 locks granted with Replicas 1 the promoted replica lacked none; without, it
// lacked 1,075 of 10,171, in 19 of the fail-overs (one replica, one machine, Redis
// 7.0; JOBLOCK_FAILOVERS=50 go test -run FailoverLosesNo ./joblock/redisstore).
//
// What it is not worth: WAIT proves that n replicas have a write, not that one of
// them is the one to be promoted. Set n to all replicas, or choose those that may be
// promoted (replica-priority), and set min-replicas-to-write, for a master that is
// cut off can still count a replica that has not been told of the new one.
//
// What it costs: the round trip to the replicas, refusals included, with one WAIT for
// each call and for each batch of renewals. While a slot of a cluster migrates, and for a moment afterwards, a call for a
// key that has moved goes to the old node and then, through a connection made for it,
// to the new one.
package redisstore
