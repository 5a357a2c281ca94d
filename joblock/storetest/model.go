package storetest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/joblock/toolkit/joblock"
)

// RunModel drives the store through random histories of a few keys, owners and
// jobs, stale terms and re-sends included, and compares every answer and every
// record with a reference implementation. The harness is made once and must be
// Exact. The number of histories is rapid's flag -rapid.checks.
func RunModel(t *testing.T, newHarness func(t *testing.T) *Harness) {
	k := newKit(t, newHarness)
	if !k.Exact {
		t.Fatal("storetest: RunModel needs a Harness that is Exact")
	}
	histories := 0
	rapid.Check(t, func(rt *rapid.T) {
		histories++ // keys of its own for each
		m := &model{T: rt, kit: k, locks: make(map[string]*reference), terms: make(map[string][]held)}
		for i := range 3 {
			m.keys = append(m.keys, fmt.Sprintf("history-%d:key-%d", histories, i))
		}
		rt.Repeat(map[string]func(*rapid.T){
			"acquire": m.acquire,
			"resume":  m.resume,
			"park":    m.park,
			"renew":   m.renew,
			"release": m.release,
			"resend":  m.resend,
			"advance": m.advance,
			"":        m.compareRecords,
		})
	})
}

// model is one history.
type model struct {
	*rapid.T
	kit   *kit
	now   time.Duration // since the begin, in whole milliseconds
	keys  []string
	locks map[string]*reference
	terms map[string][]held // of each key, oldest first
	sent  []func()          // the last calls, to be sent again
	nonce int
}

var (
	drawOwner  = rapid.SampledFrom([]string{"me", "you"})
	drawJob    = rapid.SampledFrom([]string{"", "q/one", "q/two"})
	drawMemo   = rapid.SampledFrom([][]byte{nil, nil, {}, []byte("memo"), {0, 1}})
	drawTime   = rapid.Custom(func(t *rapid.T) time.Duration { return millis(rapid.IntRange(1, 200).Draw(t, "ms")) })
	drawRetain = rapid.Custom(func(t *rapid.T) time.Duration { return millis(rapid.IntRange(20, 400).Draw(t, "ms")) })
)

