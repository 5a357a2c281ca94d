package core

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// holding is what this process knows of its lock on one key. It is a pure value: it has no mutex, makes no call and
// reads no clock. A Lock guards its holding and calls the methods in the table below, one for each event. Each method
// changes the holding, and returns the request to send, the step to take, and the caller's error. Only this file
// assigns the state.
//
// In the table, the name of a state is the next state. A dash means that nothing changes and nothing is done. An error
// goes to the caller, and nothing else happens. A blank cannot happen.
//
//	event                    held       parking      parked       released            lost
//	timePassed               -          -            -            -                   -
//	  past the deadline      lost       lost         -            -                   -
//	renewalDue               sends      -            -            -                   -
//	renewalAsked             sends      ErrNotOwner  ErrNotOwner  ErrAlreadyReleased  ErrLost
//	renewalAnswered, OK      trust goes on           -            -                   -
//	  refused                lost       -            -            -                   -
//	  no answer              sent again later        -            -                   -
//	renewingStopped          no more renewals, in every state
//	parkBegun                parking    ErrNotOwner  ErrNotOwner  ErrAlreadyReleased  ErrLost
//	parkAnswered, OK                    parked                                        parked
//	  refused                           lost                                          -
//	  no answer                         held                                          -
//	reclaimBegun             ErrInvalid ErrInvalid   sends        ErrInvalid          ErrInvalid
//	reclaimAnswered, OK      -          ErrNotOwner  held         ErrAlreadyReleased  ErrLost
//	  refused, or no answer  an error in every state, and a refused Reclaim is forgotten
//	releaseBegun             released   ErrNotOwner  ErrNotOwner  ErrAlreadyReleased  sends
//	releaseAnswered          changes nothing, in any state
//	releaseUndone            -          -            -            held                -
//	doubted, verifyBegun     check it   -            -            -                   -
//	verified, not held       lost       -            -            -                   -
//	lockerClosed             lost       lost         -            -                   -
//	ownerShared, remembered  the end is remembered for longer, in every state
//
// Rules that span several events:
//
//   - Trust counts from when a call was sent, so that trust never outlasts the lease. A grant that comes after its own
//     trust deadline is an error.
//   - A Park without an answer may have been applied. The holding continues, and every later call also names the term by
//     the nonce of that Park. A renewal undoes the Park.
//   - Such a renewal would also undo a repeated Park, whose caller already has the token. So a Park waits until no such
//     renewal is under way.
//   - A refusal of a call for an earlier term says nothing about the present term.
type holding struct {
	terms

	state lockState
	doubt doubt

	shared bool // other callers may know the owner token, and ask the store how the lock ended

	renewing bool
	underWay bool      // a renewal that renewalDue has returned is not answered yet
	renewAt  time.Time // when the next renewal is due

	fence  int64
	hint   *string       // driver.Reply.Hint of the call that began the term, until the lease is renewed; a pointer, as terms.owner
	since  time.Time     // when this process took, resumed or reclaimed the lock
	trust  time.Time     // trust deadline, with its monotonic reading
	job    string        // the job that the lock is bound to
	over   *Error        // why the handle no longer holds the lock; nil while held
	retain time.Duration // how long the store remembers the lock after its end

	// The nonces of calls without an answer, by which the store recognises a repeated call.
	parkNonce    string        // set from parkBegun until an answer shows whether that Park holds
	parkReserve  time.Duration // the longest reservation in a Park without an answer
	takingBack   int           // how many renewals are under way that would undo that Park
	reclaimNonce string
	reclaimSent  time.Time
	releaseNonce string
}

// terms is the part of a holding that never changes.
type terms struct {
	key        string
	owner      *string // a pointer, because fmt prints the fields of a struct but does not follow pointers
	holder     string
	ttl        time.Duration
	margin     time.Duration // see Config.Margin
	renewUntil time.Time     // the lock is not renewed after that; zero: no bound

	// Of a lock that was resumed. A Park that is undone leaves the lock bound to the job that resumed it.
	resumed   bool
	resumedBy string        // the job that resumed the lock, or ""
	reserve   time.Duration // how long beyond the lease a renewal reserves the key
}

type lockState uint8

const (
	lockHeld lockState = iota
	lockParking
	lockParked
	lockReleased
	lockLost
)

// doubt is the progress of the check that a push of a forced release starts.
type doubt uint8

const (
	noDoubt  doubt = iota // no check is under way or due
	checking              // a check is under way, and no push came after the check began
	doubted               // a push came, and no check has begun after it
)

