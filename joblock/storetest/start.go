package storetest

import "github.com/joblock/toolkit/joblock/driver"

// found has fences and nonces for the request under test. All are those of the record that the call finds.
type found struct {
	held
	first int64  // the fence that the ownership began with
	end   string // the nonce of the release that ended the ownership, or ""
}

// start is a state in which a call may find a record of owner "me".
type start struct {
	name  string
	enter func(k *kit, key string) found
	lapse bool // after enter, one Unit passes
	then  func(k *kit, key string, f *found)
	state driver.State
	ended driver.Ended
}

var starts = [...]start{
	{name: "absent"},
	{name: "held", state: driver.StateHeld, enter: func(k *kit, key string) found {
		return found{held: k.hold(key, "me")}
	}},
	{name: "queued", state: driver.StateHeld, enter: func(k *kit, key string) found {
		f := found{held: k.hold(key, "me")}
		k.join(k.waiterReq(key))
		return f
	}},
	{name: "awaited", state: driver.StateHeld, enter: func(k *kit, key string) found {
		f := found{held: k.hold(key, "me")}
		k.joinLine(k.lineReq(key, "q/first"))
		k.joinLine(k.lineReq(key, "q/second"))
		return f
	}},
	{name: "running", state: driver.StateHeld, enter: func(k *kit, key string) found {
		return found{held: k.runFor(key, "me", "q/job", long)}
	}},
	{name: "parked", state: driver.StateParked, enter: func(k *kit, key string) found {
		return found{held: k.parkFor(key, "me", "q/job", 10*long)}
	}},
	{name: "orphaned", state: driver.StateOrphaned, lapse: true, enter: func(k *kit, key string) found {
		return found{held: k.runFor(key, "me", "q/job", k.Unit)}
	}},
	{name: "lapsed", ended: driver.EndedLapsed, lapse: true, enter: func(k *kit, key string) found {
		return found{held: k.holdFor(key, "me", k.Unit)}
	}},
	{name: "overdue", ended: driver.EndedLapsed, lapse: true, enter: func(k *kit, key string) found {
		f := found{held: k.hold(key, "me")}
		k.join(k.waiterReq(key))
		req := k.parkReq(byFence(key, "me", f.fence), "")
		req.Reserve = k.Unit
		reply := k.park(req)
		k.want("park", reply, ok)
		f.held = held{reply.Fence, req.Nonce}
		return f
	}},
	{name: "vacated", ended: driver.EndedLapsed, lapse: true, enter: func(k *kit, key string) found {
		f := found{held: k.hold(key, "me")}
		k.joinLine(k.lineReq(key, "q/first"))
		k.joinLine(k.lineReq(key, "q/second"))
		req := k.parkReq(byFence(key, "me", f.fence), "")
		req.Reserve = k.Unit
		reply := k.park(req)
		k.want("park", reply, ok)
		f.held = held{reply.Fence, req.Nonce}
		return f
	}},
	{name: "expired", ended: driver.EndedLapsed, lapse: true, enter: func(k *kit, key string) found {
		return found{held: k.parkFor(key, "me", "q/job", k.Unit)}
	}},
	{name: "released", ended: driver.EndedReleased, enter: func(k *kit, key string) found {
		f := found{held: k.hold(key, "me")}
		f.end = k.endBy(k.releaseReq(byFence(key, "me", f.fence)), ok)
		return f
	}},
	{name: "forced", ended: driver.EndedForced, enter: func(k *kit, key string) found {
		f := found{held: k.hold(key, "me")}
		f.end = k.endBy(k.forceReq(key), ok)
		return f
	}},
	{name: "done", ended: driver.EndedDone, enter: func(k *kit, key string) found {
		f := found{held: k.runFor(key, "me", "q/job", long)}
		req := k.releaseReq(byFence(key, "me", f.fence))
		req.Job, req.Done = "q/job", true
		f.end = k.endBy(req, ok)
		return f
	}},
	{
		name: "late", ended: driver.EndedReleased, lapse: true,
		enter: func(k *kit, key string) found { return found{held: k.holdFor(key, "me", k.Unit)} },
		then: func(k *kit, key string, f *found) {
			f.end = k.endBy(k.releaseReq(byFence(key, "me", f.fence)), laps)
		},
	},
}

// endReason is the reason of the ends in the states of starts.
const endReason = "a reason"

// endBy ends an ownership with req and returns the nonce of req.
func (k *kit) endBy(req driver.ReleaseRequest, want driver.Outcome) string {
	k.Helper()
	req.Reason = endReason
	k.want("end", k.release(req), want)
	return req.Nonce
}

// begin brings the record of a key into the state from. Before that, another owner has the key, so that there is an
// older fence.
func (k *kit) begin(from start, key string) found {
	k.Helper()
	if from.enter == nil {
		return found{held: held{fence: 2, grant: "none"}, first: 2}
	}
	k.released(key, "before", "")
	f := from.enter(k, key)
	f.first = k.inspect(key).First
	return f
}
