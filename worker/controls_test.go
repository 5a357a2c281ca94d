package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/rate"
	"github.com/joblock/toolkit/worker"
)

// ctlKey is the key of all jobs in the tests of two controls at a time.
const ctlKey = "k:1"

// ctlWay is a control by which jobs have a key.
type ctlWay struct {
	name   string
	how    handoff.How // nil: tasks without locks
	use    []middleware
	atOnce int
	newest bool // only the newest job must run; otherwise each that was not refused
	steps  int  // of a chain
}

func ctlOverlap(cfg ...worker.OverlapConfig) []middleware {
	return []middleware{func(w *worker.Worker) asynq.MiddlewareFunc {
		return w.WithoutOverlapping(func(*asynq.Task) string { return ctlKey }, given(cfg))
	}}
}

var ctlWays = []ctlWay{
	{name: "Reject", how: handoff.Unique{Key: ctlKey}, atOnce: 1},
	{name: "Reject, Cooldown", how: handoff.Unique{Key: ctlKey, Cooldown: 3 * time.Second}, atOnce: 1},
	{name: "Skip", how: handoff.Unique{Key: ctlKey, OnConflict: handoff.Skip}, atOnce: 1},
	{name: "Reject, UntilStarted", how: handoff.Unique{Key: ctlKey, UntilStarted: true}, atOnce: 8},
	{name: "Replace", how: handoff.Unique{Key: ctlKey, OnConflict: handoff.Replace}, atOnce: 1},
	{name: "KeepLast", how: handoff.Unique{Key: ctlKey, OnConflict: handoff.KeepLast}, atOnce: 1, newest: true},
	{name: "KeepLast, Cooldown", how: handoff.Unique{Key: ctlKey, OnConflict: handoff.KeepLast, Cooldown: 7 * time.Second}, atOnce: 1, newest: true},
	{name: "CancelInProgress", how: handoff.Unique{Key: ctlKey, OnConflict: handoff.CancelInProgress}, atOnce: 1, newest: true},
	{name: "Debounce", how: handoff.Debounce{Key: ctlKey, Wait: 2 * time.Second, MaxWait: 6 * time.Second}, atOnce: 1, newest: true},
	{name: "Debounce, Leading", how: handoff.Debounce{Key: ctlKey, Wait: 2 * time.Second, Leading: true}, atOnce: 1, newest: true},
	{name: "Unique, Limit", how: handoff.Unique{Key: ctlKey, Limit: 2}, atOnce: 2},
	{name: "Sequence", how: handoff.Sequence{Key: ctlKey}, atOnce: 1},
	{name: "Sequence, LimitName", how: handoff.Sequence{Key: ctlKey, Limit: 2, LimitName: "n"}, atOnce: 2},
	{name: "WithoutOverlapping", use: ctlOverlap(), atOnce: 1},
	{name: "InLine", use: ctlOverlap(worker.OverlapConfig{InLine: true}), atOnce: 1},
	{name: "MaxConcurrent", use: ctlOverlap(worker.OverlapConfig{MaxConcurrent: 2, LimitName: "n"}), atOnce: 2},
	{name: "Chain, Reject", how: handoff.Unique{Key: ctlKey}, atOnce: 1, steps: 3},
	{name: "Chain, Replace", how: handoff.Unique{Key: ctlKey, OnConflict: handoff.Replace}, atOnce: 1, steps: 3},
	{name: "Chain, KeepLast", how: handoff.Unique{Key: ctlKey, OnConflict: handoff.KeepLast}, atOnce: 1, newest: true, steps: 3},
	{name: "Chain, CancelInProgress", how: handoff.Unique{Key: ctlKey, OnConflict: handoff.CancelInProgress}, atOnce: 1, newest: true, steps: 3},
	{name: "Chain, Debounce", how: handoff.Debounce{Key: ctlKey, Wait: 2 * time.Second, MaxWait: 6 * time.Second}, atOnce: 1, newest: true, steps: 3},
	{name: "Chain, Debounce, Leading", how: handoff.Debounce{Key: ctlKey, Wait: 2 * time.Second, Leading: true}, atOnce: 1, newest: true, steps: 3},
	{name: "Chain, Unique, Limit", how: handoff.Unique{Key: ctlKey, Limit: 2}, atOnce: 2, steps: 3},
	{name: "Chain, Sequence", how: handoff.Sequence{Key: ctlKey}, atOnce: 1, steps: 3},
	{name: "Chain, Sequence, LimitName", how: handoff.Sequence{Key: ctlKey, Limit: 2, LimitName: "n"}, atOnce: 2, steps: 3},
}

