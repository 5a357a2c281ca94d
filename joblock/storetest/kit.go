package storetest

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// long is longer than any test takes, even on a busy machine.
const long = 10 * time.Minute

// rounding is how late a deadline may be.
const rounding = time.Millisecond

// kit is what a test case works with. Some methods call the Store, and fail the test on an error. Other methods bring a
// record into a state.
type kit struct {
	*testing.T
	*Harness
	ctx    context.Context
	nonces int
}

// held names the present term of a record and the call that began that term.
type held struct {
	fence int64
	grant string
}

func newKit(t *testing.T, newHarness func(t *testing.T) *Harness) *kit {
	t.Helper()
	h := newHarness(t)
	if h == nil || h.Store == nil || h.Advance == nil {
		t.Fatal("storetest: a Harness needs a Store and Advance")
	}
	if (h.Foreign == nil) != (h.ForeignIntact == nil) {
		t.Fatal("storetest: a Harness needs both of Foreign and ForeignIntact, or neither")
	}
	own := *h
	if own.Unit == 0 {
		own.Unit = DefaultUnit
	}
	return &kit{T: t, Harness: &own, ctx: t.Context()}
}

// lapse waits until a lease or a reservation of one Unit has run out.
func (k *kit) lapse() { k.Advance(2 * k.Unit) }

func (k *kit) nonce() string {
	k.nonces++
	return fmt.Sprintf("nonce-%d", k.nonces)
}

func holderOf(owner string) string { return "holder of " + owner }

// The methods below return the usual requests, in which a test changes the fields that matter to it.

func (k *kit) acquireReq(key, owner string) driver.AcquireRequest {
	return driver.AcquireRequest{
		Key: key, Owner: owner, Nonce: k.nonce(), TTL: long, Retain: long, Holder: holderOf(owner),
		Memo: true,
	}
}

func (k *kit) resumeReq(key, owner, job string) driver.ResumeRequest {
	return driver.ResumeRequest{
		Key: key, Owner: owner, Nonce: k.nonce(), TTL: long, Retain: long, Holder: holderOf(owner), Job: job,
		Grace: long, Memo: true,
	}
}

func (k *kit) takeReq(key, owner, job string) driver.TakeRequest {
	return driver.TakeRequest{
		Key: key, Owner: owner, Nonce: k.nonce(), Holder: holderOf(owner), Job: job, Reserve: 10 * long, Retain: long,
		Grace: long,
	}
}

func (k *kit) parkReq(term driver.Term, job string) driver.ParkRequest {
	return driver.ParkRequest{Term: term, Nonce: k.nonce(), Reserve: 10 * long, Retain: long, Job: job, Grace: long}
}

func (k *kit) renewReq(term driver.Term) driver.RenewRequest {
	return driver.RenewRequest{Term: term, TTL: long, Retain: long}
}

func (k *kit) releaseReq(term driver.Term) driver.ReleaseRequest {
	return driver.ReleaseRequest{Term: term, Nonce: k.nonce(), Retain: long}
}

func (k *kit) forceReq(key string) driver.ReleaseRequest {
	return driver.ReleaseRequest{Term: driver.Term{Key: key}, Nonce: k.nonce(), Retain: long, Kind: driver.ReleaseForced}
}

func byFence(key, owner string, fence int64) driver.Term {
	return driver.Term{Key: key, Owner: owner, Fence: fence}
}

func byGrant(key, owner, grant string) driver.Term {
	return driver.Term{Key: key, Owner: owner, Grant: grant}
}

func byOwner(key, owner string) driver.Term { return driver.Term{Key: key, Owner: owner} }

// The methods below are the calls of the Store.

func (k *kit) acquire(req driver.AcquireRequest) driver.Reply {
	k.Helper()
	reply, err := k.Store.Acquire(k.ctx, req)
	return k.answer("Acquire", reply, err)
}

func (k *kit) takeAll(reqs []driver.TakeRequest) []driver.Reply {
	k.Helper()
	replies, err := k.Store.Take(k.ctx, reqs)
	return k.answers("Take", len(reqs), replies, err)
}

