package ledger

import (
	"testing"
	"time"
)

// Who writes a ledger, minute by minute, and whether that is a contest in the end.
func TestContest(t *testing.T) {
	for name, tc := range map[string]struct {
		writers   string
		each      time.Duration // from one to the next
		contested bool
		reports   int // of new definitions, and of the contest
	}{
		"one definition":               {"aaaaaaaaaaaaaaaaaaaaaaaa", min1, false, 0},
		"a deploy":                     {"aaaabababababbbbbbbbbbbb", sec, false, 1},
		"rolled back":                  {"aaaabbbbbbbbaaaaaaaaaaaa", hour, false, 1},
		"two take turns":               {"aaabababababababababababa", min1, true, 2},
		"for less than a deploy takes": {"aaabababababababababababa", 30 * sec, false, 1},
		"reported once an hour":        {"ababababababababababababa", 10 * min1, true, 5},
		"a third ends it":              {"abababababababababababababac", min1, false, 3},
	} {
		t.Run(name, func(t *testing.T) {
			l := &Ledger{Version: version}
			reports := 0
			for i, writer := range tc.writers {
				j := every10(t)
				j.Fingerprint = string(writer)
				reports += len(l.define(j, Moment{Now: start.Add(time.Duration(i) * tc.each), Node: "n"}))
			}
			if got := l.Definition.Contested(); got != tc.contested || reports != tc.reports {
				t.Errorf("contested %v after %d reports, want %v after %d", got, reports, tc.contested, tc.reports)
			}
			for range settled + 1 { // executions
				l.start(new(Job), Execution{}, Moment{Now: start})
			}
			if l.Definition.Contested() {
				t.Errorf("still contested after %d executions by one definition", settled+1)
			}
		})
	}
}
