package measure

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/bench/internal/report"
)

// The subjects of the section on succession.
const (
	afterEnqueue = "asynq, Enqueue to start"
	afterEnd     = "sequence, end to start"
	byHand       = "asynq, each job enqueues the next"
)

const (
	// otherType is the type of tasks that run beside those that are measured.
	otherType = "other"

	// probeType is the type of tasks that are enqueued while sequences run.
	probeType = "probe"

	// usualPause is asynq's own TaskCheckInterval.
	usualPause = time.Second
)

func (c Succession) String() string {
	switch {
	case c.Others > 0:
		return fmt.Sprintf("%d other tasks, so that the queue is never empty", c.Others)
	case c.Chains < jobConcurrency:
		return fmt.Sprintf("%d of %d workers are free", jobConcurrency-c.Chains, jobConcurrency)
	default:
		return "no worker is free"
	}
}

func (b *Bench) succession(ctx context.Context) (*report.Section, error) {
	s := &report.Section{
		Name:  "succession",
		Title: "From the end of a job to the start of the next of its key",
		Note: fmt.Sprintf("Sequences run side by side on a server with concurrency %d. From the return of a handler to the start of the next handler of that "+
			"sequence. Meanwhile somebody enqueues tasks without locks: from the call of asynq's Enqueue to the start of the handler, on the same server at the same "+
			"time. asynq sleeps for about a second when it finds its queue empty, and decides how long both take where workers are free. ", jobConcurrency) +
			"In a run of its own, asynq alone: the last act of each job is to enqueue the next one; from that call to the start.",
		Base: afterEnqueue,
		Columns: []report.Column{
			{Title: columnP50, Digits: 2, Ratio: true},
			{Title: columnP99, Digits: 2, Ratio: true},
		},
	}
	for _, c := range b.Scale.Successions {
		b.say("%s, %s", s.Name, c)
		rounds := b.Scale.Rounds
		if c.Few {
			rounds = b.Scale.Few()
		}
		err := eachRound(ctx, b, rounds, []string{afterEnd, byHand}, func(_ int, subject string) error {
			f, err := b.follow(ctx, c, subject == afterEnd)
			if err != nil {
				return err
			}
			if subject == afterEnd {
				f.probes.add(s, c, afterEnqueue)
			}
			f.chains.add(s, c, subject)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// follow runs the chains of c, as sequences or with asynq alone.
func (b *Bench) follow(ctx context.Context, c Succession, sequences bool) (f *followed, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	k, err := b.newJobKit()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, k.close()) }()
	mode := bare
	keys := keysOf("chain", c.Chains)
	if sequences {
		mode = unlocked // the tasks bring their locks themselves
		err = k.enqueueLines(ctx, keys, c.Jobs)
	} else {
		for _, key := range keys {
			err = errors.Join(err, k.enqueuePlain(ctx, jobType, key))
		}
	}
	for i := range c.Others {
		err = errors.Join(err, k.enqueuePlain(ctx, otherType, strconv.Itoa(i)))
	}
	if err != nil {
		return nil, err
	}

	f = &followed{ran: make(map[string]int), left: c.Chains * c.Jobs, done: make(chan struct{})}
	server, mux := k.server(mode, asynq.Config{TaskCheckInterval: usualPause})
	mux.HandleFunc(jobType, func(ctx context.Context, task *asynq.Task) error {
		key := string(task.Payload())
		more := f.start(key) < c.Jobs
		pause(ctx, rand.N(2*c.Work))
		if !more {
			return nil
		}
		f.chains.began(key)
		if sequences {
			return nil
		}
		return k.enqueuePlain(ctx, jobType, key)
	})
	mux.HandleFunc(probeType, func(_ context.Context, task *asynq.Task) error {
		f.probes.ended(string(task.Payload()))
		return nil
	})
	mux.HandleFunc(otherType, func(ctx context.Context, task *asynq.Task) error {
		return k.enqueuePlain(ctx, otherType, string(task.Payload()))
	})
	if err := server.Start(mux); err != nil {
		return nil, err
	}
	defer server.Shutdown()
	for probe := 0; ; probe++ {
		select {
		case <-f.done:
			return f, nil
		case <-ctx.Done():
			return nil, fmt.Errorf("not all of %d jobs were run: %w", c.Chains*c.Jobs, context.Cause(ctx))
		case <-time.After(rand.N(2 * c.Probe)):
		}
		if sequences {
			name := strconv.Itoa(probe)
			f.probes.began(name)
			if err := k.enqueuePlain(ctx, probeType, name); err != nil {
				return nil, err
			}
		}
	}
}

func (k *jobKit) enqueuePlain(ctx context.Context, kind, payload string) error {
	_, err := k.client.EnqueueContext(ctx, asynq.NewTask(kind, []byte(payload)))
	return err
}

// followed is when the jobs of chains began and ended, and when tasks beside them were enqueued and began.
type followed struct {
	chains, probes waits
	mu             sync.Mutex
	ran            map[string]int
	left           int
	done           chan struct{} // closed when all jobs of the chains have begun
}

// start returns which job of its chain this one is, from 1.
func (f *followed) start(key string) int {
	f.chains.ended(key)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ran[key]++
	if f.left--; f.left == 0 {
		close(f.done)
	}
	return f.ran[key]
}

// waits is how long things took that have a name.
type waits struct {
	mu    sync.Mutex
	since map[string]time.Time
	took  []float64 // ms
}

func (w *waits) began(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since == nil {
		w.since = make(map[string]time.Time)
	}
	w.since[name] = time.Now()
}

// ended does nothing if what has the name did not begin.
func (w *waits) ended(name string) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if since, ok := w.since[name]; ok {
		w.took = append(w.took, float64(now.Sub(since))/float64(time.Millisecond))
		delete(w.since, name)
	}
}

// add adds a row to s. What has not ended counts with the time until now: the last tasks beside the chains.
func (w *waits) add(s *report.Section, c Succession, subject string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	took := w.took
	for _, since := range w.since {
		took = append(took, float64(time.Since(since))/float64(time.Millisecond))
	}
	s.Add(c.String(), subject, report.Quantile(took, 0.5), report.Quantile(took, 0.99))
}
