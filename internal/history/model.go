package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/joblock/toolkit/joblock/driver"
)

// phase is the state of a key without the store's clock, which the model cannot see. The
// end of a lease or a reservation changes no phase. A call that needs that end is allowed
// from then on, whenever the store noticed it.
type phase uint8

const (
	free phase = iota
	held
	parked
)

// lease is the state of the model.
type lease struct {
	phase    phase
	holding  string // that has it, or parked it
	chain    string
	job      string // the only one that may resume it, "" for any
	fence    int64
	trust    int64 // until then no other holder has it, unless the holder gives it up
	reserved int64 // until then no other chain has it, unless the holder gives it up
}

// step is a call as the model sees it.
type step struct {
	Event
	unknown bool
	trust   int64 // of a grant, and of its holder's calls: the grant's last deadline that was seen
	since   int64 // of a Park: when the first one of its holding was called; of Taken and Passed: the key was granted after that
	inLine  bool  // the step's chain has asked for a place in line, so it may have got the key without a step
	again   bool  // the step's job may get the key again after it has had it: it waits in line for a slot, or a take without an answer arrives late
	end     int64 // when its answer was there
}

// Linearizable looks for an order of calls, each between its beginning and its answer, in
// which every answer is the right one. A key that is not decided within timeout counts as
// a violation.
//
//   - Refused and unanswered grants are left out. A refusal may be due to a caller that gave
//     up or was killed, and of which nothing was seen.
//   - An unanswered Park, Reclaim, Release or jobs.Free may have been applied or not.
//   - So may a refused Park or jobs.Free: the refusal may be that of a re-send, after the
//     first call was applied and another call freed the lock.
//   - An unanswered Park may also have been applied and then taken back by a renewal.
//   - A job in line may get the key at any time at which the key is free: the call that gives
//     it the key may not be recorded. Until an event shows the grant, the model treats the key
//     as free. CheckLine knows the order in which jobs get it.
func Linearizable(events []Event, timeout time.Duration) []Violation {
	var out []Violation
	deadline := time.Now().Add(timeout)
	keys := byKey(events)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		steps := stepsOf(withLine(key, keys))
		left := max(time.Until(deadline), time.Millisecond) // 0 would be forever
		if res := porcupine.CheckOperationsTimeout(leaseModel, steps, left); res != porcupine.Ok {
			out = append(out, Violation{RuleOrder, key, fmt.Sprintf("%d calls, %s", len(steps), res)})
		}
	}
	return out
}

// withLine returns the events of key. For a slot other than the first, they include the requests for
// places in the line of the slots' key.
func withLine(key string, keys map[string][]Event) []Event {
	line, slot := driver.LineOf(key)
	if !slot {
		return keys[key]
	}
	events := slices.Clone(keys[key])
	for _, e := range keys[line] {
		if e.Kind == TakeBegun || e.Kind == Waiting {
			events = append(events, e)
		}
	}
	return events
}

// straggling is how late a call without an answer may still reach the store: package torture holds
// requests back for less.
const straggling = 5 * time.Second