func millis(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func (m *model) key(t *rapid.T) string { return rapid.SampledFrom(m.keys).Draw(t, "key") }

func (m *model) newNonce() string {
	m.nonce++
	return fmt.Sprintf("nonce-%d", m.nonce)
}

// term names the present term as a rule, else one before, somebody else's or none.
func (m *model) term(t *rapid.T) joblock.Term {
	key := m.key(t)
	term := joblock.Term{Key: key, Owner: drawOwner.Draw(t, "owner")}
	terms := m.terms[key]
	if len(terms) == 0 {
		term.Fence = 1
		return term
	}
	if rapid.IntRange(0, 2).Draw(t, "its owner") < 2 {
		term.Owner = m.locks[key].owner
	}
	pick := func(what string) held {
		back := max(0, rapid.IntRange(-4, 2).Draw(t, what))
		return terms[max(0, len(terms)-1-back)]
	}
	switch rapid.SampledFrom([]string{"fence", "grant", "both", "neither"}).Draw(t, "named by") {
	case "fence":
		term.Fence = pick("fence").fence
	case "grant":
		term.Grant = pick("grant").grant
	case "both":
		term.Fence, term.Grant = pick("fence").fence, pick("grant").grant
	}
	return term
}

func (m *model) acquire(t *rapid.T) {
	req := joblock.AcquireRequest{
		Key: m.key(t), Owner: drawOwner.Draw(t, "owner"), Nonce: m.newNonce(),
		TTL: drawTime.Draw(t, "ttl"), Retain: drawRetain.Draw(t, "retain"), Holder: m.newNonce(),
	}
	m.send(func() {
		p := m.locks[req.Key].acquire(m.now, req)
		got, err := m.kit.Store.Acquire(m.kit.ctx, req)
		m.compare("acquire", req.Key, req.Nonce, p, got, err)
	})
}

func (m *model) resume(t *rapid.T) {
	req := joblock.ResumeRequest{
		Key: m.key(t), Owner: drawOwner.Draw(t, "owner"), Nonce: m.newNonce(), TTL: drawTime.Draw(t, "ttl"),
		Retain: drawRetain.Draw(t, "retain"), Holder: m.newNonce(), Job: drawJob.Draw(t, "job"),
	}
	m.send(func() {
		p := m.locks[req.Key].resume(m.now, req)
		got, err := m.kit.Store.Resume(m.kit.ctx, req)
		m.compare("resume", req.Key, req.Nonce, p, got, err)
	})
}

func (m *model) park(t *rapid.T) {
	req := joblock.ParkRequest{
		Term: m.term(t), Nonce: m.newNonce(), Hold: drawTime.Draw(t, "hold"),
		Retain: drawRetain.Draw(t, "retain"), Job: drawJob.Draw(t, "job"),
	}
	m.send(func() {
		p := m.locks[req.Key].park(m.now, req)
		got, err := m.kit.Store.Park(m.kit.ctx, req)
		m.compare("park", req.Key, req.Nonce, p, got, err)
	})
}

func (m *model) renew(t *rapid.T) {
	req := joblock.RenewRequest{
		Term: m.term(t), TTL: drawTime.Draw(t, "ttl"), Retain: drawRetain.Draw(t, "retain"), Memo: drawMemo.Draw(t, "memo"),
	}
	m.send(func() {
		p := m.locks[req.Key].renew(m.now, req)
		got, err := m.kit.Store.Renew(m.kit.ctx, []joblock.RenewRequest{req})
		m.compare("renew", req.Key, "", p, m.only(got), err)
	})
}

func (m *model) release(t *rapid.T) {
	req := joblock.ReleaseRequest{
		Term: m.term(t), Nonce: m.newNonce(), Retain: drawRetain.Draw(t, "retain"), Reason: m.newNonce(),
	}
	switch rapid.IntRange(0, 4).Draw(t, "how") {
	case 0:
		req.Force = true
	case 1:
		req.IdleOnly = true
	}
	m.send(func() {
		p := m.locks[req.Key].release(m.now, req)
		got, err := m.kit.Store.Release(m.kit.ctx, []joblock.ReleaseRequest{req})
		m.compare("release", req.Key, req.Nonce, p, m.only(got), err)
	})
}

// resend repeats one of the last few calls.
func (m *model) resend(t *rapid.T) {
	if len(m.sent) == 0 {
		return
	}
	back := rapid.IntRange(1, min(4, len(m.sent))).Draw(t, "back")
	m.sent[len(m.sent)-back]()
}

func (m *model) send(call func()) {
	m.sent = append(m.sent, call)
	call()
}

func (m *model) advance(t *rapid.T) {
	d := millis(rapid.IntRange(0, 250).Draw(t, "ms"))
	// Whether a record is still there in the very millisecond in which its
	// retention ends is left to the store, so none is met then.
	ends := func(r *reference) bool { return r.expires == m.now+d }
	for slices.ContainsFunc(slices.Collect(maps.Values(m.locks)), ends) {
		d += time.Millisecond
	}
	m.kit.Advance(d)
	m.now += d
}

func (m *model) only(replies []joblock.Reply) joblock.Reply {
	if len(replies) != 1 {
		m.Fatalf("%d replies to one request", len(replies))
	}
	return replies[0]
}

// compare checks an answer and lets the reference follow.
func (m *model) compare(call, key, nonce string, want prediction, got joblock.Reply, err error) {
	if err != nil {
		m.Fatalf("%s %s: %v", call, key, err)
	}
	fence := int64(0)
	if r := m.locks[key]; r != nil {
		fence = r.fence
	}
	switch {
	case want.grows && got.Fence <= fence:
		m.Fatalf("%s %s: fence %d is not larger than %d, the one before", call, key, got.Fence, fence)
	case want.grows:
		fence = got.Fence
		m.terms[key] = append(m.terms[key], held{got.Fence, nonce})
		want.reply.Fence = got.Fence
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
}

func replyDiff(want prediction, got joblock.Reply) string {
	w := want.reply
	switch {
	case want.lateToo && got.Outcome == joblock.OutcomeLapsed:
		return ""
	case got.Outcome != w.Outcome:
		return fmt.Sprintf("outcome %s, want %s", outcomeName(got.Outcome), outcomeName(w.Outcome))
	case got.Outcome == joblock.OutcomeOK && w.Fence != 0 && got.Fence != w.Fence:
		return "another fence"
	case !bytes.Equal(got.Memo, w.Memo):
		return "another memo"
	case want.again:
		return ""
	case got.Ended != w.Ended || got.Recovered != w.Recovered:
		return "another end of the previous ownership"
	case got.Outcome == joblock.OutcomeReleased && got.Reason != w.Reason:
		return "another reason"
	case got.State != w.State || got.Holder != w.Holder || got.Job != w.Job || got.Remaining != w.Remaining:
		return "something else in the way"
	}
	return ""
}

// compareRecords runs after every action.
func (m *model) compareRecords(*rapid.T) {
	records, err := m.kit.Store.Inspect(m.kit.ctx, m.keys)
	if err != nil || len(records) != len(m.keys) {
		m.Fatalf("Inspect: %d records, %v", len(records), err)
	}
	for i, got := range records {
		want := m.locks[m.keys[i]].record(m.now, m.keys[i])
		want.Since = got.Since // by the store's own calendar
		if diff := recordDiff(want, got); diff != "" {
			m.Fatalf("%s: %s (as the reference has it, as the store has it)", got.Key, diff)
		}
		if got.Lease != want.Lease || got.Reserved != want.Reserved {
			m.Fatalf("%s: lease %s, reserved %s, want %s and %s", got.Key, got.Lease, got.Reserved, want.Lease, want.Reserved)
		}
	}
}
