// Package redisstore keeps locks in Redis: on one server, with Sentinel or in a Cluster.
// It needs Redis 7.0 or Valkey 8.0, or later, on a 64-bit machine. The tests run on Redis
// 7.0 and 8.0 and on Valkey 8.0.
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	locks, err := joblock.New(redisstore.New(rdb, nil), nil)
//
// # Records
//
// A lock is one hash at prefix + key. Its field s is the state, one line each, which
// redis-cli shows as they are:
//
//	fence    a number that grows with every Acquire, Park and Resume
//	lease    ms since 1970: until when somebody runs; 0: nobody does
//	until    ms since 1970: until when the key is reserved
//	first    the fence that the present ownership began with
//	since    ms since 1970: when it began
//	changed  ms since 1970: the last Acquire, Park, Resume or Release
//	ended    "", "released", "forced" or "done"; lapsed is not written but follows from until
//	owner    the token's owner, now or last; a secret
//	nonce    the last call that changed the owner, the fence or the end
//	last     the last call that ended an ownership
//	prior    how the ownership before ended: "", "released", "forced", "lapsed" or "done"
//	holder   label of who holds it, now or last
//	job      "queue/taskID" of the job that it is bound to
//	reason   given with the release
//
// As a field each, they would make every call half as slow again: all of them are read,
// and most are written, every time. The other fields are memo, which is what was left for
// the next owner, and q, q<n>, w<call> and g<n>, the queue of waiters while there is one.
//
// A fence is the last one plus 1, or the server's clock in microseconds if that is more.
// So fences go on growing when the record was forgotten, after a restart without
// persistence, and after a fail-over that lost the record. They do not if the clock was
// set back meanwhile, or if the clock of the promoted server is behind by more than the
// fail-over took. They stay below 2^53, up to where Lua, JSON and JavaScript are exact.
//
// Redis expires a record when its ownership has been over for the Retain of the last call,
// or for its Brief if that is enough. A release never makes a memo expire sooner. So keys
// that are used once cost some 400 bytes each for as long as they are remembered.
//
// A value of another kind at the key, or a hash that is no record, is reported as foreign
// and never written to.
//
// # The index of the locks of jobs
//
// The index is a sorted set at the bare prefix ("joblock:"). No lock has that name, as
// keys are not empty. A member is a job and a key, a line each. Its score is when the lock
// is due to be looked at, in µs since 1970.
//
// An entry is written before the record is bound to the job. On one server the same
// script does both. In a cluster, where all of the index is in one slot, and through
// clients that are not go-redis' own, it takes a call of its own before.
//
// Forget takes an entry out, so locks that have ended are in the index as well. Entries
// that nobody looks at within a day go as others come. An entry takes some 170 bytes. The
// cost of Due depends on how much is due: 0.2 ms for 100 entries, out of 1,000 as well as
// out of 100,000.
//
// # The seal keys
//
// The seal keys are a sorted set at the prefix and "%seal" ("joblock:%seal"), a name that
// joblock reserves. Packages handoff and worker seal with them what tasks carry. The
// members are the keys in hexadecimal, the scores when they were made, in µs since 1970.
// Usually there is one. They do not expire. Whoever can read one can forge what a task
// carries.
//
// # Calls
//
// Every transition is one Lua script on that one key, and goes by the server's clock
// alone. With one key per script no hash tags are needed, and locks can be taken, renewed
// and released while their slot migrates. With a second key that would fail with TRYAGAIN.
//
//	Acquire, Park, Resume                         one round trip; Park for a job in a cluster two
//	a batch of Renew, Release, Reserve, Inspect   one pipeline
//
// When four calls to one server (not a cluster) are under way, further ones go together
// in pipelines. That saves most of their system calls. Hooks do not see the values of the
// context of such a call.
//
// A server may not know a script: after a restart, a SCRIPT FLUSH or a fail-over. Then the
// call is sent again with the script.
//
// go-redis sends a command again when its reply was lost. Scripts recognise such a call by
// its nonce, and the answer is that of the first run.
//
// Errors of go-redis are returned as they are, and the Locker makes ErrUnavailable of
// them. The errors of this package that match joblock.ErrInvalid are about a bad Config, a
// nil client, a forged List cursor, and values of other kinds in the place of the index or
// the seal keys.
//
// # Connections
//
// New makes two clients with the options of the one that it is given. They connect at the
// first call. The first waiter adds one connection, for the pushes to all waiters, and
// joblock.Config.WatchForced another.
//
// One client is for all but renewals. It differs from the application's in this:
//
//   - The deadline of a context ends a call (ContextTimeoutEnabled).
//   - No connections are kept idle from the start. There is no client-side cache and no
//     CLIENT SETINFO.
//   - In a cluster only masters are asked, without COMMAND in front. The topology is read
//     again every 2 s rather than every minute, so that a fail-over does not outlast a
//     lease.
//
// The other client is for renewals, so that whatever fills other pools cannot cost a
// lease. It has at most 4 connections per node, timeouts of at most 1 s, one attempt per
// dial, no re-sends (the Locker tries again itself), no Limiter and no maintenance
// notifications.
//
// OnConnect, Dialer, TLS, credentials providers and ClientName stay. The dialer of a
// Sentinel client works through that client: close the Store first.
//
// Calls also run through the hooks that a *redis.Client has when it is given to New, so
// its tracing shows them, and a hook that fails a command fails the call. Hooks do not see
// how connections are made, nor what [Store.Check] asks the servers. The hooks of a
// *redis.ClusterClient cannot be read back from it; those that ClusterOptions.NewClient
// adds to a node do see the calls.
//
// Any other redis.UniversalClient, a wrapper or a mock, is used as it is for everything.
// It should have ContextTimeoutEnabled. This is so for *redis.Ring too, but do not keep
// locks in a Ring: when a shard goes down its keys move to another, where every lock is
// free.
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
// The first line of commands is for every lock, the second for the locks of jobs, the
// third for waiting and joblock.Config.WatchForced. SCAN is for List. The last two lines
// are only for a cluster and for Config.Replicas. The channels begin with the prefix, as
// the keys do.
//
// Nothing else is sent, unless the options of the client ask for it: SELECT for a DB,
// CLIENT SETNAME for a ClientName. [Store.Check] names what is missing.
//
// Begin with resetchannels. Publishing knows neither databases nor key patterns, and
// before Redis 7 a user had all channels unless told otherwise. A message tells which key
// was forced away or which call was granted; it has no owner and no memo. Strangers who
// publish there make processes read their locks and ask for their grants, a few times a
// second at most. They neither get nor end a lock.
//
// # What Redis has to be told
//
// [Store.Check] looks at the servers and says what of this is missing:
//
//   - maxmemory-policy noeviction. An evicted record is a lost lock. With noeviction a full
//     server refuses new records, and those it has can still be renewed, parked, resumed
//     and released.
//   - Persistence. Without it a restart forgets who holds what, and two may hold a key for
//     what is left of a lease.
//   - A clock that is not stepped. A step forward by more than a lease frees locks, a step
//     backward makes them last longer. If a record was forgotten and the clock is then set
//     back to before its last fence, the next fences are smaller than that. A lock that
//     nobody else can ask for is forgotten seconds after its release: where fences matter
//     and the clock may step, give its locks a joblock.Retain.
//   - Replication is asynchronous. A fail-over can lose a lock that was granted, and a
//     master that is cut off from its cluster goes on granting for a while. Fences still
//     differ; that is what they are for. The next section says what more can be done.
//
// # Replicas
//
// With [Config].Replicas = n a grant, a Park or a renewal counts only when n replicas have
// acknowledged it (WAIT). Otherwise the call is an error whose outcome is unknown, and is
// cleaned up or tried again like any other. So while n replicas cannot be reached no lock
// can be taken, and those that are held are lost: their holders are told in time, and
// nobody else gets them.
//
// What it is worth: masters were killed under load 50 times. With Replicas 1 the promoted
// replica had all of 10,160 granted locks. Without, it lacked 1,075 of 10,171, in 19 of
// the 50 fail-overs. (One replica, one machine, Redis 7.0: JOBLOCK_FAILOVERS=50 go test
// -run FailoverLosesNo ./joblock/redisstore.)
//
// What it is not worth: WAIT proves that n replicas have a write, not that one of them is
// the one to be promoted. Set n to all replicas, or choose those that may be promoted
// (replica-priority). Set min-replicas-to-write as well: a master that is cut off can still
// count a replica that has not been told of the new master.
//
// What it costs: every call waits for the replicas, refusals too, with one WAIT for each
// call and for each batch of renewals. While a slot of a cluster migrates, and for a moment
// afterwards, a call for a key that has moved goes to the old node first. Then it goes to
// the new one, through a connection made for it.
package redisstore