// ctlWith is what else holds jobs of the key back. do runs during the enqueues.
type ctlWith struct {
	name   string
	limits []rate.Limit
	do     func(r *rig)
	again  bool // a step may run again
}

func after(seconds float64) { time.Sleep(time.Duration(seconds * float64(time.Second))) }

var ctlWiths = []ctlWith{
	{name: "nothing"},
	{name: "a rate", limits: []rate.Limit{{Key: "r", N: 1, Per: 10 * time.Second}}},
	{name: "two rates", limits: []rate.Limit{{Key: "r", N: 2, Per: 30 * time.Second}, {Key: "s", N: 1, Per: 4 * time.Second}}},
	{name: "a rate that an operator changes", limits: []rate.Limit{{Key: "r", N: 10, Per: 40 * time.Second, Name: "rate"}}, do: func(r *rig) {
		for _, n := range []int{1, 3, 2} {
			after(1.5)
			r.setLimit("rate", n)
		}
	}},
	{name: "a push-back", limits: []rate.Limit{{Key: "r", N: 5, Per: 10 * time.Second}}, do: func(r *rig) {
		for range 3 {
			after(1.5)
			if err := rate.PushBack(context.Background(), r.locks, "r", 20*time.Second); err != nil {
				r.t.Error(err)
			}
		}
	}},
	{name: "a pause", do: func(r *rig) {
		after(1.5)
		r.pauseKey("k", 0)
		after(40)
		r.resumeKey("k")
	}},
	{name: "a pause that ends by itself", do: func(r *rig) { after(1.5); r.pauseKey(ctlKey, 30*time.Second) }},
	{name: "pauses, again and again", do: func(r *rig) {
		for i := range 8 {
			after(0.3 + float64(i))
			r.pauseKey("k", 0)
			after(1.7)
			r.resumeKey("k")
		}
	}},
	{name: "a pause and a rate", limits: []rate.Limit{{Key: "r", N: 1, Per: 10 * time.Second}}, do: func(r *rig) {
		after(1.5)
		r.pauseKey("k", 0)
		after(25)
		r.resumeKey("k")
	}},
	{name: "a limit that an operator changes", do: func(r *rig) {
		for _, n := range []int{1, 2, 1, 2} {
			after(3)
			r.setLimit("n", n)
		}
	}},
	{name: "a store that is away", do: func(r *rig) {
		after(5)
		r.faults.Set(faultstore.Fault{Mode: faultstore.Refuse})
		after(4)
		r.faults.Clear()
	}},
	{name: "a rate, and a store that is away", limits: []rate.Limit{{Key: "r", N: 2, Per: 10 * time.Second}}, do: func(r *rig) {
		after(6)
		r.faults.Set(faultstore.Fault{Mode: faultstore.Refuse})
		after(4)
		r.faults.Clear()
	}},
}

// ctlLedger notes what the jobs of the key do.
type ctlLedger struct {
	mu      sync.Mutex
	entries []string         // "job.step" as it starts, and with a "!" when it was superseded
	done    map[string][]int // the steps of a job that are done
	running int
	most    int
	charged []string
	starts  []time.Time
}

func (l *ctlLedger) handler(ctx context.Context, task *asynq.Task) error {
	name := string(task.Payload())
	job, step, _ := strings.Cut(name, ".")
	l.mu.Lock()
	l.entries = append(l.entries, name)
	l.starts = append(l.starts, time.Now())
	l.running++
	l.most = max(l.most, l.running)
	if n, _ := asynq.GetRetryCount(ctx); n > 0 {
		l.charged = append(l.charged, name)
	}
	l.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-time.After(1500 * time.Millisecond):
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	if err := context.Cause(ctx); err != nil {
		l.entries = append(l.entries, name+"!")
		return err
	}
	n, _ := strconv.Atoi(step)
	l.done[job] = append(l.done[job], n)
	return nil
}

func (l *ctlLedger) text() string { return strings.Join(l.entries, " ") }

