// Package redisstore is the joblock.Store on Redis: one server, Sentinel or
// Cluster, from Redis 6.2 on, and 64-bit servers that speak like it.
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
//	ended    "", "released" or "forced"; lapsed is not written but follows from until
//	owner    token chain that owns the key, or was the last to; a secret
//	nonce    the last call that changed the owner, the fence or the end
//	last     the last call that ended an ownership
//	holder   label of who holds it, or held it last
//	job      "queue/taskID" that it is bound to
//	reason   given with the release
//	since    ms since 1970 at which the owner acquired it
//
// Eleven fields would be plainer, and make every call half as slow again: all of
// the state is read and most of it is written each time. The field memo is what
// was left for the next owner. The fields q, q<n> and w<call> are the queue of
// those who wait, and only there while somebody does.
//
// A fence is the greater of the previous one plus 1 and the server's clock in
// microseconds. So fences go on growing after the record was forgotten, after a
// restart without persistence, and after a fail-over that lost the record,
// unless the clock of the promoted server is behind by more than the fail-over
// took. They stay below 2^53, which Lua, JSON and JavaScript keep exactly.
//
// A record outlives its ownership by the Retain of the last call, then Redis
// expires it. A value of another kind at the key, or a hash without a proper
// fence, is reported as foreign and never written to.
//
// # Calls
//
// Every transition is one Lua script on that one key, and all time is the
// server's. One key per script means that no hash tags are needed, and that
// locks can be taken, renewed and released while their slot migrates, when a
// second key would fail with TRYAGAIN. Acquire, Park and Resume take one round
// trip, a batch of renewals, releases or looks takes one pipeline. A server that
// does not know a script, after a restart, SCRIPT FLUSH or a fail-over, is sent
// it along with the call.
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
// the pushes to all.
//
//   - One for everything but renewals. Differences: deadlines of a context end a
//     call (ContextTimeoutEnabled), no connections are kept idle from the start,
//     no client-side cache, and in a cluster only masters are asked and the
//     topology is looked at every 2 s at the latest, not every minute, so that a
//     fail-over does not outlast a lease.
//   - One for renewals: at most 4 connections per node, timeouts of at most 1 s,
//     one attempt per dial, no re-sends (the Locker tries again itself), no
//     Limiter and no maintenance notifications. Whatever fills the other pools
//     cannot cost a lease.
//
// Hooks cannot be read back from a client and are not taken over: tracing of the
// application's client does not show these calls. OnConnect, Dialer, TLS,
// credentials providers and ClientName are. The dialer of a Sentinel client
// works through that client: close the Store first.
//
// Any other redis.UniversalClient, a wrapper or a mock, is used as it is for
// everything; such a client should have ContextTimeoutEnabled. That goes for
// *redis.Ring too, but do not keep locks in a Ring: when a shard goes down it
// moves the keys to another, where every lock is free.
//
// # Permissions
//
// An ACL user needs the keys and channels under the prefix and
//
//	+eval +evalsha +time +exists +hmget +hget +hset +hdel +pexpire +pttl
//	+publish +subscribe +unsubscribe +ping +scan
//
// and in a cluster +cluster|slots (before Redis 7: +cluster) +asking. SCAN is only
// for List, the last line but SCAN for waiting.
//
// # What Redis has to be told
//
//   - maxmemory-policy noeviction: an evicted record is a lost lock. A full
//     server then refuses new records; those it has can still be renewed, parked,
//     resumed and released.
//   - Persistence, or the patience of a lease after a crash: without it a restart
//     forgets who holds what.
//   - A clock that is not stepped. Forward by more than a lease frees locks,
//     backward makes them last longer.
//   - Replication is asynchronous: a fail-over can lose a lock that was granted,
//     and a master cut off from its cluster goes on granting for a while. Fences
//     still differ; that is what they are for.
package redisstore
