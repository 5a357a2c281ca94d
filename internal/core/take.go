package core

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"strings"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Take names a key to take for a job.
type Take struct {
	Key      string        // may be one of the toolkit's own keys; see package keyspace
	Job      string        // "queue/taskID"
	Reserve  time.Duration // how long the key stays reserved for Job, from the grant on
	Patience time.Duration // if not 0, asks for a place in the line; how long the place lasts
	Most     int           // with Patience: a line with this many places gets no new one; 0 means no bound
	Token    *Token        // with Patience: the token of an earlier Take for this key and job, or nil
	Call     Call          // zero, or the Call of a Take that may be repeated; such a Take has no Token
}

// Call identifies a call that may be repeated, even by another process and at the same time. All copies have the same
// Owner, which is secret, and the same Nonce, so that a copy of a Take finds what the first one has taken.
type Call struct{ Owner, Nonce string }

// Taken is the result of a Take.
type Taken struct {
	Token Token  // zero with Err
	Waits *Place // not nil if the job waits; the key is then parked for the job when its turn comes
	Err   error
	Full  bool // Err is ErrHeld because the line is full
}

// Place is the place of a job that waits.
type Place struct {
	Ahead int       // at most this many others come before the job
	Since time.Time // when the place was taken, by the store's clock
}

// PlaceOf returns the Nonce of the calls with which job waits. The Nonce depends on job alone, so that a keeper can
// name the place. The Nonce has the usual length: see newNonce.
func PlaceOf(job string) string {
	sum := sha256.Sum256([]byte("joblock place " + job))
	return strings.ToLower(base32.HexEncoding.EncodeToString(sum[:])[:13])
}

// Take takes each key that is free, for a job, and does not wait. The key is parked for the job at once: the lock has
// no holder until the job resumes the token. If the key is not free, a Take with Patience gives the job a place in the
// key's line. For many keys Take sends batches of a bounded size, in the order of takes. The results are in the same
// order, and independent of each other.
//
// A result is a token or an error:
//
//	ErrHeld         the key is not free; with Patience: the line is full, or the job itself has the key
//	ErrNotOwner     the job waits already, by a Take with another token
//	ErrUnavailable  the store did not answer
//	ErrInvalid, ErrClosed, or the cause of ctx if ctx has already ended
//
// A Take without an answer may have parked the key, or got a place, for a job that is never enqueued. The janitor gives
// up such a key or place, unless the Take has a Token or a Call: then the job keeps what it has. If the store is silent
// for longer than a TTL and there are too many such keys, the janitor leaves some of them to the keeper, which frees
// them because their jobs do not exist.
func (l *Locker) Take(ctx context.Context, op string, takes []Take) []Taken {
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
			reqs[i].Owner = t.Token.owner.reveal()
		case t.Call.Owner != "":
			reqs[i].Owner, reqs[i].Nonce = t.Call.Owner, t.Call.Nonce
		default:
			reqs[i].Owner = newOwner()
		}
		if t.Patience > 0 {
			reqs[i].Nonce, reqs[i].Patience, reqs[i].Most = PlaceOf(t.Job), t.Patience, t.Most
			reqs[i].Grace = jobGrace(l.cfg.JobGrace, min(t.Reserve, t.Patience))
		}
	}
	replies := askAll(ctx, l, op, reqs, errs, func(req *driver.TakeRequest) string { return req.Key }, l.store.Take)
	out := make([]Taken, len(takes))
	for i := range takes {
		out[i] = l.taken(op, &takes[i], &reqs[i], replies[i], errs[i])
	}
	return out
}

// noJob is a name that no job has, so a release for noJob frees nothing.
const noJob = "%none"

// PassOn gives each free slot of slots to the first waiting job, in the order of slots: see driver, Slots. A slot that
// is not free stays as it is. No slot may be the first one of its line. The error is ErrUnavailable, ErrClosed or the
// cause of ctx: then some of the slots may not have been passed on.
func (l *Locker) PassOn(ctx context.Context, op string, slots []string, granted Granted) error {
	// A release for a job that the slot is not bound to only gives a free slot to the first job.
	reqs, errs := make([]driver.ReleaseRequest, len(slots)), make([]error, len(slots))
	for i, slot := range slots {
		reqs[i] = driver.ReleaseRequest{Term: driver.Term{Key: slot}, Kind: driver.ReleaseForcedIdle, Job: noJob}
	}
	l.end(ctx, op, granted, reqs, errs)
	for _, err := range errs {
		if CodeOf(err) == "" && err != nil || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrClosed) {
			return err
		}
	}
	return nil
}

func (l *Locker) checkTake(op string, t Take) error {
	err := l.Check(op, t.Key)
	if err == nil {
		err = CheckText(op, t.Key, "job", t.Job, 1, driver.MaxLabelBytes)
	}
	if err == nil {
		err = checkDurations(op, t.Key, duration{"Reserve", t.Reserve, driver.MinPeriod, driver.MaxPeriod})
	}
	if err == nil && t.Patience != 0 {
		err = checkDurations(op, t.Key, duration{"Patience", t.Patience, driver.MinPeriod, driver.MaxPeriod})
	}
	if err == nil && t.Most < 0 {
		err = Invalid(op, t.Key, "the maximum number of places in line is %d, must not be negative", t.Most)
	}
	if err == nil && t.Token != nil {
		if err = l.checkToken(op, *t.Token); err == nil && t.Token.key != t.Key {
			err = Invalid(op, t.Key, "the token is for the key %q", shorten(t.Token.key, 80))
		}
	}
	return err
}

// taken returns the result of a Take with the answer r. err is why there is no answer, or nil.
func (l *Locker) taken(op string, take *Take, req *driver.TakeRequest, r driver.Reply, err error) Taken {
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
			e := event.Event{Kind: event.Acquired, Key: req.Key, Owner: Digest(req.Owner), Fence: r.Fence, Holder: req.Holder, Prior: r.Ended}
			l.Emit(e)
			e.Kind, e.Job, e.Prior = event.Parked, req.Job, driver.EndedNone
			l.Emit(e)
		}
		return Taken{Token: token}
	case r.Outcome == driver.OutcomeHeld && !r.Now.IsZero(): // the job has a place in line
		l.emitContended(nil, req.Key, req.Owner, r)
		return Taken{Token: token, Waits: &Place{Ahead: r.Ahead, Since: r.Since}}
	case r.Outcome == driver.OutcomeHeld, r.Outcome == driver.OutcomeFull:
		l.emitContended(nil, req.Key, req.Owner, r)
		fallthrough
	default:
		err = Refusal(op, req.Key, r)
	}
	return Taken{Err: err, Full: r.Outcome == driver.OutcomeFull}
}
