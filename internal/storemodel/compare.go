package storemodel

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/joblock/toolkit/joblock/driver"
)

// compare checks an answer against a prediction, and then updates the reference.
func (m *model) compare(call, key, nonce string, want prediction, got driver.Reply, err error) {
	if err != nil {
		m.Fatalf("%s %s: %v", call, key, err)
	}
	fence := int64(0)
	if r := m.locks[key]; r != nil {
		fence = r.fence
		if m.stepped && r.phase(m.now) == absent {
			fence = 0 // the record was forgotten, and the clock, from which the store makes fences, was set back
		}
	}
	switch {
	case want.grows && got.Fence <= fence:
		m.Fatalf("%s %s: fence %d is not larger than %d, the one before", call, key, got.Fence, fence)
	case want.grows:
		fence = got.Fence
		m.terms[key] = append(m.terms[key], held{got.Fence, nonce})
		want.reply.Fence = got.Fence
	case want.grants != nil:
		fence = m.compareGrant(call, key, fence, want)
		m.terms[key] = append(m.terms[key], held{fence, want.grants.Nonce})
	}
	if n := m.heard.left(); n != 0 && m.toCompare == 0 {
		m.Fatalf("%s %s: %d pushes that were not to be expected", call, key, n)
	}
	if got.Outcome == driver.OutcomeHeld && got.Fence != 0 && got.Fence != fence {
		m.Fatalf("%s %s: held under fence %d, want %d", call, key, got.Fence, fence)
	}
	if want.queued {
		m.compareClock(got.Now)
		if since := m.epoch.Add(want.since); want.job && !got.Since.Equal(since) {
			m.Fatalf("%s %s: a place since %s, want %s", call, key, got.Since, since)
		}
	} else if !got.Since.IsZero() || got.Outcome == driver.OutcomeHeld && !got.Now.IsZero() {
		m.Fatalf("%s %s: %+v, want no place", call, key, got)
	}
	if diff := replyDiff(want, got); diff != "" {
		m.Fatalf("%s %s: %s\n got %+v\nwant %+v", call, key, diff, got, want.reply)
	}
	if want.apply == nil {
		return
	}
	if m.locks[key] == nil {
		m.locks[key] = &reference{}
	}
	want.apply(m.locks[key])
	m.locks[key].fence = fence
	if want.grants != nil || want.grows && (call == "acquire" || call == "take") {
		m.locks[key].first = fence
	}
}

