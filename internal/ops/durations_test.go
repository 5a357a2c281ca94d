package ops

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/workerstats"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memo"
)

// usually does as workers do that have run tasks of a type, each so many seconds long.
func (s *stage) usually(task string, seconds ...int64) {
	s.Helper()
	lock, err := s.locks.TryAcquire(s.Context(), keyspace.Durations, core.OwnKey, joblock.Retain(240*time.Hour))
	testkit.WantNil(s, "TryAcquire", err)
	var table workerstats.Durations
	for i := range seconds {
		seconds[i] *= 1000
	}
	table.Add(map[string][]int64{task: seconds})
	testkit.WantNil(s, "Write", memo.Write(s.Context(), lock, table.Encode()))
	testkit.WantNil(s, "Release", lock.Release(s.Context()))
}

// An attempt that runs for far longer than others of its type is marked, long before its time is up.
func TestAttemptsThatRunLongerThanUsual(t *testing.T) {
	t.Parallel()
	const task = "export"
	for name, c := range map[string]struct {
		usually []int64
		of      string
		age     time.Duration
		slow    string
	}{
		"far longer":         {[]int64{5, 3, 8, 4, 4}, task, 14 * time.Minute, "has run for 14 min, and the latest 5 of its type that succeeded took 3 s to 8 s: it may hang."},
		"always the same":    {[]int64{5, 5, 5, 5, 5, 5}, task, time.Minute, "the latest 6 of its type that succeeded took 5 s:"},
		"longer":             {[]int64{5, 3, 60, 4, 4}, task, 2 * time.Minute, ""},
		"as long":            {[]int64{5, 3, 8, 4, 4}, task, 8 * time.Second, ""},
		"far longer, but 9s": {[]int64{0, 0, 0, 0, 0}, task, 9 * time.Second, ""},
		"few are known":      {[]int64{5, 3, 8, 4}, task, 14 * time.Minute, ""},
		"others are known":   {[]int64{5, 3, 8, 4, 4}, "import", 14 * time.Minute, ""},
	} {
		t.Run(name, func(t *testing.T) {
			staged(t, func(t *testing.T, s *stage) {
				s.usually(c.of, c.usually...)
				token := s.park("k", "default/1")
				_, err := s.locks.Resume(t.Context(), token, joblock.ForJob("default/1"), joblock.Reserve(24*time.Hour))
				testkit.WantNil(t, "Resume", err)
				s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "1", Type: task, State: asynq.TaskStateActive, Timeout: time.Hour})
				time.Sleep(c.age)
				jobs, _, err := s.Job(t.Context(), "default/1")
				if err != nil || len(jobs) != 1 {
					t.Fatalf("%+v, %v", jobs, err)
				}
				j := jobs[0]
				if (j.Slow == "") != (c.slow == "") || !strings.Contains(j.Slow, c.slow) || j.Long != "" {
					t.Errorf("%q, %q", j.Slow, j.Long)
				}
				if known := c.of == task; (j.Durations != nil) != known || known && j.Durations.Count != len(c.usually) {
					t.Errorf("usually: %+v", j.Durations)
				}
				if few := c.of != task || len(c.usually) < 5; j.Incomparable() != few {
					t.Errorf("it cannot be compared: %t", !few)
				}
				e, err := s.Explain(t.Context(), "k")
				if text := strings.Join(e.Text, " "); err != nil || !strings.Contains(text, j.Slow) || strings.Contains(text, "may hang") != (c.slow != "") {
					t.Errorf("%s; %v", text, err)
				}
				var found []string
				for j, err := range s.Jobs(t.Context(), JobsQuery{Slow: true, Share: 1}) {
					testkit.WantNil(t, "Jobs", err)
					found = append(found, j.Job)
				}
				page, err := s.JobsPage(t.Context(), JobsQuery{Slow: true, Share: 1}, "", 10)
				if n := map[bool]int{true: 1}[c.slow != ""]; err != nil || len(found) != n || len(page.Items) != n {
					t.Errorf("the lists of slow jobs have %s and %d; %v", fmt.Sprint(found), len(page.Items), err)
				}
			})
		})
	}
}

// What cannot be read says nothing, and hides nothing.
func TestDurationsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	staged(t, func(t *testing.T, s *stage) {
		lock := s.acquire(keyspace.Durations, core.OwnKey)
		testkit.WantNil(t, "Write", memo.Write(t.Context(), lock, []byte("{")))
		s.park("k", "default/1")
		if jobs, _, err := s.Job(t.Context(), "default/1"); err != nil || len(jobs) != 1 || jobs[0].Durations != nil {
			t.Errorf("%+v, %v", jobs, err)
		}
	})
}
