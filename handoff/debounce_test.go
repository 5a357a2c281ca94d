package handoff_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// How a Debounce and a Cooldown go together with their own fields and with the options of asynq: each combination works,
// twice, or is refused with the value and the cure.
func TestDebounceAndCooldownWithOtherOptions(t *testing.T) {
	d := handoff.Debounce{Key: "k", Wait: 5 * time.Second}
	waits := func(wait, most time.Duration) handoff.How {
		return handoff.Debounce{Key: "k", Wait: wait, MaxWait: most}
	}
	cools := func(u handoff.Unique) handoff.How { u.Key = "k"; return u }
	const long = 5 * time.Minute
	for name, tc := range map[string]struct {
		how  handoff.How
		opts []asynq.Option
		bad  string // a part of the error; "" if it works
	}{
		"debounce":                         {how: d},
		"debounce, Queue":                  {how: d, opts: []asynq.Option{asynq.Queue("q"), asynq.MaxRetry(3), asynq.Timeout(time.Minute), asynq.Retention(time.Hour)}},
		"debounce, later Deadline":         {how: d, opts: []asynq.Option{asynq.Deadline(time.Now().Add(1000 * time.Hour))}},
		"debounce, MaxWait":                {how: waits(time.Second, time.Second)},
		"debounce, Leading":                {how: handoff.Debounce{Key: "k", Wait: time.Second, MaxWait: time.Minute, Leading: true}},
		"debounce without Wait":            {how: waits(0, 0), bad: "Wait is 0s, must be from 1s"},
		"debounce, short Wait":             {how: waits(999*time.Millisecond, 0), bad: "Wait is 999ms, must be from 1s"},
		"debounce, long Wait":              {how: waits(driver.MaxPeriod, 0), bad: "Wait is 8784h0m0s, must be from 1s to 8783h0m0s"},
		"debounce, MaxWait below Wait":     {how: waits(5*time.Second, 4*time.Second), bad: "MaxWait is 4s, must be 0 for no bound, or at least"},
		"debounce, negative MaxWait":       {how: waits(5*time.Second, -1), bad: "MaxWait is -1ns"},
		"debounce without Key":             {how: handoff.Debounce{Wait: time.Second}, bad: "key is empty"},
		"debounce, key of the toolkit":     {how: handoff.Debounce{Key: "k%next", Wait: time.Second}, bad: "'%'"},
		"debounce, ProcessIn":              {how: d, opts: []asynq.Option{asynq.ProcessIn(time.Minute)}, bad: "use Debounce.Wait"},
		"debounce, ProcessAt in the past":  {how: d, opts: []asynq.Option{asynq.ProcessAt(time.Now().Add(-time.Hour))}, bad: "use Debounce.Wait"},
		"debounce, TaskID":                 {how: d, opts: []asynq.Option{asynq.TaskID("a")}, bad: "leave it out"},
		"debounce, Group":                  {how: d, opts: []asynq.Option{asynq.Group("g")}, bad: "asynq.Group"},
		"debounce, Unique":                 {how: d, opts: []asynq.Option{asynq.Unique(time.Minute)}, bad: "use one"},
		"debounce, Deadline within Wait":   {how: d, opts: []asynq.Option{asynq.Deadline(time.Now().Add(4 * time.Second))}, bad: "must be more than Debounce.Wait, 5s, from now"},
		"cooldown":                         {how: cools(handoff.Unique{OnConflict: handoff.Skip, Cooldown: long})},
		"cooldown, Replace":                {how: cools(handoff.Unique{OnConflict: handoff.Replace, Cooldown: long})},
		"cooldown, KeepLast":               {how: cools(handoff.Unique{OnConflict: handoff.KeepLast, Cooldown: long})},
		"cooldown, UntilStarted":           {how: cools(handoff.Unique{OnConflict: handoff.Skip, UntilStarted: true, Cooldown: long})},
		"cooldown, ProcessIn":              {how: cools(handoff.Unique{OnConflict: handoff.Replace, Cooldown: long}), opts: []asynq.Option{asynq.ProcessIn(time.Hour), asynq.Retention(time.Hour)}},
		"cooldown, Deadline":               {how: cools(handoff.Unique{OnConflict: handoff.Skip, Cooldown: long}), opts: []asynq.Option{asynq.Deadline(time.Now().Add(1000 * time.Hour))}},
		"cooldown, Group":                  {how: cools(handoff.Unique{OnConflict: handoff.Replace, Cooldown: long}), opts: []asynq.Option{asynq.Group("g")}},
		"cooldown, TaskID":                 {how: cools(handoff.Unique{OnConflict: handoff.Replace, Cooldown: long}), opts: []asynq.Option{asynq.TaskID("a")}},
		"cooldown, shortest":               {how: cools(handoff.Unique{OnConflict: handoff.Skip, Cooldown: time.Millisecond})},
		"cooldown, too short":              {how: cools(handoff.Unique{Cooldown: 1}), bad: "Cooldown is 1ns, must be from 1ms"},
		"cooldown, negative":               {how: cools(handoff.Unique{Cooldown: -time.Second}), bad: "Cooldown is -1s, must be from 1ms"},
		"cooldown, too long":               {how: cools(handoff.Unique{Cooldown: driver.MaxPeriod + 1}), bad: "to 8784h0m0s, or 0 for none"},
		"cooldown, Limit":                  {how: cools(handoff.Unique{Limit: 2, Cooldown: long}), bad: "use one: a permit has no cooldown"},
		"cooldown, Unique":                 {how: cools(handoff.Unique{Cooldown: long}), opts: []asynq.Option{asynq.Unique(time.Minute)}, bad: "use one"},
		"cooldown, long TaskID":            {how: cools(handoff.Unique{Cooldown: long}), opts: []asynq.Option{asynq.TaskID(strings.Repeat("a", driver.MaxLabelBytes-len("default/")-9))}, bad: "1 bytes too long"},
		"cooldown, the longest TaskID":     {how: cools(handoff.Unique{OnConflict: handoff.Replace, Cooldown: long}), opts: []asynq.Option{asynq.TaskID(strings.Repeat("a", driver.MaxLabelBytes-len("default/")-10))}},
		"no cooldown, longer TaskID":       {how: cools(handoff.Unique{OnConflict: handoff.Replace}), opts: []asynq.Option{asynq.TaskID(strings.Repeat("a", driver.MaxLabelBytes-len("default/")))}},
		"debounce, a queue's name is long": {how: d, opts: []asynq.Option{asynq.Queue(strings.Repeat("q", driver.MaxLabelBytes))}, bad: "at most 256 are allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Parallel(t)
			w := newMiniWeb(t)
			for range 2 {
				done, err := w.jobs.Enqueue(t.Context(), tc.how, asynq.NewTask("export", nil), tc.opts...)
				many, merr := w.jobs.EnqueueMany(t.Context(), []handoff.Item{{How: tc.how, Task: asynq.NewTask("export", nil), Opts: tc.opts}})
				for _, err := range []error{err, errors.Join(merr, many[0].Err)} {
					if tc.bad == "" && err != nil {
						t.Errorf("%v, want it to work", err)
					}
					if tc.bad != "" && (!errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), tc.bad)) {
						t.Errorf("%+v, %v; want ErrInvalid with %q", done, err, tc.bad)
					}
				}
			}
		})
	}
}

