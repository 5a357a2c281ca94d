package ops

import (
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/chain"
	"github.com/joblock/toolkit/joblock"
)

// asynq's pauses are no longer than those that a Desk counts with, and nearly as long.
func TestLongestDelay(t *testing.T) {
	for n := range 40 {
		var longest time.Duration
		for range 500 {
			longest = max(longest, asynq.DefaultRetryDelayFunc(n, nil, nil))
		}
		if bound := longestDelay(n); longest > bound || longest < bound-time.Duration(n+1)*10*time.Second {
			t.Errorf("after %d retries asynq waits for up to %s, and the bound is %s", n, longest, bound)
		}
	}
	if got := longestDelay(1_000_000_000); got != farOff {
		t.Errorf("after a billion retries: %s, want %s", got, farOff)
	}
}

// When a job ends at the latest, if all its attempts fail.
func TestJobEnds(t *testing.T) {
	const min, sec = time.Minute, time.Second
	after := func(d time.Duration) Time { return Time{noon.Add(d)} }
	for name, tc := range map[string]struct {
		task Task
		want time.Duration // 0: not known
		text string
	}{
		"asynq's defaults":                {Task{State: "pending", Attempts: 26, Timeout: Millis(30 * min)}, 26*30*min + 1772820*sec, "If all 26 remaining attempts fail, the job ends by itself at 2026-03-22 13:27:00 UTC at the latest (in 21 d 1 h)"},
		"the first of two":                {Task{State: "active", Attempt: 1, Attempts: 2, Timeout: Millis(min)}, 2*min + 44*sec, "all 2 remaining attempts"},
		"the last":                        {Task{State: "active", Attempt: 2, Attempts: 2, Timeout: Millis(min)}, min, "One attempt is left"},
		"a rerun":                         {Task{State: "pending", Attempt: 3, Attempts: 2, Timeout: Millis(min)}, min, "One attempt is left"},
		"scheduled":                       {Task{State: "scheduled", Attempts: 1, NextAt: after(time.Hour), Timeout: Millis(min)}, 61 * min, "One attempt is left"},
		"overdue":                         {Task{State: "scheduled", Attempts: 1, NextAt: after(-time.Hour), Timeout: Millis(min)}, min, ""},
		"in retry":                        {Task{State: "retry", Attempt: 2, Attempts: 4, NextAt: after(10 * min), Timeout: Millis(min)}, 12*min + (16+15+87)*sec, "all 2 remaining attempts"},
		"its turn":                        {Task{State: "scheduled", Attempts: 1, Waits: true, Timeout: Millis(min)}, min, ""},
		"a deadline in an attempt":        {Task{State: "active", Attempt: 1, Attempts: 2, Timeout: Millis(time.Hour), Deadline: after(10 * min)}, 10*min + 44*sec, "at 12:10:44 UTC"},
		"a deadline before an attempt":    {Task{State: "retry", Attempt: 1, Attempts: 26, NextAt: after(10 * min), Timeout: Millis(time.Hour), Deadline: after(min)}, 10 * min, "at 12:10:00 UTC"},
		"a deadline in the last attempt":  {Task{State: "active", Attempt: 2, Attempts: 2, Deadline: after(10 * min)}, 10 * min, "at 12:10:00 UTC"},
		"a deadline after the last":       {Task{State: "active", Attempt: 2, Attempts: 2, Timeout: Millis(min), Deadline: after(10 * min)}, min, "at 12:01:00 UTC"},
		"very many attempts":              {Task{State: "pending", Attempts: 1_000_000_000, Timeout: Millis(min)}, 0, "more than ten years"},
		"without a timeout or a deadline": {Task{State: "pending", Attempts: 26}, 0, ""},
		"in a group":                      {Task{State: "aggregating", Attempts: 26, Timeout: Millis(min)}, 0, ""},
		"over":                            {Task{State: "archived", Attempt: 26, Attempts: 26, Timeout: Millis(min)}, 0, ""},
		"a step of a chain": {Task{State: "active", Attempt: 1, Attempts: 1, Timeout: Millis(min), Chain: "step 2 of 4, then mail, then end", next: []chain.Step{
			{Delay: time.Hour, Timeout: min}, {Retries: 1},
		}}, min + time.Hour + min + 2*30*min + 44*sec, "If each step succeeds only at its last attempt, that is at 14:02:44 UTC at the latest (in 2 h 3 min), pauses between attempts included. This assumes that a worker is always free"},
		"unknown": {Task{State: TaskUnknown, Problem: "looking the task up in asynq failed: away."}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, state := range []joblock.State{joblock.StateHeld, joblock.StateParked, joblock.StateOrphaned} {
				l := lockIn(state, "q/1", time.Minute)
				tc.task.Type = "export"
				l.Task = &tc.task
				e := explain(l, working(KeeperPlace{}), true, nil, nil)
				checkSentences(t, e)
				if got := e.Frees.JobEnds; got.IsZero() != (tc.want == 0) || tc.want != 0 && got.Sub(noon) != tc.want {
					t.Errorf("%s: the job ends at %s, want %s", state, got, noon.Add(tc.want))
				}
				if !strings.Contains(e.Frees.Text, tc.text) || tc.want == 0 && strings.Contains(e.Frees.Text, "ends by itself") {
					t.Errorf("%s: %s; want %q", state, e.Frees.Text, tc.text)
				}
			}
		})
	}
}
