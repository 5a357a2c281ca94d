package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

const maxPrefixBytes = 64

// Config configures a store. The zero value of each field means its default.
type Config struct {
	// Prefix stands before every key in Redis. A prefix is printable UTF-8 of at most 64 bytes. In a cluster, it must not
	// contain braces. Stores with different prefixes do not see each other's locks, with one exception. If one prefix begins
	// with the other, List of the Store with the shorter prefix shows the locks of both, except in a cluster. Default:
	// "joblock:".
	Prefix string

	// Replicas is how many replicas have to acknowledge a grant, a Park or a renewal before the call succeeds: from 0,
	// the default, to 16. More than 0 needs a *redis.Client or a *redis.ClusterClient. The section Replicas of the
	// package comment says what replicas protect from and what they cost.
	Replicas int

	// ReplicaTimeout is how long a call waits for the replicas: from 1 ms to 500 ms. Fractions of a millisecond are cut
	// off. Default: 200 ms.
	ReplicaTimeout time.Duration

	// ScriptsOnly makes every call run a script, also on servers on which some calls need none: see Calls in the package
	// comment. Nothing but the cost changes.
	ScriptsOnly bool
}

// store is the driver.Store of New.
type store struct {
	prefix string

	app   redis.UniversalClient // what New was given
	ops   redis.UniversalClient // for everything but renewals; may retry a call
	renew redis.UniversalClient // for renewals; never retries a call
	owned bool                  // New has made ops and renew

	calls, renewals *merger // calls sends to ops, renewals sends to renew: both through the application's hooks

	places  []string // what stands before the keys of each part: see the function places
	joint   bool     // all keys of a part are on one server
	hashes  bool     // there may be a cluster: records are hashes from the beginning
	sharded bool     // pushes go to shard channels

	proofs   proofs
	inboxes  inboxes
	shards   shardInboxes
	crossed  atomic.Bool // a server has refused a script because its keys are in different slots
	passesOn atomic.Bool // a release of this Store has granted a key to a waiter

	native native

	replicas       int
	replicaTimeout time.Duration
}

var _ driver.Store = (*store)(nil)

// New returns a store in the Redis that rdb talks to. The store is safe for concurrent use. A nil cfg means the defaults.
// New sends nothing. For a nil rdb or a bad cfg the error is joblock.ErrInvalid.
//
// For a *redis.Client or a *redis.ClusterClient the store opens connections of its own, which Close closes. The options
// of these connections are those of rdb, with the differences in the section Connections of the package comment. For
// any other implementation the store opens no connections, and sends its calls through rdb.
//
// The Close of a Locker closes its store.
func New(rdb redis.UniversalClient, cfg *Config) (driver.Store, error) {
	s, err := newStore(rdb, cfg)
	if err != nil {
		return nil, err // not a nil *store
	}
	return s, nil
}

func newStore(rdb redis.UniversalClient, cfg *Config) (*store, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	s := &store{
		prefix:         cmp.Or(cfg.Prefix, keyspace.DefaultPrefix),
		replicas:       cfg.Replicas,
		replicaTimeout: cmp.Or(cfg.ReplicaTimeout, defaultReplicaTimeout),
		app:            rdb,
	}
	if err := s.validate(); err != nil {
		return nil, err
	}
	s.ops, s.renew, s.owned = ownClients(rdb)
	if s.replicas > 0 && !s.owned {
		return nil, invalid("Config.Replicas needs a *redis.Client or a *redis.ClusterClient, not a %T", rdb)
	}
	_, one := rdb.(*redis.Client)
	s.places, s.joint, s.hashes = places(s.prefix, tagged(rdb)), one || tagged(rdb), !one
	_, s.sharded = rdb.(*redis.ClusterClient)
	s.native.off = cfg.ScriptsOnly || !one || s.replicas > 0
	s.calls, s.renewals = newMerger(s.ops, hooked(rdb, s.ops)), unmerged(s.renew, hooked(rdb, s.renew))
	return s, nil
}