// The handler of a job, or a request, that has the key itself may begin the next wait.
func TestDebounceByTheHolderOfItsKey(t *testing.T) {
	w := newMiniWeb(t)
	ctx, stop := acquire(t, w.locks, "k").Context(t.Context())
	defer stop()
	if done, err := w.jobs.Enqueue(ctx, handoff.Debounce{Key: "k", Wait: time.Second}, asynq.NewTask("export", nil)); err != nil || done.Task.State != asynq.TaskStateScheduled {
		t.Errorf("%+v, %v; want it scheduled", done.Task, err)
	}
}

// Whenever the store or asynq does not answer, the newest payload that was acknowledged is not lost: some task has it, and
// after an error the older one may be there too.
func TestDebounceInAnOutage(t *testing.T) {
	for step := 1; step <= 2; step++ {
		for _, applied := range []bool{false, true} {
			t.Run(fmt.Sprintf("write %d, applied: %t", step, applied), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newMiniWeb(t)
					w.warm(t)
					how := handoff.Debounce{Key: "k", Wait: 5 * time.Second, MaxWait: time.Minute}
					if _, err := w.jobs.Enqueue(t.Context(), how, asynq.NewTask("export", []byte("old"))); err != nil {
						t.Fatal(err)
					}
					lose := func(_ context.Context, apply func() error) error {
						if applied {
							_ = apply()
						}
						return errDown
					}
					switch step {
					case 1:
						w.faults.onEnqueue(lose)
					case 2:
						w.faults.onDelete(lose)
					}
					_, err := w.jobs.Enqueue(t.Context(), how, asynq.NewTask("export", []byte("new")))
					w.faults.onDelete(nil)
					time.Sleep(time.Second)
					var payloads []string
					all, lerr := w.inspector.ListScheduledTasks("default")
					if lerr != nil {
						t.Fatal(lerr)
					}
					for _, info := range all {
						payloads = append(payloads, string(info.Payload))
					}
					if got := strings.Join(payloads, ","); err == nil && got != "new" || got == "" {
						t.Errorf("%v, and the tasks are %q; want new without an error, or else new, old or both", err, payloads)
					}
				})
			})
		}
	}
}