func (k *kit) resumeAll(reqs []driver.ResumeRequest) []driver.Reply {
	k.Helper()
	replies, err := k.Store.Resume(k.ctx, reqs)
	return k.answers("Resume", len(reqs), replies, err)
}

func (k *kit) parkAll(reqs []driver.ParkRequest) []driver.Reply {
	k.Helper()
	replies, err := k.Store.Park(k.ctx, reqs)
	return k.answers("Park", len(reqs), replies, err)
}

func (k *kit) renewAll(reqs []driver.RenewRequest) []driver.Reply {
	k.Helper()
	replies, err := k.Store.Renew(k.ctx, reqs)
	return k.answers("Renew", len(reqs), replies, err)
}

func (k *kit) releaseAll(reqs []driver.ReleaseRequest) []driver.Reply {
	k.Helper()
	replies, err := k.Store.Release(k.ctx, reqs)
	return k.answers("Release", len(reqs), replies, err)
}

func (k *kit) take(req driver.TakeRequest) driver.Reply {
	k.Helper()
	return k.takeAll([]driver.TakeRequest{req})[0]
}

func (k *kit) resume(req driver.ResumeRequest) driver.Reply {
	k.Helper()
	return k.resumeAll([]driver.ResumeRequest{req})[0]
}

func (k *kit) park(req driver.ParkRequest) driver.Reply {
	k.Helper()
	return k.parkAll([]driver.ParkRequest{req})[0]
}

func (k *kit) renew(req driver.RenewRequest) driver.Reply {
	k.Helper()
	return k.renewAll([]driver.RenewRequest{req})[0]
}

func (k *kit) release(req driver.ReleaseRequest) driver.Reply {
	k.Helper()
	return k.releaseAll([]driver.ReleaseRequest{req})[0]
}

func (k *kit) inspect(key string) driver.Record {
	k.Helper()
	return k.inspectAll([]string{key})[0]
}

func (k *kit) inspectAll(keys []string) []driver.Record {
	k.Helper()
	records, err := k.Store.Inspect(k.ctx, driver.InspectRequest{Keys: keys, Memo: true})
	if err != nil {
		k.Fatalf("Inspect(%q): %v", keys, err)
	}
	if len(records) != len(keys) {
		k.Fatalf("Inspect gave %d records for %d keys", len(records), len(keys))
	}
	return records
}

func (k *kit) answer(call string, reply driver.Reply, err error) driver.Reply {
	k.Helper()
	return k.answers(call, 1, []driver.Reply{reply}, err)[0]
}

func (k *kit) answers(call string, n int, replies []driver.Reply, err error) []driver.Reply {
	k.Helper()
	if err != nil {
		k.Fatalf("%s: %v", call, err)
	}
	if len(replies) != n {
		k.Fatalf("%s gave %d replies to %d requests", call, len(replies), n)
	}
	for i, r := range replies {
		if r.Outcome == driver.OutcomeUnknown {
			k.Fatalf("%s: no outcome for item %d, and no error", call, i)
		}
	}
	return replies
}

// want fails the test unless got has the outcome want.
func (k *kit) want(what string, got driver.Reply, want driver.Outcome) {
	k.Helper()
	if got.Outcome != want {
		k.Fatalf("%s: got %s, want %s (%+v)", what, got.Outcome, want, got)
	}
}

// wantGrant fails the test unless got is OutcomeOK with a fence larger than before.
func (k *kit) wantGrant(what string, got driver.Reply, before int64) {
	k.Helper()
	k.want(what, got, driver.OutcomeOK)
	if got.Fence <= before {
		k.Fatalf("%s: fence %d is not larger than %d, the one before", what, got.Fence, before)
	}
}

// wantState fails the test unless the state of key is want. It returns the record of key.
func (k *kit) wantState(key string, want driver.State) driver.Record {
	k.Helper()
	r := k.inspect(key)
	if r.State != want {
		k.Fatalf("key %q is %s, want %s", key, r.State, want)
	}
	return r
}

// unchanged fails the test if the record differs from before. The remaining times may be shorter.
func (k *kit) unchanged(what string, before driver.Record) {
	k.Helper()
	if diff := recordDiff(before, k.inspect(before.Key)); diff != "" {
		k.Fatalf("%s changed the record: %s", what, diff)
	}
}