// step is what the Lock has to do after an event.
type step struct {
	tell  event.Kind    // the event to report; 0: none
	late  time.Duration // with event.RenewedLate: how late
	lost  *Error        // why the lock was lost just now; nil if it was not
	moved bool          // the result of next has changed
	found bool          // the lock counted as lost, and is parked after all
}

// granted is the first event: the store has granted a term with this fence, and its answer arrives at now. The lease
// counts from sent.
func granted(t terms, sent, now time.Time, fence int64, renewing bool, retain time.Duration, hint *string) holding {
	h := holding{terms: t, job: t.resumedBy, renewing: renewing, retain: retain}
	h.begin(sent, now, fence, hint)
	return h
}

func (h *holding) begin(sent, now time.Time, fence int64, hint *string) {
	h.fence, h.hint, h.since = fence, hint, now
	h.extend(sent)
}

// extend begins a lease that was asked for at sent.
func (h *holding) extend(sent time.Time) {
	h.trust = h.trusted(sent)
	h.renewAt = sent.Add(h.ttl / 3)
}

// trusted returns the trust deadline of a lease that was asked for at sent.
func (t *terms) trusted(sent time.Time) time.Time { return sent.Add(t.ttl - t.margin) }

// live reports whether the handle still holds the lock, perhaps with a Park under way.
func (h *holding) live() bool { return h.state == lockHeld || h.state == lockParking }

// settled reports whether the handle was released or handed over.
func (h *holding) settled() bool { return h.state == lockReleased || h.state == lockParked }

// lostAt returns when to signal the loss of a lock whose trust deadline is trust: a little earlier, because timers are
// late, never early, and the loss must be signalled by the deadline.
func (t *terms) lostAt(trust time.Time) time.Time { return trust.Add(-t.margin / 8) }

// expired reports whether it is time to declare the lock of a live handle lost.
func (h *holding) expired(now time.Time) bool {
	return h.live() && past(now, h.lostAt(h.trust))
}

// past reports whether the monotonic clock or the wall clock of now has reached t.
func past(now, t time.Time) bool {
	return !now.Before(t) || !now.Round(0).Before(t.Round(0))
}

// next returns when the next event is due. live is false when the handle no longer holds the lock.
func (h *holding) next() (at time.Time, live bool) {
	at = h.lostAt(h.trust)
	if h.state == lockHeld && h.renewing && !h.underWay && h.renewAt.Before(at) {
		at = h.renewAt
	}
	return at, h.live()
}

// refusal returns why the handle can do nothing, or nil if the handle holds the lock.
func (h *holding) refusal(op string) error {
	if h.state == lockParking {
		return h.handedOver(op, "")
	}
	if h.over == nil {
		return nil
	}
	e := *h.over
	e.Op = op
	return &e
}

// handedOver returns the error of a call on the handle after Park, other than Reclaim.
func (h *holding) handedOver(op, job string) *Error {
	return &Error{Code: driver.CodeNotOwner, Op: op, Key: h.key, Job: job, Detail: "the lock was handed over by Park"}
}

// lostBy returns an ErrLost whose detail is the refusal r. A loss must not look like the ErrAlreadyReleased or
// ErrNotOwner of a handle that its user has ended.
func (h *holding) lostBy(op string, r driver.Reply) *Error {
	e := *Refusal(op, h.key, r).(*Error)
	if e.Code != driver.CodeLost && e.Holder == "" { // a holder says enough
		e.Detail = strings.TrimSuffix(driver.CodeText(e.Code)+": "+e.Detail, ": ")
	}
	e.Code = driver.CodeLost
	return &e
}

func (h *holding) lose(why *Error) step {
	if !h.live() {
		return step{}
	}
	h.state, h.over = lockLost, why
	return step{tell: event.Lost, lost: why, moved: true}
}

// term returns the present term. If there is a Park without an answer, the term has the nonce of that Park.
func (h *holding) term() driver.Term {
	return driver.Term{Key: h.key, Owner: *h.owner, Fence: h.fence, Grant: h.parkNonce}
}

