package memstore

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

const (
	pageSize = 100 // records of a List page if the request has no Count
	sweepMin = 256 // least value of store.sweepAt
)

// store is the driver.Store of New.
type store struct {
	cfg  Config
	warn sync.Once

	mu      sync.Mutex // guards the fields below
	records map[string]record
	sweepAt int // number of records at which put drops the records whose retention is over
	jobs    index
	seals   []driver.SealKey // in the order in which SealKeys returns them
	rates   rates
	inboxes map[string][]*listener
}

var _ driver.Store = (*store)(nil)

// New returns an empty store. The store is safe for concurrent use, and several Lockers may share it. A nil cfg means the
// defaults.
func New(cfg *Config) driver.Store { return newStore(cfg) }

func newStore(cfg *Config) *store {
	s := &store{
		records: make(map[string]record), sweepAt: sweepMin,
		inboxes: make(map[string][]*listener), jobs: index{find: make(map[driver.Entry]*entry)},
	}
	if cfg != nil {
		s.cfg = *cfg
	}
	if s.cfg.Now == nil {
		// Add and Since use the monotonic reading, so steps of the wall clock do not matter.
		start := time.Now()
		s.cfg.Now = func() time.Time { return start.Add(time.Since(start)) }
	}
	s.cfg.Logger = cmp.Or(s.cfg.Logger, slog.Default())
	return s
}

// String says where the locks are, for messages to people.
func (s *store) String() string { return "the memory of this process" }

// Acquire implements driver.Store.
func (s *store) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	replies := make([]driver.Reply, 1)
	err := batch(ctx, s, []driver.AcquireRequest{req}, replies, func(r driver.AcquireRequest) string { return r.Key }, record.acquire)
	return replies[0], err
}

// Take implements driver.Store. The batch is one atomic step.
func (s *store) Take(ctx context.Context, reqs []driver.TakeRequest) ([]driver.Reply, error) {
	replies := make([]driver.Reply, len(reqs))
	return replies, batch(ctx, s, reqs, replies, func(r driver.TakeRequest) string { return r.Key }, record.take)
}

// Resume implements driver.Store. The batch is one atomic step.
func (s *store) Resume(ctx context.Context, reqs []driver.ResumeRequest) ([]driver.Reply, error) {
	replies := make([]driver.Reply, len(reqs))
	return replies, batch(ctx, s, reqs, replies, func(r driver.ResumeRequest) string { return r.Key }, record.resume)
}

// Park implements driver.Store. The batch is one atomic step.
func (s *store) Park(ctx context.Context, reqs []driver.ParkRequest) ([]driver.Reply, error) {
	replies := make([]driver.Reply, len(reqs))
	return replies, batch(ctx, s, reqs, replies, func(r driver.ParkRequest) string { return r.Key }, record.park)
}

// Renew implements driver.Store. The batch is one atomic step.
func (s *store) Renew(ctx context.Context, reqs []driver.RenewRequest) ([]driver.Reply, error) {
	replies := make([]driver.Reply, len(reqs))
	return replies, batch(ctx, s, reqs, replies, func(r driver.RenewRequest) string { return r.Key }, record.renew)
}

// Release implements driver.Store. The batch is one atomic step.
func (s *store) Release(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
	replies := make([]driver.Reply, len(reqs))
	return replies, batch(ctx, s, reqs, replies, func(r driver.ReleaseRequest) string { return r.Key }, s.release)
}

// release calls record.release with the right queue: that of the record or, for a slot other than the first, that of
// the key to which the slot belongs.
func (s *store) release(r record, now instant, req driver.ReleaseRequest) (record, answer) {
	key, other := driver.LineOf(req.Key)
	if !other {
		return r.release(now, req, nil)
	}
	line := s.find(now, key)
	next, a := r.release(now, req, &line)
	s.put(now, key, line)
	return next, a
}

// Reserve implements driver.Store. The batch is one atomic step.
func (s *store) Reserve(ctx context.Context, reqs []driver.ReserveRequest) ([]driver.Reply, error) {
	replies := make([]driver.Reply, len(reqs))
	return replies, batch(ctx, s, reqs, replies, func(r driver.ReserveRequest) string { return r.Key }, record.reserve)
}

