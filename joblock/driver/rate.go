package driver

import (
	"slices"
	"time"
)

// AdmitKind says what an AdmitRequest asks for.
type AdmitKind uint8

// The kinds of AdmitRequest.
const (
	AdmitStart AdmitKind = iota // count a start now; if there is no opening, the ID waits in line
	AdmitTry                    // count a start now; if there is no opening, nothing changes
	AdmitCall                   // turn the first places in line into claims, one for each unclaimed opening
	AdmitLeave                  // the ID gives up its place or claim; the start Back, if set, did not happen
	AdmitLater                  // as AdmitLeave, but afterwards the ID has a claim that begins after Delay
	AdmitDelay                  // no start for Delay from now, unless a longer delay is in force; 0 ends the delay
	AdmitLook                   // change nothing
)

// AdmitGrace is how long a claim keeps its opening from other IDs. A claim whose ID has not asked by then stays, and is
// served when its ID asks.
const AdmitGrace = 5 * time.Second

// AdmitRequest is about the rate of a key: at most Starts starts in any Period, by the store's clock. An opening is
// room for one more start under the rate. An ID that finds no opening may wait in line. A claim keeps an opening for
// one ID. A start counts when the store admits it. A store keeps the rates apart from the locks: List does not show
// them, and a lock on the same key does not matter. [Rate] says, in Go, what each request does.
//
// Each request brings the rate that it is judged by, so different callers may use different rates for a key. A request
// with Starts 0, allowed for AdmitLeave, AdmitLater, AdmitDelay and AdmitLook, is judged by the rate that was last used.
//
// A repeated AdmitStart or AdmitTry counts again. A caller without an answer has at worst used up an opening.
type AdmitRequest struct {
	Key    string
	Kind   AdmitKind
	ID     string        // names the job or call that asks, and its place in line or claim
	Starts int           // from 1 to MaxStarts
	Period time.Duration // in whole microseconds
	Back   int64         // AdmitReply.Start of a start that did not happen, and is taken back first; or 0
	Most   int           // of AdmitCall: how many IDs to call
	Delay  time.Duration // of AdmitLater and AdmitDelay
	Early  time.Duration // of AdmitStart and AdmitCall: an opening that comes within Early is taken now
}

// AdmitReply is the answer to an AdmitRequest.
type AdmitReply struct {
	Outcome Outcome   // OK; Held: there is no opening; Foreign: the value at the key is of another program
	Now     time.Time // the store's clock, in microseconds
	Start   int64     // OK of AdmitStart and AdmitTry: names the start

	// Wait is the time until the start for OK of AdmitStart, until the opening of ID for Held and AdmitLook, and until the
	// next opening without a claim for AdmitCall.
	Wait time.Duration

	Ahead   int       // as Wait: how many starts come first
	Claim   bool      // of AdmitStart and AdmitTry: the ID had a claim; if Held, it still has one, which begins after Wait
	Called  []string  // of AdmitCall: the IDs, the first in line first
	Waiting int       // length of the line
	Claims  int       // IDs with a claim
	Used    int       // starts in the last Period, at most Starts
	Until   time.Time // end of the delay in force, or zero

	Starts int           // the rate of the previous request with a rate, or 0
	Period time.Duration // as Starts
}

// MaxStarts is the largest number of starts of a rate.
const MaxStarts = 1000

// claimKeep is how long a claim is remembered after its time.
const claimKeep = time.Hour

// Rate is what a store knows of the rate of one key. A store written in Go may keep a Rate as it is, or encoded as JSON,
// and call Admit as one atomic step. The zero value is a key without starts. All times are in µs since 1970.
type Rate struct {
	Starts int   `json:"starts"` // the rate that was last used
	Period int64 `json:"period"`
	Keep   int64 `json:"keep"` // the longest period that was used

	Log    []int64     `json:"log,omitempty"`    // the starts of the last Keep, ascending
	Line   []RatePlace `json:"line,omitempty"`   // the places in line, in order
	Claims []RatePlace `json:"claims,omitempty"` // of the IDs that were called, or that come back later
	Until  int64       `json:"until,omitempty"`  // the end of a delay
}

// RatePlace is a place in the line of a rate, with the time at which the place was taken; or a claim, with the time at
// which it begins.
type RatePlace struct {
	ID string `json:"id"`
	At int64  `json:"at"`
}

// Expires returns when the store may forget the Rate.
func (s *Rate) Expires(now time.Time) time.Time {
	at := max(now.UnixMicro(), s.Until)
	if n := len(s.Log); n > 0 {
		at = max(at, s.Log[n-1]+s.Keep)
	}
	if n := len(s.Line); n+len(s.Claims) > 0 {
		at += claimKeep.Microseconds() + s.Period*int64(n/max(1, s.Starts)+1)
	}
	return time.UnixMicro(at + 1000)
}

