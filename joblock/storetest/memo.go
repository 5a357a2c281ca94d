package storetest

import (
	"bytes"

	"github.com/joblock/toolkit/joblock/driver"
)

var memoCases = []testCase{
	{"the memo stays over park and resume, and for the next owner", func(k *kit) {
		h := k.hold("key", "me")
		k.leave("key", "me", h.fence, "checkpoint 7")
		k.wantGrant("park", k.park(k.parkReq(byFence("key", "me", h.fence), "q/job")), h.fence)
		resumed := k.resume(k.resumeReq("key", "me", "q/job"))
		k.wantMemo("resume", resumed, "checkpoint 7")
		k.want("release", k.release(k.releaseReq(byFence("key", "me", resumed.Fence))), driver.OutcomeOK)
		k.wantMemo("acquire", k.acquire(k.acquireReq("key", "you")), "checkpoint 7")
		k.want("force", k.release(k.forceReq("key")), driver.OutcomeOK)
		k.wantMemo("acquire after force", k.acquire(k.acquireReq("key", "they")), "checkpoint 7")
		if r := k.inspect("key"); string(r.Memo) != "checkpoint 7" {
			k.Errorf("record has memo %q", r.Memo)
		}
	}},
	{"a brief release that also gives up a place keeps the memo", func(k *kit) {
		h := k.hold("key", "me")
		k.leave("key", "me", h.fence, "checkpoint 7")
		wait := k.acquireReq("key", "me")
		wait.Inbox, wait.Patience = "inbox", long
		k.want("join", k.acquire(wait), driver.OutcomeHeld)
		release := k.releaseReq(byFence("key", "me", h.fence))
		release.Grant, release.Brief = wait.Nonce, k.Unit
		k.want("release", k.release(release), driver.OutcomeOK)
		k.wantMemo("acquire", k.acquire(k.acquireReq("key", "you")), "checkpoint 7")
	}},
	{"the memo survives a holder that dies", func(k *kit) {
		for _, key := range []string{"again", "other"} {
			h := k.hold(key, "me")
			k.leave(key, "me", h.fence, "checkpoint 7")
			k.want("release", k.release(k.releaseReq(byFence(key, "me", h.fence))), driver.OutcomeOK)
			k.holdFor(key, "me", k.Unit)
		}
		k.lapse()
		k.wantMemo("resume", k.resume(k.resumeReq("again", "me", "")), "checkpoint 7")
		k.wantMemo("acquire", k.acquire(k.acquireReq("other", "you")), "checkpoint 7")
	}},
	{"only a reply to a request with Memo has the memo", func(k *kit) {
		h := k.hold("key", "me")
		k.leave("key", "me", h.fence, "large")
		for _, memo := range []bool{false, true} {
			want := ""
			if memo {
				want = "large"
			}
			records, err := k.Store.Inspect(k.ctx, driver.InspectRequest{Keys: []string{"key"}, Memo: memo})
			if err != nil || string(records[0].Memo) != want {
				k.Errorf("Inspect: memo %q, %v, want %q", records[0].Memo, err, want)
			}
			if r := k.list("", 10)["key"]; len(r.Memo) != 0 {
				k.Errorf("List: memo %q, want none", r.Memo)
			}
			k.wantGrant("park", k.park(k.parkReq(byFence("key", "me", h.fence), "q/job")), h.fence)
			resume := k.resumeReq("key", "me", "q/job")
			resume.Memo = memo
			resumed := k.resume(resume)
			k.wantMemo("resume", resumed, want)
			k.wantMemo("re-sent resume", k.resume(resume), want)
			renewed := k.renew(k.renewReq(byFence("key", "me", resumed.Fence)))
			k.wantMemo("renew", renewed, "")
			k.wantMemo("release", k.release(k.releaseReq(byFence("key", "me", resumed.Fence))), "")
			acquire := k.acquireReq("key", "me")
			acquire.Memo = memo
			acquired := k.acquire(acquire)
			k.wantMemo("acquire", acquired, want)
			k.wantMemo("re-sent acquire", k.acquire(acquire), want)
			h = held{acquired.Fence, acquire.Nonce}
		}
	}},
	{"a nil Memo keeps the memo, an empty Memo deletes the memo", func(k *kit) {
		h := k.hold("key", "me")
		k.leave("key", "me", h.fence, "something")
		k.want("renew", k.renew(k.renewReq(byFence("key", "me", h.fence))), driver.OutcomeOK)
		if r := k.inspect("key"); string(r.Memo) != "something" {
			k.Errorf("memo %q after a renewal without one, want it kept", r.Memo)
		}
		k.leave("key", "me", h.fence, "")
		if r := k.inspect("key"); len(r.Memo) != 0 {
			k.Errorf("memo %q after an empty one, want none", r.Memo)
		}
	}},
	{"the memo may be any bytes up to the limit", func(k *kit) {
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		for name, memo := range map[string][]byte{
			"every byte": every,
			"zero bytes": {0, 0, 0},
			"a newline":  []byte("a\r\nb"),
			"not utf-8":  {0xff, 0xfe, 0x80},
			"a number":   []byte("0012.50"),
			"the limit":  bytes.Repeat([]byte{0, 0xff}, driver.MaxMemoBytes/2),
		} {
			h := k.hold(name, "me")
			k.leave(name, "me", h.fence, string(memo))
			if r := k.inspect(name); !bytes.Equal(r.Memo, memo) {
				k.Errorf("%s: Inspect gave %d bytes %.20q, want %d bytes %.20q", name, len(r.Memo), r.Memo, len(memo), memo)
			}
			k.want("release", k.release(k.releaseReq(byFence(name, "me", h.fence))), driver.OutcomeOK)
			k.wantMemo(name, k.acquire(k.acquireReq(name, "you")), string(memo))
		}
	}},
	{"the caller's bytes and the store's are not the same ones", func(k *kit) {
		h := k.hold("key", "me")
		mine := []byte("as written")
		req := k.renewReq(byFence("key", "me", h.fence))
		req.Memo = mine
		k.want("renew", k.renew(req), driver.OutcomeOK)
		clear(mine)
		clear(k.inspect("key").Memo)
		k.want("release", k.release(k.releaseReq(byFence("key", "me", h.fence))), driver.OutcomeOK)
		reply := k.acquire(k.acquireReq("key", "you"))
		k.wantMemo("acquire", reply, "as written")
		clear(reply.Memo)
		if r := k.inspect("key"); string(r.Memo) != "as written" {
			k.Errorf("memo %q, want it as written", r.Memo)
		}
	}},
}

// leave renews the lease and writes the memo.
func (k *kit) leave(key, owner string, fence int64, memo string) {
	k.Helper()
	req := k.renewReq(byFence(key, owner, fence))
	req.Memo = []byte(memo)
	k.want("renew with a memo", k.renew(req), driver.OutcomeOK)
}

func (k *kit) wantMemo(what string, got driver.Reply, want string) {
	k.Helper()
	k.want(what, got, driver.OutcomeOK)
	if string(got.Memo) != want {
		k.Errorf("%s: memo %.40q, want %.40q", what, got.Memo, want)
	}
}
