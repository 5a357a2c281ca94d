package history

import (
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// take is a job's call for the key or a place, which lasts for a moment; answer is Taken, Waiting or "".
func take(answer Kind, chain string, at int64, tells int64) []Event {
	e := Event{Kind: TakeBegun, Key: "k", Chain: chain, Job: "q/" + chain, Call: at - 1, Reserve: 3 * ttl}
	out := []Event{e}
	switch e.Kind, e.At = answer, at; answer {
	case Taken:
		e.Fence = tells
	case Waiting:
		e.Since = tells
	default:
		return out
	}
	return append(out, e)
}

// run is a Resume by the job of a chain.
func run(id, chain string, at, fence int64) Event {
	return of("q/"+chain, grant(Resumed, id, chain, at, fence))
}

func passed(chain string, from, to int64) Event {
	return Event{Kind: Passed, Key: "k", Job: "q/" + chain, Call: from, At: to}
}

// slot returns events as if they were about a slot of the key.
func slot(events ...any) []Event {
	out := list(events...)
	for i := range out {
		out[i].Key = driver.SlotKey(out[i].Key, 2)
	}
	return out
}

func TestLines(t *testing.T) {
	a := list(grant(Acquired, "a", "A", 10, 1), trusted("a", 15, 200)) // runs while others line up
	line := list(a, take(Waiting, "B", 20, 20), take(Waiting, "C", 30, 30))
	for _, tc := range []struct {
		name        string
		events      []Event
		order, line string // the rules that are broken, by Linearizable and by CheckLine
	}{
		{"in turn", list(line, release("a", 40, 42), passed("B", 40, 42), take(Waiting, "C", 45, 30), run("b", "B", 50, 2), release("b", 60, 62),
			passed("C", 60, 62), take(Taken, "C", 65, 3), run("c", "C", 70, 4)), "", ""},
		{"no event says to whom it was passed", list(line, release("a", 40, 42), run("b", "B", 50, 2), release("b", 60, 62), run("c", "C", 70, 4)), "", ""},
		{"a later job first", list(line, release("a", 40, 42), run("c", "C", 50, 2), release("c", 60, 62), take(Waiting, "B", 70, 20)), "", RuleLine},
		{"a later job is the first to learn that it has the key", list(line, release("a", 40, 42), take(Taken, "C", 50, 2), take(Waiting, "B", 70, 20)), "", RuleLine},
		{"a later job first, as the first had left", list(line, freeing("q/B", Freed, 32, 34, 0), release("a", 40, 42), run("c", "C", 50, 2)), "", ""},
		{"a later job first, as the first had lined up again", list(line, take(Waiting, "B", 35, 33), release("a", 40, 42), run("c", "C", 50, 2),
			take(Waiting, "B", 55, 33)), "", ""},
		{"a process that came later", list(line, release("a", 40, 42), grant(Acquired, "d", "D", 50, 2), take(Waiting, "B", 55, 20)), "", RuleLine},
		{"a process that was there before", list(a, Event{Kind: Acquired, Key: "k", Holding: "d", Chain: "D", Call: 18, At: 50, Fence: 2, Trust: 100, TTL: ttl},
			take(Waiting, "B", 20, 20), release("a", 40, 42), take(Waiting, "B", 55, 20)), "", ""},
		{"a job that found the key free", list(line, release("a", 40, 42), take(Taken, "D", 50, 2), take(Waiting, "B", 55, 20)), "", RuleLine},
		{"a place of two owners", list(a, take(Waiting, "B", 20, 20), of("q/B", take(Waiting, "X", 30, 20)[1])), "", RuleLine},
		{"two jobs at once", list(line, release("a", 40, 42), run("b", "B", 50, 2), run("c", "C", 60, 3)), RuleOrder, ""},
		{"a job while another has the key", list(line, run("b", "B", 50, 2)), RuleOrder, ""},
		{"another has what was passed to a job", list(line, release("a", 40, 42), passed("B", 40, 42), grant(Acquired, "d", "D", 50, 2)), RuleOrder, ""},
		{"another has what was passed to a job that never came", list(line, release("a", 40, 42), passed("B", 40, 42), grant(Acquired, "d", "D", 350, 2)), "", ""},
		{"another has what a job has taken", list(take(Taken, "B", 20, 1), grant(Acquired, "d", "D", 50, 2)), RuleOrder, ""},
		{"a job hears twice that it has the key", list(take(Taken, "B", 20, 1), take(Taken, "B", 30, 1), run("b", "B", 50, 2)), "", ""},
		{"a take without an answer has taken the key", list(take("", "B", 20, 0), run("b", "B", 50, 2)), "", ""},
		{"a take without an answer has taken the key again", list(take("", "B", 20, 0), take(Taken, "B", 30, 1), run("b", "B", 40, 2), release("b", 50, 52),
			reserve("q/B", 60, 62)), "", ""},
		{"kept for a job that is over", list(take(Taken, "B", 30, 1), run("b", "B", 40, 2), release("b", 50, 52), reserve("q/B", 60, 62)), RuleOrder, ""},
		{"freed for a job that has got the key", list(line, release("a", 40, 42), passed("B", 40, 42), freeing("q/B", Freed, 44, 46, 0),
			grant(Acquired, "d", "D", 50, 2)), "", ""},
		{"a job in a slot, while another has the key", list(line, slot(passed("B", 35, 36)), slot(run("b", "B", 50, 2))), "", ""},
		{"no event has the slot", list(line, slot(run("b", "B", 50, 2)), slot(release("b", 60, 62)), slot(run("c", "C", 70, 4))), "", ""},
		{"a job asks again that has a slot", list(line, take(Waiting, "B", 45, 44), slot(run("b", "B", 50, 2)), take(Waiting, "C", 55, 30)), "", ""},
		{"a job that waits again gets the slot twice", list(line, slot(run("b", "B", 50, 2)), take(Waiting, "B", 55, 54), slot(release("b", 60, 62)),
			slot(reserve("q/B", 64, 66))), "", ""},
		{"a job that waits again gets the slot back that it has handed on", list(line, slot(run("b", "B", 50, 2)), take(Waiting, "B", 55, 54),
			slot(parkFor("q/X", "b", 60, 62, 3)), slot(run("b again", "B", 400, 4))), "", ""},
		{"a job takes the slot back that it has handed on", list(line, slot(run("b", "B", 50, 2)), take(Waiting, "B", 55, 54),
			slot(parkFor("q/X", "b", 60, 62, 3)), slot(run("b again", "B", 200, 4))), RuleOrder, ""},
		{"two jobs at once in a slot", list(line, slot(run("b", "B", 50, 2)), slot(run("c", "C", 60, 3))), RuleOrder, ""},
		{"a job that is not in line, in a slot", list(line, slot(run("d", "D", 50, 2))), RuleOrder, ""},
		{"a later job first in a slot", list(line, slot(run("c", "C", 50, 2)), take(Waiting, "B", 70, 20)), "", RuleLine},
		{"kept for a job that has got the key", list(line, release("a", 40, 42), reserve("q/B", 44, 46), grant(Acquired, "d", "D", 50, 2)), RuleOrder, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if vs := Check(tc.events); tc.order == "" && len(vs) != 0 {
				t.Errorf("Check: %v", vs)
			}
			if vs := Linearizable(tc.events, time.Minute); rules(vs) != tc.order {
				t.Errorf("Linearizable: %v, want %q", vs, tc.order)
			}
			if vs := CheckLine(tc.events); rules(vs) != tc.line {
				t.Errorf("CheckLine: %v, want %q", vs, tc.line)
			}
		})
	}
}
