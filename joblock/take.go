package joblock

import (
	"context"
	"errors"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// takeAll is door.Locker.Take.
//
// A Take without an answer may have parked the key for a job that is never enqueued. The janitor releases such a key.
// If the store is silent for longer than a TTL and there are too many such keys, the janitor gives some of the keys up.
// The keeper frees the keys that the janitor has given up, because their jobs do not exist.
func (l *Locker) takeAll(ctx context.Context, op string, takes []door.Take) []door.Taken {
	reqs, errs := make([]driver.TakeRequest, len(takes)), make([]error, len(takes))
	for i, t := range takes {
		if errs[i] = l.checkTake(op, t); errs[i] != nil {
			continue
		}
		l.doubt(op, t.Key)
		reqs[i] = driver.TakeRequest{
			Key: t.Key, Nonce: newNonce(), Holder: l.cfg.Holder, Job: t.Job,
			Reserve: t.Reserve, Retain: l.cfg.Retain, Grace: jobGrace(l.cfg.JobGrace, t.Reserve),
		}
		switch {
		case t.Token != nil:
			reqs[i].Owner = t.Token.(Token).owner.reveal()
		case t.Call.Owner != "":
			reqs[i].Owner, reqs[i].Nonce = t.Call.Owner, t.Call.Nonce
		default:
			reqs[i].Owner = newOwner()
		}
		if t.Patience > 0 {
			reqs[i].Nonce, reqs[i].Patience, reqs[i].Most = door.PlaceOf(t.Job), t.Patience, t.Most
			reqs[i].Grace = jobGrace(l.cfg.JobGrace, min(t.Reserve, t.Patience))
		}
	}
	replies := askAll(ctx, l, op, reqs, errs, func(req *driver.TakeRequest) string { return req.Key }, l.store.Take)
	out := make([]door.Taken, len(takes))
	for i := range takes {
		out[i] = l.taken(op, &takes[i], &reqs[i], replies[i], errs[i])
	}
	return out
}

// noJob is the name of no job. So a release for noJob frees nothing.
const noJob = "%none"

// passOn is door.Locker.PassOn. A release for a job that a slot is not bound to only gives a free slot to the first job.
func (l *Locker) passOn(ctx context.Context, op string, slots []string) error {
	reqs, errs := make([]driver.ReleaseRequest, len(slots)), make([]error, len(slots))
	for i, slot := range slots {
		reqs[i] = driver.ReleaseRequest{Term: driver.Term{Key: slot}, Kind: driver.ReleaseForcedIdle, Job: noJob}
	}
	l.end(ctx, op, reqs, errs)
	for _, err := range errs {
		if CodeOf(err) == "" && err != nil || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrClosed) {
			return err
		}
	}
	return nil
}

func (l *Locker) checkTake(op string, t door.Take) error {
	err := l.check(op, t.Key)
	if err == nil {
		err = checkText(op, t.Key, "job", t.Job, 1, driver.MaxLabelBytes)
	}
	if err == nil {
		err = checkDurations(op, t.Key, duration{"Reserve", t.Reserve, driver.MinPeriod, driver.MaxPeriod})
	}
	if err == nil && t.Patience != 0 {
		err = checkDurations(op, t.Key, duration{"Patience", t.Patience, driver.MinPeriod, driver.MaxPeriod})
	}
	if err == nil && t.Most < 0 {
		err = invalid(op, t.Key, "the most places in line are %d, must not be negative", t.Most)
	}
	if err == nil && t.Token != nil {
		token := t.Token.(Token)
		if err = l.checkToken(op, token); err == nil && token.key != t.Key {
			err = invalid(op, t.Key, "the token is for the key %q", shorten(token.key, 80))
		}
	}
	return err
}

// The method taken returns the result of a Take with the answer r. The parameter err is the reason why there is no
// answer, or nil.
func (l *Locker) taken(op string, take *door.Take, req *driver.TakeRequest, r driver.Reply, err error) door.Taken {
	token := Token{key: req.Key, owner: newSecret(req.Owner), fence: r.Fence, ttl: l.cfg.TTL}
	switch {
	case errors.Is(err, ErrUnavailable) && (take.Token != nil || take.Call.Owner != ""): // the job keeps what it has
	case errors.Is(err, ErrUnavailable):
		l.janitor.add(cleanup{
			req: driver.ReleaseRequest{
				Term:   driver.Term{Key: req.Key, Owner: req.Owner, Grant: req.Nonce},
				Nonce:  newNonce(),
				Retain: req.Retain,
				Brief:  min(req.Retain, l.cfg.brief()),
				Reason: "not enqueued",
			},
			until: l.now().Add(min(req.Reserve, l.cfg.TTL)),
			stray: true,
		})
	case err != nil:
	case r.Outcome == driver.OutcomeOK:
		if l.cfg.Observer != nil { // the digest costs as much as the rest of this method
			e := event.Event{Kind: event.Acquired, Key: req.Key, Owner: digest(req.Owner), Fence: r.Fence, Holder: req.Holder, Prior: r.Ended}
			l.tell(e)
			e.Kind, e.Job, e.Prior = event.Parked, req.Job, EndedNone
			l.tell(e)
		}
		return door.Taken{Token: token}
	case r.Outcome == driver.OutcomeHeld && !r.Now.IsZero(): // the job has a place in line
		l.tellContended(nil, req.Key, req.Owner, r)
		return door.Taken{Token: token, Waits: &door.Place{Ahead: r.Ahead, Since: r.Since}}
	case r.Outcome == driver.OutcomeHeld, r.Outcome == driver.OutcomeFull:
		l.tellContended(nil, req.Key, req.Owner, r)
		fallthrough
	default:
		err = errorOf(op, req.Key, r)
	}
	return door.Taken{Err: err, Full: r.Outcome == driver.OutcomeFull}
}
