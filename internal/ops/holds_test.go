package ops

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/eventlog"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// How long holders took is read from releases and, where a journal has none, from waits that lasted most of a holding.
func TestHowLongHoldersTook(t *testing.T) {
	at := func(second int, kind string, waited time.Duration, prior string) Event {
		return Event{At: Time{noon.Add(time.Duration(second) * time.Second)}, Kind: kind, Key: "k", Waited: Millis(waited), Prior: prior}
	}
	const s = time.Second
	of := func(e Event, owner string) Event { e.Owner = owner; return e }
	after := func(e Event, held time.Duration) Event { e.Held = Millis(held); return e }
	for name, c := range map[string]struct {
		events []Event
		want   *HoldStats
	}{
		"a release that is recorded late": {[]Event{
			of(at(0, "acquired", 0, ""), "a"), of(at(29, "acquired", 27*s, ""), "b"), of(at(30, "released", 0, ""), "a"),
			of(at(59, "acquired", 5*s, ""), "c"), of(at(60, "released", 0, ""), "b"), of(at(61, "lost", 0, ""), "x"), of(at(89, "released", 0, ""), "c"),
		}, &HoldStats{N: 3, Since: Time{noon}, Least: Millis(29 * s), Median: Millis(30 * s), Most: Millis(31 * s)}},
		"jobs, of which only releases are recorded": {[]Event{
			of(after(at(10, "released", 0, ""), 10*s), "a"), of(after(at(30, "released", 0, ""), 20*s), "b"),
		}, &HoldStats{N: 2, Since: Time{noon}, Least: Millis(10 * s), Median: Millis(10 * s), Most: Millis(20 * s)}},
		"waits, and releases that are recorded late": {[]Event{
			of(at(0, "acquired", 5*s, ""), "a"), of(at(30, "acquired", 29*s, ""), "b"), of(after(at(31, "released", 0, ""), 30*s), "a"),
		}, &HoldStats{N: 1, Since: Time{noon}, Least: Millis(30 * s), Median: Millis(30 * s), Most: Millis(30 * s)}},
		"nothing":                         {},
		"releases":                        {[]Event{at(0, "acquired", 0, ""), at(10, "released", 0, ""), at(60, "acquired", 0, ""), at(90, "forced", 0, "")}, &HoldStats{N: 2, Since: Time{noon}, Least: Millis(10 * s), Median: Millis(10 * s), Most: Millis(30 * s)}},
		"waits":                           {[]Event{at(0, "acquired", 5*s, ""), at(30, "acquired", 27*s, ""), at(50, "acquired", 60*s, "")}, &HoldStats{N: 2, Since: Time{noon}, Least: Millis(20 * s), Median: Millis(20 * s), Most: Millis(30 * s)}},
		"a wait for another holding":      {[]Event{at(0, "acquired", 5*s, ""), at(300, "acquired", 5*s, "")}, nil},
		"a holder that has died":          {[]Event{at(0, "acquired", 5*s, ""), at(30, "acquired", 27*s, "lapsed")}, nil},
		"a holder that has lost its lock": {[]Event{at(0, "acquired", 5*s, ""), at(10, "lost", 0, ""), at(30, "acquired", 27*s, "")}, nil},
		"a release of something older":    {[]Event{at(0, "released", 0, ""), at(5, "contended", 0, "")}, nil},
	} {
		slices.Reverse(c.events)
		got := holdsIn(c.events)
		if (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	var many []Event
	for i := range 3 * holdsOf {
		many = append(many, at(100*i, "acquired", 0, ""), at(100*i+i, "released", 0, ""))
	}
	if got := holdsIn(many); got.N != holdsOf || got.Least.Duration() != 2*holdsOf*s || got.Most.Duration() != (3*holdsOf-1)*s {
		t.Errorf("of many: %+v", got)
	}
}

// The explanation of a wait says how long recent holders took, or that this is unknown without a journal.
func TestPaceOfALine(t *testing.T) {
	line := []Waiter{{Position: 1, Holder: "w", Since: Time{noon}}}
	held := func(h *HoldStats, age time.Duration) Lock {
		l := lockIn(joblock.StateHeld, "", age)
		l.Line, l.Holds, l.Age = line, h, Millis(age)
		return l
	}
	const s = time.Second
	for want, l := range map[string]Lock{
		"": lockIn(joblock.StateHeld, "", s),
		"How long the wait will take is not known: no journal says how long recent holders had the key.":                                                 held(nil, s),
		"The last holder had the key for 28 s. The present one has had it for 12 s.":                                                                     held(&HoldStats{N: 1, Least: Millis(28 * s), Median: Millis(28 * s), Most: Millis(28 * s)}, 12*s),
		"The last 12 holders had the key for 25 s to 31 s, typically 28 s. The present one has had it for 1 min 12 s, which is longer than any of them.": held(&HoldStats{N: 12, Least: Millis(25 * s), Median: Millis(28 * s), Most: Millis(31 * s)}, 72*s),
		"The last 3 holders had the key for 30 s each.":                                                                                                  {State: joblock.StateFree, Line: line, Holds: &HoldStats{N: 3, Least: Millis(30 * s), Median: Millis(30 * s), Most: Millis(30 * s)}},
	} {
		if got := l.Pace(); got != want {
			t.Errorf("%s; want %s", got, want)
		}
		if l.State == joblock.StateHeld {
			e := explain(l, Keeper{}, true, nil, nil)
			checkSentences(t, e)
			if want != "" && !slices.Contains(e.Text, want) {
				t.Errorf("%q, want %q", e.Text, want)
			}
		}
	}
}

// A lock with a line comes with what the journal tells; one without a line does not read the journal.
func TestALockWithALineReadsTheJournal(t *testing.T) {
	chronicled(t, func(t *testing.T, c *chronicle) {
		c.write(eventlog.Entry{Kind: "acquired", Key: key})
		time.Sleep(20 * time.Second)
		c.write(eventlog.Entry{Kind: "released", Key: key})
		s := &stage{T: t, locks: c.desk.cfg.Locks}
		lock := s.acquire(key)
		if l, err := c.desk.Lock(t.Context(), key); err != nil || l.Holds != nil {
			t.Errorf("without a line: %+v, %v", l.Holds, err)
		}
		s.wait(key, "w", s.locks.Acquire)
		l, err := c.desk.Lock(t.Context(), key)
		if err != nil || l.Holds == nil || l.Holds.Median.Duration() != 20*time.Second {
			t.Errorf("%+v, %v", l.Holds, err)
		}
		c.rdb.Set(t.Context(), "joblock:%events", "other", 0)
		l, err = c.desk.Lock(t.Context(), key)
		if err != nil || len(l.Problems) != 1 || !strings.HasPrefix(l.Problems[0], "How long holders took lately could not be read") {
			t.Errorf("a journal that cannot be read: %+v, %v", l.Problems, err)
		}
		testkit.WantNil(t, "Release", lock.Release(t.Context()))
	})
}

// Operators read no words of programmers, and no label before a text that says nothing new.
func TestWordsForOperators(t *testing.T) {
	check := func(e Explanation) {
		t.Helper()
		all := strings.Join(append(slices.Clone(e.Text), e.Frees.Text), "\n")
		for _, a := range e.Actions {
			all += "\n" + a.Effect + "\n" + a.Danger
		}
		for _, word := range []string{"Config", "context", "worker.W", "worker.C", "joblock.C", "mux", "Worker"} {
			if strings.Contains(all, word) {
				t.Errorf("%q is in:\n%s", word, all)
			}
		}
	}
	for _, state := range []joblock.State{joblock.StateHeld, joblock.StateParked, joblock.StateOrphaned} {
		for _, task := range taskStates {
			for _, keeper := range []Keeper{{}, working(KeeperPlace{})} {
				l := lockIn(state, "q/1", 10*time.Minute)
				l.Task = &task
				check(explain(l, keeper, true, nil, nil))
			}
		}
		check(explain(lockIn(state, "", time.Minute), Keeper{}, true, nil, nil))
	}
	waits := Lock{Key: "k", State: joblock.StateFree, Fence: 3, Now: Time{noon}, Line: []Waiter{{Holder: "w", Since: Time{noon}}}}
	check(explain(waits, Keeper{}, true, nil, nil))
	for want, l := range map[string]Lock{
		"": {Key: "k", State: joblock.StateFree, Fence: 3, Now: Time{noon}}, "Who gets it": waits, "What frees it": lockIn(joblock.StateHeld, "", time.Minute),
	} {
		if got := explain(l, Keeper{}, true, nil, nil).Frees.Label(); got != want {
			t.Errorf("%s: %q, want %q", l.State, got, want)
		}
	}
}
