package storemodel

import (
	"math"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/joblock/toolkit/joblock/driver"
)

// never is the due time of an entry that need not exist.
const never = time.Duration(math.MaxInt64)

// listed is what the model knows of an entry of the index. The entry may be due from earliest on, and must be
// due from latest on. The two times differ if a store may leave the entry out. They also differ by the time that a
// store may add to keep marks apart.
type listed struct {
	earliest, latest time.Duration
	mark             int64 // of the last Due that returned the entry; 0 if the entry was certainly written or settled since then
	rewritten        bool  // the entry may have been written since that Due
}

// pairOf is a key and a job, and is the key type of the map model.index.
type pairOf struct{ key, job string }

func dueAt(at time.Duration) listed { return listed{earliest: at, latest: at + time.Millisecond} }

// bound notes that a call has written an index entry. If sure is false, a store need not have written the entry.
func (m *model) bound(key, job string, grace time.Duration, sure bool) {
	pair, fresh := pairOf{key, job}, dueAt(m.now+grace)
	old := m.index[pair]
	switch {
	case job == "":
		return
	case sure:
		m.index[pair] = &fresh
	case old == nil:
		m.index[pair] = &listed{earliest: fresh.earliest, latest: never, rewritten: true}
	default:
		old.earliest, old.latest = min(old.earliest, fresh.earliest), max(old.latest, fresh.latest)
		old.rewritten = true
	}
}

func (m *model) due(t *rapid.T) {
	all := true
	for part := range m.Store.Parts() {
		all = m.duePart(t, part) && all
	}
	for pair, e := range m.index {
		if all && e.latest <= m.now {
			m.Fatalf("%+v, due since %s, was not found at %s", pair, e.latest, m.now)
		}
	}
}

// duePart reports whether Due has returned all due entries of the part.
func (m *model) duePart(t *rapid.T, part int) (all bool) {
	limit := rapid.SampledFrom([]int{1, 2, 1000}).Draw(t, "limit")
	claim := drawTime.Draw(t, "claim")
	got, err := m.Store.Due(m.ctx, driver.DueRequest{Part: part, Limit: limit, Claim: claim})
	if err != nil || len(got.Entries) > limit {
		m.Fatalf("due: %d entries of at most %d, %v", len(got.Entries), limit, err)
	}
	for _, l := range got.Entries {
		pair := pairOf{l.Key, l.Job}
		switch e := m.index[pair]; {
		case !slices.Contains(m.keys, l.Key): // of an earlier history
			if err := m.Store.Settle(m.ctx, []driver.Settlement{{Entry: l}}); err != nil {
				m.Fatalf("settle: %v", err)
			}
		case e == nil || e.earliest > m.now:
			m.Fatalf("%+v is due at %s, want it %+v", l, m.now, e)
		default:
			e := dueAt(m.now + claim)
			e.mark = l.Mark
			m.index[pair] = &e
			m.found = append(m.found, l)
		}
	}
	return got.Next > 0
}

// settle calls Store.Settle for one of the last four entries that a Due has returned. Since then the entry
// may have been written again, settled, or returned by another Due.
func (m *model) settle(t *rapid.T) {
	if len(m.found) == 0 {
		return
	}
	l := m.found[len(m.found)-rapid.IntRange(1, min(4, len(m.found))).Draw(t, "back")]
	var again time.Duration
	if rapid.Bool().Draw(t, "stays") {
		again = drawTime.Draw(t, "again")
	}
	if err := m.Store.Settle(m.ctx, []driver.Settlement{{Entry: l, Again: again}}); err != nil {
		m.Fatalf("settle: %v", err)
	}
	pair := pairOf{l.Key, l.Job}
	switch e := m.index[pair]; {
	case e == nil || e.mark != l.Mark:
	case e.rewritten && again == 0:
		e.latest, e.mark = never, 0
	case e.rewritten:
		e.earliest, e.latest, e.mark = min(e.earliest, m.now+again), max(e.latest, dueAt(m.now+again).latest), 0
	case again == 0:
		delete(m.index, pair)
	default:
		e := dueAt(m.now + again)
		m.index[pair] = &e
	}
}

// entries compares all entries of the index with those that the model knows of.
func (m *model) entries(t *rapid.T) {
	found := make(map[pairOf]bool)
	for part := range m.Store.Parts() {
		req := driver.EntriesRequest{Part: part, Count: rapid.SampledFrom([]int{1, 1000}).Draw(t, "count")}
		for first := true; first || req.Cursor != ""; first = false {
			page, err := m.Store.Entries(m.ctx, req)
			if err != nil {
				m.Fatalf("entries: %v", err)
			}
			for _, l := range page.Entries {
				pair := pairOf{l.Key, l.Job}
				if slices.Contains(m.keys, l.Key) && m.index[pair] == nil {
					m.Fatalf("entries: %+v was never written, or was removed", pair)
				}
				found[pair] = true
			}
			req.Cursor = page.Next
		}
	}
	for pair, e := range m.index {
		if e.latest != never && !found[pair] {
			m.Fatalf("entries: %+v is missing", pair)
		}
	}
}

func (m *model) reserve(t *rapid.T) {
	reqs := several(t, func(r *driver.ReserveRequest) string { return r.Key }, func() driver.ReserveRequest {
		req := driver.ReserveRequest{
			Key: m.key(t), Job: drawWaiting.Draw(t, "job"),
			Reserve: drawTime.Draw(t, "hold"), Retain: drawRetain.Draw(t, "retain"), Grace: drawHold.Draw(t, "grace"),
		}
		if rapid.Bool().Draw(t, "waits") {
			req.Nonce, req.Starts = nonceOf(req.Job), rapid.Bool().Draw(t, "starts")
		}
		return req
	})
	sendBatch(m, "reserve", reqs,
		func(r *driver.ReserveRequest) (key, nonce string, fence *int64) { return r.Key, "", nil }, driver.Store.Reserve,
		func(req driver.ReserveRequest, a answer) {
			if a.Recovered {
				m.bound(req.Key, req.Job, req.Grace, true)
			}
		})
}