// stepsOf returns the calls of one key. Renewals are no steps: a grant has the last
// deadline of its holding, up to which the lock was held without interruption.
func stepsOf(events []Event) []porcupine.Operation {
	stories, forced := bookOf(events)
	// A Park or a Release without an answer may have reached the store much later. "At
	// once" and "never" explain the same answers, and both are tried. An open end would
	// double the search for each. But with a keeper the time matters: if it finds the
	// lock still there, the call had not arrived by then.
	jobs := slices.ContainsFunc(events, func(e Event) bool { return e.Kind == Reserved || e.Kind == FreeBegun })
	line := linesOf(events)
	var out []porcupine.Operation
	add := func(s step) {
		j := line[s.Job]
		if s.inLine = j != nil; s.inLine && s.Chain == "" {
			s.Chain = j.chain
		}
		_, slot := driver.LineOf(s.Key)
		s.again = slot || s.inLine && j.open()
		out = append(out, porcupine.Operation{Input: s, Call: s.Call, Return: s.end})
	}
	for _, s := range stories {
		add(step{Event: s.grant, trust: s.trust, end: s.grant.At})
		park := int64(0)
		for _, c := range s.calls {
			do := step{Event: c.begun, end: c.answer.At, trust: s.trust}
			if do.Kind == ParkBegun {
				park = cmp.Or(park, do.Call) // a repeated Park finds the first one's reservation
				do.since, do.Fence = park, c.answer.Fence
			}
			if c.answer.Kind == "" {
				do.unknown, do.end = true, do.Call
				if jobs {
					do.end += int64(straggling)
				}
			}
			if c.answer.Kind == Answered {
				continue // the grant is a step of its own
			}
			if c.answer.Kind == Refused {
				if do.Kind != ParkBegun {
					continue
				}
				do.unknown = true
			}
			add(do)
		}
	}
	for _, f := range forced {
		add(step{Event: f, end: f.At})
	}
	for _, c := range freesOf(events) {
		do := step{Event: c.begun, end: c.answer.At, unknown: c.answer.Kind != Freed}
		if c.answer.Kind == "" {
			do.end = do.Call + int64(straggling)
		}
		add(do)
	}
	for _, e := range events {
		j := line[e.Job]
		switch {
		case e.Kind == Reserved && (j == nil || !j.others):
			add(step{Event: e, end: e.At})
		case e.Kind == Taken:
			add(step{Event: e, end: e.At, since: j.before(e)})
		case e.Kind == Passed && j != nil && !j.others:
			e.Reserve = j.reserve
			add(step{Event: e, end: e.At, since: e.Call})
		}
	}
	return out
}

// inLine is a job that has asked for a place in line.
type inLine struct {
	chain   string
	reserve time.Duration
	asked   []Event // TakeBegun and Waiting
	others  bool    // other chains have asked too, so events of the job may be about these

	answered map[int64]bool // by the time of the call
}

// open reports whether a take has no answer: it may reach the store much later.
func (j *inLine) open() bool {
	return slices.ContainsFunc(j.asked, func(e Event) bool { return e.Kind == TakeBegun && !j.answered[e.Call] })
}

// before returns a time after which the grant that e shows was made.
func (j *inLine) before(e Event) int64 {
	at := int64(0)
	for _, a := range j.asked {
		if a.Kind == Waiting && a.At < e.Call {
			at = max(at, a.Call) // had not got the key by then
		}
	}
	if at == 0 {
		at = j.asked[0].Call
	}
	return at
}

// linesOf returns the jobs that have asked for a place.
func linesOf(events []Event) map[string]*inLine {
	out := make(map[string]*inLine)
	for _, e := range events {
		if j := out[e.Job]; j != nil && (e.Kind == Waiting || e.Kind == Taken) {
			j.answered[e.Call] = true
		}
		if e.Kind != TakeBegun && e.Kind != Waiting {
			continue
		}
		if out[e.Job] == nil {
			out[e.Job] = &inLine{chain: e.Chain, reserve: e.Reserve, answered: make(map[int64]bool)}
		}
		if j := out[e.Job]; e.Chain == j.chain {
			j.asked = append(j.asked, e)
		} else {
			j.others = true
		}
	}
	return out
}

var leaseModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{lease{}} },
	Step: func(state, input, _ any) []any {
		before, s := state.(lease), input.(step)
		after, ok := before.take(s)
		switch {
		case s.inLine && s.Kind == FreeBegun && ok: // it may also have given up the job's place
			return []any{before, after}
		case s.inLine && s.Kind == FreeBegun:
			return []any{before}
		case ok && s.unknown && s.Kind == ParkBegun:
			return []any{before, after, before.takeBack(s)}
		case ok && s.unknown:
			return []any{before, after}
		case ok:
			return []any{after}
		case s.unknown:
			return []any{before}
		}
		return nil
	},
	Hash: func(state any) uint64 { return uint64(state.(lease).fence) },
}).ToModel()

