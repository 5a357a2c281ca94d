package joblock

import (
	"cmp"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// holding is what this process knows of its lock on one key. It is a pure value: it has
// no mutex, makes no call and reads no clock. A Lock guards it and feeds it events.
// Each method in the table is an event. It changes the holding and returns what to
// send, what to tell, and what the caller is answered. Only this file assigns the
// state.
//
// A word in the table is the next state. A dash means that nothing changes and nothing
// is done. An error is the caller's answer; nothing else happens. A blank cannot
// happen.
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
//	doubted, verifyBegun     check it   -            -            -                   -
//	verified, not held       lost       -            -            -                   -
//	lockerClosed             lost       lost         -            -                   -
//	ownerShared, remembered  the end is remembered for longer, in every state
//
// Rules that span several events:
//
//   - Trust counts from when a call was sent, so that it never outlasts the lease. A
//     grant that comes when its trust is over is no grant.
//   - A Park without an answer may have been applied. The holding goes on, and every
//     later call names the term by that Park's nonce too. A renewal undoes the Park.
//   - Such a renewal would also undo a repeated Park, after its caller was given the
//     token. So a Park waits until no such renewal is under way.
//   - A refusal of an earlier term says nothing about the present one.
type holding struct {
	terms

	state lockState
	doubt doubt

	shared bool // others may know the owner, and ask how the lock ended

	renewing bool
	underWay bool      // a renewal that was due is not answered yet
	renewAt  time.Time // when the next one is due

	fence  int64
	since  time.Time     // when this process got it
	trust  time.Time     // trust deadline, with its monotonic reading
	job    string        // the job it is bound to
	over   *Error        // why the handle is over; nil while held
	retain time.Duration // how long the store remembers the lock after its end

	// The nonces of calls without an answer. By them the store recognises a repeated call.
	parkNonce    string        // set while the answer to a Park is owed
	parkReserve  time.Duration // the longest reservation that was asked for
	takingBack   int           // renewals under way that would undo that Park
	reclaimNonce string
	reclaimSent  time.Time
	releaseNonce string
}

// terms are what never changes during a holding.
type terms struct {
	key        string
	owner      *string // a pointer, because fmt prints the fields of a struct but does not follow pointers
	holder     string
	ttl        time.Duration
	margin     time.Duration // see Config.Margin
	renewUntil time.Time     // nothing is renewed later; zero: no bound

	// Of a lock that was resumed. An undone Park binds it to its job again.
	resumed   bool
	resumedBy string        // the job
	reserve   time.Duration // how long renewals keep it reserved beyond the lease
}

type lockState uint8

const (
	lockHeld lockState = iota
	lockParking
	lockParked
	lockReleased
	lockLost
)

// doubt is the progress of a check that pushes of forced releases ask for.
type doubt uint8

const (
	noDoubt  doubt = iota // no check is under way or due
	checking              // a check is under way, and no push came since it began
	doubted               // a push came, and no check has begun since
)

// step is what to do after an event, besides what its method returns.
type step struct {
	tell  event.Kind    // what to tell the Observer; 0: nothing
	late  time.Duration // of event.RenewedLate: how late
	lost  *Error        // why this event lost the lock; nil if it did not
	moved bool          // next has changed
	found bool          // the lock was told to be lost, and is not
}

// granted is the first event: the store has granted fence to a call sent at sent.
func granted(t terms, sent time.Time, fence int64, renewing bool, retain time.Duration) holding {
	h := holding{terms: t, job: t.resumedBy, renewing: renewing, retain: retain}
	h.begin(sent, fence)
	return h
}

func (h *holding) begin(sent time.Time, fence int64) {
	h.fence, h.since = fence, sent
	h.extend(sent)
}

// extend notes a lease that was asked for at sent.
func (h *holding) extend(sent time.Time) {
	h.trust = h.trusted(sent)
	h.renewAt = sent.Add(h.ttl / 3)
}

// trusted returns the trust deadline of a lease that was asked for at sent.
func (t *terms) trusted(sent time.Time) time.Time { return sent.Add(t.ttl - t.margin) }

// live reports whether the handle is not over.
func (h *holding) live() bool { return h.state == lockHeld || h.state == lockParking }

// settled reports whether the handle was released or handed over.
func (h *holding) settled() bool { return h.state == lockReleased || h.state == lockParked }

// lostAt is when the loss is told under the trust deadline trust. It is a little
// before, because timers are late, never early, and the loss must be told by the
// deadline.
func (t *terms) lostAt(trust time.Time) time.Time { return trust.Add(-t.margin / 8) }

// expired reports whether it is time to tell the loss of a live handle.
func (h *holding) expired(now time.Time) bool {
	return h.live() && past(now, h.lostAt(h.trust))
}

// past reports whether now has reached t by the monotonic clock or by the wall
// clock, whichever is ahead.
func past(now, t time.Time) bool {
	return !now.Before(t) || !now.Round(0).Before(t.Round(0))
}

// next returns when something is due again. live is false when the handle is over.
func (h *holding) next() (at time.Time, live bool) {
	at = h.lostAt(h.trust)
	if h.state == lockHeld && h.renewing && !h.underWay && h.renewAt.Before(at) {
		at = h.renewAt
	}
	return at, h.live()
}

// refusal returns why the handle can do nothing, nil while it is held.
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

// handedOver is the error of every call on the handle after Park.
func (h *holding) handedOver(op, job string) *Error {
	return &Error{Code: codeNotOwner, Op: op, Key: h.key, Job: job, Detail: "the lock was handed over by Park"}
}

// lostBy makes an ErrLost of a refusal by the store. The refusal goes into the detail:
// a loss must not look like the ErrAlreadyReleased or ErrNotOwner of a handle that its
// user has ended.
func (h *holding) lostBy(op string, r driver.Reply) *Error {
	e := *errorOf(op, h.key, r).(*Error)
	if e.Code != codeLost {
		e.Detail = strings.TrimSuffix(codeText[e.Code]+": "+e.Detail, ": ")
	}
	e.Code = codeLost
	return &e
}

func (h *holding) lose(why *Error) step {
	if !h.live() {
		return step{}
	}
	h.state, h.over = lockLost, why
	return step{tell: event.Lost, lost: why, moved: true}
}

// term names the present term, also by the nonce of a Park without an answer.
func (h *holding) term() driver.Term {
	return driver.Term{Key: h.key, Owner: *h.owner, Fence: h.fence, Grant: h.parkNonce}
}

// timePassed declares the lock lost if it is time to.
func (h *holding) timePassed(now time.Time) step {
	if !h.expired(now) {
		return step{}
	}
	why := &Error{Code: codeLost, Key: h.key, Detail: "no renewal was answered before the trust deadline"}
	if !h.renewing {
		why.Detail, why.Err = "the lease ran out", door.ErrNotRenewed
	}
	return h.lose(why)
}

func (h *holding) lockerClosed() step {
	return h.lose(&Error{Code: codeLost, Key: h.key, Detail: "its Locker was closed"})
}

// ownerShared: others may know the owner from now on.
func (h *holding) ownerShared() { h.shared = true }

// remembered makes the store keep the lock's memo for at least d after its end.
func (h *holding) remembered(d time.Duration) { h.retain, h.shared = max(h.retain, d), true }

// renewalDue returns the renewal to send at now; send is false if none is due. One that
// is almost due is sent along with others. Only one is under way at a time.
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

// slack is how much too early a renewal may be sent along with others.
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
	term  driver.Term // the one in the request
	sent  time.Time
	now   time.Time
	reply driver.Reply // the zero Reply: there was no answer
	again time.Time    // when to send the next one if there was no answer; zero if a user asked
}

