package rates

import (
	"context"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
)

// Answer is the answer to an Ask.
type Answer struct {
	OK    bool
	Limit Limit         // if not OK: the limit to wait for
	Wait  time.Duration // until the opening at that limit; if OK, for how long Ask has waited in place
	Ahead int           // how many starts come first there

	// Claim says that the ID has a claim and no place in the line: no call is coming for it, so it has to ask again by itself. If
	// OK, it says that the ID had a claim at the only limit.
	Claim bool

	// Slow says that the start may begin later than the margin allows, because the store answered slowly.
	Slow bool

	// Differs has the limits that another caller has asked for with another rate just before.
	Differs []Difference
}

// Difference is a rate that another caller uses.
type Difference struct {
	Key    string
	Starts int
	Period time.Duration
}

// patience is how many times Ask asks again because the answer took longer than the margin.
const patience = 3

// Ask asks for a start of id at all limits. If one of them has no opening, the start counts at none. Then id keeps a
// place in the line of the limit with the longest wait, and comes first at the other limits, unless try is true. With a
// single limit, Ask takes an opening within early, and waits for it in place. Check the limits first. With an error id
// may have places.
func Ask(ctx context.Context, locks *core.Locker, op, id string, limits []Limit, try bool, early time.Duration) (Answer, error) {
	if len(limits) > 1 {
		early = 0 // the start would count at the other limits before it begins
	}
	reqs := make([]driver.AdmitRequest, len(limits))
	margin := MaxPer
	for i := range limits {
		p := limits[i].pace(ctx, locks)
		reqs[i] = driver.AdmitRequest{Key: limits[i].Key, ID: id, Starts: p.starts, Period: p.period, Early: early}
		if try {
			reqs[i].Kind = driver.AdmitTry
		}
		margin = min(margin, p.margin)
	}
	for n := 1; ; n++ {
		sent := time.Now()
		replies, err := admit(ctx, locks, op, reqs)
		if err != nil {
			return Answer{}, err
		}
		var a Answer
		refused := -1
		for i, r := range replies {
			if r.Outcome == driver.OutcomeHeld && (refused < 0 || r.Wait > replies[refused].Wait) {
				refused = i
			}
			if r.Starts != 0 && (r.Starts != reqs[i].Starts || r.Period != reqs[i].Period) {
				a.Differs = append(a.Differs, Difference{reqs[i].Key, r.Starts, r.Period})
			}
			reqs[i].Back = r.Start
		}
		if refused >= 0 {
			a.Limit, a.Wait, a.Ahead, a.Claim = limits[refused], replies[refused].Wait, replies[refused].Ahead, replies[refused].Claim
			giveBack(ctx, locks, op, reqs, replies, refused)
			tell(locks, id, a)
			return a, nil
		}
		if len(replies) == 1 {
			a.Wait, a.Claim = replies[0].Wait, replies[0].Claim
		}
		if err := sleep.For(ctx, a.Wait); err != nil {
			reqs[0].Kind = driver.AdmitLeave
			_, _ = admit(context.WithoutCancel(ctx), locks, op, reqs) // else the start counts, although it does not begin
			return Answer{}, err
		}
		if slow := time.Since(sent)-a.Wait > margin; !slow || n == patience {
			a.OK, a.Slow = true, slow
			return a, nil
		}
	}
}

// giveBack takes back the starts that were admitted although the limit of reqs[refused] has no opening. Without an
// answer these starts count, which only makes other callers wait.
func giveBack(ctx context.Context, locks *core.Locker, op string, reqs []driver.AdmitRequest, replies []driver.AdmitReply, refused int) {
	var back []driver.AdmitRequest
	for i, req := range reqs {
		switch {
		case i == refused:
			continue
		case req.Kind == driver.AdmitStart:
			req.Kind, req.Delay = driver.AdmitLater, replies[refused].Wait
		case req.Back == 0:
			continue
		default:
			req.Kind = driver.AdmitLeave
		}
		back = append(back, req)
	}
	if len(back) > 0 {
		_, _ = admit(context.WithoutCancel(ctx), locks, op, back)
	}
}

// tell passes the wait of id to the Observer.
func tell(locks *core.Locker, id string, a Answer) {
	e := event.Event{Kind: event.RateLimited, Key: a.Limit.Key, Remaining: a.Wait}
	if id != "" && id[0] != caller[0] {
		e.Job = id
	}
	locks.Emit(e)
}

// caller begins the IDs of calls that are no jobs.
const caller = "%call:"

// Caller returns an ID for a call.
func Caller(nonce string) string { return caller + nonce }

// Leave gives up the places and claims of id.
func Leave(ctx context.Context, locks *core.Locker, op, id string, keys ...string) error {
	reqs := make([]driver.AdmitRequest, len(keys))
	for i, key := range keys {
		reqs[i] = driver.AdmitRequest{Key: key, Kind: driver.AdmitLeave, ID: id}
	}
	_, err := admit(ctx, locks, op, reqs)
	return err
}

// PushBack delays the starts of key by d, or ends the delay if d is 0. If id is not "", id comes first after the delay.
func PushBack(ctx context.Context, locks *core.Locker, op, id, key string, d time.Duration) error {
	if err := CheckKey(locks, op, key); err != nil {
		return err
	}
	if d < 0 || d > driver.MaxPeriod {
		return core.Invalid(op, key, "the delay is %s, must be from 0 to %s", d, driver.MaxPeriod)
	}
	reqs := []driver.AdmitRequest{{Key: key, Kind: driver.AdmitDelay, Delay: d}}
	if id != "" {
		reqs = append(reqs, driver.AdmitRequest{Key: key, Kind: driver.AdmitLater, ID: id, Delay: d})
	}
	_, err := admit(ctx, locks, op, reqs)
	return err
}

// Look reads the rate of key, and what id may expect.
func Look(ctx context.Context, locks *core.Locker, op, id, key string) (driver.AdmitReply, error) {
	if err := locks.Check(op, key); err != nil {
		return driver.AdmitReply{}, err
	}
	replies, err := admit(ctx, locks, op, []driver.AdmitRequest{{Key: key, Kind: driver.AdmitLook, ID: id}})
	if err != nil {
		return driver.AdmitReply{}, err
	}
	return replies[0], nil
}

// Call turns places of the first in line into claims, for the openings of l that come within early: up to most claims
// at once.
func Call(ctx context.Context, locks *core.Locker, op string, l Limit, most int, early time.Duration) (driver.AdmitReply, error) {
	p := l.pace(ctx, locks)
	replies, err := admit(ctx, locks, op, []driver.AdmitRequest{
		{Key: l.Key, Kind: driver.AdmitCall, Starts: p.starts, Period: p.period, Most: most, Early: early},
	})
	if err != nil {
		return driver.AdmitReply{}, err
	}
	return replies[0], nil
}

// admit sends reqs. An error concerns at least one key; the other requests may have been served.
func admit(ctx context.Context, locks *core.Locker, op string, reqs []driver.AdmitRequest) (replies []driver.AdmitReply, err error) {
	key := reqs[0].Key
	err = locks.Call(ctx, op, key, func(ctx context.Context, store driver.Store) (err error) {
		replies, err = store.Admit(ctx, reqs)
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, r := range replies {
		if r.Outcome == driver.OutcomeForeign {
			return nil, core.Invalid(op, reqs[i].Key, "the store's value for the rate of this key was not written by the toolkit")
		}
	}
	return replies, nil
}