// validate reports what New cannot use. Nothing is open yet.
func (s *store) validate() error {
	switch {
	case isNil(s.app):
		return invalid("redis client is nil")
	case len(s.prefix) > maxPrefixBytes:
		return invalid("Config.Prefix has %d bytes, at most %d are allowed", len(s.prefix), maxPrefixBytes)
	case !printable(s.prefix):
		return invalid("Config.Prefix %q is not printable UTF-8", s.prefix)
	case tagged(s.app) && strings.ContainsAny(s.prefix, "{}"):
		return invalid("Config.Prefix %q has a brace: in a cluster braces enclose the hash tag, which follows the prefix", s.prefix)
	case s.replicas < 0 || s.replicas > maxReplicas:
		return invalid("Config.Replicas is %d, must be from 0 to %d", s.replicas, maxReplicas)
	case s.replicaTimeout < time.Millisecond || s.replicaTimeout > maxReplicaTimeout:
		return invalid("Config.ReplicaTimeout is %s, must be from 1ms to %s", s.replicaTimeout, maxReplicaTimeout)
	}
	return nil
}

// Close closes the connections that the Store has opened, but not the client that New was given. If the Store has
// opened connections, calls under way and later calls fail. A second Close returns nil.
func (s *store) Close() error {
	s.proofs.close()
	if !s.owned {
		return nil
	}
	err := errors.Join(s.ops.Close(), s.renew.Close())
	if errors.Is(err, redis.ErrClosed) { // closed before
		return nil
	}
	return err
}

// Acquire implements driver.Store, in one round trip. If the key is free and more than a hundred dead waiters are first
// in the key's queue, each further hundred dead waiters take one more round trip.
func (s *store) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	if reply, done, err := s.acquireNative(ctx, &req); done {
		return reply, err
	}
	for {
		c := acquireCall(s, &req)
		reply, err := s.one(ctx, acquireScript, c)
		if reply.Outcome == driver.OutcomeOK && reply.Lease == 0 { // of the stage fast grant
			reply.Lease = req.TTL + time.Millisecond // as in the record, where the lease is rounded up
			reply.Hint = s.acquireHint(&req, &reply)
		}
		if reply.Outcome == driver.OutcomeHeld && req.Inbox != "" {
			s.native.wait(req.Key)
		}
		if err != errMore {
			return reply, err
		}
		if err := ctx.Err(); err != nil {
			return driver.Reply{}, err
		}
	}
}

func acquireCall(s *store, req *driver.AcquireRequest) *scriptCall {
	// The call has the key and three parts of the record as arguments. One text for all four takes one allocation.
	var ttl [periodBytes]byte
	fill(ttl[:], max(1, millis(req.TTL)))
	place := s.index(s.part(req.Key))
	text := place + req.Key +
		"\n" + req.Owner + "\n" + req.Holder + "\n\n\n" + "\n\n" + req.Nonce + "\n" + string(ttl[:]) + string(ttl[:])
	key := len(place) + len(req.Key)
	times := len(text) - 2*periodBytes
	nonce := times - len(req.Nonce) - len("\n\n\n")
	life := millis(req.TTL) + 1 + millis(req.Retain) // the lease is rounded up by 1 ms
	c := newCall(acquireScript, text[:key]).int(life).str(text[key:nonce]).str(text[nonce:times]).str(text[times:])
	switch {
	case s.hashes && req.Memo:
		c.str("1h")
	case s.hashes:
		c.str("0h")
	case req.Memo || req.Inbox != "" || !fastNonce(req.Nonce):
		c.flag(req.Memo)
	}
	if req.Inbox != "" {
		address := s.inPart(req.Key, s.address(req.Inbox))
		if s.sharded && s.shards.want(req.Inbox, s.part(req.Key), req.Patience) {
			address = sure(address)
		}
		c.str(address).millis(req.Patience)
	}
	return c
}

// nonceBytes is the length of the nonces that package joblock makes. For these the scripts have faster stages, whose names
// begin with "fast".
const nonceBytes = 13

// fastNonce reports whether the scripts have faster stages for a nonce.
func fastNonce(nonce string) bool { return len(nonce) == nonceBytes }