// renewalAnswered returns the error for a user who asked for the renewal. A refusal
// loses the lock, but not if it is about an earlier term, nor while a Park is under
// way: then the answer to the Park decides.
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
				return s, h.refusal(a.op) // the answer came after the trust deadline
			}
			return s, nil
		}
		if a.reply.Fence > h.fence {
			h.fence, h.parkNonce = a.reply.Fence, "" // the Park without an answer is undone
		}
		before := h.trust.Add(h.margin - h.ttl)
		if a.sent.After(before) { // not overtaken by a later one
			if used := a.now.Sub(before); h.renewing && used > h.ttl*2/3 {
				s.tell, s.late = event.RenewedLate, used-h.ttl/3
			}
			h.extend(a.sent)
		}
		return s, nil
	case driver.OutcomeUnknown:
		if due {
			h.renewAt = a.again
		}
		return s, errorOf(a.op, h.key, a.reply)
	}
	if h.state == lockParking || a.term.Fence != h.fence || a.term.Grant != h.parkNonce {
		return s, errorOf(a.op, h.key, a.reply)
	}
	why := h.lostBy(a.op, a.reply)
	if lost := h.lose(why); lost.lost != nil {
		s = lost
	}
	return s, why
}

func (h *holding) renewingStopped() { h.renewing = false }

