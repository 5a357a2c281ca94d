package history

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const ttl = 100 // of the histories below, whose times are small numbers

// grant is an answer at time at, to a call a moment before, trusted for a TTL.
func grant(kind Kind, id, chain string, at, fence int64) Event {
	return Event{Kind: kind, Key: "k", Holding: id, Chain: chain, Call: at - 1, At: at, Fence: fence, Trust: at - 1 + ttl, TTL: ttl}
}

func trusted(id string, at, until int64) Event {
	return Event{Kind: Trusted, Key: "k", Holding: id, Call: at, At: at + 1, Trust: until}
}

// reserving has a Resume keep the key for a while after its lease.
func reserving(e Event) Event {
	e.Reserve = 3 * ttl
	return e
}

// does is a call with its answer, or without if answer is "".
func does(begun, answer Kind, id string, from, to, fence int64) []Event {
	hold := time.Duration(0)
	if begun == ParkBegun {
		hold = 3 * ttl
	}
	out := []Event{{Kind: begun, Key: "k", Holding: id, Call: from, Reserve: hold}}
	if answer != "" {
		out = append(out, Event{Kind: answer, Key: "k", Holding: id, Call: from, At: to, Fence: fence})
	}
	return out
}

func release(id string, from, to int64) []Event {
	return does(ReleaseBegun, Released, id, from, to, 0)
}

func park(id string, from, to, fence int64) []Event {
	return does(ParkBegun, Parked, id, from, to, fence)
}

func force(from, to int64) Event { return Event{Kind: Forced, Key: "k", Call: from, At: to} }

// of has an event be about a job.
func of(job string, e Event) Event {
	e.Job = job
	return e
}

// undo is a Reclaim by the holding from, for a lock that is of the job own otherwise.
func undo(job, own, from, id string, at, fence int64) []Event {
	begun := of(job, Event{Kind: ReclaimBegun, Key: "k", Holding: from, Call: at - 1, Back: own})
	done := of(job, grant(Reclaimed, id, "A", at, fence))
	done.Back = own
	return []Event{begun, done, {Kind: Answered, Key: "k", Holding: from, Call: at - 1, At: at}}
}

// parkFor is a park for a job.
func parkFor(job, id string, from, to, fence int64) []Event {
	out := park(id, from, to, fence)
	out[0].Job = job
	return out
}

// freeing is a jobs.Free, without an answer if answer is "".
func freeing(job string, answer Kind, from, to, fence int64) []Event {
	id := fmt.Sprint("free at ", from)
	out := []Event{{Kind: FreeBegun, Key: "k", Holding: id, Job: job, Call: from, Fence: fence}}
	if answer != "" {
		out = append(out, Event{Kind: answer, Key: "k", Holding: id, Call: from, At: to})
	}
	return out
}

func reserve(job string, from, to int64) Event {
	return Event{Kind: Reserved, Key: "k", Job: job, Call: from, At: to, Reserve: 3 * ttl}
}

func list(parts ...any) (out []Event) {
	for _, p := range parts {
		switch p := p.(type) {
		case Event:
			out = append(out, p)
		case []Event:
			out = append(out, p...)
		}
	}
	return out
}

// rules returns which rules were broken, each once.
func rules(vs []Violation) string {
	var out []string
	for _, v := range vs {
		out = append(out, v.Rule)
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), "; ")
}