// Take implements driver.Store, in one pipeline. In three cases there are up to two more pipelines, for the index: while a
// slot of a cluster migrates, behind a proxy of several servers, and if the client is neither a *redis.Client nor a
// *redis.ClusterClient. If a key is free and more than a hundred dead waiters are first in the key's queue, each further
// hundred dead waiters take one more pipeline.
func (s *store) Take(ctx context.Context, reqs []driver.TakeRequest) ([]driver.Reply, error) {
	replies := make([]driver.Reply, len(reqs))
	var err error
	for items := all(reqs); len(items) > 0; {
		left, failed := bindSome(ctx, s, takeScript, reqs, items, replies, func(req *driver.TakeRequest) binding {
			return binding{req.Key, req.Job, req.Grace}
		}, func(req *driver.TakeRequest, keys ...string) *scriptCall {
			c := newCall(takeScript, keys...).str(req.Owner).str(req.Nonce).
				str(wide(req.Reserve)).millis(req.Retain).str(req.Holder).str(req.Job).micros(req.Grace)
			if s.hashes {
				c.str("h")
			}
			if req.Patience > 0 {
				if !s.hashes {
					c.str("")
				}
				c.millis(req.Patience).int(int64(max(0, req.Most))).str(s.jobs())
			}
			return c
		})
		if failed == nil && len(left) > 0 {
			failed = ctx.Err()
		}
		if err = firstError(err, failed); ctx.Err() != nil {
			break
		}
		items = left
	}
	return replies, err
}

// all returns the indexes of reqs.
func all[R any](reqs []R) []int {
	items := make([]int, len(reqs))
	for i := range items {
		items[i] = i
	}
	return items
}

// Resume implements driver.Store, in one pipeline. Items with Unpark and a Back take a pipeline of their own. Items that
// recover a job's lock take one more pipeline afterwards. In the cases that Take names, there are up to two more
// pipelines for each of these.
func (s *store) Resume(ctx context.Context, reqs []driver.ResumeRequest) ([]driver.Reply, error) {
	replies := make([]driver.Reply, len(reqs))
	call := func(listed bool) func(req *driver.ResumeRequest, keys ...string) *scriptCall {
		return func(req *driver.ResumeRequest, keys ...string) *scriptCall { return resumeCall(req, listed, keys...) }
	}
	var items, back []int
	for i, req := range reqs {
		if req.Unpark && req.Back != "" {
			back = append(back, i)
		} else {
			items = append(items, i)
		}
	}
	_, err := bindSome(ctx, s, resumeScript, reqs, back, replies, func(req *driver.ResumeRequest) binding {
		return binding{req.Key, req.Back, req.Grace}
	}, call(true))
	unlisted, _, failed := some(ctx, s, s.calls, resumeScript, reqs, items, replies, func(req *driver.ResumeRequest) *scriptCall {
		return call(false)(req, s.name(req.Key))
	})
	err = firstError(err, failed)
	_, failed = bindSome(ctx, s, resumeScript, reqs, unlisted, replies, func(req *driver.ResumeRequest) binding {
		return binding{req.Key, req.Job, req.Grace}
	}, call(true))
	for i := range replies {
		replies[i].Hint = s.resumeHint(&reqs[i], &replies[i])
	}
	return replies, firstError(err, failed)
}

// resumeCall makes the call. If listed is true, there is an entry of the index, or the script writes one.
func resumeCall(req *driver.ResumeRequest, listed bool, keys ...string) *scriptCall {
	var times [2 * periodBytes]byte
	ttl := max(1, millis(req.TTL))
	reserve := ttl + millis(req.Reserve)
	fill(times[:periodBytes], ttl)
	fill(times[periodBytes:], reserve)
	text := "\n" + req.Owner + "\n" + req.Holder + "\n" + req.Job + "\n\n" + req.Nonce + string(times[:]) // one allocation
	next := func(n int) (part string) {
		part, text = text[:n], text[n:]
		return part
	}
	life := reserve + 1 + max(1, millis(req.Retain)) // the lease is rounded up by 1 ms
	c := newCall(resumeScript, keys...).str(next(len(req.Owner) + 2)).str(next(len(req.Holder))).str(next(len(req.Job) + 3)).
		str(next(len(req.Nonce))).str(text).int(life).int(req.Fence)
	if req.Memo || listed || req.Unpark || req.Job == "" || !fastNonce(req.Nonce) {
		how := "0"
		if req.Memo {
			how = "1"
		}
		if listed || req.Unpark {
			how += strconv.FormatInt(max(0, req.Grace.Microseconds()), 10)
		}
		c.str(how)
	}
	if req.Unpark {
		c.str(req.Back)
	}
	return c
}