// timePassed loses the lock if its trust deadline has passed at now.
func (h *holding) timePassed(now time.Time) step {
	if !h.expired(now) {
		return step{}
	}
	why := &Error{Code: driver.CodeLost, Key: h.key, Detail: "no renewal was answered before the trust deadline"}
	// Redis is not to blame if the process noticed the deadline late: the operator should look at this machine first.
	if late := now.Sub(h.trust); late > time.Second {
		why.Detail += fmt.Sprintf("; noticed %s after it: this process was paused", late.Round(time.Millisecond))
	} else if late = now.Round(0).Sub(h.trust.Round(0)); late > time.Second {
		why.Detail += fmt.Sprintf("; noticed %s after it, by the wall clock: this machine was suspended, or its clock was set", late.Round(time.Millisecond))
	}
	if !h.renewing {
		why.Detail, why.Err = "the lease ran out", ErrNotRenewed
	}
	return h.lose(why)
}

func (h *holding) lockerClosed() step {
	return h.lose(&Error{Code: driver.CodeLost, Key: h.key, Detail: "its Locker was closed"})
}

// ownerShared means that other callers may know the owner token from now on.
func (h *holding) ownerShared() { h.shared = true }

// remembered raises to at least d the time for which the store keeps the memo after the end of the lock.
func (h *holding) remembered(d time.Duration) { h.retain, h.shared = max(h.retain, d), true }

// renewalDue returns the renewal to send at now. send is false if none is due. A renewal that is almost due is
// sent along with other renewals. At most one renewal that was due is under way at a time.
func (h *holding) renewalDue(now time.Time) (req driver.RenewRequest, send bool) {
	if !h.renewUntil.IsZero() && !now.Before(h.renewUntil) {
		h.renewing = false
	}
	if h.state != lockHeld || h.expired(now) || !h.renewing || h.underWay || h.renewAt.After(now.Add(slack(h.ttl))) {
		return req, false
	}
	h.underWay = true
	return h.renewal(), true
}

// slack returns how much earlier than due a renewal may be sent along with other renewals.
func slack(ttl time.Duration) time.Duration { return min(ttl/30, 100*time.Millisecond) }

func (h *holding) renewalAsked(op string) (driver.RenewRequest, error) {
	if err := h.refusal(op); err != nil {
		return driver.RenewRequest{}, err
	}
	return h.renewal(), nil
}

func (h *holding) renewal() driver.RenewRequest {
	if h.parkNonce != "" {
		h.takingBack++
	}
	return driver.RenewRequest{Term: h.term(), TTL: h.ttl, Retain: h.retain, Reserve: h.reserve, Back: h.resumedBy}
}

type renewalAnswer struct {
	op    string
	term  driver.Term // as in the request
	sent  time.Time
	now   time.Time
	reply driver.Reply // zero if there was no answer
	again time.Time    // when to repeat a renewal without an answer; zero for a renewal that a user asked for
}

// renewalAnswered returns the error for a user who asked for the renewal. A refusal loses the lock, with two
// exceptions: a refusal of an earlier term is ignored, and so is a refusal during a Park, because the answer to the
// Park decides.
func (h *holding) renewalAnswered(a renewalAnswer) (step, error) {
	due := !a.again.IsZero()
	if due {
		h.underWay = false
	}
	if a.term.Grant != "" {
		h.takingBack--
	}
	s := step{moved: due || h.live()}
	switch a.reply.Outcome {
	case driver.OutcomeOK:
		if !h.live() {
			if h.state == lockLost {
				return s, h.refusal(a.op) // the trust deadline passed before the answer came
			}
			return s, nil
		}
		if a.reply.Fence > h.fence {
			h.fence, h.parkNonce = a.reply.Fence, "" // the renewal has undone the Park without an answer
		}
		before := h.trust.Add(h.margin - h.ttl)
		if a.sent.After(before) { // no later renewal was answered before
			if used := a.now.Sub(before); h.renewing && used > h.ttl*2/3 {
				s.tell, s.late = event.RenewedLate, used-h.ttl/3
			}
			h.extend(a.sent)
		}
		h.hint = nil
		return s, nil
	case driver.OutcomeUnknown:
		if due {
			h.renewAt = a.again
		}
		return s, Refusal(a.op, h.key, a.reply)
	}
	if h.state == lockParking || a.term.Fence != h.fence || a.term.Grant != h.parkNonce {
		return s, Refusal(a.op, h.key, a.reply)
	}
	why := h.lostBy(a.op, a.reply)
	if lost := h.lose(why); lost.lost != nil {
		s = lost
	}
	return s, why
}

func (h *holding) renewingStopped() { h.renewing = false }

