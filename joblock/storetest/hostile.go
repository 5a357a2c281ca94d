package storetest

import (
	"slices"
	"strings"

	"github.com/joblock/toolkit/joblock/driver"
)

// hostileKeys are keys that joblock allows and that have a special meaning in some back end.
var hostileKeys = []string{
	"plain", "plain:", ":plain", "pl*in", "pla?n", "pla[i]n", "pla[^x]n", `pla\in`, `plain\`,
	"*", "?", "[", "]", "[a-z]", `\*`, "^", "-",
	"{plain}", "{plain}:a", "{}", "{", "}", "}{", "{a}{b}",
	" ", "  ", " plain", "plain ", `"plain"`, `'plain'`, "pla\u00a0in", "%00", "%s", "$0", "\\r\\n",
	"ключ", "鍵", "🔒", "e\u0301", "\u00e9", "\u202eplain", "\u2028", "ﬁ", "PLAIN", "Plain",
	"0", "-1", "1e3", "1000", "nil", "false", "redis.call('FLUSHALL')",
	strings.Repeat("k", driver.MaxKeyBytes), strings.Repeat("*", driver.MaxKeyBytes),
	strings.Repeat("鍵", driver.MaxKeyBytes/3),
}

var hostileCases = []testCase{
	{"odd keys are keys like any other, and all different", func(k *kit) {
		fences := make(map[string]int64)
		for _, key := range hostileKeys {
			fences[key] = k.hold(key, "me").fence
		}
		for i, r := range k.inspectAll(hostileKeys) {
			if r.Key != hostileKeys[i] || r.Fence != fences[r.Key] || r.State != driver.StateHeld {
				k.Errorf("key %q reads as %q, %s with fence %d, want held with %d",
					hostileKeys[i], r.Key, r.State, r.Fence, fences[hostileKeys[i]])
			}
		}
		if got := k.list("", 10); len(got) != len(hostileKeys) {
			k.Errorf("%d keys listed, want %d", len(got), len(hostileKeys))
		}
	}},
	{"a prefix is taken literally", func(k *kit) {
		for _, key := range hostileKeys {
			k.hold(key, "me")
		}
		for _, prefix := range hostileKeys {
			var want []string
			for _, key := range hostileKeys {
				if strings.HasPrefix(key, prefix) {
					want = append(want, key)
				}
			}
			var got []string
			for key := range k.list(prefix, 1000) {
				got = append(got, key)
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				k.Errorf("list %q: got %q, want %q", prefix, got, want)
			}
		}
	}},
	{"labels and owners come back unchanged", func(k *kit) {
		for i, text := range []string{
			`quotes " ' and \`, "{braces} [brackets] %d", "юникод 鍵 🔒 \u202e", "  spaces  ",
			"0010", "1e3", "nil", "released", strings.Repeat("x", driver.MaxOwnerBytes),
		} {
			key := string(rune('a' + i))
			req := k.acquireReq(key, text)
			req.Holder = text
			first := k.acquire(req)
			k.wantGrant("acquire", first, 0)
			held := k.acquire(k.acquireReq(key, text+"0"))
			k.want("acquire", held, driver.OutcomeHeld)
			if held.Holder != text {
				k.Errorf("holder %q, want %q", held.Holder, text)
			}
			k.wantGrant("park", k.park(k.parkReq(byFence(key, text, first.Fence), text)), first.Fence)
			if r := k.inspect(key); r.Owner != text || r.Holder != text || r.Job != text {
				k.Errorf("record %+v, want %q everywhere", r, text)
			}
			resumed := k.resume(k.resumeReq(key, text, text))
			k.want("resume", resumed, driver.OutcomeOK)
			end := k.releaseReq(byFence(key, text, resumed.Fence))
			end.Reason = text
			k.want("release", k.release(end), driver.OutcomeOK)
			if r := k.inspect(key); r.Reason != text {
				k.Errorf("reason %q, want %q", r.Reason, text)
			}
		}
	}},
	{"owners that are equal as numbers are not the same owner", func(k *kit) {
		h := k.hold("key", "1000")
		for _, other := range []string{"1e3", "01000", "1000.0", " 1000"} {
			k.want("renew as "+other, k.renew(k.renewReq(byFence("key", other, h.fence))), driver.OutcomeNotOwner)
		}
	}},
	{"no holder and no reason are allowed", func(k *kit) {
		req := k.acquireReq("key", "me")
		req.Holder = ""
		k.wantGrant("acquire", k.acquire(req), 0)
		held := k.acquire(k.acquireReq("key", "you"))
		k.want("acquire", held, driver.OutcomeHeld)
		if held.Holder != "" || !within(held.Remaining, long) {
			k.Errorf("held by %q for %s, want no holder, for %s", held.Holder, held.Remaining, long)
		}
		k.want("release", k.release(k.releaseReq(byOwner("key", "me"))), driver.OutcomeOK)
	}},
	{"the longest times do not overflow", func(k *kit) {
		req := k.acquireReq("key", "me")
		req.TTL, req.Retain = driver.MaxPeriod, driver.MaxPeriod
		reply := k.acquire(req)
		k.wantGrant("acquire", reply, 0)
		park := k.parkReq(byFence("key", "me", reply.Fence), "q/job")
		park.Reserve, park.Retain = driver.MaxPeriod, driver.MaxPeriod
		k.wantGrant("park", k.park(park), reply.Fence)
		if r := k.wantState("key", driver.StateParked); r.Reserved <= driver.MaxPeriod-long {
			k.Errorf("reserved for %s, want %s", r.Reserved, driver.MaxPeriod)
		}
	}},
}