// Park implements driver.Store, in one pipeline. In the cases that Take names, there are up to two more pipelines.
func (s *store) Park(ctx context.Context, reqs []driver.ParkRequest) ([]driver.Reply, error) {
	replies := make([]driver.Reply, len(reqs))
	_, err := bindSome(ctx, s, parkScript, reqs, all(reqs), replies, func(req *driver.ParkRequest) binding {
		return binding{req.Key, req.Job, req.Grace}
	}, func(req *driver.ParkRequest, keys ...string) *scriptCall {
		return newCall(parkScript, keys...).term(&req.Term).
			str(req.Nonce).str(wide(req.Reserve)).millis(req.Retain).str(req.Job).micros(req.Grace)
	})
	return replies, err
}

// Renew implements driver.Store, in one pipeline, on the connections for renewals.
func (s *store) Renew(ctx context.Context, reqs []driver.RenewRequest) ([]driver.Reply, error) {
	replies, _, err := batch(ctx, s, s.renewals, renewScript, reqs, func(req *driver.RenewRequest) *scriptCall {
		c := newCall(renewScript, s.name(req.Key)).term(&req.Term).
			str(wide(req.TTL)).millis(req.Retain).millisOrZero(req.Reserve)
		if req.Grant != "" {
			c.str(req.Back)
		}
		if req.Memo != nil {
			c.add(req.Memo)
		}
		return c
	})
	return replies, err
}

// Release implements driver.Store, in one pipeline. If more than a hundred dead waiters are first in a key's queue,
// each further hundred dead waiters take one more pipeline.
func (s *store) Release(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
	if len(reqs) == 1 {
		if reply, done, err := s.releaseNative(ctx, &reqs[0]); done {
			return []driver.Reply{reply}, err
		}
	}
	listener := s.listener()
	call := func(req *driver.ReleaseRequest) *scriptCall { return s.releaseCall(req, listener) }
	for i := range reqs {
		if _, slot := driver.LineOf(reqs[i].Key); slot {
			return s.releaseSlots(ctx, reqs, call)
		}
	}
	replies, unfinished, err := batch(ctx, s, s.calls, releaseScript, reqs, call)
	s.finishReleases(ctx, releaseScript, reqs, unfinished, replies)
	if len(reqs) == 1 {
		s.native.releasedByScript(&reqs[0], &replies[0])
	}
	return replies, err
}

// releaseSlots is Release for a batch that has slots of sequences. These slots are released in a pipeline of their own,
// because their script has three keys: while the hash slot of a key migrates in a cluster, and behind a proxy of
// several servers, the server may refuse it. Such a refusal changes nothing, and is an error.
func (s *store) releaseSlots(ctx context.Context, reqs []driver.ReleaseRequest, call func(*driver.ReleaseRequest) *scriptCall) ([]driver.Reply, error) {
	var keys, slots []int
	for i := range reqs {
		if _, slot := driver.LineOf(reqs[i].Key); slot {
			slots = append(slots, i)
		} else {
			keys = append(keys, i)
		}
	}
	replies := make([]driver.Reply, len(reqs))
	unfinished, _, err := some(ctx, s, s.calls, releaseScript, reqs, keys, replies, call)
	s.finishReleases(ctx, releaseScript, reqs, unfinished, replies)
	unfinished, _, failed := some(ctx, s, s.calls, releaseSlotScript, reqs, slots, replies, call)
	s.finishReleases(ctx, releaseSlotScript, reqs, unfinished, replies)
	return replies, firstError(err, failed)
}

func (s *store) releaseCall(req *driver.ReleaseRequest, listener string) *scriptCall {
	if line, slot := driver.LineOf(req.Key); slot {
		c := newCall(releaseSlotScript, s.name(req.Key), s.name(line), s.index(s.part(line)))
		return s.releaseArgs(c, req, listener, true)
	}
	return s.releaseArgs(newCall(releaseScript, s.name(req.Key)), req, listener, false)
}

// releaseArgs adds the arguments of a release to c.
func (s *store) releaseArgs(c *scriptCall, req *driver.ReleaseRequest, listener string, slot bool) *scriptCall {
	any := req.Fence == 0 && (req.Grant == "" || !req.Kind.ByOwner())
	c.str(recordHead(&req.Term, any)).str(req.Nonce).
		millisOrZero(req.Brief).millis(req.Retain)
	bound := req.Job != ""
	short := !slot && req.Kind == driver.ReleaseOwn && req.Grant == "" && fastNonce(req.Nonce)
	plain := short && req.Reason == "" && !bound && !req.Done
	if req.Starts {
		if listener == "" {
			listener = "\n"
		}
		listener += "\n1"
	}
	if !plain || listener != "" {
		c.str(s.inPart(req.Key, listener))
	}
	if plain {
		return c
	}
	how := "R"
	if req.Done {
		how = "D"
	}
	if bound {
		how += "\n" + req.Job + "\n\n"
	}
	c.str(req.Reason).str(how)
	if short {
		return c
	}
	force := "0"
	if !req.Kind.ByOwner() {
		force = s.forced()
	}
	c.str(req.Grant).str(force).flag(req.Kind.IfIdle())
	if slot {
		c.micros(req.Grace)
	}
	if slot && s.hashes {
		c.str("h")
	}
	return c
}