// parkBegun returns the Park to send. grace is the longest time until a keeper first
// checks the job. If wait is true nothing has changed: a renewal is under way that
// would undo the Park. Try again after its answer.
//
// A Park without an answer is repeated under the same nonce. The repeated Park also
// names its term by that nonce, because a renewal may have undone the first Park.
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
		Term:    term,
		Nonce:   h.parkNonce,
		Reserve: reserve,
		Retain:  h.retain,
		Job:     job,
		Grace:   max(driver.MinPeriod, min(grace, reserve/2)), // or it would lapse before the first check
	}, false, nil
}

// parkAnswered returns why nothing was parked, nil if it was. An OK counts even after
// the loss was told: the key is reserved for the token.
func (h *holding) parkAnswered(op, job string, r driver.Reply) (step, error) {
	switch r.Outcome {
	case driver.OutcomeOK:
		s := step{tell: event.Parked, moved: true, found: h.state == lockLost}
		h.state, h.fence, h.job, h.parkNonce = lockParked, r.Fence, job, ""
		h.over = h.handedOver("", job)
		h.shared = true // the token stays with the caller, also after a Reclaim
		return s, nil
	case driver.OutcomeUnknown:
		if h.state == lockParking {
			h.state = lockHeld
		}
		return step{moved: true}, errorOf(op, h.key, r)
	}
	why := h.lostBy(op, r)
	return h.lose(why), why
}

