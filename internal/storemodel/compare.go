package storemodel

import (
	"bytes"
	"reflect"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/joblock/toolkit/joblock/driver"
)

// compare checks an answer against that of ministore.
func (m *model) compare(call, key string, want answer, got driver.Reply) {
	w := want.Reply
	if w.Fence != 0 {
		w.Fence = m.seen[key].store.Fence
	}
	if !w.Now.IsZero() {
		m.compareClock(got.Now)
		w.Now = got.Now
	}
	if want.queued {
		// A store may count places that have ended, and those of waiters that have left.
		least := len(slices.DeleteFunc(m.places(key), func(p driver.Place) bool { return p.Ahead >= w.Ahead }))
		if most := m.seen[key].joined; got.Ahead < least || got.Ahead >= most {
			m.Fatalf("%s %s: %d places ahead, want at least %d and fewer than %d", call, key, got.Ahead, least, most)
		}
		w.Ahead = got.Ahead
	}
	if !w.Since.IsZero() {
		if w.Since = m.instant(w.Since); w.Since.Equal(got.Since) {
			w.Since = got.Since
		}
	}
	if bytes.Equal(w.Memo, got.Memo) {
		w.Memo = got.Memo // a nil memo counts as an empty memo
	}
	w.Hint = got.Hint
	if !reflect.DeepEqual(got, w) {
		m.Fatalf("%s %s:\n got %+v\nwant %+v", call, key, got, w)
	}
}

// comparePushes reads the pushes of a call, which are those of ministore.
func (m *model) comparePushes(call string) {
	for _, want := range m.push {
		var err error
		if want.Grant == nil {
			err = m.heard.awaitJob(want.Key, want.Job)
		} else {
			grant := *want.Grant
			for _, s := range m.seen {
				if s.mini.Fence == want.Grant.Fence {
					grant.Fence = s.store.Fence
				}
			}
			err = m.heard.await(want.Nonce, grant)
		}
		if err != nil {
			m.Fatalf("%s: %v", call, err)
		}
	}
	if n := m.heard.left(); n != 0 {
		m.Fatalf("%s: %d pushes that were not to be expected", call, n)
	}
}

// compareClock checks the time in an answer.
func (m *model) compareClock(now time.Time) {
	if m.epoch.IsZero() {
		m.epoch = now.Add(-m.now)
	}
	if want := m.epoch.Add(m.now); !now.Equal(want) {
		m.Fatalf("the store's clock shows %s, want %s", now, want)
	}
}

// instant converts an instant of ministore to the store's clock.
func (m *model) instant(t time.Time) time.Time { return m.epoch.Add(t.Sub(start)) }

// clock converts an instant of ministore to the form that a record shows: by the store's clock, in whole milliseconds.
func (m *model) clock(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return m.instant(t).Truncate(time.Millisecond)
}

// compareRecords compares all records after a call. began has the nonce, by key, of each term that the call has begun.
func (m *model) compareRecords(call string, began map[string]string) {
	req := driver.InspectRequest{Keys: m.keys, Memo: true}
	wants, err := m.mini.Inspect(m.ctx, req)
	if err != nil {
		m.Fatalf("Inspect: ministore: %v", err)
	}
	records, err := m.Store.Inspect(m.ctx, req)
	if err != nil || len(records) != len(m.keys) {
		m.Fatalf("Inspect: %d records, %v", len(records), err)
	}
	for i, got := range records {
		want := wants[i]
		if want.Fence != 0 {
			m.compareFences(call, want, got, began)
		}
		s := m.seen[got.Key]
		s.here = want.Fence != 0
		if until, joined := m.mini.Kept(got.Key); s.here {
			s.mini, s.store, s.joined, s.expires = want, got, joined, sinceStart(until)
			s.gone = max(s.gone, s.expires)
		}
		m.seen[got.Key] = s
		if got.Fence != 0 {
			m.compareClock(got.Now)
			want.Fence, want.First = got.Fence, got.First
		}
		for _, at := range []*time.Time{&want.Since, &want.Changed, &want.Renewed, &want.EndedAt} {
			*at = m.clock(*at)
		}
		want.Now, want.Waiters = got.Now, got.Waiters
		if bytes.Equal(got.Memo, want.Memo) {
			want.Memo = got.Memo // a nil memo counts as an empty memo
		}
		if !reflect.DeepEqual(got, want) {
			m.Fatalf("%s: %s:\n got %+v\nwant %+v", call, got.Key, got, want)
		}
		if least := len(m.places(got.Key)); got.Waiters < least || got.Waiters > s.joined {
			m.Fatalf("%s: %s: %d waiters, want %d to %d", call, got.Key, got.Waiters, least, s.joined)
		}
	}
}

