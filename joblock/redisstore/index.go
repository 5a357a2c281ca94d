package redisstore

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock/driver"
)

// errUnlisted says that Resume or Reserve has to write the index entry first. Callers of this package do not see errUnlisted.
var errUnlisted = errors.New("redisstore: not in the index")

// binding is an entry of the index, to be written before key is bound to job or in the same step. Without a
// job there is no entry to write.
type binding struct {
	key, job string
	grace    time.Duration
}

// bindSome makes the calls of sc, a script that binds records to jobs, for the given items of a batch. entry returns the
// entry for a request, and call makes the call with the given Redis keys. left is that of the function some.
//
// If a script may write both the record and the index, one script does. Otherwise, and if the server refuses a script
// with two keys, a separate call writes the entry first. A server refuses two keys while their slot migrates. A proxy
// in front of several servers refuses two keys in different slots: after the first refusal bindSome does not try again.
func bindSome[R any](
	ctx context.Context, s *store, sc *script, reqs []R, items []int, replies []driver.Reply,
	entry func(*R) binding, call func(req *R, keys ...string) *scriptCall,
) (left []int, err error) {
	if s.together() {
		left, items, err = some(ctx, s, s.calls, sc, reqs, items, replies, func(req *R) *scriptCall {
			e := entry(req)
			if e.job == "" {
				return call(req, s.name(e.key))
			}
			return call(req, s.name(e.key), s.index(s.part(e.key)))
		})
		if len(items) == 0 {
			return left, s.indexError(err)
		}
	}
	items, failed := s.bind(ctx, items, func(i int) binding { return entry(&reqs[i]) })
	more, _, unsent := some(ctx, s, s.calls, sc, reqs, items, replies, func(req *R) *scriptCall {
		return call(req, s.name(entry(req).key))
	})
	return append(left, more...), s.indexError(cmp.Or(err, failed, unsent))
}

// bind writes the entries of items to the index, in one pipeline. The results are the items that have their
// entries, or need none.
func (s *store) bind(ctx context.Context, items []int, entry func(item int) binding) (written []int, err error) {
	var entries []binding
	var of []int
	for _, i := range items {
		if e := entry(i); e.job == "" {
			written = append(written, i)
		} else {
			entries, of = append(entries, e), append(of, i)
		}
	}
	replies, _, err := batch(ctx, s, s.calls, bindScript, entries, func(e *binding) *scriptCall {
		return newCall(bindScript, s.index(s.part(e.key))).str(e.job).str(e.key).micros(e.grace)
	})
	for n, r := range replies {
		if r.Outcome == driver.OutcomeOK {
			written = append(written, of[n])
		}
	}
	slices.Sort(written) // a key may come twice
	return written, err
}

// Due implements driver.Store, in one round trip.
func (s *store) Due(ctx context.Context, req driver.DueRequest) (driver.DueReply, error) {
	a := dueScript.run(ctx, s.calls,
		newCall(dueScript, s.index(req.Part)).int(int64(req.Limit)).micros(req.Claim).cmd(ctx))
	if a.err != nil {
		return driver.DueReply{}, s.indexError(a.err)
	}
	list, ok := a.val.([]any)
	f := fields{rest: list, bad: !ok}
	mark := f.clock().UnixMicro()
	reply := driver.DueReply{Next: f.dur()}
	kinds := f.str()
	f.bad = f.bad || len(kinds) != len(f.rest)
	for i := 0; !f.bad && len(f.rest) > 0; i++ {
		// A member without a line break, or in the wrong part, was not written by this package.
		if job, key, ours := strings.Cut(f.str(), "\n"); ours && s.part(key) == req.Part {
			reply.Entries = append(reply.Entries, driver.Entry{Key: key, Job: job, Mark: mark, Settled: kinds[i] == 's'})
		}
	}
	return reply, f.end(dueScript.op)
}

// Settle implements driver.Store, in one pipeline with a call for each part.
func (s *store) Settle(ctx context.Context, entries []driver.Settlement) error {
	if len(entries) == 0 {
		return nil
	}
	type group struct {
		part        int
		mark, again int64
		settled     bool
	}
	groups := make(map[group][]any) // members; entries of one Due have one Mark, and often one Again
	for _, e := range entries {
		g := group{s.part(e.Key), e.Mark, e.Again.Microseconds(), e.Settled}
		groups[g] = append(groups[g], e.Job+"\n"+e.Key)
	}
	calls := make(map[int][]any)
	for g, members := range groups {
		if calls[g.part] == nil {
			calls[g.part] = newCall(settleScript, s.index(g.part)).cmd(ctx).Args()
		}
		kind := 0
		if g.settled {
			kind = 2
		}
		calls[g.part] = append(append(calls[g.part], g.mark, g.again, kind, len(members)), members...)
	}
	var cmds []*redis.Cmd
	for _, args := range calls {
		cmds = append(cmds, newCmd(ctx, args))
	}
	var err error
	for _, a := range settleScript.runAll(ctx, s.calls, cmds) {
		err = firstError(err, a.err)
	}
	return s.indexError(err)
}

// Entries implements driver.Store, with one ZSCAN. A cursor is a cursor of ZSCAN.
func (s *store) Entries(ctx context.Context, req driver.EntriesRequest) (driver.EntriesPage, error) {
	var page driver.EntriesPage
	at := uint64(0)
	if req.Cursor != "" {
		var err error
		if at, err = strconv.ParseUint(req.Cursor, 10, 64); err != nil {
			return page, invalid("entries cursor %.40q was not made by Entries", req.Cursor)
		}
	}
	count := min(cmp.Or(max(req.Count, 0), defaultListCount), maxListCount)
	scanned := redis.NewScanCmd(ctx, nil, "zscan", s.index(req.Part), at, "count", count)
	if err := s.calls.via.Process(ctx, scanned); err != nil {
		return page, s.indexError(err)
	}
	members, next := scanned.Val()
	if next != 0 {
		page.Next = strconv.FormatUint(next, 10)
	}
	page.Progress = scanProgress(at, next)
	first := math.Inf(1)
	for i := 0; i+1 < len(members); i += 2 { // each with its score
		// A member without a line break is not this package's: see Due.
		if job, key, ours := strings.Cut(members[i], "\n"); ours && s.part(key) == req.Part {
			page.Entries = append(page.Entries, driver.Entry{Key: key, Job: job})
			if score, err := strconv.ParseFloat(members[i+1], 64); err == nil {
				first = min(first, score)
			}
		}
	}
	if first >= 0 && first <= driver.MaxFence { // else a stranger has written the score
		page.Due = time.UnixMicro(int64(first))
	}
	return page, nil
}

// indexError explains WRONGTYPE, which says that a value of another type is at the index's key. WRONGTYPE cannot be
// about a record: scripts answer Foreign for a record of the wrong type.
func (s *store) indexError(err error) error {
	if err != nil && strings.Contains(err.Error(), "WRONGTYPE") {
		return invalid("the value at %q is not a sorted set, as the index of the locks of jobs must be", s.indexes())
	}
	return err
}