// compareGrant checks the push to a waiter, and returns the fence of the waiter's grant.
func (m *model) compareGrant(call, key string, before int64, want prediction) int64 {
	records, err := m.Store.Inspect(m.ctx, driver.InspectRequest{Keys: []string{key}})
	if err != nil || len(records) != 1 {
		m.Fatalf("Inspect: %d records, %v", len(records), err)
	}
	fence := records[0].Fence
	if fence <= before {
		m.Fatalf("%s %s: the waiter has fence %d after %d", call, key, fence, before)
	}
	if want.grants.Inbox == unheardInbox || want.grants.job != "" && want.starts {
		return fence
	}
	if job := want.grants.job; job != "" {
		if err := m.heard.awaitJob(key, job); err != nil {
			m.Fatalf("%s %s: %v", call, key, err)
		}
		return fence
	}
	if err := m.heard.await(want.grants.Nonce, driver.Grant{Fence: fence, Ended: want.how}); err != nil {
		m.Fatalf("%s %s: %v", call, key, err)
	}
	return fence
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

// clock converts an instant to the form that a record shows: by the store's clock, in whole milliseconds.
func (m *model) clock(at time.Duration) time.Time { return m.epoch.Add(at).Truncate(time.Millisecond) }

func replyDiff(want prediction, got driver.Reply) string {
	w := want.reply
	switch {
	case want.lateToo && got.Outcome == driver.OutcomeLapsed:
		return ""
	case got.Outcome != w.Outcome:
		return fmt.Sprintf("outcome %s, want %s", got.Outcome, w.Outcome)
	case got.Outcome == driver.OutcomeOK && w.Fence != 0 && got.Fence != w.Fence:
		return "another fence"
	case !bytes.Equal(got.Memo, w.Memo):
		return "another memo"
	case got.Lease != w.Lease:
		return fmt.Sprintf("lease %s, want %s", got.Lease, w.Lease)
	case got.Next != w.Next:
		return fmt.Sprintf("%q is next, want %q", got.Next, w.Next)
	case got.Outcome == driver.OutcomeFull && got.Ahead != w.Ahead:
		return fmt.Sprintf("%d places, want %d", got.Ahead, w.Ahead)
	case want.queued && (got.Ahead < want.minAhead || got.Ahead >= want.countable):
		return fmt.Sprintf("%d places ahead, want at least %d and fewer than %d", got.Ahead, want.minAhead, want.countable)
	case want.again:
		return ""
	case got.Ended != w.Ended || got.Recovered != w.Recovered:
		return "another end of the previous ownership"
	case got.Outcome == driver.OutcomeReleased && got.Reason != w.Reason:
		return "another reason"
	case got.State != w.State || got.Holder != w.Holder || got.Job != w.Job || got.Remaining != w.Remaining:
		return "something else in the way"
	}
	return ""
}

// compareRecords runs after every action.
func (m *model) compareRecords(*rapid.T) {
	records, err := m.Store.Inspect(m.ctx, driver.InspectRequest{Keys: m.keys, Memo: true})
	if err != nil || len(records) != len(m.keys) {
		m.Fatalf("Inspect: %d records, %v", len(records), err)
	}
	for i, got := range records {
		want := m.locks[m.keys[i]].record(m.now, m.keys[i])
		if got.Fence != 0 {
			m.compareClock(got.Now)
		}
		if r := m.locks[got.Key]; want.Fence != 0 {
			want.Since, want.Changed = m.clock(r.since), m.clock(r.changed)
			if r.lease != 0 {
				want.Renewed, want.TTL = m.clock(r.renewed), r.lease-r.renewed-rounding
			}
			switch r.phase(m.now) {
			case ended:
				want.EndedAt = m.clock(r.changed)
			case ranOut:
				want.EndedAt = m.clock(r.until)
			}
		}
		want.Now, want.Waiters = got.Now, got.Waiters // other code compares these two fields
		if bytes.Equal(got.Memo, want.Memo) {
			want.Memo = got.Memo // a nil memo counts as an empty memo
		}
		if !reflect.DeepEqual(got, want) {
			m.Fatalf("%s: the store has %+v, want %+v", got.Key, got, want)
		}
		if least, most := m.locks[got.Key].waiters(m.now); got.Waiters < least || got.Waiters > most {
			m.Fatalf("%s: %d waiters, want %d to %d", got.Key, got.Waiters, least, most)
		}
	}
}

// compareLine reads the queue of each key, page by page.
func (m *model) compareLine(t *rapid.T) {
	limit := rapid.IntRange(1, 4).Draw(t, "limit")
	for _, key := range m.keys {
		var want []inLine
		if r := m.locks[key]; r.phase(m.now) != absent {
			want = slices.DeleteFunc(slices.Clone(r.line), func(w inLine) bool { return m.now >= w.until })
		}
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
		records, err := m.Store.Inspect(m.ctx, driver.InspectRequest{Keys: []string{key}, Places: []string{nonceOf(job)}})
		if err != nil || len(records) != 1 {
			m.Fatalf("Inspect: %d records, %v", len(records), err)
		}
		got, want := records[0].Place, m.locks[key].place(m.now, nonceOf(job))
		if want == nil && got != nil || want != nil && m.now < want.until && (got == nil || m.placeDiffers(*got, *want)) {
			m.Fatalf("%s: %s has place %+v, want %+v", key, job, got, want)
		}
	}
}

func (m *model) placeDiffers(got driver.Place, want inLine) bool {
	return got.Holder != want.Holder || got.Job != want.job || !got.Since.Equal(m.epoch.Add(want.since)) || !got.Until.Equal(m.clock(want.until))
}