// The methods below bring a record into a state. A lease or reservation of one Unit runs out with lapse.

func (k *kit) hold(key, owner string) held { k.Helper(); return k.holdFor(key, owner, long) }

func (k *kit) holdFor(key, owner string, ttl time.Duration) held {
	k.Helper()
	req := k.acquireReq(key, owner)
	req.TTL = ttl
	reply := k.acquire(req)
	k.wantGrant("acquire", reply, 0)
	return held{reply.Fence, req.Nonce}
}

func (k *kit) parkFor(key, owner, job string, hold time.Duration) held {
	k.Helper()
	before := k.hold(key, owner)
	req := k.parkReq(byFence(key, owner, before.fence), job)
	req.Reserve = hold
	reply := k.park(req)
	k.wantGrant("park", reply, before.fence)
	return held{reply.Fence, req.Nonce}
}

// runFor makes the lock of a job: it parks a lock for 10*long, and then resumes it for ttl.
func (k *kit) runFor(key, owner, job string, ttl time.Duration) held {
	k.Helper()
	before := k.parkFor(key, owner, job, 10*long)
	req := k.resumeReq(key, owner, job)
	req.TTL = ttl
	reply := k.resume(req)
	k.wantGrant("resume", reply, before.fence)
	return held{reply.Fence, req.Nonce}
}

func (k *kit) released(key, owner, reason string) held {
	k.Helper()
	h := k.hold(key, owner)
	req := k.releaseReq(byFence(key, owner, h.fence))
	req.Reason = reason
	k.want("release", k.release(req), driver.OutcomeOK)
	return h
}

func (k *kit) done(key, owner, job, reason string) held {
	k.Helper()
	h := k.runFor(key, owner, job, long)
	req := k.releaseReq(byFence(key, owner, h.fence))
	req.Job, req.Done, req.Reason = job, true, reason
	k.want("release as done", k.release(req), driver.OutcomeOK)
	return h
}

func (k *kit) forced(key, owner, reason string) held {
	k.Helper()
	h := k.hold(key, owner)
	req := k.forceReq(key)
	req.Reason = reason
	k.want("force release", k.release(req), driver.OutcomeOK)
	return h
}

// recordDiff returns how two readings of one record differ, or "" if the readings are equal. What is left of a lease
// or a reservation may have become shorter, but not 0.
func recordDiff(before, after driver.Record) string {
	for _, d := range []struct {
		field         string
		before, after any
	}{
		{"Key", before.Key, after.Key},
		{"State", before.State, after.State},
		{"Owner", before.Owner, after.Owner},
		{"Fence", before.Fence, after.Fence},
		{"First", before.First, after.First},
		{"Since", before.Since.UnixMilli(), after.Since.UnixMilli()},
		{"Changed", before.Changed.UnixMilli(), after.Changed.UnixMilli()},
		{"Renewed", before.Renewed.UnixMilli(), after.Renewed.UnixMilli()},
		{"TTL", before.TTL, after.TTL},
		{"Holder", before.Holder, after.Holder},
		{"Job", before.Job, after.Job},
		{"Ended", before.Ended, after.Ended},
		{"Reason", before.Reason, after.Reason},
	} {
		if d.before != d.after {
			return fmt.Sprintf("%s was %v, is %v", d.field, d.before, d.after)
		}
	}
	if !bytes.Equal(before.Memo, after.Memo) {
		return fmt.Sprintf("Memo was %q, is %q", before.Memo, after.Memo)
	}
	for _, d := range []struct {
		field         string
		before, after time.Duration
	}{
		{"Lease", before.Lease, after.Lease},
		{"Reserved", before.Reserved, after.Reserved},
	} {
		if d.after > d.before || (d.before > 0) != (d.after > 0) {
			return fmt.Sprintf("%s was %s, is %s", d.field, d.before, d.after)
		}
	}
	return ""
}

// within reports whether the time left is plausible for a lease or a reservation of length d.
func within(left, d time.Duration) bool { return left > 0 && left <= d+rounding }