func TestHistories(t *testing.T) {
	for _, tc := range []struct {
		name           string
		events         []Event
		beliefs, order string // the rules that are broken
	}{
		{"one after the other", list(
			grant(Acquired, "a", "A", 10, 1), release("a", 20, 25),
			grant(Acquired, "b", "B", 24, 2), release("b", 30, 31)), "", ""},
		{"a lapse", list(grant(Acquired, "a", "A", 10, 1), grant(Acquired, "b", "B", 110, 2)), "", ""},
		{"a moment before the deadline", list(
			grant(Acquired, "a", "A", 10, 1), grant(Acquired, "b", "B", 108, 2)), RuleOverlap, RuleOrder},
		{"a moment before a renewed deadline", list(
			grant(Acquired, "a", "A", 10, 1), trusted("a", 50, 140), grant(Acquired, "b", "B", 139, 2)), RuleOverlap, RuleOrder},
		{"given away before its deadline, which its holder knew", list(
			grant(Acquired, "a", "A", 10, 1), Event{Kind: Lost, Key: "k", Holding: "a", At: 90},
			grant(Acquired, "b", "B", 100, 2)), "", RuleOrder},
		{"inside the first, behind a shorter one", list(
			grant(Acquired, "a", "A", 10, 1), trusted("a", 20, 300),
			grant(Acquired, "b", "B", 30, 2), release("b", 40, 41), grant(Acquired, "c", "C", 200, 3)), RuleOverlap, RuleOrder},
		{"released by a release that had begun", list(
			grant(Acquired, "a", "A", 10, 1), does(ReleaseBegun, "", "a", 20, 0, 0),
			grant(Acquired, "b", "B", 24, 2)), "", ""},
		{"released by a release that was refused", list(
			grant(Acquired, "a", "A", 10, 1), does(ReleaseBegun, Refused, "a", 20, 22, 0),
			grant(Acquired, "b", "B", 24, 2)), "", RuleOrder},
		{"another has a parked key", list(
			grant(Acquired, "a", "A", 10, 1), park("a", 20, 22, 2),
			grant(Acquired, "b", "B", 24, 3)), "", RuleOrder},
		{"another has a key whose reservation is over", list(
			grant(Acquired, "a", "A", 10, 1), park("a", 20, 22, 2),
			grant(Acquired, "b", "B", 321, 3)), "", ""},
		{"another has a key that was parked without an answer", list(
			grant(Acquired, "a", "A", 10, 1), does(ParkBegun, "", "a", 20, 0, 0),
			grant(Acquired, "b", "B", 110, 3)), "", ""},
		{"a repeated Park reserves from the first", list(
			grant(Acquired, "a", "A", 10, 1), does(ParkBegun, "", "a", 20, 0, 0), park("a", 60, 62, 2),
			grant(Acquired, "b", "B", 322, 3)), "", ""},
		{"resumed", list(
			grant(Acquired, "a", "A", 10, 1), park("a", 20, 22, 2),
			grant(Resumed, "b", "A", 30, 3), release("b", 40, 41)), "", ""},
		{"resumed by another chain", list(
			grant(Acquired, "a", "A", 10, 1), park("a", 20, 22, 2), grant(Resumed, "b", "B", 30, 3)), "", RuleOrder},
		{"resumed while it runs", list(
			grant(Acquired, "a", "A", 10, 1), park("a", 20, 22, 2),
			grant(Resumed, "b", "A", 30, 3), grant(Resumed, "c", "A", 60, 4)), RuleOverlap, RuleOrder},
		{"resumed after it had died", list(
			grant(Acquired, "a", "A", 10, 1), park("a", 20, 22, 2),
			grant(Resumed, "b", "A", 30, 3), grant(Resumed, "c", "A", 130, 4)), "", ""},
		{"resumed after it was released", list(
			grant(Acquired, "a", "A", 10, 1), park("a", 20, 22, 2), grant(Resumed, "b", "A", 30, 3), release("b", 40, 41),
			grant(Resumed, "c", "A", 60, 4)), "", RuleOrder},
		{"released by an attempt of before", list(
			grant(Acquired, "a", "A", 10, 1), park("a", 20, 22, 2), grant(Resumed, "b", "A", 30, 3),
			grant(Resumed, "c", "A", 130, 4), release("b", 140, 141)), "", RuleOrder},
		{"resumed after it was released, when its lease would be over", list(
			grant(Acquired, "a", "A", 10, 1), park("a", 20, 22, 2), grant(Resumed, "b", "A", 30, 3), release("b", 40, 41),
			grant(Resumed, "c", "A", 160, 4)), "", RuleOrder},
		{"resumed after a release that may not have come", list(
			grant(Acquired, "a", "A", 10, 1), park("a", 20, 22, 2), grant(Resumed, "b", "A", 30, 3),
			does(ReleaseBegun, "", "b", 40, 0, 0), grant(Resumed, "c", "A", 200, 4)), "", ""},
		{"another has what a Park has reserved for longer than the next attempt", list(
			grant(Acquired, "a", "A", 10, 1), park("a", 20, 22, 2), grant(Resumed, "b", "A", 30, 3),
			grant(Acquired, "c", "C", 200, 4)), "", RuleOrder},
		{"another has what a Resume has reserved", list(
			grant(Acquired, "a", "A", 10, 1), park("a", 20, 22, 2), reserving(grant(Resumed, "b", "A", 30, 3)),
			grant(Acquired, "c", "C", 400, 4)), "", RuleOrder},
		{"a waiter with a smaller fence", list(
			grant(Acquired, "a", "A", 10, 2), release("a", 20, 21),
			Event{Kind: Acquired, Key: "k", Holding: "b", Chain: "B", Call: 5, At: 30, Fence: 1, Trust: 120, TTL: ttl}), RuleFence, RuleOrder},
		{"the same fence for a grant that came too late", list(
			grant(Acquired, "a", "A", 10, 1),
			Event{Kind: Acquired, Key: "k", Holding: "b", Chain: "B", Call: 5, At: 150, Fence: 1, Trust: 104, TTL: ttl}), RuleFence, RuleOrder},
		{"a Park with a smaller fence", list(
			grant(Acquired, "a", "A", 10, 2), park("a", 20, 22, 1)), RuleFence, RuleOrder},
		{"a fence twice", list(
			grant(Acquired, "a", "A", 10, 1), release("a", 20, 21), grant(Acquired, "b", "B", 30, 1)), RuleFence, RuleOrder},
		{"a smaller fence", list(
			grant(Acquired, "a", "A", 10, 2), release("a", 20, 21), grant(Acquired, "b", "B", 30, 1)), RuleFence, RuleOrder},
		{"a Park with the fence of the grant", list(
			grant(Acquired, "a", "A", 10, 1), park("a", 20, 22, 1)), RuleFence, RuleOrder},
		{"trusted too long", list(
			grant(Acquired, "a", "A", 10, 1), trusted("a", 111, 109)), RuleLate, ""},
		{"forced away", list(
			grant(Acquired, "a", "A", 10, 1), force(20, 22), grant(Acquired, "b", "B", 30, 2)), "", ""},
		{"renewed although forced away", list(
			grant(Acquired, "a", "A", 10, 1), force(20, 22), trusted("a", 60, 140)), RuleForced, ""},
		{"released after it was forced away", list(
			grant(Acquired, "a", "A", 10, 1), force(20, 22), release("a", 30, 31)), "", RuleOrder},
		{"parked after it was forced away", list(
			grant(Acquired, "a", "A", 10, 1), force(20, 22), park("a", 30, 31, 2)), "", RuleOrder},
		{"forced away before the answer came", list(
			force(20, 22), grant(Acquired, "b", "B", 24, 2),
			Event{Kind: Acquired, Key: "k", Holding: "a", Chain: "A", Call: 5, At: 26, Fence: 1, Trust: 104, TTL: ttl}), "", ""},
		{"forced away, and then two others", list(
			grant(Acquired, "a", "A", 10, 1), force(20, 22), grant(Acquired, "b", "B", 30, 2),
			grant(Acquired, "c", "C", 40, 3)), RuleOverlap, RuleOrder},
		{"resumed by its job", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2),
			of("q/1", grant(Resumed, "b", "A", 30, 3)), parkFor("q/1", "b", 40, 42, 4),
			of("q/1", grant(Resumed, "c", "A", 50, 5))), "", ""},
		{"resumed by another job", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), of("q/2", grant(Resumed, "b", "A", 30, 3))), "", RuleOrder},
		{"resumed by no job although it is one's", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), grant(Resumed, "b", "A", 30, 3)), "", RuleOrder},
		{"resumed by another job after its own had died", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), of("q/1", grant(Resumed, "b", "A", 30, 3)),
			of("q/2", grant(Resumed, "c", "A", 150, 4))), "", RuleOrder},
		{"another has what was reserved by a Park that was undone", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), undo("q/1", "", "a", "b", 30, 3),
			grant(Acquired, "c", "C", 140, 4)), "", ""},
		{"another has what was undone and is trusted yet", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), undo("q/1", "", "a", "b", 30, 3),
			grant(Acquired, "c", "C", 60, 4)), RuleOverlap, RuleOrder},
		{"resumed by the job whose Park was undone, which is of another", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), of("q/1", grant(Resumed, "b", "A", 30, 3)),
			parkFor("q/2", "b", 40, 42, 4), undo("q/2", "q/1", "b", "c", 50, 5),
			of("q/2", grant(Resumed, "d", "A", 160, 6))), "", RuleOrder},
		{"undone for its own job, which resumes it", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), of("q/1", grant(Resumed, "b", "A", 30, 3)),
			parkFor("q/2", "b", 40, 42, 4), undo("q/2", "q/1", "b", "c", 50, 5),
			of("q/1", grant(Resumed, "d", "A", 160, 6))), "", ""},
		{"undone without an answer", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), does(ReclaimBegun, "", "a", 30, 0, 0),
			grant(Acquired, "c", "C", 200, 4)), "", ""},
		{"undone by another caller", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), of("q/1", grant(Resumed, "b", "A", 30, 3)),
			undo("q/1", "", "a", "c", 40, 4)), RuleOverlap, RuleOrder},
		{"a Park without an answer that a renewal took back", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), of("q/1", grant(Resumed, "b", "A", 30, 3)),
			does(ParkBegun, "", "b", 40, 0, 0), grant(Acquired, "c", "C", 200, 5)), "", ""},
		{"freed for its job", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), freeing("q/1", Freed, 24, 25, 2),
			grant(Acquired, "b", "B", 28, 3)), "", ""},
		{"freed for its job whose attempt had died", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), of("q/1", grant(Resumed, "b", "A", 30, 3)),
			freeing("q/1", Freed, 131, 132, 0), grant(Acquired, "c", "C", 140, 4)), "", ""},
		{"freed while its job runs", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), of("q/1", grant(Resumed, "b", "A", 30, 3)),
			freeing("q/1", Freed, 40, 42, 0)), "", RuleOrder},
		{"freed for another job", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), freeing("q/2", Freed, 24, 25, 0)), "", RuleOrder},
		{"freed although it was parked again", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), of("q/1", grant(Resumed, "b", "A", 30, 3)),
			parkFor("q/1", "b", 40, 42, 4), freeing("q/1", Freed, 44, 45, 2)), "", RuleOrder},
		{"resumed after it was freed", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), freeing("q/1", Freed, 24, 25, 2),
			of("q/1", grant(Resumed, "b", "A", 30, 3))), "", RuleOrder},
		{"freed after a Park whose re-send was refused", list(
			grant(Acquired, "a", "A", 10, 1), of("q/1", does(ParkBegun, "", "a", 20, 0, 0)[0]),
			freeing("q/1", Freed, 24, 25, 2), Event{Kind: Refused, Key: "k", Holding: "a", Call: 20, At: 40},
			grant(Acquired, "b", "B", 28, 3)), "", ""},
		{"freed for a job other than that of the Park that was refused", list(
			grant(Acquired, "a", "A", 10, 1), of("q/1", does(ParkBegun, "", "a", 20, 0, 0)[0]),
			Event{Kind: Refused, Key: "k", Holding: "a", Call: 20, At: 22},
			freeing("q/2", Freed, 24, 25, 0), grant(Acquired, "b", "B", 28, 3)), "", RuleOrder},
		{"freed by a call without an answer, later", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), freeing("q/1", "", 15, 0, 0),
			grant(Acquired, "b", "B", 28, 3)), "", ""},
		{"freed by a call whose re-send was refused", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), freeing("q/1", Refused, 24, 27, 0),
			grant(Acquired, "b", "B", 28, 3)), "", ""},
		{"released by a call without an answer, after it was kept for its job", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), of("q/1", grant(Resumed, "b", "A", 30, 3)),
			does(ReleaseBegun, "", "b", 40, 0, 0), reserve("q/1", 50, 52), grant(Acquired, "c", "C", 60, 4)), "", ""},
		{"another has what was kept for a job", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), reserve("q/1", 200, 202),
			grant(Acquired, "b", "B", 400, 3)), "", RuleOrder},
		{"another has what was kept for a job for long enough", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), reserve("q/1", 200, 202),
			grant(Acquired, "b", "B", 502, 3)), "", ""},
		{"kept for another job", list(
			grant(Acquired, "a", "A", 10, 1), parkFor("q/1", "a", 20, 22, 2), reserve("q/2", 200, 202)), "", RuleOrder},
		{"keys do not meet", list(
			grant(Acquired, "a", "A", 10, 2), Event{Kind: Acquired, Key: "other", Holding: "b", Chain: "B", At: 20, Fence: 1, Trust: 90, TTL: ttl}), "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if vs := Check(tc.events); rules(vs) != tc.beliefs {
				t.Errorf("Check: %v, want %q", vs, tc.beliefs)
			}
			if vs := Linearizable(tc.events, time.Minute); rules(vs) != tc.order {
				t.Errorf("Linearizable: %v, want %q", vs, tc.order)
			}
		})
	}
}

