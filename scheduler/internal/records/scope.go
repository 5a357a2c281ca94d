package records

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/policy"
)

const (
	maxScopeBytes = 32  // a key has the escaped scope, which may be three times as long
	batch         = 500 // records in one round trip
)

// Scope is a scope of jobs in a store.
type Scope struct {
	Locks *joblock.Locker
	Name  string
	By    string // who reads and writes, in the status of locks and in orders
	Log   *slog.Logger
	part  string // Name as a part of a key

	// Refresh makes the Scheduler that uses this Scope read pauses and triggers now, and not only within Config.Sync;
	// nil if no Scheduler uses it.
	Refresh func(ctx context.Context) error
}

// New returns a Scope. An empty by stands for "host:pid". New returns joblock.ErrInvalid for a nil Locker, for a name
// that is empty or longer than 32 bytes, and for a by of more than 256 bytes or with control characters. nameWord and
// byWord name the fields in errors.
func New(op string, locks *joblock.Locker, name, by, nameWord, byWord string, log *slog.Logger) (*Scope, error) {
	if by == "" {
		host, _ := os.Hostname() // on error host is "" and gets the name below
		by = fmt.Sprintf("%.200s:%d", cmp.Or(host, "unknown-host"), os.Getpid())
	}
	switch {
	case locks == nil:
		return nil, Invalid(op, "", "the Locker is nil")
	case name == "":
		return nil, Invalid(op, "", "%s is empty, must name the application, like \"shop\": schedulers with the same scope share jobs of the same name", nameWord)
	case len(name) > maxScopeBytes:
		return nil, Invalid(op, "", "%s has %d bytes, at most %d are allowed", nameWord, len(name), maxScopeBytes)
	case !utf8.ValidString(name):
		return nil, Invalid(op, "", "%s is not valid UTF-8", nameWord)
	case len(by) > driver.MaxLabelBytes:
		return nil, Invalid(op, "", "%s has %d bytes, at most %d are allowed", byWord, len(by), driver.MaxLabelBytes)
	case !utf8.ValidString(by) || strings.ContainsFunc(by, unicode.IsControl):
		return nil, Invalid(op, "", "%s is not valid UTF-8 or contains a control character", byWord)
	}
	return &Scope{Locks: locks, Name: name, By: by, Log: log, part: joblock.Key(name)}, nil
}

// OrdersKey returns the key of the record of pauses, triggers and backfills.
func (s *Scope) OrdersKey() string { return keyspace.Cron(s.part) }

// LaneKey returns the key of the lock of a job's lane. Lane 0 is the job's own lock, whose memo is the ledger.
func (s *Scope) LaneKey(job string, lane int) string {
	key := keyspace.Cron(joblock.Key(s.Name, job))
	if lane > 0 {
		key = keyspace.CronLane(key, lane)
	}
	return key
}

// options returns the options of a lock. Retain keeps a ledger for longer than the longest pause between two ticks, and
// MaxRenew allows functions that run for a long time. The locks of lanes other than 0 have no memo.
func (s *Scope) options(lane int, more ...joblock.Option) (opts []joblock.AcquireOption) {
	opts = []joblock.AcquireOption{core.OwnKey, joblock.Holder(s.By), joblock.MaxRenew(driver.MaxPeriod)}
	if lane == 0 {
		opts = append(opts, memo.WithGrant(), joblock.Retain(driver.MaxPeriod))
	}
	for _, opt := range more {
		opts = append(opts, opt)
	}
	return opts
}

// Try takes the lock of a lane if it is free. Errors are those of joblock.Locker.TryAcquire.
func (s *Scope) Try(ctx context.Context, job string, lane int, more ...joblock.Option) (*joblock.Lock, error) {
	return s.Locks.TryAcquire(ctx, s.LaneKey(job, lane), s.options(lane, more...)...)
}

// Wait waits for the lock of a lane. Errors are those of joblock.Locker.Acquire.
func (s *Scope) Wait(ctx context.Context, job string, lane int) (*joblock.Lock, error) {
	return s.wait(ctx, s.LaneKey(job, lane), lane)
}