// reclaimBegun returns the Reclaim to send, and from when its lease counts. A repeated
// one may find the grant of the one before. So it counts from when that was sent,
// unless that lease is over: then there is nothing to find, and it is a new call.
func (h *holding) reclaimBegun(op, nonce string, now time.Time, grace time.Duration) (req driver.ResumeRequest, sent time.Time, err error) {
	if h.state != lockParked {
		return req, sent, invalid(op, h.key, "the lock is not parked by this handle")
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

// reclaimAnswered returns why the handle does not hold the lock, nil if it does.
// Another Reclaim may have got the lock back meanwhile, and that holding may be over
// again.
func (h *holding) reclaimAnswered(op string, sent, now time.Time, r driver.Reply) (step, error) {
	if r.Outcome != driver.OutcomeUnknown {
		h.reclaimNonce, h.reclaimSent = "", time.Time{}
	}
	if err := errorOf(op, h.key, r); err != nil {
		return step{}, err
	}
	if h.state != lockParked {
		return step{}, h.refusal(op)
	}
	if past(now, h.lostAt(h.trusted(sent))) {
		return step{}, lateGrant(op, h.key)
	}
	h.state, h.over, h.job, h.parkReserve = lockHeld, nil, h.resumedBy, 0
	h.begin(sent, r.Fence)
	return step{tell: event.Reclaimed, moved: true}, nil
}

// lateGrant is the error for a grant that comes when it can no longer be trusted.
func lateGrant(op, key string) *Error {
	return &Error{Code: codeUnavailable, Op: op, Key: key, Detail: "the answer came when its own lease was over"}
}

// releasing is a Release under way.
type releasing struct {
	req   driver.ReleaseRequest
	until time.Time // when the lock has run out in the store
	stray bool      // it also undoes a Park without an answer, which may still arrive
	lost  error     // why the lock was lost before, if it was
}

// releaseBegun returns the Release to send: req for the present term. The handle is over at once. After a loss the
// Release removes what the store may have left of the lock. reserve is Config.Reserve.
func (h *holding) releaseBegun(op string, req driver.ReleaseRequest, reserve time.Duration) (releasing, error) {
	why := h.refusal(op)
	if why != nil && h.state != lockLost {
		return releasing{}, why
	}
	if why == nil {
		ended := EndedReleased
		if req.Done {
			ended = EndedDone
		}
		h.state = lockReleased
		h.over = &Error{Code: codeAlreadyReleased, Key: h.key, Ended: ended, Reason: req.Reason}
	}
	h.releaseNonce = cmp.Or(h.releaseNonce, req.Nonce)
	req.Term, req.Nonce, req.Retain, req.Brief = h.term(), h.releaseNonce, h.retain, min(h.retain, req.Brief)
	until := h.trust.Add(h.margin)
	reserved := h.resumed || h.parkNonce != "" // a reservation may stand beyond the lease
	if reserved {
		until = until.Add(max(reserve, h.parkReserve))
	}
	if h.shared || reserved {
		req.Brief = 0
	}
	return releasing{req: req, until: until, stray: h.parkNonce != "", lost: why}, nil
}

// releaseAnswered returns Release's error, and the event to tell, with its error. It
// changes nothing: the handle is over, whatever the store says. A refusal means that
// the lock was lost before and nobody had noticed. failed is the error of a call
// without an answer.
func (h *holding) releaseAnswered(op string, r releasing, reply driver.Reply, failed error) (tell event.Kind, why, err error) {
	switch {
	case r.lost != nil: // which was told then
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
	return event.Lost, why, errorOf(op, h.key, reply)
}

// doubted notes a push that says that the term of fence was taken away. It reports
// whether the caller has to start a check. A check under way is repeated instead,
// because the push may be about something later.
func (h *holding) doubted(fence int64) (check bool) {
	if h.state != lockHeld || h.fence != fence {
		return false
	}
	check = h.doubt == noDoubt
	h.doubt = doubted
	return check
}

// verifyBegun returns the term to check. check is false if no push came since the
// latest check began.
func (h *holding) verifyBegun() (fence int64, check bool) {
	if h.state != lockHeld || h.doubt != doubted {
		h.doubt = noDoubt
		return 0, false
	}
	h.doubt = checking
	return h.fence, true
}

// verified loses the lock if rec does not show it held under fence. A record that was
// read for an earlier term says nothing. Nor does one while a Park has no answer: the
// next renewal names both, and its answer decides.
func (h *holding) verified(op string, fence int64, rec driver.Record) step {
	ours := rec.Owner == *h.owner
	var r driver.Reply
	switch {
	case h.state != lockHeld, h.fence != fence, h.parkNonce != "",
		ours && rec.Fence == fence && rec.State == StateHeld:
		return step{}
	case ours && (rec.Ended == EndedReleased || rec.Ended == EndedForced):
		r = driver.Reply{Outcome: driver.OutcomeReleased, Ended: rec.Ended, Reason: rec.Reason}
	case ours && rec.Fence == fence:
		r.Outcome = driver.OutcomeLapsed
	case rec.State == StateForeign:
		r.Outcome = driver.OutcomeForeign
	case rec.Fence == 0:
		r.Outcome = driver.OutcomeNotFound
	default:
		r = driver.Reply{Outcome: driver.OutcomeNotOwner, Holder: rec.Holder, Job: rec.Job, Remaining: rec.Lease}
	}
	return h.lose(h.lostBy(op, r))
}
