package storetest

import (
	"strings"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// effect says how the call has changed the record.
type effect int

const (
	same    effect = iota // the record is unchanged
	grants                // new fence and ownership, held by the caller
	passes                // new fence and ownership, held by the first in line or parked for that job
	resumes               // new fence, held
	parks                 // new fence, parked
	takes                 // new fence and ownership, parked for the caller
	renews                // same fence, held
	ends                  // same fence, free; if there is a waiter: the effect passes
	keeps                 // same fence, and held, parked or orphaned as before
)

// checkReply checks what a refusal says about the record that the call found.
func (k *kit) checkReply(reply driver.Reply, found driver.Record) {
	k.Helper()
	switch reply.Outcome {
	case hld, full, busy, notO, wjob:
	case rel:
		if reply.Ended != found.Ended || reply.Reason != found.Reason {
			k.Errorf("reply says %q (%q), the record %q (%q)", reply.Ended, reply.Reason, found.Ended, found.Reason)
		}
		return
	default:
		return
	}
	slack := time.Duration(0)
	if reply.Outcome == hld && found.State == driver.StateFree { // row "passed on": the waiter has the key
		found, slack = k.inspect(found.Key), long/2
	}
	if reply.State != found.State {
		k.Errorf("reply has state %s, the record %s", reply.State, found.State)
	}
	if reply.Outcome == hld && reply.Fence != 0 && reply.Fence != found.Fence {
		k.Errorf("reply has fence %d, the record %d", reply.Fence, found.Fence)
	}
	if reply.Outcome == wjob && reply.Job != found.Job {
		k.Errorf("reply has job %q, the record %q", reply.Job, found.Job)
	}
	if found.State == driver.StateFree {
		return // the key has no holder
	}
	if reply.Holder != found.Holder || reply.Job != found.Job {
		k.Errorf("reply has holder %q and job %q, the record %q and %q", reply.Holder, reply.Job, found.Holder, found.Job)
	}
	left := found.Reserved
	if found.State == driver.StateHeld {
		left = found.Lease
	}
	if reply.Remaining <= left-long/2 || reply.Remaining > left+slack {
		k.Errorf("reply has %s remaining, the record %s", reply.Remaining, left)
	}
}

// checkEffect checks how the call has changed the record.
func (k *kit) checkEffect(what string, e effect, reply driver.Reply, before driver.Record) {
	k.Helper()
	if e == ends && before.Waiters > 0 {
		e = passes
	}
	if e == same {
		k.unchanged(what, before)
		return
	}
	state := map[effect]driver.State{
		grants: driver.StateHeld, passes: driver.StateHeld, resumes: driver.StateHeld, parks: driver.StateParked,
		takes: driver.StateParked, renews: driver.StateHeld, ends: driver.StateFree, keeps: before.State,
	}[e]
	if e == keeps && state == driver.StateFree {
		state = driver.StateParked // the reservation had run out, and Reserve has restored it
	}
	if e == passes && strings.HasPrefix(k.inspect(before.Key).Job, "q/") {
		state = driver.StateParked // the first in line is a job
	}
	after := k.wantState(before.Key, state)
	newTerm := e == grants || e == passes || e == resumes || e == parks || e == takes
	switch {
	case newTerm && after.Fence <= before.Fence:
		k.Errorf("%s: fence %d is not larger than %d, the one before", what, after.Fence, before.Fence)
	case !newTerm && after.Fence != before.Fence:
		k.Errorf("%s: fence went from %d to %d without a new term", what, before.Fence, after.Fence)
	}
	if e != passes && e != ends && e != keeps && reply.Fence != after.Fence {
		k.Errorf("%s: reply has fence %d, the record %d", what, reply.Fence, after.Fence)
	}
	first := before.First
	if e == grants || e == passes || e == takes {
		first = after.Fence
	}
	if after.First != first {
		k.Errorf("%s: the ownership began with fence %d, the record says %d", what, first, after.First)
	}
	if ended := after.Ended != driver.EndedNone; ended != (e == ends) || after.Ended == driver.EndedLapsed {
		k.Errorf("%s: record ended %q while %s", what, after.Ended, after.State)
	}
	if e == ends && (after.Lease != 0 || after.Reserved != 0) {
		k.Errorf("%s: lease %s and reservation %s left, want none", what, after.Lease, after.Reserved)
	}
	if e == passes && after.Owner != "next" {
		k.Errorf("%s: %q has the key, want the first in line", what, after.Owner)
	}
	if after.Changed.Before(before.Changed) {
		k.Errorf("%s: changed at %s, earlier than the previous change at %s", what, after.Changed, before.Changed)
	}
}