// take returns the state after the call s in state l, and whether s can succeed there.
func (l lease) take(s step) (lease, bool) {
	vacant := l.phase == free || s.end > l.reserved
	switch s.Kind {
	case Acquired:
		ok := vacant && s.Fence > l.fence
		return lease{held, s.Holding, s.Chain, "", s.Fence, s.trust, s.trust}, ok
	case Taken:
		again := l.phase == parked && l.chain == s.Chain && l.job == s.Job && s.Fence >= l.fence
		until := s.since + int64(s.Reserve)
		if again {
			until = max(until, l.reserved)
		}
		return lease{parked, "", s.Chain, s.Job, s.Fence, 0, until}, again || vacant && s.Fence > l.fence
	case Passed:
		return l.passedTo(s, s.since), vacant
	case Resumed:
		// A chain may have handed the key on to another job, and then have got it for its own job again.
		mine := l.phase == parked && l.chain == s.Chain && (l.job == "" || l.job == s.Job)
		if s.inLine && vacant && !mine {
			l = l.passedTo(s, 0)
			l.reserved = 0
		}
		ok := l.phase != free && l.chain == s.Chain && (l.phase == parked || s.end > l.trust) && s.Fence > l.fence &&
			(l.job == "" || l.job == s.Job)
		return lease{held, s.Holding, s.Chain, l.job, s.Fence, s.trust, max(l.reserved, s.trust+int64(s.Reserve))}, ok
	case Reclaimed:
		ok := l.phase != free && l.chain == s.Chain && (l.phase == parked || s.end > l.trust) && s.Fence > l.fence &&
			(l.job == "" || l.job == s.Job || l.job == s.Back)
		return lease{held, s.Holding, s.Chain, s.Back, s.Fence, s.trust, s.trust + int64(s.Reserve)}, ok
	case ReclaimBegun: // without an answer: its holder does not know of the grant
		ok := l.phase == parked && l.holding == s.Holding
		l.phase, l.job, l.trust, l.reserved = held, s.Back, 0, 0
		return l, ok
	case ParkBegun:
		ok := l.phase != free && l.holding == s.Holding && (s.unknown || s.Fence > l.fence)
		l.phase, l.job, l.fence, l.reserved = parked, s.Job, max(l.fence, s.Fence), s.since+int64(s.Reserve)
		return l, ok
	case ReleaseBegun:
		ok := l.phase != free && l.holding == s.Holding
		l.phase = free
		return l, ok
	case FreeBegun:
		// A fence larger than the last one is from a grant or a Park without an answer.
		ok := l.phase != free && l.job == s.Job && (l.phase == parked || s.end > l.trust) && (s.Fence == 0 || s.Fence >= l.fence)
		l.phase = free
		return l, ok
	case Reserved:
		if s.inLine && vacant && (l.job != s.Job || s.again && l.phase == free) {
			return l.passedTo(s, s.Call), true
		}
		ok := l.phase != free && l.job == s.Job
		l.reserved = max(l.reserved, s.Call+int64(s.Reserve))
		return l, ok
	case Forced:
		l.phase = free // from any phase: the grant may not have been seen
		return l, true
	}
	return l, false
}

// passedTo returns the state after the key was given to the job of s, which has waited in line, no
// earlier than at. No event has shown the fence.
func (l lease) passedTo(s step, at int64) lease {
	return lease{parked, "", s.Chain, s.Job, l.fence, 0, at + int64(s.Reserve)}
}

// takeBack returns the state after a Park and the renewal that takes it back: the holder
// has the lock as before, without the reservation of the Park.
func (l lease) takeBack(s step) lease {
	l.job, l.reserved = s.Back, s.trust
	return l
}