// finishReleases sends the releases in unfinished again. These releases stopped in the middle of a queue.
// finishReleases repeats each release until that release has found the next waiter or the end of the queue.
// finishReleases reports no errors, because the ownerships have already ended. If finishReleases fails, the next call
// that asks for the key drops the other dead waiters.
func (s *store) finishReleases(ctx context.Context, sc *script, reqs []driver.ReleaseRequest, unfinished []int, replies []driver.Reply) {
	for len(unfinished) > 0 && ctx.Err() == nil {
		cmds := make([]*redis.Cmd, len(unfinished))
		for n, i := range unfinished {
			again := reqs[i]
			again.Owner, again.Kind = "", driver.ReleaseOwn // without an Owner it ends no later ownership
			cmds[n] = s.releaseCall(&again, s.listener()).cmd(ctx)
		}
		var left []int
		for n, a := range sc.runAll(ctx, s.calls, cmds) {
			if a.err != nil {
				continue
			}
			i := unfinished[n]
			r, err := parseReply(releaseScript, s.handOver(a.val))
			if replies[i].Next = r.Next; err == errMore {
				left = append(left, i)
			}
		}
		unfinished = left
	}
}

// Reserve implements driver.Store, in one pipeline. If a key with jobs that wait is free, dead waiters may take further
// pipelines, as in Take.
func (s *store) Reserve(ctx context.Context, reqs []driver.ReserveRequest) ([]driver.Reply, error) {
	replies := make([]driver.Reply, len(reqs))
	call := func(listed bool) func(req *driver.ReserveRequest, keys ...string) *scriptCall {
		return func(req *driver.ReserveRequest, keys ...string) *scriptCall { return reserveCall(req, listed, keys...) }
	}
	left, _, err := some(ctx, s, s.calls, reserveScript, reqs, all(reqs), replies, func(req *driver.ReserveRequest) *scriptCall {
		return call(false)(req, s.name(req.Key))
	})
	for len(left) > 0 {
		if err = firstError(err, ctx.Err()); ctx.Err() != nil {
			break
		}
		var failed error
		left, failed = bindSome(ctx, s, reserveScript, reqs, left, replies, func(req *driver.ReserveRequest) binding {
			return binding{req.Key, req.Job, req.Grace}
		}, call(true))
		err = firstError(err, failed)
	}
	return replies, err
}

// reserveCall makes the call. If listed is true, there is an entry of the index, or the script writes one.
func reserveCall(req *driver.ReserveRequest, listed bool, keys ...string) *scriptCall {
	c := newCall(reserveScript, keys...).str(req.Job).millis(req.Reserve).millis(req.Retain)
	if listed {
		c.micros(req.Grace)
	} else {
		c.str("")
	}
	if req.Nonce != "" {
		c.str(req.Nonce).flag(req.Starts)
	}
	return c
}

// Line implements driver.Store, in one round trip. A cursor is the number of a place.
func (s *store) Line(ctx context.Context, req driver.LineRequest) (driver.LinePage, error) {
	from := int64(0)
	if req.Cursor != "" {
		var err error
		if from, err = strconv.ParseInt(req.Cursor, 10, 64); err != nil || from < 0 {
			return driver.LinePage{}, invalid("line cursor %.40q was not made by Line", req.Cursor)
		}
	}
	a := lineScript.run(ctx, s.calls, newCall(lineScript, s.name(req.Key)).int(from).int(int64(req.Limit)).cmd(ctx))
	if a.err != nil {
		return driver.LinePage{}, a.err
	}
	return parsePage(a.val)
}

func printable(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

func invalid(format string, args ...any) error {
	return &joblock.Error{Code: joblock.CodeOf(joblock.ErrInvalid), Op: "redisstore", Detail: fmt.Sprintf(format, args...)}
}
