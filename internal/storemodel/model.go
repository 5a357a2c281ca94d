// Package storemodel drives a store through random histories, and compares every answer, every push and every record
// with those of ministore. It is not a part of storetest because it needs a clock that moves only on command, and the
// module rapid. Authors of stores elsewhere need not have either.
package storemodel

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/joblock/toolkit/internal/ministore"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/storetest"
)

// Run checks the store of h. h must be Exact. A history is about a few keys, owners and jobs. Terms may
// be stale. Calls are sent again, arrive late or never arrive. If h has a Step, the store's clock is set back. The flag
// -rapid.checks gives the number of histories, and -rapid.seed makes them others: the default is always the same ones, so
// that a test passes or fails for all alike. make fuzz looks at new ones.
func Run(t *testing.T, h *storetest.Harness) {
	if seed := flag.Lookup("rapid.seed"); seed.Value.String() == seed.DefValue {
		if err := seed.Value.Set("1"); err != nil {
			t.Fatal(err)
		}
	}
	if !h.Exact {
		t.Fatal("storemodel: the Harness is not Exact")
	}
	histories := 0
	heard := listen(t, h.Store)
	rapid.Check(t, func(rt *rapid.T) {
		histories++ // each history has its own keys and nonces
		heard.clear()
		m := &model{
			T: rt, Harness: h, ctx: t.Context(), seen: make(map[string]seen), terms: make(map[string][]held),
			index: make(map[pairOf]*listed), history: histories, heard: heard,
		}
		m.mini = m.newMini()
		for i := range 3 {
			m.keys = append(m.keys, fmt.Sprintf("history-%d:key-%d", histories, i))
		}
		m.lines = m.keys
		m.keys = append(m.keys[:3:3], driver.SlotKey(m.keys[0], 2), driver.SlotKey(m.keys[0], driver.MaxSlots))
		actions := map[string]func(*rapid.T){
			"acquire": m.acquire,
			"wait":    m.wait,
			"ask":     m.askAgain,
			"give up": m.giveUp,
			"take":    m.take,
			"line":    m.joinLine,
			"leave":   m.leaveLine,
			"look":    m.compareLine,
			"resume":  m.resume,
			"park":    m.park,
			"renew":   m.renew,
			"release": m.release,
			"reserve": m.reserve,
			"due":     m.due,
			"settle":  m.settle,
			"entries": m.entries,
			"resend":  m.resend,
			"delay":   m.delay,
			"arrive":  m.arrive,
			"advance": m.advance,
			"":        func(*rapid.T) { m.compareRecords("look", nil) },
		}
		if h.Step != nil {
			actions["step back"] = m.stepBack
		}
		rt.Repeat(actions)
	})
}

// model is one history.
type model struct {
	*rapid.T
	*storetest.Harness
	ctx   context.Context
	now   time.Duration // since the begin, in whole milliseconds
	keys  []string
	lines []string          // those of keys that have a queue: all but slots
	mini  *ministore.Store  // gets the same calls
	push  []driver.Push     // those of mini in the present call
	seen  map[string]seen   // the records at the last look
	terms map[string][]held // of each key, oldest first
	sent  []func()          // the last calls, to be sent again
	late  []func()          // the calls that were sent and have not arrived

	delaying bool // a call that is sent now does not arrive yet
	stepped  bool // the clock was set back at some time

	nonce int

	history int
	heard   pushes
	waits   []driver.AcquireRequest // requests with an inbox that were sent
	epoch   time.Time               // the store's clock at the begin

	index map[pairOf]*listed
	found []driver.Entry // the entries that were due, oldest first
}

// held names the present term of a record, and the call that began that term.
type held struct {
	fence int64
	grant string
}