// compareFences checks the fences of a record: they are those of the last look, or larger ones if a term has begun.
func (m *model) compareFences(call string, want, got driver.Record, began map[string]string) {
	s := m.seen[got.Key]
	fence, first := s.store.Fence, s.store.First
	if want.Fence != s.mini.Fence {
		// Of a record that was forgotten the store knows no fence, and makes a smaller one if its clock was set back.
		if forgot := m.stepped && !s.here; got.Fence <= fence && !forgot {
			m.Fatalf("%s: %s: fence %d is not larger than %d, the one before", call, got.Key, got.Fence, fence)
		}
		if fence = got.Fence; want.First == want.Fence {
			first = fence
		}
		nonce, own := began[got.Key]
		if !own {
			nonce = m.waiterOf(want)
		}
		m.terms[got.Key] = append(m.terms[got.Key], held{fence, nonce})
	}
	if got.Fence != fence || got.First != first {
		m.Fatalf("%s: %s: fence %d of an ownership from %d, want %d from %d", call, got.Key, got.Fence, got.First, fence, first)
	}
}

// waiterOf returns the nonce of the call that waited, and has got the key in a call of another caller.
func (m *model) waiterOf(r driver.Record) string {
	if r.Job != "" {
		return nonceOf(r.Job)
	}
	i := slices.IndexFunc(m.waits, func(w driver.AcquireRequest) bool { return w.Holder == r.Holder })
	if i < 0 {
		m.Fatalf("%s: no waiter has the holder %s", r.Key, r.Holder)
	}
	return m.waits[i].Nonce
}

// compareLine reads the queue of each key, page by page.
func (m *model) compareLine(t *rapid.T) {
	limit := rapid.IntRange(1, 4).Draw(t, "limit")
	for _, key := range m.keys {
		want := m.places(key)
		req := driver.LineRequest{Key: key, Limit: limit}
		for {
			page, err := m.Store.Line(m.ctx, req)
			if err != nil || len(page.Places) > limit {
				m.Fatalf("Line: %d places of at most %d, %v", len(page.Places), limit, err)
			}
			for _, p := range page.Places {
				if len(want) == 0 || m.placeDiffers(p, want[0]) {
					m.Fatalf("%s: place %+v, want the first of %+v", key, p, want)
				}
				want = want[1:]
			}
			if req.Cursor = page.Next; page.Next == "" {
				break
			}
		}
		if len(want) > 0 {
			m.Fatalf("%s: places %+v are not in the line", key, want)
		}
	}
	for _, key := range m.keys {
		job := drawWaiting.Draw(t, "job")
		req := driver.InspectRequest{Keys: []string{key}, Places: []string{nonceOf(job)}}
		records, err := m.Store.Inspect(m.ctx, req)
		if err != nil || len(records) != 1 {
			m.Fatalf("Inspect: %d records, %v", len(records), err)
		}
		wants, err := m.mini.Inspect(m.ctx, req)
		if err != nil {
			m.Fatalf("Inspect: ministore: %v", err)
		}
		got, want := records[0].Place, wants[0].Place
		if want == nil && got != nil || want != nil && m.now < sinceStart(want.Until) && (got == nil || m.placeDiffers(*got, *want)) {
			m.Fatalf("%s: %s has place %+v, want %+v", key, job, got, want)
		}
	}
}

func (m *model) placeDiffers(got, want driver.Place) bool {
	return got.Holder != want.Holder || got.Job != want.Job || !got.Since.Equal(m.instant(want.Since)) || !got.Until.Equal(m.clock(want.Until))
}
