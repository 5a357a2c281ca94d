package metrics

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/metric"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// However many cron jobs there are, the number of time series is bounded. A scope with few jobs has all of them.
func TestCronJobsAreBounded(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		const surplus = 20
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error)
		for scope, n := range map[string]int{"entries": mostJobs + surplus, "shop": 2} {
			sched, err := scheduler.New(s.locks, &scheduler.Config{Scope: scope, Logger: slog.New(slog.DiscardHandler)})
			testkit.WantNil(t, "scheduler.New", err)
			for i := range n {
				testkit.WantNil(t, "Func", sched.Func(fmt.Sprintf("job%04d", i), "0 1 * * *", func(context.Context) error { return nil }))
			}
			go func() { ran <- sched.Run(ctx) }()
		}
		time.Sleep(time.Minute)
		s.lines()
		time.Sleep(2 * time.Hour)
		counts := make(map[string]int)
		for _, l := range s.lines() {
			for _, name := range []string{"joblock_cron_next_timestamp_seconds{", "joblock_cron_paused{", `joblock_cron_runs_total{`} {
				if strings.HasPrefix(l, name) {
					counts[name]++
				}
			}
		}
		if want := mostJobs + 1; counts["joblock_cron_next_timestamp_seconds{"] != want || counts["joblock_cron_paused{"] != want || counts["joblock_cron_runs_total{"] != 9*want {
			t.Errorf("%v, want %d of each and 9 times that of the runs", counts, want)
		}
		s.wants(
			fmt.Sprintf(`joblock_cron_runs_total{job=%q,result="done",scope="entries"} %d`, metric.Other, surplus+2),
			`joblock_cron_runs_total{job="job0001",result="done",scope="shop"} 1`, `joblock_cron_runs_total{job="job0000",result="done",scope="entries"} 1`,
			fmt.Sprintf(`no joblock_cron_runs_total{job=%q,result="done",scope="shop"}`, metric.Other),
		)
		cancel()
		for range 2 {
			testkit.WantNil(t, "Run", <-ran)
		}
	})
}

func TestShares(t *testing.T) {
	for _, tc := range []struct{ jobs, want []int }{
		{[]int{}, []int{}},
		{[]int{3}, []int{3}},
		{[]int{mostJobs}, []int{mostJobs}},
		{[]int{mostJobs + 1}, []int{mostJobs}},
		{[]int{5000, 6}, []int{mostJobs - 6, 6}},
		{[]int{5000, 6, 5000, 0}, []int{(mostJobs - 6) / 2, 6, (mostJobs - 6) / 2, 0}},
	} {
		if got := shares(tc.jobs); !slices.Equal(got, tc.want) {
			t.Errorf("%v: %v, want %v", tc.jobs, got, tc.want)
		}
	}
}

// The job that stands for the others has what is worst of them, and its counters do not shrink.
func TestOtherCronJobs(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	at := func(d time.Duration) ops.Time { return ops.Time{Time: now.Add(d)} }
	job := func(name string, c admin.Counts, change func(*ops.CronJob)) ops.CronJob {
		j := ops.CronJob{Name: name, Now: at(0), Since: at(-time.Hour), Next: at(time.Hour), Counts: c}
		if change != nil {
			change(&j)
		}
		return j
	}
	own := job("a", admin.Counts{Done: 7}, nil)
	var o others
	look := func(jobs ...ops.CronJob) ops.CronJob {
		t.Helper()
		f := cronFigures{jobs: append([]ops.CronJob{own}, jobs...)}
		for range f.jobs {
			f.intervals = append(f.intervals, time.Minute)
		}
		o.take(&f, 1)
		if len(jobs) == 0 {
			if len(f.jobs) != 1 {
				t.Errorf("without others: %+v", f.jobs)
			}
			return ops.CronJob{}
		}
		if len(f.jobs) != 2 || len(f.intervals) != 2 || f.jobs[0].Name != "a" || f.jobs[1].Name != metric.Other {
			t.Fatalf("%+v, %v", f.jobs, f.intervals)
		}
		return f.jobs[1]
	}
	pauses := []ops.CronPause{{Since: at(-time.Minute)}}
	paused := func(j *ops.CronJob) { j.Paused, j.Pauses, j.Since, j.Waiting = true, pauses, at(-9*time.Hour), 2 }
	got := look(
		job("b", admin.Counts{Done: 5}, paused),
		job("c", admin.Counts{Failed: 5}, func(j *ops.CronJob) { j.Since, j.Next, j.Waiting = at(-3*time.Hour), at(time.Minute), 1 }),
		job("d", admin.Counts{}, func(j *ops.CronJob) { j.Overdue, j.OverlapsSince = at(-2*time.Minute), at(-11*time.Minute) }),
		job("e", admin.Counts{}, func(j *ops.CronJob) {
			j.Since, j.Overdue, j.DisagreeSince, j.OverlapsSince = at(-8*time.Hour), at(-time.Minute), at(-time.Second), at(-time.Minute)
			j.Latest = &ops.CronRun{State: scheduler.Done, Started: at(-time.Minute), Ended: at(-time.Minute)}
		}),
	)
	if got.Paused || len(got.Pauses) != 1 || got.Waiting != 3 || got.Next != at(time.Minute) || got.Overdue != at(-2*time.Minute) ||
		got.DisagreeSince != at(-time.Second) || got.OverlapsSince != at(-11*time.Minute) || got.Since != at(-3*time.Hour) || got.Latest != nil || got.Counts != (admin.Counts{}) {
		t.Errorf("%+v", got)
	}
	if got := look(job("b", admin.Counts{Done: 6}, paused), job("f", admin.Counts{Failed: 100}, paused)); !got.Paused || got.Counts != (admin.Counts{Done: 1}) {
		t.Errorf("a job that is new counts from now on: %+v", got)
	}
	if got := look(job("f", admin.Counts{Failed: 102}, nil)); got.Counts != (admin.Counts{Done: 1, Failed: 2}) {
		t.Errorf("a job that is gone takes nothing away: %+v", got.Counts)
	}
	look()
	look(job("f", admin.Counts{Failed: 110}, nil))
	if got := look(job("f", admin.Counts{Failed: 3}, nil)); got.Counts != (admin.Counts{Done: 1, Failed: 5}) {
		t.Errorf("a ledger that begins again: %+v", got.Counts)
	}
	if got := look(job(metric.Other, admin.Counts{}, nil), job("f", admin.Counts{Failed: 3}, nil)); got.Name != metric.Other {
		t.Errorf("%+v", got)
	}
	own.Name = metric.Other // the name that the others have
	f := cronFigures{jobs: []ops.CronJob{own, job("b", admin.Counts{}, nil), job("c", admin.Counts{}, nil)}, intervals: make([]time.Duration, 3)}
	o.take(&f, 2)
	if len(f.jobs) != 2 || f.jobs[0].Name != "b" || f.jobs[1].Name != metric.Other {
		t.Errorf("%+v", f.jobs)
	}
}

// Each result that is counted for a job is counted for the others, too.
func TestEachCountOfTheOthers(t *testing.T) {
	for i := range reflect.TypeFor[admin.Counts]().NumField() {
		var c admin.Counts
		reflect.ValueOf(&c).Elem().Field(i).SetInt(3)
		if got := add(admin.Counts{}, c, admin.Counts{}); got != c {
			t.Errorf("%+v was counted as %+v", c, got)
		}
	}
}
