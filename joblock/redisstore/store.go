package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// DefaultPrefix stands before every key unless Config says otherwise.
const DefaultPrefix = "joblock:"

// MaxPrefixBytes bounds Config.Prefix.
const MaxPrefixBytes = 64

// Config configures a Store.
type Config struct {
	// Prefix stands before every key in Redis: printable UTF-8, at most
	// MaxPrefixBytes. Stores with different prefixes do not see each other's
	// locks, unless one prefix begins with the other: then List of the shorter
	// one shows both. Default DefaultPrefix, "joblock:".
	Prefix string

	// Replicas is how many replicas must have acknowledged a grant, a Park or a
	// renewal before it counts, at most MaxReplicas; see the package comment for
	// what that is worth and what it costs. Default 0: none. Only for a
	// *redis.Client and a *redis.ClusterClient.
	Replicas int

	// ReplicaTimeout is how long they are waited for, in whole milliseconds, at most
	// MaxReplicaTimeout. Default 200 ms.
	ReplicaTimeout time.Duration
}

// Store keeps lock records in Redis. It is safe for concurrent use; make it with
// New.
type Store struct {
	prefix  string
	invalid error // what New was given wrongly; answers every call

	ops   redis.UniversalClient // acquires, releases, looks; re-sends on its own
	renew redis.UniversalClient // renewals only; never re-sends
	owned bool                  // ops and renew were made by New
	joint bool                  // one script may write a record and the index: not in a cluster

	replicas       int
	replicaTimeout time.Duration

	calls, renewals *merger // of scripts, to ops and to renew
}

var _ driver.Store = (*Store)(nil)

// New returns a Store on the Redis that rdb talks to; a nil cfg means the
// defaults. Nothing is sent yet. New never returns nil: a nil rdb or a bad cfg
// is reported by Validate and by every call.
//
// A *redis.Client (of Sentinel as well) and a *redis.ClusterClient are not used
// themselves: the Store opens connections of its own with the same options, as
// the package comment explains, and Close closes those. Any other
// implementation is used as it is.
func New(rdb redis.UniversalClient, cfg *Config) *Store {
	if cfg == nil {
		cfg = &Config{}
	}
	s := &Store{
		prefix:         cmp.Or(cfg.Prefix, DefaultPrefix),
		replicas:       cfg.Replicas,
		replicaTimeout: cmp.Or(cfg.ReplicaTimeout, DefaultReplicaTimeout),
	}
	switch {
	case isNil(rdb):
		s.invalid = invalid("redis client is nil")
	case len(s.prefix) > MaxPrefixBytes:
		s.invalid = invalid("Config.Prefix has %d bytes, at most %d are allowed", len(s.prefix), MaxPrefixBytes)
	case !printable(s.prefix):
		s.invalid = invalid("Config.Prefix %q is not printable UTF-8", s.prefix)
	case s.replicas < 0 || s.replicas > MaxReplicas:
		s.invalid = invalid("Config.Replicas is %d, must be from 0 to %d", s.replicas, MaxReplicas)
	case s.replicaTimeout < time.Millisecond || s.replicaTimeout > MaxReplicaTimeout:
		s.invalid = invalid("Config.ReplicaTimeout is %s, must be from 1ms to %s", s.replicaTimeout, MaxReplicaTimeout)
	default:
		s.ops, s.renew, s.owned = split(rdb)
		_, s.joint = rdb.(*redis.Client)
		if s.replicas > 0 && !s.owned {
			s.invalid = invalid("Config.Replicas needs a *redis.Client or a *redis.ClusterClient, not a %T", rdb)
		}
		s.calls, s.renewals = newMerger(s.ops), unmerged(s.renew)
	}
	return s
}

// Validate reports what is wrong with what New was given, or that s was not made
// by New, as joblock.ErrInvalid. joblock.New calls it.
func (s *Store) Validate() error {
	if s == nil || s.ops == nil && s.invalid == nil {
		return invalid("the Store was not made by New")
	}
	return s.invalid
}

// Close closes the connections that the Store opened, never the client that it
// was given. Calls in flight fail, and so does every later one.
func (s *Store) Close() error {
	if !s.owned {
		return nil
	}
	err := errors.Join(s.ops.Close(), s.renew.Close())
	if errors.Is(err, redis.ErrClosed) { // closed before
		return nil
	}
	return err
}

