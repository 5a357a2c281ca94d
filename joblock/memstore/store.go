package memstore

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"

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

// New returns an empty Store; nil means the defaults. A Config that is no good is
// reported by Validate, and thereby by joblock.New.
func New(cfg *Config) *Store {
	return &Store{
		cfg: cfg.withDefaults(), records: make(map[string]record), sweepAt: sweepMin,
		inboxes: make(map[string][]*listener), jobs: newIndex(),
	}
}

// Validate returns joblock.ErrInvalid with NoticeRefuse and with a Notice that
// does not exist, else nil. joblock.New calls it.
func (s *Store) Validate() error {
	if s == nil || s.records == nil {
		return &joblock.Error{Code: joblock.CodeInvalid, Op: "new", Detail: "memstore: the Store was not made by New"}
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
	return &joblock.Error{Code: joblock.CodeInvalid, Op: "new", Detail: detail}
}

// Acquire is the call of driver.Store.
func (s *Store) Acquire(ctx context.Context, req driver.AcquireRequest) (driver.Reply, error) {
	out := outbox{store: s}
	defer out.send()
	return one(ctx, s, req.Key, func(r record, now instant) (record, driver.Reply) { return r.acquire(now, req, &out) })
}

// Resume is the call of driver.Store.
func (s *Store) Resume(ctx context.Context, req driver.ResumeRequest) (driver.Reply, error) {
	return one(ctx, s, req.Key, func(r record, now instant) (record, driver.Reply) {
		next, reply := r.resume(now, req)
		if (reply.Recovered || req.Unpark && reply.Outcome == driver.OutcomeOK) && next.job != "" {
			s.jobs.bound(now, req.Key, next.job, req.Grace)
		}
		return next, reply
	})
}

// Park is the call of driver.Store.
func (s *Store) Park(ctx context.Context, req driver.ParkRequest) (driver.Reply, error) {
	return one(ctx, s, req.Key, func(r record, now instant) (record, driver.Reply) {
		next, reply := r.park(now, req)
		if reply.Outcome == driver.OutcomeOK && req.Job != "" {
			s.jobs.bound(now, req.Key, req.Job, req.Grace)
		}
		return next, reply
	})
}

// Renew is the call of driver.Store. The batch is one step.
func (s *Store) Renew(ctx context.Context, reqs []driver.RenewRequest) ([]driver.Reply, error) {
	return batch(ctx, s, reqs, func(req driver.RenewRequest, now instant) (string, record, driver.Reply) {
		next, reply := s.find(now, req.Key).renew(now, req)
		return req.Key, next, reply
	})
}

// Release is the call of driver.Store. The batch is one step.
func (s *Store) Release(ctx context.Context, reqs []driver.ReleaseRequest) ([]driver.Reply, error) {
	out := outbox{store: s}
	defer out.send()
	return batch(ctx, s, reqs, func(req driver.ReleaseRequest, now instant) (string, record, driver.Reply) {
		next, reply := s.find(now, req.Key).release(now, req, &out)
		return req.Key, next, reply
	})
}

// Reserve is the call of driver.Store. The batch is one step.
func (s *Store) Reserve(ctx context.Context, reqs []driver.ReserveRequest) ([]driver.Reply, error) {
	return batch(ctx, s, reqs, func(req driver.ReserveRequest, now instant) (string, record, driver.Reply) {
		next, reply := s.find(now, req.Key).reserve(now, req)
		return req.Key, next, reply
	})
}

// Inspect is the call of driver.Store. The batch is one step.
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

// List is the call of driver.Store. Pages are in the order of keys and a cursor
// is the last key of the page before, so a record that stays is listed exactly
// once. Each page looks at every record.
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

// one applies a transition to the record of key.
func one(ctx context.Context, s *Store, key string, step func(record, instant) (record, driver.Reply)) (driver.Reply, error) {
	now, err := s.enter(ctx)
	if err != nil {
		return driver.Reply{}, err
	}
	defer s.mu.Unlock()
	next, reply := step(s.find(now, key), now)
	s.put(now, key, next)
	return reply, nil
}

// batch applies a transition to each of several records.
func batch[R any](ctx context.Context, s *Store, reqs []R, step func(R, instant) (string, record, driver.Reply)) ([]driver.Reply, error) {
	replies := make([]driver.Reply, len(reqs))
	now, err := s.enter(ctx)
	if err != nil {
		return replies, err
	}
	defer s.mu.Unlock()
	for i, req := range reqs {
		key, next, reply := step(req, now)
		s.put(now, key, next)
		replies[i] = reply
	}
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

// find returns the record of key, the zero record when there is none.
func (s *Store) find(now instant, key string) record {
	r := s.records[key]
	if r.exists() && r.expires <= now.ms {
		delete(s.records, key)
		return record{}
	}
	return r
}

// put stores a record unless it is that of an unknown key.
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