// parkBegun returns the Park to send. grace is Config.JobGrace. wait is true if a renewal is under way that would undo
// the Park: then nothing has changed, and the caller tries again after the answer to the renewal.
//
// A Park without an answer is repeated under the same nonce. The repeated Park also names the present term by that
// nonce, because a renewal may have undone the first Park.
func (h *holding) parkBegun(op, nonce, job string, reserve, grace time.Duration) (req driver.ParkRequest, wait bool, err error) {
	if err := h.refusal(op); err != nil {
		return req, false, err
	}
	if h.parkNonce != "" && h.takingBack > 0 {
		return req, true, nil
	}
	term := h.term()
	h.parkNonce = cmp.Or(h.parkNonce, nonce)
	h.parkReserve = max(h.parkReserve, reserve)
	h.state = lockParking
	return driver.ParkRequest{
		Term: term, Nonce: h.parkNonce, Reserve: reserve, Retain: h.retain, Job: job,
		Grace: jobGrace(grace, reserve),
	}, false, nil
}

// jobGrace returns grace, which is Config.JobGrace, but at most half of reserve: with a longer grace the reservation
// could end before a keeper checks the key.
func jobGrace(grace, reserve time.Duration) time.Duration {
	return max(driver.MinPeriod, min(grace, reserve/2))
}

// parkAnswered returns nil if the lock was parked, and otherwise the reason. An OK counts even after the loss was
// signalled, because the store has reserved the key for the token.
func (h *holding) parkAnswered(op, job string, r driver.Reply) (step, error) {
	switch r.Outcome {
	case driver.OutcomeOK:
		s := step{tell: event.Parked, moved: true, found: h.state == lockLost}
		h.state, h.fence, h.job, h.parkNonce = lockParked, r.Fence, job, ""
		h.over = h.handedOver("", job)
		h.shared = true // the caller has the token, and keeps it after a Reclaim
		return s, nil
	case driver.OutcomeUnknown:
		if h.state == lockParking {
			h.state = lockHeld
		}
		return step{moved: true}, Refusal(op, h.key, r)
	}
	why := h.lostBy(op, r)
	return h.lose(why), why
}

// reclaimBegun returns the Reclaim to send, and the time from which the lease of the Reclaim counts. A repeated Reclaim
// may find the grant of the first Reclaim, so both leases count from when the first Reclaim was sent. After the end of
// that lease there is no such grant, and the Reclaim is a new call.
func (h *holding) reclaimBegun(op, nonce string, now time.Time, grace time.Duration) (req driver.ResumeRequest, sent time.Time, err error) {
	if h.state != lockParked {
		return req, sent, Invalid(op, h.key, "the lock is not parked by this handle")
	}
	if h.reclaimNonce == "" || now.Sub(h.reclaimSent) >= h.ttl {
		h.reclaimNonce, h.reclaimSent = nonce, now
	}
	return driver.ResumeRequest{
		Key: h.key, Owner: *h.owner, Nonce: h.reclaimNonce,
		TTL: h.ttl, Retain: h.retain, Holder: h.holder, Job: h.job, Reserve: h.reserve,
		Grace: grace, Fence: h.fence, Unpark: true, Back: h.resumedBy,
	}, h.reclaimSent, nil
}

// reclaimAnswered returns nil if the handle holds the lock, and otherwise the reason. If another Reclaim was answered
// first, the handle may hold the lock already, or may have lost or released the lock since.
func (h *holding) reclaimAnswered(op string, sent, now time.Time, r driver.Reply) (step, error) {
	if r.Outcome != driver.OutcomeUnknown {
		h.reclaimNonce, h.reclaimSent = "", time.Time{}
	}
	if err := Refusal(op, h.key, r); err != nil {
		return step{}, err
	}
	if h.state != lockParked {
		return step{}, h.refusal(op)
	}
	if past(now, h.lostAt(h.trusted(sent))) {
		return step{}, lateGrant(op, h.key)
	}
	h.state, h.over, h.job, h.parkReserve = lockHeld, nil, h.resumedBy, 0
	h.begin(sent, now, r.Fence, &r.Hint)
	return step{tell: event.Reclaimed, moved: true}, nil
}

// lateGrant returns the error for a grant that came after its own trust deadline.
func lateGrant(op, key string) *Error {
	return &Error{Code: driver.CodeUnavailable, Op: op, Key: key, Detail: "the answer came after the lease that it grants had ended"}
}

// releasing is a Release under way.
type releasing struct {
	req   driver.ReleaseRequest
	until time.Time // when the lock is free in the store even without the Release
	stray bool      // the Release also undoes a Park without an answer, which may reach the store later
	lost  error     // why the lock was lost before the Release, or nil
}