// Inspect implements driver.Store. All records are read in one atomic step.
func (s *store) Inspect(ctx context.Context, req driver.InspectRequest) ([]driver.Record, error) {
	now, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	out := make([]driver.Record, len(req.Keys))
	for i, key := range req.Keys {
		r := s.find(now, key)
		out[i] = r.read(now, key)
		if req.Memo {
			out[i].Memo = bytes.Clone(r.memo)
		}
		if req.Places != nil {
			if p := r.placeOf(req.Places[i]); p != nil {
				shown := r.show(p)
				out[i].Place = &shown
			}
		}
	}
	return out, nil
}

// List implements driver.Store. Pages are in the order of keys. A cursor is the last key of the previous page. So a
// record that is not forgotten between two pages is listed exactly once. The time for a page grows with the number of
// all records.
func (s *store) List(ctx context.Context, req driver.ListRequest) (driver.ListPage, error) {
	var page driver.ListPage
	now, err := s.enter(ctx)
	if err != nil {
		return page, err
	}
	defer s.mu.Unlock()
	var keys []string
	total := 0
	for key, r := range s.records {
		if r.expires <= now.ms || !strings.HasPrefix(key, req.Prefix) {
			continue
		}
		total++
		if key > req.Cursor {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	if count := cmp.Or(max(0, req.Count), pageSize); len(keys) > count {
		keys = keys[:count]
		page.Next = []string{keys[count-1]}
	}
	for _, key := range keys {
		page.Records = append(page.Records, s.records[key].read(now, key))
	}
	page.Progress = float64(len(keys)) / float64(max(1, total))
	return page, nil
}

// SealKeys implements driver.Store.
func (s *store) SealKeys(ctx context.Context, req driver.SealKeysRequest) ([]driver.SealKey, error) {
	now, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	for _, known := range req.Known {
		has := func(k driver.SealKey) bool { return k.Secret == known.Secret }
		if !slices.ContainsFunc(s.seals, has) {
			s.seals = append(s.seals, known)
		}
	}
	if len(s.seals) == 0 {
		s.seals = []driver.SealKey{{Secret: req.Fresh, Since: now.time()}}
	}
	slices.SortFunc(s.seals, func(a, b driver.SealKey) int {
		return cmp.Or(a.Since.Compare(b.Since), bytes.Compare(a.Secret[:], b.Secret[:]))
	})
	s.seals = s.seals[max(0, len(s.seals)-driver.MaxSealKeys):]
	return slices.Clone(s.seals), nil
}

// Close does nothing: a store opens nothing, and other Lockers may share it.
func (s *store) Close() error { return nil }

// batch applies transition to the record of each request, in one atomic step, sets replies, and then delivers the
// pushes.
func batch[R any](
	ctx context.Context, s *store, reqs []R, replies []driver.Reply, keyOf func(R) string,
	transition func(record, instant, R) (record, answer),
) error {
	now, err := s.enter(ctx)
	if err != nil {
		return err
	}
	var mail []func()
	for i, req := range reqs {
		key := keyOf(req)
		next, a := transition(s.find(now, key), now, req)
		if a.bound != "" {
			s.jobs.bound(now, key, a.bound, a.grace)
		}
		s.put(now, key, next)
		replies[i] = a.Reply
		mail = append(mail, s.post(a.pushes)...)
	}
	s.mu.Unlock()
	for _, deliver := range mail {
		deliver()
	}
	return nil
}

// enter begins a call. If enter returns no error, s.mu is locked. The clock is read under s.mu, so the order of calls
// is the order of their instants.
func (s *store) enter(ctx context.Context) (instant, error) {
	if err := ctx.Err(); err != nil {
		return instant{}, err
	}
	if !s.cfg.Silent {
		s.warn.Do(func() {
			s.cfg.Logger.Warn("joblock: locks are kept in memory and guard this process only")
		})
	}
	s.mu.Lock()
	now := s.cfg.Now()
	return instant{ms: now.UnixMilli(), us: now.UnixMicro(), inboxes: s.inboxes}, nil
}

// find returns the record of key, or the zero record. find drops a record whose retention is over.
func (s *store) find(now instant, key string) record {
	r := s.records[key]
	if r.exists() && r.expires <= now.ms {
		delete(s.records, key)
		return record{}
	}
	return r
}

// put stores r, unless r is the zero record.
func (s *store) put(now instant, key string, r record) {
	if !r.exists() {
		return
	}
	s.records[key] = r
	if len(s.records) < s.sweepAt {
		return
	}
	maps.DeleteFunc(s.records, func(_ string, old record) bool { return old.expires <= now.ms })
	s.sweepAt = max(sweepMin, 2*len(s.records))
}
