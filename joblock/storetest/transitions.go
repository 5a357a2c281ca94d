package storetest

import (
	"fmt"
	"testing"

	"github.com/joblock/toolkit/joblock/driver"
)

// Short names, so that the table below can be read as a table.
const (
	ok   = driver.OutcomeOK
	hld  = driver.OutcomeHeld
	busy = driver.OutcomeBusy
	gone = driver.OutcomeNotFound
	notO = driver.OutcomeNotOwner
	rel  = driver.OutcomeReleased
	laps = driver.OutcomeLapsed
	wjob = driver.OutcomeWrongJob
)

// start is a state in which a call may find a record of owner "me".
type start struct {
	name  string
	enter func(k *kit, key string) held
	lapse bool // then let one Unit run out
	state driver.State
	ended driver.Ended
}

var starts = [...]start{
	{name: "absent", enter: func(*kit, string) held { return held{fence: 1, grant: "none"} }},
	{name: "held", state: driver.StateHeld, enter: func(k *kit, key string) held {
		return k.hold(key, "me")
	}},
	{name: "running", state: driver.StateHeld, enter: func(k *kit, key string) held {
		return k.runFor(key, "me", "q/job", long)
	}},
	{name: "parked", state: driver.StateParked, enter: func(k *kit, key string) held {
		return k.parkFor(key, "me", "q/job", 10*long)
	}},
	{name: "orphaned", state: driver.StateOrphaned, lapse: true, enter: func(k *kit, key string) held {
		return k.runFor(key, "me", "q/job", k.Unit)
	}},
	{name: "lapsed", ended: driver.EndedLapsed, lapse: true, enter: func(k *kit, key string) held {
		return k.holdFor(key, "me", k.Unit)
	}},
	{name: "expired", ended: driver.EndedLapsed, lapse: true, enter: func(k *kit, key string) held {
		return k.parkFor(key, "me", "q/job", k.Unit)
	}},
	{name: "released", ended: driver.EndedReleased, enter: func(k *kit, key string) held {
		return k.released(key, "me", "done")
	}},
	{name: "forced", ended: driver.EndedForced, enter: func(k *kit, key string) held {
		return k.forced(key, "me", "by hand")
	}},
	{name: "done", ended: driver.EndedDone, enter: func(k *kit, key string) held {
		return k.done(key, "me", "q/job", "all of it")
	}},
}

// effect is what a call does to a record when it is not refused.
type effect int

const (
	takes  effect = iota // new fence, held
	parks                // new fence, parked
	renews               // same fence, held
	frees                // same fence, free
	keeps                // same fence, and held, parked or orphaned as before
)

