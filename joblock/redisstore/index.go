package redisstore

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// errUnlisted says that Resume has to write the index entry first. Callers of this package do not see errUnlisted.
var errUnlisted = errors.New("redisstore: not in the index")

// The method index returns the Redis key of the index of the locks of jobs: the bare prefix. No lock can have that
// name. The ACL pattern of the locks covers that name.
func (s *Store) index() string { return s.prefix }

// The type binding is an entry of the index. The entry is to be written before key is bound to job.
type binding struct {
	item     int // index of the request, in the batch that binds the key
	key, job string
	grace    time.Duration
}

// The method bind writes entries to the index, in one pipeline, and returns the items of the written entries.
func (s *Store) bind(ctx context.Context, entries []binding) (items []int, err error) {
	replies, _, err := batch(ctx, s, s.calls, bindScript, entries, func(e *binding) *scriptCall {
		return newCall(bindScript, s.index()).str(e.job).str(e.key).micros(e.grace)
	})
	for n, r := range replies {
		if r.Outcome == driver.OutcomeOK {
			items = append(items, entries[n].item)
		}
	}
	return items, s.indexError(err)
}

// bindFirst returns the indexes of those requests that may be sent, of a batch of n. The call of(i) returns the entry
// for request i, with job "" if the request is for no job. With a *redis.Client every request may be sent. With any
// other client bindFirst first writes the entries. Then a request may be sent if it is for no job, or if its entry is
// written.
func (s *Store) bindFirst(ctx context.Context, n int, of func(i int) binding) (items []int, err error) {
	var entries []binding
	for i := range n {
		if e := of(i); e.job != "" && !s.oneSlot {
			e.item = i
			entries = append(entries, e)
		} else {
			items = append(items, i)
		}
	}
	bound, err := s.bind(ctx, entries)
	items = append(items, bound...)
	slices.Sort(items) // a key may come twice
	return items, err
}

// The method keys returns the Redis keys of a script that binds key to job.
func (s *Store) keys(key, job string) []string {
	keys := append(make([]string, 0, 2), s.prefix+key)
	if s.oneSlot && job != "" {
		keys = append(keys, s.index())
	}
	return keys
}

// Parts implements driver.Store.
func (s *Store) Parts() int { return 1 }

// Due implements driver.Store, in one round trip.
func (s *Store) Due(ctx context.Context, req driver.DueRequest) (driver.DueReply, error) {
	if err := s.Validate(); err != nil {
		return driver.DueReply{}, err
	}
	a := dueScript.run(ctx, s.calls,
		newCall(dueScript, s.index()).int(int64(req.Limit)).micros(req.Claim).cmd(ctx))
	if a.err != nil {
		return driver.DueReply{}, s.indexError(a.err)
	}
	list, ok := a.val.([]any)
	f := fields{rest: list, bad: !ok}
	mark := f.clock().UnixMicro()
	reply := driver.DueReply{Next: f.dur()}
	for !f.bad && len(f.rest) > 0 {
		// A member without a line break was not written by this package.
		if job, key, ours := strings.Cut(f.str(), "\n"); ours {
			reply.Locks = append(reply.Locks, driver.JobLock{Key: key, Job: job, Mark: mark})
		}
	}
	return reply, f.end(dueScript.op)
}

// Settle implements driver.Store, in one round trip.
func (s *Store) Settle(ctx context.Context, entries []driver.Settlement) error {
	if err := s.Validate(); err != nil || len(entries) == 0 {
		return err
	}
	list := newCall(settleScript, s.index()).cmd(ctx).Args()
	for _, e := range entries {
		list = append(list, strconv.FormatInt(e.Mark, 10), strconv.FormatInt(e.Again.Microseconds(), 10), e.Job+"\n"+e.Key)
	}
	a := settleScript.run(ctx, s.calls, newCmd(ctx, list))
	return s.indexError(a.err)
}

// indexError explains WRONGTYPE, which says that a value of another type is at the index's key. WRONGTYPE cannot be
// about a record: scripts answer Foreign for a record of the wrong type.
func (s *Store) indexError(err error) error {
	if err != nil && strings.Contains(err.Error(), "WRONGTYPE") {
		return invalid("the value at %q is not a sorted set, the index of the locks of jobs", s.index())
	}
	return err
}
