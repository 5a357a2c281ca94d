package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// paced is a key whose jobs take notes of when they run, in seconds since the begin.
type paced struct {
	*line
	begin time.Time

	mu   sync.Mutex
	live int
	runs []pacedRun
}

type pacedRun struct {
	payload string
	at      int // seconds, rounded down
	end     int
}

// paced starts a server whose handler takes as long as take, and ends with its error.
func (r *rig) paced(take func(payload string, n int) (time.Duration, error)) *paced {
	return r.pacedBy(service{}, take)
}

// pacedBy is paced for the server of s.
func (r *rig) pacedBy(s service, take func(payload string, n int) (time.Duration, error)) *paced {
	p := &paced{line: r.line(), begin: time.Now()}
	s.asynq.GroupGracePeriod = 10 * time.Second
	s.asynq.GroupAggregator = asynq.GroupAggregatorFunc(func(_ string, members []*asynq.Task) *asynq.Task {
		return asynq.NewTask(taskType, members[0].Payload())
	})
	r.serve(s, func(ctx context.Context, task *asynq.Task) error {
		p.mu.Lock()
		p.live++
		if p.live > 1 {
			r.t.Errorf("%d jobs of the key run at a time", p.live)
		}
		n := len(p.runs)
		p.runs = append(p.runs, pacedRun{payload: string(task.Payload()), at: int(time.Since(p.begin).Seconds())})
		p.mu.Unlock()
		d, err := take(string(task.Payload()), n)
		time.Sleep(d)
		p.mu.Lock()
		p.runs[n].end = int(time.Since(p.begin).Seconds())
		p.live--
		p.mu.Unlock()
		return err
	})
	return p
}

func short(string, int) (time.Duration, error) { return time.Second / 10, nil }

// at sleeps until the second.
func (p *paced) at(second float64) {
	time.Sleep(time.Until(p.begin.Add(time.Duration(second * float64(time.Second)))))
}

func (p *paced) add(how handoff.How, payload string, opts ...asynq.Option) handoff.Result {
	p.t.Helper()
	done, err := p.jobs.Enqueue(context.Background(), how, asynq.NewTask(taskType, []byte(payload)), append([]asynq.Option{asynq.MaxRetry(1)}, opts...)...)
	if err != nil {
		p.t.Fatalf("enqueue %s: %v", payload, err)
	}
	return done
}

func (p *paced) all() []pacedRun {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.runs)
}

// want checks which payloads have run, each no earlier than its second and no later than late seconds after it: asynq has
// whole seconds, and looks for tasks that are due once a second.
func (p *paced) want(late int, runs ...pacedRun) {
	p.t.Helper()
	got := p.all()
	ok := len(got) == len(runs)
	for i := 0; ok && i < len(runs); i++ {
		ok = got[i].payload == runs[i].payload && got[i].at >= runs[i].at && got[i].at <= runs[i].at+late
	}
	if !ok {
		p.t.Errorf("runs %+v\nwant %+v, each up to %d s later", got, runs, late)
	}
	if waiting, err := p.jobs.Job(context.Background(), "k"); !errors.Is(err, joblock.ErrNotFound) {
		p.t.Errorf("a job is left: %+v, %v", waiting.Task, err)
	}
}

func paceIn(t *testing.T, take func(string, int) (time.Duration, error), f func(p *paced)) {
	t.Helper()
	virtual(t, func(r *rig) { f(r.paced(take)) })
}

// Each enqueue puts the job off, and the newest payload runs once, Wait after the last enqueue.
func TestDebounce(t *testing.T) {
	paceIn(t, short, func(p *paced) {
		how := handoff.Debounce{Key: "k", Wait: 5 * time.Second}
		p.add(how, "a")
		p.at(3)
		if done := p.add(how, "b"); done.Replaced == nil || string(done.Replaced.Payload) != "a" {
			t.Errorf("b has replaced %+v, want a", done.Replaced)
		}
		p.at(7.25)
		p.add(how, "c")
		p.at(60)
		p.want(2, pacedRun{payload: "c", at: 13}) // never earlier than 12.25
	})
}

