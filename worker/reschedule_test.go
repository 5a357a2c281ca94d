package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/rate"
	"github.com/joblock/toolkit/worker"
)

// A job waits for something other than its time, and Reschedule moves it to later. What it waited for comes before that time,
// and the job does not run early.
func TestRescheduledWhileItWaits(t *testing.T) {
	b := asynq.TaskID("b")
	for name, tc := range map[string]struct {
		service service
		how     handoff.How
		before  func(p *paced) // as the job "a" begins, which runs for 30 s
		after   func(p *paced) // after the end of a
	}{
		"behind another job": {how: handoff.Unique{Key: "k", OnConflict: handoff.KeepLast}},
		"behind a cooldown":  {how: handoff.Unique{Key: "k", OnConflict: handoff.KeepLast, Cooldown: 20 * time.Second}},
		"for the key of WithoutOverlapping": {how: handoff.Unique{Key: "l"}, service: service{use: []func(*worker.Worker) asynq.MiddlewareFunc{
			func(w *worker.Worker) asynq.MiddlewareFunc {
				return w.WithoutOverlapping(func(*asynq.Task) string { return "o" }, &worker.OverlapConfig{MaxWait: -1})
			},
		}}},
		"for a rate": {how: handoff.Unique{Key: "l"}, service: limitedTo(oneLimit(rate.Limit{Key: "r", N: 1, Per: 30 * time.Second}))},
		"for the end of a pause": {
			how: handoff.Unique{Key: "l"}, before: func(p *paced) { p.pauseKey("l", 0) }, after: func(p *paced) { p.resumeKey("l") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(r *rig) {
				p := r.pacedBy(tc.service, func(payload string, _ int) (time.Duration, error) {
					if payload == "a" {
						return 30 * time.Second, nil
					}
					return time.Second, nil
				})
				r.keep(r.locks, worker.Config{})
				first := tc.how
				if u, ok := first.(handoff.Unique); ok && u.Key == "l" {
					first = handoff.Unique{Key: "k"}
				}
				p.add(first, "a")
				if tc.before != nil {
					tc.before(p)
				}
				p.at(2)
				done := p.add(tc.how, "b", b)
				r.until("b waits for a retry", func() bool {
					_, info := r.task("b")
					return info != nil && info.State == asynq.TaskStateRetry
				})
				if err := p.jobs.Reschedule(context.Background(), done, p.begin.Add(2*time.Minute)); err != nil {
					t.Fatal(err)
				}
				p.at(40)
				if tc.after != nil {
					tc.after(p)
				}
				p.at(200)
				p.want(20, pacedRun{payload: "a", at: 0}, pacedRun{payload: "b", at: 120})
			})
		})
	}
}

// The longest keys leave no room for the key of a job that waits, and their jobs are found all the same.
func TestJobOfALongKey(t *testing.T) {
	paceIn(t, short, func(p *paced) {
		key := strings.Repeat("x", driver.MaxKeyBytes)
		added := p.add(handoff.Unique{Key: key}, "a")
		if done, err := p.jobs.Job(context.Background(), key); err != nil || done.Task.ID != added.Task.ID {
			t.Errorf("Job: %+v, %v", done.Task, err)
		}
		p.at(10)
		if _, err := p.jobs.Job(context.Background(), key+"x"); !errors.Is(err, joblock.ErrInvalid) {
			t.Errorf("Job of a key that is too long: %v", err)
		}
	})
}