// Acquire implements driver.Store. It takes one round trip, and one more for every
// hundred waiters that have died at the head of the queue of a free key.
func (s *Store) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	for {
		w := newWords(acquireScript, s.prefix+req.Key).flag(req.Memo).str(req.Owner).str(req.Nonce).
			millis(req.TTL).millis(req.Retain).str(req.Holder)
		if req.Inbox != "" {
			w.str(s.channel(req.Inbox)).millis(req.Patience)
		}
		reply, err := s.one(ctx, acquireScript, w)
		if err != errMore {
			return reply, err
		}
		if err := ctx.Err(); err != nil {
			return driver.Reply{}, err
		}
	}
}

// Resume implements driver.Store. It takes one round trip, two where it binds the
// lock back to a job, and three where it recovers a job's lock. The answer to a
// re-send does not repeat Recovered.
func (s *Store) Resume(ctx context.Context, req driver.ResumeRequest) (driver.Reply, error) {
	call := func(listed bool) *words {
		w := newWords(resumeScript, s.prefix+req.Key).flag(req.Memo).str(req.Owner).str(req.Nonce).millis(req.TTL).
			millis(req.Retain).str(req.Holder).str(req.Job).hold(req.Reserve).flag(listed).int(req.Fence)
		if req.Unpark {
			w.str(req.Back)
		}
		return w
	}
	job := req.Job
	switch {
	case req.Unpark && req.Back == "": // nothing that is recovered here stays a job's
		return s.one(ctx, resumeScript, call(true))
	case req.Unpark:
		job = req.Back
	default:
		reply, err := s.one(ctx, resumeScript, call(false))
		if !errors.Is(err, errUnlisted) {
			return reply, err
		}
	}
	if err := s.bind(ctx, req.Key, job, req.Grace); err != nil {
		return driver.Reply{}, err
	}
	return s.one(ctx, resumeScript, call(true))
}

// Park implements driver.Store. It takes one round trip, and two for a job in a
// cluster, where the index is in another slot.
func (s *Store) Park(ctx context.Context, req driver.ParkRequest) (driver.Reply, error) {
	keys := append(make([]string, 0, 2), s.prefix+req.Key)
	switch {
	case req.Job == "":
	case s.joint:
		keys = append(keys, s.index())
	default:
		if err := s.bind(ctx, req.Key, req.Job, req.Grace); err != nil {
			return driver.Reply{}, err
		}
	}
	reply, err := s.one(ctx, parkScript, newWords(parkScript, keys...).str(req.Owner).int(req.Fence).
		str(req.Grant).str(req.Nonce).millis(req.Reserve).millis(req.Retain).str(req.Job).micros(req.Grace))
	return reply, s.indexError(err)
}

// Renew implements driver.Store. It takes one pipeline, on the connections that
// are kept for renewals.
func (s *Store) Renew(ctx context.Context, reqs []driver.RenewRequest) ([]driver.Reply, error) {
	return batch(ctx, s, s.renewals, renewScript, reqs, func(req *driver.RenewRequest) *words {
		w := newWords(renewScript, s.prefix+req.Key).str(req.Owner).int(req.Fence).str(req.Grant).
			millis(req.TTL).millis(req.Retain).hold(req.Reserve)
		if req.Grant != "" {
			w.str(req.Back)
		}
		if req.Memo != nil {
			w.bytes(req.Memo)
		}
		return w
	}, nil)
}

// Release implements driver.Store. It takes one pipeline, and one more for every
// hundred waiters that have died at the head of a queue.
func (s *Store) Release(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
	call := func(req *driver.ReleaseRequest) *words {
		force := "0"
		if !req.Kind.ByOwner() {
			force = s.forced()
		}
		w := newWords(releaseScript, s.prefix+req.Key).str(req.Owner)
		if req.Fence == 0 && (req.Grant == "" || !req.Kind.ByOwner()) {
			w.str("any")
		} else {
			w.int(req.Fence)
		}
		w.str(req.Grant).str(req.Nonce).millis(req.Retain).hold(req.Brief).str(req.Reason).str(force).flag(req.Kind.IfIdle())
		if req.Job != "" || req.Kind == driver.ReleaseForJob {
			w.str(req.Job).flag(req.Done)
		}
		return w
	}
	return batch(ctx, s, s.calls, releaseScript, reqs, call, func(req *driver.ReleaseRequest) *words {
		goOn := *req
		goOn.Owner, goOn.Kind = "", driver.ReleaseOwn // so that it ends nothing: the key may be another holder's by now
		return call(&goOn)
	})
}

// Reserve implements driver.Store. It takes one pipeline.
func (s *Store) Reserve(ctx context.Context, reqs []driver.ReserveRequest) ([]driver.Reply, error) {
	return batch(ctx, s, s.calls, reserveScript, reqs, func(req *driver.ReserveRequest) *words {
		return newWords(reserveScript, s.prefix+req.Key).str(req.Job).millis(req.Reserve).millis(req.Retain)
	}, nil)
}