// What people have reported of the debounce of other queues, each as it happened there.
func TestDebounceAsReportedElsewhere(t *testing.T) {
	every := func(p *paced, how handoff.How, from, to, step float64) {
		for at := from; at <= to; at += step {
			p.at(at)
			p.add(how, fmt.Sprint(at))
		}
	}
	t.Run("a key that is enqueued all the time never runs", func(t *testing.T) { // inngest/inngest#976
		paceIn(t, short, func(p *paced) {
			every(p, handoff.Debounce{Key: "k", Wait: 5 * time.Second, MaxWait: 20 * time.Second}, 0, 30, 2)
			p.at(60)
			p.want(2, pacedRun{payload: "20", at: 20}, pacedRun{payload: "30", at: 35})
		})
	})
	t.Run("the maximum is forgotten before it is reached", func(t *testing.T) { // laravel/framework#61548
		paceIn(t, short, func(p *paced) {
			p.keep(p.locks, worker.Config{})
			every(p, handoff.Debounce{Key: "k", Wait: time.Minute, MaxWait: time.Hour}, 0, 3600, 45)
			p.at(5000)
			p.want(2, pacedRun{payload: "3600", at: 3600}) // not 3555: the last enqueue replaced the job before it was taken
		})
	})
	t.Run("an enqueue in the last second goes beyond the maximum", func(t *testing.T) { // inngest/inngest#3554
		paceIn(t, short, func(p *paced) {
			how := handoff.Debounce{Key: "k", Wait: 5 * time.Second, MaxWait: 12 * time.Second}
			every(p, how, 0, 8, 4)
			p.at(11.5)
			p.add(how, "last")
			p.at(60)
			p.want(2, pacedRun{payload: "last", at: 12})
		})
	})
	t.Run("the maximum of a burst that has run cuts the next one short", func(t *testing.T) { // laravel/framework#61281
		paceIn(t, short, func(p *paced) {
			how := handoff.Debounce{Key: "k", Wait: 30 * time.Second, MaxWait: time.Minute}
			p.add(how, "a")
			p.at(92)
			p.add(how, "b")
			p.at(200)
			p.want(2, pacedRun{payload: "a", at: 30}, pacedRun{payload: "b", at: 122})
		})
	})
	t.Run("an enqueue while the job runs is lost", func(t *testing.T) { // OptimalBits/bull#1034
		paceIn(t, func(string, int) (time.Duration, error) { return 30 * time.Second, nil }, func(p *paced) {
			how := handoff.Debounce{Key: "k", Wait: 5 * time.Second}
			p.add(how, "a")
			p.at(15)
			p.add(how, "b")
			p.at(20)
			p.add(how, "c")
			p.at(120)
			p.want(14, pacedRun{payload: "a", at: 5}, pacedRun{payload: "c", at: 35}) // as soon as a is done, and it asks again
		})
	})
	t.Run("a job that has failed keeps others of its key out", func(t *testing.T) { // taskforcesh/bullmq#3232
		paceIn(t, func(payload string, _ int) (time.Duration, error) {
			if payload == "a" {
				return 0, errBoom
			}
			return 0, nil
		}, func(p *paced) {
			how := handoff.Debounce{Key: "k", Wait: 5 * time.Second}
			p.add(how, "a") // at 5, and again at 25
			p.at(10)
			p.add(how, "b") // waits for the retry
			p.at(100)
			p.add(how, "c")
			p.at(200)
			p.want(14, pacedRun{payload: "a", at: 5}, pacedRun{payload: "a", at: 25}, pacedRun{payload: "b", at: 25}, pacedRun{payload: "c", at: 105})
		})
	})
	t.Run("a leading run swallows what comes after it", func(t *testing.T) { // unjs/perfect-debounce#43
		paceIn(t, short, func(p *paced) {
			how := handoff.Debounce{Key: "k", Wait: 5 * time.Second, Leading: true}
			for _, payload := range []string{"1", "2", "3", "4"} {
				p.add(how, payload)
				time.Sleep(600 * time.Millisecond)
			}
			p.at(60)
			runs := p.all()
			if len(runs) != 2 || runs[0].at > 1 || runs[1].payload != "4" || runs[1].at < 6 {
				t.Errorf("runs %+v, want two: one at once, and 4 five seconds after its enqueue", runs)
			}
		})
	})
	t.Run("only one of several ways to enqueue is debounced", func(t *testing.T) { // laravel/framework#60310
		paceIn(t, short, func(p *paced) {
			how := handoff.Debounce{Key: "k", Wait: 5 * time.Second}
			var items []handoff.Item
			for _, payload := range []string{"a", "b", "c"} {
				items = append(items, handoff.Item{How: how, Task: asynq.NewTask(taskType, []byte(payload))})
			}
			got, err := p.jobs.EnqueueMany(context.Background(), items)
			if err = errors.Join(err, got[0].Err, got[1].Err, got[2].Err); err != nil {
				t.Fatal(err)
			}
			p.at(4)
			p.add(how, "d")
			p.at(60)
			p.want(2, pacedRun{payload: "d", at: 9})
		})
	})
}