var (
	drawOwner   = rapid.SampledFrom([]string{"me", "you"})
	drawJob     = rapid.SampledFrom([]string{"", "q/one", "q/two"})
	drawWaiting = rapid.SampledFrom([]string{"q/one", "q/two", "q/three"})
	drawMemo    = rapid.SampledFrom([][]byte{nil, nil, {}, []byte("memo"), {0, 1}})
	drawTime    = rapid.Custom(func(t *rapid.T) time.Duration { return millis(rapid.IntRange(1, 200).Draw(t, "ms")) })
	drawHold    = rapid.Custom(func(t *rapid.T) time.Duration { return millis(max(0, rapid.IntRange(-100, 300).Draw(t, "ms"))) })
	drawRetain  = rapid.Custom(func(t *rapid.T) time.Duration { return millis(rapid.IntRange(20, 400).Draw(t, "ms")) })
)

var drawBrief = rapid.Custom(func(t *rapid.T) time.Duration { return millis(max(0, rapid.IntRange(-20, 20).Draw(t, "ms"))) })

func millis(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func (m *model) key(t *rapid.T) string { return rapid.SampledFrom(m.keys).Draw(t, "key") }

// line draws a key that has a queue.
func (m *model) line(t *rapid.T) string { return rapid.SampledFrom(m.lines).Draw(t, "key") }

func (m *model) newNonce() string {
	m.nonce++
	return fmt.Sprintf("%d.%d", m.history, m.nonce)
}

// term draws a term: mostly the present term, sometimes an earlier term, another owner's term, or no term.
func (m *model) term(t *rapid.T) driver.Term {
	key := m.key(t)
	term := driver.Term{Key: key, Owner: drawOwner.Draw(t, "owner")}
	terms := m.terms[key]
	if len(terms) == 0 {
		term.Fence = 1
		return term
	}
	if rapid.IntRange(0, 2).Draw(t, "its owner") < 2 {
		term.Owner = m.seen[key].mini.Owner
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

func (m *model) acquire(t *rapid.T) { m.sendAcquire(m.acquireReq(t)) }

func (m *model) acquireReq(t *rapid.T) driver.AcquireRequest {
	return driver.AcquireRequest{
		Key: m.key(t), Owner: drawOwner.Draw(t, "owner"), Nonce: m.newNonce(),
		TTL: drawTime.Draw(t, "ttl"), Retain: drawRetain.Draw(t, "retain"), Holder: m.newNonce(),
		Memo: rapid.Bool().Draw(t, "memo"),
	}
}

func (m *model) sendAcquire(req driver.AcquireRequest) {
	sendBatch(m, "acquire", []driver.AcquireRequest{req},
		func(r *driver.AcquireRequest) (key, nonce string, fence *int64) { return r.Key, r.Nonce, nil },
		func(s driver.Store, ctx context.Context, reqs []driver.AcquireRequest) ([]driver.Reply, error) {
			reply, err := s.Acquire(ctx, reqs[0])
			return []driver.Reply{reply}, err
		},
		func(_ driver.AcquireRequest, a answer) {
			if a.grows { // a store may know the begin of a term in whole ms only, and that of a renewal exactly
				m.pass(time.Millisecond)
			}
		})
}

func (m *model) wait(t *rapid.T) {
	req := m.acquireReq(t)
	req.Key = m.line(t)
	req.Inbox = rapid.SampledFrom([]string{heardInbox, unheardInbox}).Draw(t, "inbox")
	req.Patience = 2 * drawTime.Draw(t, "half the patience")
	m.waits = append(m.waits, req)
	m.sendAcquire(req)
}

// waited picks one of the latest Acquires that waited. Its waiter may have got the key since then.
func (m *model) waited(t *rapid.T) (driver.AcquireRequest, bool) {
	if len(m.waits) == 0 {
		return driver.AcquireRequest{}, false
	}
	back := rapid.IntRange(1, min(8, len(m.waits))).Draw(t, "which")
	return m.waits[len(m.waits)-back], true
}

func (m *model) askAgain(t *rapid.T) {
	if req, any := m.waited(t); any {
		req.Patience = 2 * drawTime.Draw(t, "half the patience")
		m.sendAcquire(req)
	}
}

func (m *model) giveUp(t *rapid.T) {
	if wait, any := m.waited(t); any {
		m.sendReleases([]driver.ReleaseRequest{{
			Term:  driver.Term{Key: wait.Key, Owner: wait.Owner, Grant: wait.Nonce},
			Nonce: m.newNonce(), Retain: drawRetain.Draw(t, "retain"), Brief: drawBrief.Draw(t, "brief"), Reason: m.newNonce(),
		}})
	}
}

// several draws one request, or a few requests for different keys.
func several[R any](t *rapid.T, keyOf func(*R) string, draw func() R) []R {
	var reqs []R
	for range max(1, rapid.IntRange(-2, 3).Draw(t, "items")) {
		req := draw()
		if !slices.ContainsFunc(reqs, func(r R) bool { return keyOf(&r) == keyOf(&req) }) {
			reqs = append(reqs, req)
		}
	}
	return reqs
}

// answer is what ministore answers to an item of a call.
type answer struct {
	driver.Reply
	grows  bool // the call has begun a term of the caller
	queued bool // the caller waits
}

// sendBatch sends requests for different keys in one call to both stores, and compares the replies, the pushes and the
// records after the call.
func sendBatch[R any](
	m *model, call string, reqs []R, nameOf func(*R) (key, nonce string, fence *int64),
	method func(driver.Store, context.Context, []R) ([]driver.Reply, error), then func(R, answer),
) {
	m.send(func() {
		same := slices.Clone(reqs)
		for i := range same {
			if key, _, fence := nameOf(&same[i]); fence != nil {
				*fence = m.seen[key].translate(*fence)
			}
		}
		m.push = nil
		want, err := method(m.mini, m.ctx, same)
		if err != nil {
			m.Fatalf("%s: ministore: %v", call, err)
		}
		got, err := method(m.Store, m.ctx, reqs)
		if err != nil || len(got) != len(reqs) {
			m.Fatalf("%s: %d replies to %d requests, %v", call, len(got), len(reqs), err)
		}
		answers, began := make([]answer, len(reqs)), make(map[string]string)
		for i, reply := range want {
			key, nonce, _ := nameOf(&reqs[i])
			a := answer{Reply: reply, queued: reply.Outcome == driver.OutcomeHeld && !reply.Now.IsZero()}
			if a.grows = reply.Outcome == driver.OutcomeOK && reply.Fence > m.seen[key].mini.Fence; a.grows {
				began[key] = nonce
			}
			answers[i] = a
		}
		m.compareRecords(call, began)
		m.comparePushes(call)
		for i, a := range answers {
			key, _, _ := nameOf(&reqs[i])
			m.compare(call, key, a, got[i])
			if then != nil {
				then(reqs[i], a)
			}
		}
	})
}

func (m *model) take(t *rapid.T) {
	m.sendTakes(several(t, func(r *driver.TakeRequest) string { return r.Key }, func() driver.TakeRequest {
		return driver.TakeRequest{
			Key: m.key(t), Owner: drawOwner.Draw(t, "owner"), Nonce: m.newNonce(), Holder: m.newNonce(), Job: drawJob.Draw(t, "job"),
			Reserve: drawTime.Draw(t, "hold"), Retain: drawRetain.Draw(t, "retain"), Grace: drawHold.Draw(t, "grace"),
		}
	}))
}

func (m *model) sendTakes(reqs []driver.TakeRequest) {
	sendBatch(m, "take", reqs,
		func(r *driver.TakeRequest) (key, nonce string, fence *int64) { return r.Key, r.Nonce, nil }, driver.Store.Take,
		func(req driver.TakeRequest, a answer) { m.bound(req.Key, req.Job, req.Grace, a.grows || a.queued) })
}

// nonceOf returns the nonce of the Takes with which job waits.
func nonceOf(job string) string { return "of " + job }

// joinLine sends Takes whose jobs wait, or ask again.
func (m *model) joinLine(t *rapid.T) {
	m.sendTakes(several(t, func(r *driver.TakeRequest) string { return r.Key }, func() driver.TakeRequest {
		job := drawWaiting.Draw(t, "job")
		return driver.TakeRequest{
			Key: m.line(t), Owner: drawOwner.Draw(t, "owner"), Nonce: nonceOf(job), Holder: m.newNonce(), Job: job,
			Reserve: drawTime.Draw(t, "hold"), Retain: drawRetain.Draw(t, "retain"), Grace: drawHold.Draw(t, "grace"),
			Patience: 2 * drawTime.Draw(t, "half the patience"), Most: max(0, rapid.IntRange(-4, 3).Draw(t, "most")),
		}
	}))
}

// leaveLine gives up the place of a job, or frees the key that the job has got.
func (m *model) leaveLine(t *rapid.T) {
	job := drawWaiting.Draw(t, "job")
	req := driver.ReleaseRequest{
		Term:  driver.Term{Key: m.key(t), Owner: drawOwner.Draw(t, "owner"), Grant: nonceOf(job)},
		Nonce: m.newNonce(), Retain: drawRetain.Draw(t, "retain"), Starts: rapid.Bool().Draw(t, "starts"), Grace: drawHold.Draw(t, "grace"),
	}
	if rapid.Bool().Draw(t, "by the keeper") {
		req.Kind, req.Job = driver.ReleaseForcedIdle, job
	}
	m.sendReleases([]driver.ReleaseRequest{req})
}

func (m *model) resume(t *rapid.T) {
	reqs := several(t, func(r *driver.ResumeRequest) string { return r.Key }, func() driver.ResumeRequest {
		req := driver.ResumeRequest{
			Key: m.key(t), Owner: drawOwner.Draw(t, "owner"), Nonce: m.newNonce(), TTL: drawTime.Draw(t, "ttl"),
			Retain: drawRetain.Draw(t, "retain"), Holder: m.newNonce(), Job: drawJob.Draw(t, "job"),
			Reserve: drawHold.Draw(t, "hold"), Grace: drawHold.Draw(t, "grace"), Memo: rapid.Bool().Draw(t, "memo"),
		}
		if req.Unpark = rapid.Bool().Draw(t, "unpark"); req.Unpark {
			req.Back = drawJob.Draw(t, "back")
		}
		if terms := m.terms[req.Key]; len(terms) > 0 && rapid.Bool().Draw(t, "by a fence") {
			req.Fence = terms[rapid.IntRange(max(0, len(terms)-5), len(terms)-1).Draw(t, "fence")].fence
		}
		return req
	})
	sendBatch(m, "resume", reqs,
		func(r *driver.ResumeRequest) (key, nonce string, fence *int64) { return r.Key, r.Nonce, &r.Fence }, driver.Store.Resume,
		func(req driver.ResumeRequest, a answer) {
			switch {
			case req.Unpark:
				m.bound(req.Key, req.Back, req.Grace, a.grows)
			case a.Recovered:
				m.bound(req.Key, m.seen[req.Key].mini.Job, req.Grace, true)
			}
		})
}

func (m *model) park(t *rapid.T) {
	reqs := several(t, func(r *driver.ParkRequest) string { return r.Key }, func() driver.ParkRequest {
		return driver.ParkRequest{
			Term: m.term(t), Nonce: m.newNonce(), Reserve: drawTime.Draw(t, "hold"),
			Retain: drawRetain.Draw(t, "retain"), Job: drawJob.Draw(t, "job"), Grace: drawHold.Draw(t, "grace"),
		}
	})
	sendBatch(m, "park", reqs,
		func(r *driver.ParkRequest) (key, nonce string, fence *int64) { return r.Key, r.Nonce, &r.Fence }, driver.Store.Park,
		func(req driver.ParkRequest, a answer) { m.bound(req.Key, req.Job, req.Grace, a.grows) })
}

func (m *model) renew(t *rapid.T) {
	reqs := several(t, func(r *driver.RenewRequest) string { return r.Key }, func() driver.RenewRequest {
		return driver.RenewRequest{
			Term: m.term(t), TTL: drawTime.Draw(t, "ttl"), Retain: drawRetain.Draw(t, "retain"), Memo: drawMemo.Draw(t, "memo"),
			Reserve: drawHold.Draw(t, "hold"), Back: drawJob.Draw(t, "back"),
		}
	})
	sendBatch(m, "renew", reqs,
		func(r *driver.RenewRequest) (key, nonce string, fence *int64) { return r.Key, "", &r.Fence }, driver.Store.Renew, nil)
}

func (m *model) release(t *rapid.T) {
	m.sendReleases(several(t, func(r *driver.ReleaseRequest) string { return r.Key }, func() driver.ReleaseRequest {
		req := driver.ReleaseRequest{
			Term: m.term(t), Nonce: m.newNonce(), Retain: drawRetain.Draw(t, "retain"), Brief: drawBrief.Draw(t, "brief"),
			Starts: rapid.Bool().Draw(t, "starts"), Grace: drawHold.Draw(t, "grace"),
		}
		if rapid.Bool().Draw(t, "with a reason") {
			req.Reason = m.newNonce()
		}
		req.Kind = driver.ReleaseKind(max(0, rapid.IntRange(-3, int(driver.ReleaseForcedIdle)).Draw(t, "kind")))
		if rapid.Bool().Draw(t, "for a job") {
			req.Job = drawJob.Draw(t, "job")
			req.Done = req.Kind.ByOwner() && req.Job != "" && rapid.Bool().Draw(t, "done")
		}
		if req.Kind == driver.ReleaseForcedIdle && req.Job == "" {
			req.Grant = "" // only for the waiting job that Job names
		}
		return req
	}))
}

// sendReleases sends releases in one call, but only one of the slots of a key: each changes the queue of the others.
func (m *model) sendReleases(reqs []driver.ReleaseRequest) {
	var different []driver.ReleaseRequest
	for _, req := range reqs {
		if !slices.ContainsFunc(different, func(other driver.ReleaseRequest) bool { return lineOf(other.Key) == lineOf(req.Key) }) {
			different = append(different, req)
		}
	}
	sendBatch(m, "release", different,
		func(r *driver.ReleaseRequest) (key, nonce string, fence *int64) { return r.Key, r.Nonce, &r.Fence }, driver.Store.Release,
		func(req driver.ReleaseRequest, a answer) {
			m.keptFor(req.Key, req.Retain) // a store may keep the record for longer than Brief
			if lineOf(req.Key) != req.Key && a.Next != "" {
				ttl := m.seen[req.Key].mini.Reserved - rounding
				m.bound(req.Key, a.Next, min(req.Grace, ttl/2), true)
			}
		})
}

func lineOf(key string) string {
	line, _ := driver.LineOf(key)
	return line
}

// resend repeats an earlier call, most often one of the last few calls.
func (m *model) resend(t *rapid.T) {
	if len(m.sent) == 0 {
		return
	}
	back := rapid.IntRange(1, min(4, len(m.sent))).Draw(t, "back")
	if rapid.IntRange(0, 3).Draw(t, "long ago") == 0 {
		back = rapid.IntRange(1, min(40, len(m.sent))).Draw(t, "back")
	}
	m.sent[len(m.sent)-back]()
}

func (m *model) send(call func()) {
	if m.delaying {
		m.late = append(m.late, call)
		return
	}
	m.sent = append(m.sent, call)
	call()
}

func (m *model) advance(t *rapid.T) { m.pass(millis(rapid.IntRange(0, 250).Draw(t, "ms"))) }

// pass advances the store's clock by d or a little more.
func (m *model) pass(d time.Duration) {
	// A store may still have a record in the very millisecond in which the retention ends, and then for as long as a
	// place was kept. So the advance does not end at such a time.
	forgotten := func(s seen) bool { return s.expires <= m.now+d && m.now+d <= s.gone }
	for slices.ContainsFunc(slices.Collect(maps.Values(m.seen)), forgotten) {
		d += time.Millisecond
	}
	m.Advance(d)
	m.now += d
}