// Inspect implements driver.Store. It takes one pipeline, and always asks
// masters. On error the records that could not be read have only their Key.
func (s *Store) Inspect(ctx context.Context, req driver.InspectRequest) ([]driver.Record, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	recs := make([]driver.Record, len(req.Keys))
	err := s.inspect(ctx, req, func(i int, rec driver.Record, _ bool) { recs[i] = rec })
	return recs, err
}

// inspect reads keys and hands every record to found, also those without one.
func (s *Store) inspect(ctx context.Context, req driver.InspectRequest, found func(i int, rec driver.Record, exists bool)) error {
	if len(req.Keys) == 0 {
		return nil
	}
	cmds := make([]*redis.Cmd, len(req.Keys))
	for i, key := range req.Keys {
		cmds[i] = newWords(inspectScript, s.prefix+key).flag(req.Memo).cmd(ctx)
	}
	var failed error
	for i, a := range inspectScript.runAll(ctx, s.calls, cmds) {
		rec, exists, err := driver.Record{Key: req.Keys[i]}, false, a.err
		if err == nil {
			rec, exists, err = parseRecord(req.Keys[i], a.val)
		}
		if err != nil && failed == nil {
			failed = err
		}
		found(i, rec, exists)
	}
	return failed
}

// one does a call about a single key.
func (s *Store) one(ctx context.Context, sc *script, w *words) (driver.Reply, error) {
	if err := s.Validate(); err != nil {
		return driver.Reply{}, err
	}
	if s.replicas > 0 {
		return s.oneAcknowledged(ctx, sc, w)
	}
	a := sc.run(ctx, s.calls, w.cmd(ctx))
	if a.err != nil {
		return driver.Reply{}, a.err
	}
	return parseReply(sc, a.val)
}

// batch does one call per request. An item without an answer stays
// OutcomeUnknown and the first such item's error is returned; a joined error of
// a thousand equal ones would help nobody. What leaves off is continued with goOn.
func batch[R any](ctx context.Context, s *Store, m *merger, sc *script, reqs []R, call, goOn func(*R) *words) ([]driver.Reply, error) {
	replies := make([]driver.Reply, len(reqs))
	acknowledge := sc == renewScript && s.Validate() == nil && s.replicas > 0
	switch {
	case s.Validate() != nil:
		return replies, s.Validate()
	case len(reqs) == 0:
		return nil, nil
	case len(reqs) == 1 && !acknowledge: // the usual release
		a := sc.run(ctx, m, call(&reqs[0]).cmd(ctx))
		if a.err == nil {
			replies[0], a.err = parseReply(sc, a.val)
		}
		if a.err == errMore {
			serveOn(ctx, m, sc, reqs, []int{0}, goOn)
			a.err = nil
		}
		return replies, a.err
	}
	cmds := make([]*redis.Cmd, len(reqs))
	for i := range reqs {
		cmds[i] = call(&reqs[i]).cmd(ctx)
	}
	send := sc.runAll
	if acknowledge {
		send = s.renewAcknowledged
	}
	var failed error
	var unserved []int
	for i, a := range send(ctx, m, cmds) {
		err := a.err
		if err == nil {
			replies[i], err = parseReply(sc, a.val)
		}
		switch {
		case err == errMore:
			unserved = append(unserved, i)
		case err != nil && failed == nil:
			failed = err
		}
	}
	serveOn(ctx, m, sc, reqs, unserved, goOn)
	return replies, failed
}

// serveOn sends releases again that have left off in the middle of a queue, until those
// who wait have been found, or there are none. They have been answered before, so what
// becomes of these calls is no news to the caller: where one fails, whoever waits or asks
// for the key next goes on.
func serveOn[R any](ctx context.Context, m *merger, sc *script, reqs []R, unserved []int, goOn func(*R) *words) {
	for len(unserved) > 0 && ctx.Err() == nil {
		cmds := make([]*redis.Cmd, len(unserved))
		for n, i := range unserved {
			cmds[n] = goOn(&reqs[i]).cmd(ctx)
		}
		var left []int
		for n, a := range sc.runAll(ctx, m, cmds) {
			if a.err != nil {
				continue
			}
			if _, err := parseReply(sc, a.val); err == errMore {
				left = append(left, unserved[n])
			}
		}
		unserved = left
	}
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
	return &joblock.Error{Code: joblock.CodeInvalid, Op: "redisstore", Detail: fmt.Sprintf(format, args...)}
}