// With Leading the first job runs at once, further ones are collected, and after a pause the next one is a first one.
func TestDebounceLeading(t *testing.T) {
	paceIn(t, short, func(p *paced) {
		how := handoff.Debounce{Key: "k", Wait: 10 * time.Second, MaxWait: 15 * time.Second, Leading: true}
		p.add(how, "first")
		for _, at := range []float64{2, 8, 14} { // the last is due at 17: 15 s after the first that was put off
			p.at(at)
			p.add(how, fmt.Sprint(at))
		}
		p.at(20)
		p.add(how, "in the cooldown of the second run")
		p.at(60)
		p.add(how, "first again")
		p.at(100)
		p.want(2, pacedRun{payload: "first"}, pacedRun{payload: "14", at: 17}, pacedRun{payload: "in the cooldown of the second run", at: 30}, pacedRun{payload: "first again", at: 60})
	})
}

// A job that waits is withdrawn and moved by its key.
func TestDebouncedJobByItsKey(t *testing.T) {
	paceIn(t, short, func(p *paced) {
		ctx := context.Background()
		how := handoff.Debounce{Key: "k", Wait: 5 * time.Second}
		p.add(how, "a")
		done, err := p.jobs.Job(ctx, "k")
		if err != nil || string(done.Task.Payload) != "a" || len(done.Task.Headers) > 0 {
			t.Fatalf("the job is %+v, %v", done.Task, err)
		}
		if err := p.jobs.Withdraw(ctx, done); err != nil {
			t.Fatal(err)
		}
		if err := p.jobs.Withdraw(ctx, done); !errors.Is(err, joblock.ErrNotFound) {
			t.Errorf("withdrawn again: %v", err)
		}
		p.add(how, "b")
		if done, err = p.jobs.Job(ctx, "k"); err != nil {
			t.Fatal(err)
		}
		if err := p.jobs.Reschedule(ctx, done, p.begin.Add(40*time.Second)); err != nil {
			t.Fatal(err)
		}
		p.at(120)
		p.want(2, pacedRun{payload: "b", at: 40})
	})
}

// A Chain under a Debounce: the newest chain runs once enqueues have stopped, with all its steps.
func TestDebounceOfAChain(t *testing.T) {
	paceIn(t, short, func(p *paced) {
		how := handoff.Chain{
			Under: handoff.Debounce{Key: "k", Wait: 5 * time.Second},
			Then:  []*asynq.Task{asynq.NewTask(taskType, []byte("then"))},
		}
		p.add(how, "a")
		p.at(2)
		p.add(how, "b")
		p.at(60)
		p.want(3, pacedRun{payload: "b", at: 7}, pacedRun{payload: "then", at: 7})
	})
}