// transitions is the whole contract at a glance: every call, in every state.
// "lapsed" is a plain lock whose lease ran out, "expired" a parked one whose
// reservation did; both stand untouched since.
var transitions = []struct {
	call   string
	effect effect
	//       absent  held  running parked orphaned lapsed expired released forced done
	want [len(starts)]driver.Outcome
	do   func(k *kit, key string, h held) driver.Reply
}{
	{
		"acquire by another owner", takes,
		[...]driver.Outcome{ok, hld, hld, hld, hld, ok, ok, ok, ok, ok},
		func(k *kit, key string, _ held) driver.Reply { return k.acquire(k.acquireReq(key, "you")) },
	}, {
		"acquire by the same owner", takes,
		[...]driver.Outcome{ok, hld, hld, hld, hld, ok, ok, ok, ok, ok},
		func(k *kit, key string, _ held) driver.Reply { return k.acquire(k.acquireReq(key, "me")) },
	}, {
		"resume", takes,
		[...]driver.Outcome{gone, busy, busy, ok, ok, ok, ok, rel, rel, rel},
		func(k *kit, key string, _ held) driver.Reply { return k.resume(k.resumeReq(key, "me", "q/job")) },
	}, {
		"resume for another job", takes,
		[...]driver.Outcome{gone, busy, wjob, wjob, wjob, ok, wjob, rel, rel, rel},
		func(k *kit, key string, _ held) driver.Reply { return k.resume(k.resumeReq(key, "me", "q/other")) },
	}, {
		"resume for no job", takes,
		[...]driver.Outcome{gone, busy, wjob, wjob, wjob, ok, wjob, rel, rel, rel},
		func(k *kit, key string, _ held) driver.Reply { return k.resume(k.resumeReq(key, "me", "")) },
	}, {
		"resume by another owner", takes,
		[...]driver.Outcome{gone, notO, notO, notO, notO, notO, notO, notO, notO, notO},
		func(k *kit, key string, _ held) driver.Reply { return k.resume(k.resumeReq(key, "you", "q/job")) },
	}, {
		"park", parks,
		[...]driver.Outcome{gone, ok, ok, laps, laps, laps, laps, rel, rel, rel},
		func(k *kit, key string, h held) driver.Reply {
			return k.park(k.parkReq(byFence(key, "me", h.fence), "q/next"))
		},
	}, {
		"park by grant", parks,
		[...]driver.Outcome{gone, ok, ok, laps, laps, laps, laps, rel, rel, rel},
		func(k *kit, key string, h held) driver.Reply {
			return k.park(k.parkReq(byGrant(key, "me", h.grant), "q/next"))
		},
	}, {
		"park by an older fence", parks,
		[...]driver.Outcome{gone, notO, notO, notO, notO, notO, notO, rel, rel, rel},
		func(k *kit, key string, h held) driver.Reply {
			return k.park(k.parkReq(byFence(key, "me", h.fence-1), "q/next"))
		},
	}, {
		"park by no term", parks,
		[...]driver.Outcome{gone, notO, notO, notO, notO, notO, notO, rel, rel, rel},
		func(k *kit, key string, _ held) driver.Reply {
			return k.park(k.parkReq(byOwner(key, "me"), "q/next"))
		},
	}, {
		"park by another owner", parks,
		[...]driver.Outcome{gone, notO, notO, notO, notO, notO, notO, notO, notO, notO},
		func(k *kit, key string, h held) driver.Reply {
			return k.park(k.parkReq(byFence(key, "you", h.fence), "q/next"))
		},
	}, {
		"renew", renews,
		[...]driver.Outcome{gone, ok, ok, laps, laps, laps, laps, rel, rel, rel},
		func(k *kit, key string, h held) driver.Reply {
			return k.renew(k.renewReq(byFence(key, "me", h.fence)))
		},
	}, {
		"renew by grant", renews,
		[...]driver.Outcome{gone, ok, ok, ok, laps, laps, laps, rel, rel, rel},
		func(k *kit, key string, h held) driver.Reply {
			return k.renew(k.renewReq(byGrant(key, "me", h.grant)))
		},
	}, {
		"renew by an older fence", renews,
		[...]driver.Outcome{gone, notO, notO, notO, notO, notO, notO, rel, rel, rel},
		func(k *kit, key string, h held) driver.Reply {
			return k.renew(k.renewReq(byFence(key, "me", h.fence-1)))
		},
	}, {
		"renew by no term", renews,
		[...]driver.Outcome{gone, notO, notO, notO, notO, notO, notO, rel, rel, rel},
		func(k *kit, key string, _ held) driver.Reply { return k.renew(k.renewReq(byOwner(key, "me"))) },
	}, {
		"renew by another owner", renews,
		[...]driver.Outcome{gone, notO, notO, notO, notO, notO, notO, notO, notO, notO},
		func(k *kit, key string, h held) driver.Reply {
			return k.renew(k.renewReq(byFence(key, "you", h.fence)))
		},
	}, {
		"release", frees,
		[...]driver.Outcome{gone, ok, ok, ok, ok, laps, laps, rel, rel, rel},
		func(k *kit, key string, h held) driver.Reply {
			return k.release(k.releaseReq(byFence(key, "me", h.fence)))
		},
	}, {
		"release by grant", frees,
		[...]driver.Outcome{gone, ok, ok, ok, ok, laps, laps, rel, rel, rel},
		func(k *kit, key string, h held) driver.Reply {
			return k.release(k.releaseReq(byGrant(key, "me", h.grant)))
		},
	}, {
		"release by owner", frees,
		[...]driver.Outcome{gone, ok, ok, ok, ok, laps, laps, rel, rel, rel},
		func(k *kit, key string, _ held) driver.Reply { return k.release(k.releaseReq(byOwner(key, "me"))) },
	}, {
		"release by an older fence", frees,
		[...]driver.Outcome{gone, notO, notO, notO, notO, notO, notO, rel, rel, rel},
		func(k *kit, key string, h held) driver.Reply {
			return k.release(k.releaseReq(byFence(key, "me", h.fence-1)))
		},
	}, {
		"release by another grant", frees,
		[...]driver.Outcome{gone, notO, notO, notO, notO, notO, notO, rel, rel, rel},
		func(k *kit, key string, _ held) driver.Reply {
			return k.release(k.releaseReq(byGrant(key, "me", "another grant")))
		},
	}, {
		"release by another owner", frees,
		[...]driver.Outcome{gone, notO, notO, notO, notO, notO, notO, notO, notO, notO},
		func(k *kit, key string, h held) driver.Reply {
			return k.release(k.releaseReq(byFence(key, "you", h.fence)))
		},
	}, {
		"release by another owner, any term", frees,
		[...]driver.Outcome{gone, notO, notO, notO, notO, notO, notO, notO, notO, notO},
		func(k *kit, key string, _ held) driver.Reply { return k.release(k.releaseReq(byOwner(key, "you"))) },
	}, {
		"release if idle", frees,
		[...]driver.Outcome{gone, busy, busy, ok, ok, laps, laps, rel, rel, rel},
		func(k *kit, key string, _ held) driver.Reply {
			req := k.releaseReq(byOwner(key, "me"))
			req.Kind = driver.ReleaseIdle
			return k.release(req)
		},
	}, {
		"force release", frees,
		[...]driver.Outcome{gone, ok, ok, ok, ok, gone, gone, gone, gone, gone},
		func(k *kit, key string, _ held) driver.Reply { return k.release(k.forceReq(key)) },
	}, {
		"release for its job", frees,
		[...]driver.Outcome{gone, wjob, ok, ok, ok, wjob, laps, rel, rel, rel},
		func(k *kit, key string, _ held) driver.Reply {
			req := k.releaseReq(byOwner(key, "me"))
			req.Job = "q/job"
			return k.release(req)
		},
	}, {
		"release for another job", frees,
		[...]driver.Outcome{gone, wjob, wjob, wjob, wjob, wjob, wjob, rel, rel, rel},
		func(k *kit, key string, h held) driver.Reply {
			req := k.releaseReq(byFence(key, "me", h.fence))
			req.Job = "q/other"
			return k.release(req)
		},
	}, {
		"release as done", frees,
		[...]driver.Outcome{gone, wjob, ok, ok, ok, wjob, laps, rel, rel, rel},
		func(k *kit, key string, h held) driver.Reply {
			req := k.releaseReq(byFence(key, "me", h.fence))
			req.Job, req.Done = "q/job", true
			return k.release(req)
		},
	}, {
		"force release if idle for its job", frees,
		[...]driver.Outcome{gone, wjob, busy, ok, ok, gone, gone, gone, gone, gone},
		func(k *kit, key string, _ held) driver.Reply { return k.release(k.freeReq(key, "q/job")) },
	}, {
		"force release if idle for another job", frees,
		[...]driver.Outcome{gone, wjob, wjob, wjob, wjob, gone, gone, gone, gone, gone},
		func(k *kit, key string, _ held) driver.Reply { return k.release(k.freeReq(key, "q/other")) },
	}, {
		"reserve for its job", keeps,
		[...]driver.Outcome{gone, wjob, ok, ok, ok, wjob, ok, wjob, wjob, rel},
		func(k *kit, key string, _ held) driver.Reply { return k.reserve(k.reserveReq(key, "q/job")) },
	}, {
		"reserve for another job", keeps,
		[...]driver.Outcome{gone, wjob, wjob, wjob, wjob, wjob, wjob, wjob, wjob, wjob},
		func(k *kit, key string, _ held) driver.Reply { return k.reserve(k.reserveReq(key, "q/other")) },
	},
}