// Admit does what req asks for. now is the store's clock.
func (s *Rate) Admit(now time.Time, req AdmitRequest) AdmitReply {
	t := now.UnixMicro()
	r := AdmitReply{Outcome: OutcomeOK, Now: time.UnixMicro(t), Starts: s.Starts, Period: time.Duration(s.Period) * time.Microsecond}
	starts, period := req.Starts, req.Period.Microseconds()
	if starts == 0 {
		starts, period = s.Starts, s.Period
	} else if req.Kind != AdmitLook {
		s.Starts, s.Period, s.Keep = starts, period, max(s.Keep, period)
	}
	if s.Until <= t {
		s.Until = 0
	}
	s.Log = slices.DeleteFunc(s.Log, func(at int64) bool { return at <= t-s.Keep || req.Back != 0 && at == req.Back && req.Kind != AdmitLook })
	s.Claims = slices.DeleteFunc(s.Claims, func(c RatePlace) bool { return c.At < t-claimKeep.Microseconds() })

	used := s.Log[sortedAfter(s.Log, t-period):]
	free := starts - len(used)
	// opening returns the earliest time of a start that has n other starts before it.
	opening := func(n int) int64 {
		base := max(t, s.Until)
		if starts == 0 {
			return base
		}
		at := base
		if i := n % starts; i >= free {
			at = max(base, used[i-free]+period)
		}
		return at + int64(n/starts)*period
	}
	// claimed returns how many claims that begin before end still keep an opening from others.
	claimed := func(end int64) (n int) {
		for _, c := range s.Claims {
			if c.At > t-AdmitGrace.Microseconds() && c.At < end {
				n++
			}
		}
		return n
	}
	soon := t
	if req.Kind == AdmitStart || req.Kind == AdmitCall {
		soon += max(0, req.Early.Microseconds())
	}
	live := claimed(soon + 1)
	named := func(p RatePlace) bool { return p.ID == req.ID }
	claim, place := slices.IndexFunc(s.Claims, named), slices.IndexFunc(s.Line, named)

	switch req.Kind {
	case AdmitStart, AdmitTry, AdmitLook:
		need := live + len(s.Line)
		switch {
		case claim >= 0:
			need, r.Ahead = 0, claimed(min(t+1, s.Claims[claim].At))
		case place >= 0:
			need = live + place
		}
		if claim < 0 {
			r.Ahead = need
		}
		at := opening(need)
		if req.Kind == AdmitLook || at > soon {
			if at > soon {
				r.Wait = time.Duration(opening(r.Ahead)-t) * time.Microsecond
			}
			if req.Kind == AdmitLook {
				break
			}
			r.Outcome, r.Claim = OutcomeHeld, claim >= 0
			switch {
			case claim >= 0:
				s.Claims[claim].At = t + r.Wait.Microseconds()
			case place < 0 && req.Kind == AdmitStart:
				at := t
				if n := len(s.Line); n > 0 {
					at = max(at, s.Line[n-1].At+1)
				}
				s.Line = append(s.Line, RatePlace{req.ID, at})
			}
			break
		}
		s.leave(claim, place)
		r.Ahead, r.Start, r.Wait, r.Claim = 0, at, time.Duration(at-t)*time.Microsecond, claim >= 0
		if n := len(s.Log); n > 0 {
			r.Start = max(at, s.Log[n-1]+1)
		}
		s.Log = append(s.Log, r.Start)
		used = append(used, r.Start)
	case AdmitCall:
		n := 0
		for ; n < min(req.Most, len(s.Line)) && opening(live+n) <= soon; n++ {
			r.Called = append(r.Called, s.Line[n].ID)
			s.Claims = append(s.Claims, RatePlace{s.Line[n].ID, opening(live + n)})
		}
		s.Line = slices.Delete(s.Line, 0, n)
		r.Ahead = live + n
		r.Wait = time.Duration(opening(r.Ahead)-t) * time.Microsecond
	case AdmitLeave, AdmitLater:
		s.leave(claim, place)
		if req.Kind == AdmitLater {
			s.Claims = append(s.Claims, RatePlace{req.ID, t + req.Delay.Microseconds()})
		}
	case AdmitDelay:
		if s.Until = max(s.Until, t+req.Delay.Microseconds()); req.Delay <= 0 {
			s.Until = 0
		}
	}
	r.Waiting, r.Claims, r.Used = len(s.Line), len(s.Claims), min(len(used), starts)
	if s.Until > 0 {
		r.Until = time.UnixMicro(s.Until)
	}
	return r
}

// leave removes a claim and a place by their indexes, unless these are negative.
func (s *Rate) leave(claim, place int) {
	if claim >= 0 {
		s.Claims = slices.Delete(s.Claims, claim, claim+1)
	}
	if place >= 0 {
		s.Line = slices.Delete(s.Line, place, place+1)
	}
}

// sortedAfter returns the index of the first element of log after at.
func sortedAfter(log []int64, at int64) int {
	i, _ := slices.BinarySearch(log, at+1)
	return i
}