// A short holding does not hide a long one from those that come after it.
func TestEachOverlapIsFound(t *testing.T) {
	vs := Check(list(grant(Acquired, "a", "A", 10, 1), trusted("a", 20, 300),
		grant(Acquired, "b", "B", 30, 2), release("b", 40, 41),
		grant(Acquired, "c", "C", 50, 3), release("c", 60, 61)))
	if len(vs) != 2 {
		t.Errorf("%v, want a with b and a with c", vs)
	}
}

// What is not decided in time is not taken for right.
func TestUndecidedIsRefused(t *testing.T) {
	var events []Event
	for i := range int64(20000) {
		id := fmt.Sprint(i)
		events = append(events, grant(Acquired, id, id, 10*i+2, i+1))
		events = append(events, release(id, 10*i+4, 10*i+5)...)
	}
	if vs := Linearizable(events, 0); rules(vs) != RuleOrder {
		t.Errorf("%v", vs)
	}
}

func TestGuard(t *testing.T) {
	for _, tc := range []struct{ name, writes, want string }{
		{"in turn", "1a 1a 2b 5c 5c", ""},
		{"nothing", "", ""},
		{"again after another", "1a 2b 3a", RuleInterleaved},
		{"two with one fence", "1a 1b", RuleFence},
		{"the guard is broken", "2a 1b", RuleFence},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var writes []Write
			for _, w := range strings.Fields(tc.writes) {
				writes = append(writes, Write{int64(w[0] - '0'), w[1:]})
			}
			if vs := CheckGuard("k", writes); rules(vs) != tc.want {
				t.Errorf("%v, want %q", vs, tc.want)
			}
		})
	}
}

// A permit is a key of its own, and there are as many as the limit says.
func TestLimit(t *testing.T) {
	permit := func(key, id string, at, fence int64) Event {
		e := grant(Acquired, id, id, at, fence)
		e.Key = key
		return e
	}
	two := list(permit("l%#1", "a", 10, 1), permit("l%#2", "b", 20, 1))
	for _, tc := range []struct {
		name   string
		events []Event
		want   string
	}{
		{"as many as there are", two, ""},
		{"one too many", append(slices.Clone(two), permit("l%#3", "c", 30, 1)), RuleLimit},
		{"of another limit", append(slices.Clone(two), permit("m%#3", "c", 30, 1)), ""},
		{"a lock of that name", append(slices.Clone(two), permit("l", "c", 30, 1)), ""},
		{"after one has lapsed", append(slices.Clone(two), permit("l%#3", "c", 109, 1)), ""},
		{"after one was forced away", append(slices.Clone(two),
			Event{Kind: Forced, Key: "l%#2", Call: 25, At: 26}, permit("l%#3", "c", 30, 1)), ""},
	} {
		if vs := CheckLimit(tc.events, 2); rules(vs) != tc.want {
			t.Errorf("%s: %v, want %q", tc.name, vs, tc.want)
		}
	}
}