// runTransitions walks the table state by state, so that a state that takes time
// to reach is waited for once.
func runTransitions(t *testing.T, newHarness func(t *testing.T) *Harness) {
	for s, from := range starts {
		t.Run(from.name, func(t *testing.T) {
			k := newKit(t, newHarness)
			terms := make([]held, len(transitions))
			for i := range transitions {
				terms[i] = from.enter(k, transitionKey(i))
			}
			if from.lapse {
				k.lapse()
			}
			for i, tr := range transitions {
				t.Run(tr.call, func(t *testing.T) {
					sub := *k
					sub.T = t
					before := sub.wantState(transitionKey(i), from.state)
					if before.Ended != from.ended {
						t.Fatalf("key ended %q before the call, want %q", before.Ended, from.ended)
					}
					reply := tr.do(&sub, before.Key, terms[i])
					k.nonces = sub.nonces
					sub.want(tr.call, reply, tr.want[s])
					sub.checkReply(reply, before)
					sub.checkEffect(tr.effect, reply, before)
				})
			}
		})
	}
}

func transitionKey(i int) string { return fmt.Sprintf("key-%02d", i) }

// checkReply checks what a refusal says about the record that it found.
func (k *kit) checkReply(reply driver.Reply, found driver.Record) {
	k.Helper()
	switch reply.Outcome {
	case hld, busy, notO, wjob:
	case rel:
		if reply.Ended != found.Ended || reply.Reason != found.Reason {
			k.Errorf("reply says %q (%q), the record %q (%q)", reply.Ended, reply.Reason, found.Ended, found.Reason)
		}
		return
	default:
		return
	}
	if reply.State != found.State {
		k.Errorf("reply has state %s, the record %s", reply.State, found.State)
	}
	if reply.Outcome == wjob && reply.Job != found.Job {
		k.Errorf("reply has job %q, the record %q", reply.Job, found.Job)
	}
	if found.State == driver.StateFree {
		return // nobody is in the way
	}
	if reply.Holder != found.Holder || reply.Job != found.Job {
		k.Errorf("reply has holder %q and job %q, the record %q and %q", reply.Holder, reply.Job, found.Holder, found.Job)
	}
	left := found.Reserved
	if found.State == driver.StateHeld {
		left = found.Lease
	}
	if reply.Remaining <= left-long/2 || reply.Remaining > left {
		k.Errorf("reply has %s remaining, the record %s", reply.Remaining, left)
	}
}