// releaseBegun returns the Release to send, which is req for the present term. The handle holds nothing from then on.
// After a loss the Release removes what the store may still have of the lock. reserve is Config.Reserve.
func (h *holding) releaseBegun(op string, req driver.ReleaseRequest, reserve time.Duration) (releasing, error) {
	why := h.refusal(op)
	if why != nil && h.state != lockLost {
		return releasing{}, why
	}
	if why == nil {
		ended := driver.EndedReleased
		if req.Done {
			ended = driver.EndedDone
		}
		h.state = lockReleased
		h.over = &Error{Code: driver.CodeAlreadyReleased, Key: h.key, Ended: ended, Reason: req.Reason}
	}
	h.releaseNonce = cmp.Or(h.releaseNonce, req.Nonce)
	req.Term, req.Nonce, req.Retain, req.Brief = h.term(), h.releaseNonce, h.retain, min(h.retain, req.Brief)
	if h.hint != nil {
		req.Hint = *h.hint
	}
	until := h.trust.Add(h.margin)
	reserved := h.resumed || h.parkNonce != "" // a reservation may outlast the lease
	if reserved {
		until = until.Add(max(reserve, h.parkReserve))
	}
	if h.shared || reserved {
		req.Brief = 0
	}
	return releasing{req: req, until: until, stray: h.parkNonce != "", lost: why}, nil
}

// releaseAnswered returns the error of Release, and the event to report with the event's error. The holding does not
// change, because the handle no longer holds the lock in any case. A refusal means that the lock was lost earlier and
// the loss had not been noticed. failed is the error of a call without an answer.
func (h *holding) releaseAnswered(op string, r releasing, reply driver.Reply, failed error) (tell event.Kind, why, err error) {
	switch {
	case r.lost != nil: // and the loss was reported then
		return 0, nil, r.lost
	case failed != nil:
		return event.Released, failed, failed
	case reply.Outcome == driver.OutcomeOK:
		return event.Released, nil, nil
	}
	why = h.lostBy(op, reply)
	switch reply.Outcome {
	case driver.OutcomeNotOwner, driver.OutcomeNotFound, driver.OutcomeLapsed:
		return event.Lost, why, why
	}
	return event.Lost, why, Refusal(op, h.key, reply)
}

// releaseUndone reverts a releaseBegun whose Release has changed nothing. held is true if the handle holds the lock
// again, and false if the lock was lost before.
func (h *holding) releaseUndone() (held bool) {
	if h.state != lockReleased {
		return false
	}
	h.state, h.over = lockHeld, nil
	return true
}

// doubted records a push according to which the term with this fence has ended. check reports whether to start a check.
// If a check is already under way, it is repeated when it ends, because the push may be about a later event.
func (h *holding) doubted(fence int64) (check bool) {
	if h.state != lockHeld || h.fence != fence {
		return false
	}
	check = h.doubt == noDoubt
	h.doubt = doubted
	return check
}

// verifyBegun returns the fence of the term to check. check is false if no push came after the latest check began.
func (h *holding) verifyBegun() (fence int64, check bool) {
	if h.state != lockHeld || h.doubt != doubted {
		h.doubt = noDoubt
		return 0, false
	}
	h.doubt = checking
	return h.fence, true
}

// verified loses the lock if rec does not show it held under fence. A rec that was read for an earlier term is ignored.
// While a Park has no answer, every rec is ignored: the next renewal names the terms before and after the Park, and the
// answer to that renewal decides.
func (h *holding) verified(op string, fence int64, rec driver.Record) step {
	ours := rec.Owner == *h.owner
	var r driver.Reply
	switch {
	case h.state != lockHeld, h.fence != fence, h.parkNonce != "",
		ours && rec.Fence == fence && rec.State == driver.StateHeld:
		return step{}
	case ours && (rec.Ended == driver.EndedReleased || rec.Ended == driver.EndedForced):
		r = driver.Reply{Outcome: driver.OutcomeReleased, Ended: rec.Ended, Reason: rec.Reason}
	case ours && rec.Fence == fence:
		r.Outcome = driver.OutcomeLapsed
	case rec.State == driver.StateForeign:
		r.Outcome = driver.OutcomeForeign
	case rec.Fence == 0:
		r.Outcome = driver.OutcomeNotFound
	default:
		r = driver.Reply{Outcome: driver.OutcomeNotOwner, Holder: rec.Holder, Job: rec.Job, Remaining: rec.Lease}
	}
	return h.lose(h.lostBy(op, r))
}