// Each control by which jobs have a key, together with each of what else holds jobs back: no job is lost, none runs twice, no
// more than allowed run at a time, none is charged a retry, of the newest policies the newest runs last, the rate is kept,
// and at the end nothing is left in asynq or in the store.
func TestTwoControlsAtATime(t *testing.T) {
	for _, way := range ctlWays {
		for _, with := range ctlWiths {
			t.Run(way.name+", "+with.name, func(t *testing.T) { virtual(t, func(r *rig) { playControls(r, way, with) }) })
		}
	}
}

func playControls(r *rig, way ctlWay, with ctlWith) {
	l, t := r.line(), r.t
	r.keep(r.locks, worker.Config{})
	ledger := &ctlLedger{done: make(map[string][]int)}
	use := slices.Clone(way.use)
	if with.limits != nil {
		use = append(use, limitedTo(func(*asynq.Task) []rate.Limit { return with.limits }).use...)
	}
	r.serve(service{use: use, asynq: asynq.Config{TaskCheckInterval: 50 * time.Millisecond}}, ledger.handler)
	var meanwhile sync.WaitGroup
	if with.do != nil {
		meanwhile.Go(func() { with.do(r) })
	}
	var wanted []string // the jobs that were not refused
	for i, pause := range []float64{0, 0.2, 0.5, 1, 0.5, 4, 12, 0.2} {
		after(pause)
		job := strconv.Itoa(i)
		task := asynq.NewTask(taskType, []byte(job+".1"), asynq.MaxRetry(5))
		if way.how == nil {
			r.submit(job, task, 5)
			wanted = append(wanted, job)
			continue
		}
		how := way.how
		if way.steps > 0 {
			how = handoff.Chain{Under: how, Then: steps(job+".2", job+".3")}
		}
		got, err := l.jobs.Enqueue(context.Background(), how, task)
		switch {
		case errors.Is(err, joblock.ErrHeld), errors.Is(err, joblock.ErrUnavailable):
			continue
		case err != nil:
			t.Fatalf("enqueue %s: %v", job, err)
		case got.Duplicate:
			continue
		case got.Replaced != nil:
			wanted = slices.DeleteFunc(wanted, func(w string) bool { return w+".1" == string(got.Replaced.Payload) })
		}
		wanted = append(wanted, job)
	}
	meanwhile.Wait()
	r.until("all is over", func() bool {
		info, err := r.inspector.GetQueueInfo(queue)
		return err == nil && info.Size == 0 && len((&pipeline{line: l}).left()) == 0
	})
	r.wantNoPause()
	if info, err := r.inspector.GetQueueInfo(queue); err != nil || info.Failed != 0 {
		t.Errorf("asynq counts %+v, %v; want no failure", info, err)
	}
	ledger.mu.Lock()
	defer ledger.mu.Unlock()
	if ledger.most > way.atOnce {
		t.Errorf("%d have run at a time", ledger.most)
	}
	if len(ledger.charged) > 0 {
		t.Errorf("%q are charged a retry", ledger.charged)
	}
	all := make([]int, max(1, way.steps))
	for i := range all {
		all[i] = i + 1
	}
	last := wanted[len(wanted)-1]
	for job, done := range ledger.done {
		if with.again {
			done = slices.Compact(done)
			ledger.done[job] = done
		}
		if !slices.Equal(done, all[:min(len(done), len(all))]) {
			t.Errorf("job %s has done the steps %v", job, done)
		}
	}
	for _, job := range wanted {
		if (!way.newest || job == last) && !slices.Equal(ledger.done[job], all) {
			t.Errorf("job %s has done the steps %v", job, ledger.done[job])
		}
	}
	if end := fmt.Sprint(last, ".", len(all)); way.newest && ledger.entries[len(ledger.entries)-1] != end {
		t.Errorf("the newest, %s, has not run last", end)
	}
	for _, limit := range with.limits {
		if limit.Name == "" {
			if most := mostStarts(ledger.starts, limit.Per); most > limit.N {
				t.Errorf("%d starts in %s", most, limit.Per)
			}
		}
	}
	if t.Failed() {
		t.Logf("wanted %q, happened: %s", wanted, ledger.text())
	}
}

// mostStarts returns the largest number of starts in any time of length per.
func mostStarts(starts []time.Time, per time.Duration) (most int) {
	for i, start := range starts {
		n := 0
		for _, other := range starts[i:] {
			if other.Sub(start) < per {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}