func (s *Scope) wait(ctx context.Context, key string, lane int) (*joblock.Lock, error) {
	return s.Locks.Acquire(ctx, key, s.options(lane)...)
}

// Release releases a lock, and logs a failure: the Locker repeats a release without an answer.
func (s *Scope) Release(ctx context.Context, lock *joblock.Lock) {
	if err := lock.Release(ctx); err != nil && !errors.Is(err, joblock.ErrLost) { // the Locker has logged the loss
		s.Log.Warn("scheduler: could not release a lock", "key", lock.Key(), "err", err)
	}
}

// Read returns first the view of the orders, then the views of the ledgers of the named jobs.
func (s *Scope) Read(ctx context.Context, jobs ...string) ([]memo.View, error) {
	return memo.Read(ctx, s.Locks, s.keys(jobs)...)
}

func (s *Scope) keys(jobs []string) []string {
	keys := []string{s.OrdersKey()}
	for _, job := range jobs {
		keys = append(keys, s.LaneKey(job, 0))
	}
	return keys
}

// ReadAnswered is like Read, but with an ErrUnavailable it also returns views of all keys, so that the jobs whose
// ledgers are on other nodes run while one node of a cluster is down. The view of a key without an answer has no Now.
func (s *Scope) ReadAnswered(ctx context.Context, jobs []string) ([]memo.View, error) {
	const op = "read ledgers"
	in, keys := (*core.Locker)(s.Locks), s.keys(jobs)
	if err := in.Check(op, keys...); err != nil {
		return nil, err
	}
	var recs []driver.Record
	err := in.Call(ctx, op, "", func(ctx context.Context, store driver.Store) (err error) {
		recs, err = store.Inspect(ctx, driver.InspectRequest{Keys: keys, Memo: true})
		return err
	})
	views := make([]memo.View, len(keys))
	for i, rec := range recs[:min(len(recs), len(keys))] {
		views[i] = memo.View{Status: joblock.Status(core.StatusOf(rec)), Memo: rec.Memo}
	}
	return views, err
}

// ReadLanes returns what the locks of lanes look like.
func (s *Scope) ReadLanes(ctx context.Context, job string, lanes []int) ([]policy.Lock, error) {
	keys := make([]string, len(lanes))
	for i, lane := range lanes {
		keys[i] = s.LaneKey(job, lane)
	}
	views, err := memo.Read(ctx, s.Locks, keys...)
	if err != nil {
		return nil, err
	}
	locks := make([]policy.Lock, len(lanes))
	for i, v := range views {
		locks[i] = LockOf(lanes[i], v)
	}
	return locks, nil
}

// LockOf returns what package policy needs of the view of a lane's lock.
func LockOf(lane int, v memo.View) policy.Lock {
	return policy.Lock{
		Lane: lane, Free: v.State == joblock.StateFree, Foreign: v.State == joblock.StateForeign, Held: v.Locked(),
		Fence: v.Fence, Age: v.Age, Reserved: v.Reserved, Waiters: v.Waiters,
	}
}

// Stale reports whether the record in v is not held, and was last written so long ago that a node must write it again,
// or the store will drop it.
func Stale(v memo.View) bool {
	return v.State == joblock.StateFree && !v.EndedAt.IsZero() && v.Now.Sub(v.EndedAt) >= policy.Stale
}

// rewrite replaces the memo of one of the scope's records under the record's lock. If change returns nil, the memo is
// not changed.
func (s *Scope) rewrite(ctx context.Context, key string, change func(text []byte, fence int64) ([]byte, error)) error {
	lock, err := s.wait(ctx, key, 0)
	if err != nil {
		return err
	}
	defer s.Release(ctx, lock)
	text, err := change(memo.Of(lock), lock.Fence())
	if err != nil || text == nil {
		return err
	}
	return memo.Write(ctx, lock, text)
}

// Day returns the number of days since 1970.
func Day(t time.Time) int64 { return t.Unix() / (24 * 60 * 60) }

// StopRenewing leaves lock to expire: it is neither renewed nor released.
func StopRenewing(lock *joblock.Lock) { (*core.Lock)(lock).StopRenewing() }
