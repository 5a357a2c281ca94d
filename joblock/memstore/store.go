package memstore

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

const (
	pageSize = 100 // of List when the request does not say
	sweepMin = 256 // fewer records than this are never swept
)

// Store is a driver.Store in memory. It is safe for concurrent use, and several
// Lockers may share one.
type Store struct {
	cfg  Config
	warn sync.Once

	mu      sync.Mutex // guards what follows
	records map[string]record
	sweepAt int // number of records at which the forgotten ones are swept out
	jobs    index
	seals   []driver.SealKey // in the order in which they are returned

	inboxes map[string][]*listener
}

var _ driver.Store = (*Store)(nil)

// New returns an empty Store. A nil cfg means the defaults. Validate reports a bad cfg,
// and so does joblock.New.
func New(cfg *Config) *Store {
	return &Store{
		cfg: cfg.withDefaults(), records: make(map[string]record), sweepAt: sweepMin,
		inboxes: make(map[string][]*listener), jobs: newIndex(),
	}
}

// Validate returns joblock.ErrInvalid if Config.Notice is NoticeRefuse or unknown, or if s
// was not made by New. joblock.New calls it.
func (s *Store) Validate() error {
	if s == nil || s.records == nil {
		return invalid("memstore: the Store was not made by New")
	}
	var detail string
	switch s.cfg.Notice {
	case NoticeWarn, NoticeSilent:
		return nil
	case NoticeRefuse:
		detail = "memstore guards this process only, and Config.Notice refuses that"
	default:
		detail = "memstore: Config.Notice is none of NoticeWarn, NoticeSilent, NoticeRefuse"
	}
	return invalid(detail)
}

func invalid(detail string) error {
	return &joblock.Error{Code: joblock.CodeOf(joblock.ErrInvalid), Op: "new", Detail: detail}
}

// Acquire is the call of driver.Store.
func (s *Store) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	return one(ctx, s, req.Key, 0, req, record.acquire)
}

// Resume is the call of driver.Store.
func (s *Store) Resume(ctx context.Context, req driver.ResumeRequest) (driver.Reply, error) {
	return one(ctx, s, req.Key, req.Grace, req, record.resume)
}

// Park is the call of driver.Store.
func (s *Store) Park(ctx context.Context, req driver.ParkRequest) (driver.Reply, error) {
	return one(ctx, s, req.Key, req.Grace, req, record.park)
}

// Renew is the call of driver.Store. No other call comes in the middle of the batch.
func (s *Store) Renew(ctx context.Context, reqs []driver.RenewRequest) ([]driver.Reply, error) {
	return batch(ctx, s, reqs, func(req *driver.RenewRequest) string { return req.Key }, record.renew)
}

// Release is the call of driver.Store. No other call comes in the middle of the batch.
func (s *Store) Release(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
	return batch(ctx, s, reqs, func(req *driver.ReleaseRequest) string { return req.Key }, record.release)
}

// Reserve is the call of driver.Store. No other call comes in the middle of the batch.
func (s *Store) Reserve(ctx context.Context, reqs []driver.ReserveRequest) ([]driver.Reply, error) {
	return batch(ctx, s, reqs, func(req *driver.ReserveRequest) string { return req.Key }, record.reserve)
}

// Inspect is the call of driver.Store. No other call comes in the middle of the batch.
func (s *Store) Inspect(ctx context.Context, req driver.InspectRequest) ([]driver.Record, error) {
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
	}
	return out, nil
}

// List is the call of driver.Store. Pages are in the order of keys, and a cursor is the last
// key of the page before. So a record that stays is listed exactly once. Each page takes
// time in proportion to all records.
func (s *Store) List(ctx context.Context, req driver.ListRequest) (driver.ListPage, error) {
	var page driver.ListPage
	now, err := s.enter(ctx)
	if err != nil {
		return page, err
	}
	defer s.mu.Unlock()
	var keys []string
	for key, r := range s.records {
		if r.expires > now.ms && key > req.Cursor && strings.HasPrefix(key, req.Prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	count := req.Count
	if count <= 0 {
		count = pageSize
	}
	if len(keys) > count {
		keys = keys[:count]
		page.Next = keys[count-1]
	}
	for _, key := range keys {
		page.Records = append(page.Records, s.records[key].read(now, key))
	}
	return page, nil
}

// Close does nothing: a Store opens nothing, and other Lockers may share it.
func (s *Store) Close() error { return nil }

// one applies a transition to the record of key. If the transition binds the record to a
// job, the index entry is due after grace.
func one[R any](
	ctx context.Context, s *Store, key string, grace time.Duration, req R, transition func(record, instant, R) (record, answer),
) (driver.Reply, error) {
	now, err := s.enter(ctx)
	if err != nil {
		return driver.Reply{}, err
	}
	next, a := transition(s.find(now, key), now, req)
	if a.bound != "" {
		s.jobs.bound(now, key, a.bound, grace)
	}
	s.put(now, key, next)
	send := s.post(a.pushes)
	s.mu.Unlock()
	send()
	return a.Reply, nil
}

// batch applies a transition to each of several records.
func batch[R any](
	ctx context.Context, s *Store, reqs []R, keyOf func(*R) string, transition func(record, instant, R) (record, answer),
) ([]driver.Reply, error) {
	replies := make([]driver.Reply, len(reqs))
	now, err := s.enter(ctx)
	if err != nil {
		return replies, err
	}
	var pushes []push
	for i := range reqs {
		key := keyOf(&reqs[i])
		next, a := transition(s.find(now, key), now, reqs[i])
		s.put(now, key, next)
		replies[i], pushes = a.Reply, append(pushes, a.pushes...)
	}
	send := s.post(pushes)
	s.mu.Unlock()
	send()
	return replies, nil
}

// enter begins a call. Without an error it returns with s.mu locked, and the
// clock read under the lock, so that the order of calls is that of their times.
func (s *Store) enter(ctx context.Context) (instant, error) {
	if err := ctx.Err(); err != nil {
		return instant{}, err
	}
	if s.cfg.Notice == NoticeWarn {
		s.warn.Do(func() {
			s.cfg.Logger.Warn("joblock: locks are kept in memory and guard this process only")
		})
	}
	s.mu.Lock()
	return at(s.cfg.Now()), nil
}

// find returns the record of key, or the zero record.
func (s *Store) find(now instant, key string) record {
	r := s.records[key]
	if r.exists() && r.expires <= now.ms {
		delete(s.records, key)
		return record{}
	}
	return r
}

// put stores r, unless r is the zero record.
func (s *Store) put(now instant, key string, r record) {
	if !r.exists() {
		return
	}
	s.records[key] = r
	if len(s.records) < s.sweepAt {
		return
	}
	for k, old := range s.records {
		if old.expires <= now.ms {
			delete(s.records, k)
		}
	}
	s.sweepAt = max(sweepMin, 2*len(s.records))
}