// checkEffect checks what has become of the record.
func (k *kit) checkEffect(e effect, reply driver.Reply, before driver.Record) {
	k.Helper()
	ended := e == frees && reply.Outcome == laps // a release of what had run out still ends it
	if reply.Outcome != ok && !ended {
		k.unchanged("a refusal", before)
		return
	}
	state := map[effect]driver.State{
		takes: driver.StateHeld, parks: driver.StateParked, renews: driver.StateHeld, keeps: before.State,
	}[e]
	if e == keeps && state == driver.StateFree {
		state = driver.StateParked // it had run out, and stands again
	}
	after := k.wantState(before.Key, state)
	switch e {
	case takes, parks:
		k.wantGrant("the transition", reply, before.Fence)
	case renews, frees, keeps:
		if after.Fence != before.Fence {
			k.Errorf("fence went from %d to %d without a new term", before.Fence, after.Fence)
		}
	}
	if e != frees && e != keeps && reply.Fence != after.Fence {
		k.Errorf("reply has fence %d, the record %d", reply.Fence, after.Fence)
	}
	if e == frees && (after.Ended == driver.EndedNone || after.Ended == driver.EndedLapsed) {
		k.Errorf("record ended %q after a release", after.Ended)
	}
	if e != frees && after.Ended != driver.EndedNone {
		k.Errorf("record ended %q while %s", after.Ended, after.State)
	}
}
