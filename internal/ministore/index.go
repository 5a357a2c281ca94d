package ministore

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// pair names an entry of the index: a key, and the job that the key's lock is bound to.
type pair struct{ key, job string }

type entry struct {
	due  time.Time
	mark int64 // of the last Due that returned the entry; 0 if the entry was written or settled since then
}

// list writes the entry of a key that is bound to a job. Entries that no Due has returned in time are
// dropped. Without a job there is nothing to write.
func (s *Store) list(now time.Time, key, job string, grace time.Duration) {
	if job == "" {
		return
	}
	maps.DeleteFunc(s.index, func(_ pair, e entry) bool { return now.Sub(e.due) >= driver.JobKeep })
	s.index[pair{key, job}] = entry{due: now.Add(grace)}
}

// Parts implements driver.Store.
func (s *Store) Parts() int { return 1 }

// Due implements driver.Store.
func (s *Store) Due(ctx context.Context, req driver.DueRequest) (driver.DueReply, error) {
	now, err := s.enter(ctx)
	if err != nil {
		return driver.DueReply{}, err
	}
	defer s.exit()
	all := slices.SortedFunc(maps.Keys(s.index), func(a, b pair) int { return s.index[a].due.Compare(s.index[b].due) })
	reply := driver.DueReply{Next: driver.MaxPeriod}
	s.marks++
	for _, p := range all {
		wait := s.index[p].due.Sub(now)
		if wait > 0 || len(reply.Entries) == req.Limit {
			reply.Next = min(max(0, wait), driver.MaxPeriod)
			break
		}
		s.index[p] = entry{due: now.Add(req.Claim), mark: s.marks}
		reply.Entries = append(reply.Entries, driver.Entry{Key: p.key, Job: p.job, Mark: s.marks})
	}
	return reply, nil
}

// Settle implements driver.Store.
func (s *Store) Settle(ctx context.Context, entries []driver.Settlement) error {
	now, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer s.exit()
	for _, l := range entries {
		p := pair{l.Key, l.Job}
		switch {
		case l.Mark == 0 || l.Mark != s.index[p].mark:
		case l.Again == 0:
			delete(s.index, p)
		default:
			s.index[p] = entry{due: now.Add(l.Again)}
		}
	}
	return nil
}

// Entries implements driver.Store. A cursor is the last entry of the previous page.
func (s *Store) Entries(ctx context.Context, req driver.EntriesRequest) (driver.EntriesPage, error) {
	var page driver.EntriesPage
	if _, err := s.enter(ctx); err != nil {
		return page, err
	}
	defer s.exit()
	text := func(p pair) string { return p.key + "\n" + p.job }
	all := slices.SortedFunc(maps.Keys(s.index), func(a, b pair) int { return strings.Compare(text(a), text(b)) })
	for _, p := range all {
		switch {
		case req.Cursor != "" && text(p) <= req.Cursor:
		case len(page.Entries) == max(req.Count, 1):
			last := page.Entries[len(page.Entries)-1]
			page.Next = text(pair{last.Key, last.Job})
			return page, nil
		default:
			page.Entries = append(page.Entries, driver.Entry{Key: p.key, Job: p.job})
			if due := s.index[p].due; page.Due.IsZero() || due.Before(page.Due) {
				page.Due = due
			}
		}
	}
	return page, nil
}

// SealKeys implements driver.Store.
func (s *Store) SealKeys(ctx context.Context, req driver.SealKeysRequest) ([]driver.SealKey, error) {
	now, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer s.exit()
	for _, known := range req.Known {
		if !slices.ContainsFunc(s.seals, func(k driver.SealKey) bool { return k.Secret == known.Secret }) {
			s.seals = append(s.seals, known)
		}
	}
	if len(s.seals) == 0 {
		s.seals = []driver.SealKey{{Secret: req.Fresh, Since: now.Truncate(time.Microsecond)}}
	}
	slices.SortFunc(s.seals, func(a, b driver.SealKey) int {
		return cmp.Or(a.Since.Compare(b.Since), bytes.Compare(a.Secret[:], b.Secret[:]))
	})
	s.seals = s.seals[max(0, len(s.seals)-driver.MaxSealKeys):]
	return slices.Clone(s.seals), nil
}

// Inspect implements driver.Store.
func (s *Store) Inspect(ctx context.Context, req driver.InspectRequest) ([]driver.Record, error) {
	now, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer s.exit()
	out := make([]driver.Record, len(req.Keys))
	for i, key := range req.Keys {
		r := s.find(now, key)
		out[i] = r.read(now, key, req.Memo)
		if req.Places == nil {
			continue
		}
		if at := r.at(req.Places[i]); at >= 0 {
			place := r.show(at)
			out[i].Place = &place
		}
	}
	return out, nil
}

// Line implements driver.Store. A cursor is the number of the last place of the previous page.
func (s *Store) Line(ctx context.Context, req driver.LineRequest) (driver.LinePage, error) {
	var page driver.LinePage
	now, err := s.enter(ctx)
	if err != nil {
		return page, err
	}
	defer s.exit()
	after, _ := strconv.Atoi(req.Cursor) // 0 for ""
	r := s.find(now, req.Key)
	for at, p := range r.queue {
		switch {
		case p.number <= after || !now.Before(p.until):
		case len(page.Places) == req.Limit:
			page.Next = strconv.Itoa(after)
			return page, nil
		default:
			page.Places = append(page.Places, r.show(at))
			after = p.number
		}
	}
	return page, nil
}

// List implements driver.Store. A cursor is the last key of the previous page.
func (s *Store) List(ctx context.Context, req driver.ListRequest) (driver.ListPage, error) {
	var page driver.ListPage
	now, err := s.enter(ctx)
	if err != nil {
		return page, err
	}
	defer s.exit()
	for _, key := range slices.Sorted(maps.Keys(s.records)) {
		r := s.find(now, key)
		switch {
		case !r.exists() || key <= req.Cursor || !strings.HasPrefix(key, req.Prefix):
		case len(page.Records) == max(req.Count, 1):
			page.Next = []string{page.Records[len(page.Records)-1].Key}
			return page, nil
		default:
			page.Records = append(page.Records, r.read(now, key, false))
		}
	}
	return page, nil
}

// Kept returns until when the store keeps the record of a key, and how many places the queue of the record has ever had.
func (s *Store) Kept(key string) (until time.Time, joined int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.records[key]
	return r.expires, r.joined
}
