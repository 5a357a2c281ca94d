package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
)

// story plays the requests and the job, and checks what it prints.
type story struct {
	out     io.Writer
	locks   *joblock.Locker
	account string
	key     string
	start   time.Time

	mu     sync.Mutex // guards out and the fields below
	seen   []int64    // the fences in the output, in their order
	fences []int64    // of the job's attempts, in order
	ledger ledger

	written [2]chan struct{} // closed when job 1, job 2 has written
	refused chan struct{}    // closed when the overrun attempt's write was refused
}

func newStory(out io.Writer, locks *joblock.Locker, account string) *story {
	return &story{
		out: out, locks: locks, account: account, key: joblock.Key("export", account), start: time.Now(),
		written: [2]chan struct{}{make(chan struct{}), make(chan struct{})},
		refused: make(chan struct{}),
	}
}

// say prints one line: when, who, the fence, what.
func (s *story) say(actor string, fence int64, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "%6.2fs  %-8s %4s  %s\n", time.Since(s.start).Seconds(), actor, s.short(fence), fmt.Sprintf(format, args...))
}

// short returns #1 for the first fence of the output, and so on. Real fences have 16 digits. The caller has locked mu.
func (s *story) short(fence int64) string {
	if fence == 0 {
		return ""
	}
	n := slices.Index(s.seen, fence)
	if n < 0 {
		n, s.seen = len(s.seen), append(s.seen, fence)
	}
	return "#" + strconv.Itoa(n+1)
}

// intro prints who takes part.
func (s *story) intro(redis string) {
	fmt.Fprintf(s.out, `A web server, a worker and %s, in this process. An account has one export at a time:
its request takes the lock %s and hands it to a job. Each holding has a larger fence: #1, #2, …
The export writes into a ledger, which refuses a fence smaller than the largest that it has seen.

`, redis, s.key)
}

// ledger is the resource that the lock protects. It remembers the largest fence
// it has seen and refuses smaller ones.
type ledger struct{ seen int64 }

var errFence = errors.New("the fence is smaller than one that the ledger has seen")

func (l *ledger) write(fence int64) error {
	if fence < l.seen {
		return errFence
	}
	l.seen = fence
	return nil
}

// export is the job. Its first attempt fails, its second overruns its timeout,
// its third does the work; the second job just works.
func (s *story) export(ctx context.Context, _ *asynq.Task) error {
	lock, ok := joblock.FromContext(ctx)
	if !ok {
		return errors.New("the job came without its lock")
	}
	retried, _ := asynq.GetRetryCount(ctx)
	budget, _ := asynq.GetMaxRetry(ctx)
	s.mu.Lock()
	s.fences = append(s.fences, lock.Fence())
	attempt := len(s.fences)
	s.mu.Unlock()
	if attempt <= 3 {
		s.say("worker", lock.Fence(), "attempt %d has the lock (retry %d of %d)", attempt, retried, budget)
	} else {
		s.say("worker", lock.Fence(), "the next job has the lock")
	}

	switch attempt {
	case 1:
		s.say("worker", lock.Fence(), "attempt 1 fails; its lock stays with the job")
		return errors.New("the bank does not answer")
	case 2:
		fence := lock.Fence()
		<-ctx.Done()
		s.say("worker", fence, "attempt 2 should stop (%v), but its handler ignores that", context.Cause(ctx))
		<-lock.Done()
		s.say("worker", fence, "attempt 2 still runs: its lease is not renewed any more, and has lapsed")
		<-s.written[0] // ignores ctx, works on, and wants to write after its successor
		s.mu.Lock()
		err := s.ledger.write(fence)
		s.mu.Unlock()
		if err == nil {
			return nil // tell notices that nothing was refused
		}
		s.say("ledger", fence, "the late write of attempt 2 is refused: %v", err)
		close(s.refused)
		return err
	}
	s.mu.Lock()
	err := s.ledger.write(lock.Fence())
	s.mu.Unlock()
	if err != nil {
		return err
	}
	s.say("ledger", lock.Fence(), "the export is written")
	close(s.written[attempt-3])
	return nil
}

// post sends one request and returns its status and Retry-After.
func post(ctx context.Context, url string) (status int, retryAfter string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return 0, "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	return res.StatusCode, res.Header.Get("Retry-After"), res.Body.Close()
}

// tell sends the requests, and checks what happens.
func (s *story) tell(ctx context.Context, url string) error {
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	watched := make(chan struct{})
	go func() { defer close(watched); s.watch(watching) }()

	if err := s.fivePosts(ctx, url); err != nil {
		return err
	}
	if err := await(ctx, s.written[0], "the job's third attempt to write"); err != nil {
		return err
	}
	if err := await(ctx, s.refused, "the overrun attempt to be fenced off"); err != nil {
		return err
	}
	if err := s.untilFree(ctx); err != nil {
		return err
	}
	status, _, err := post(ctx, url)
	if err != nil || status != http.StatusAccepted {
		return fmt.Errorf("the next request: status %d, error %v, want 202", status, err)
	}
	if err := await(ctx, s.written[1], "the second job to write"); err != nil {
		return err
	}
	if err := s.untilFree(ctx); err != nil {
		return err
	}
	stopWatching()
	<-watched
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.fences) != 4 {
		return fmt.Errorf("%d attempts ran, want 4", len(s.fences))
	}
	for i := 1; i < len(s.fences); i++ {
		if s.fences[i] <= s.fences[i-1] {
			return fmt.Errorf("fences did not grow: %v", s.fences)
		}
	}
	fmt.Fprint(s.out, `
All of it happened: one of five requests won, three attempts ran under one lock, a late write was
refused, and the next request won. Next: docs/start.md, the same in a program of your own.
`)
	return nil
}

// fivePosts sends five requests at once; one gets 202, four get 429 and a Retry-After.
func (s *story) fivePosts(ctx context.Context, url string) error {
	s.say("client", 0, "five requests at once")
	type answer struct {
		status int
		again  string
		err    error
	}
	answers := make(chan answer, 5)
	for range cap(answers) {
		go func() {
			status, again, err := post(ctx, url)
			answers <- answer{status, again, err}
		}()
	}
	count, busy := map[int]int{}, ""
	for range cap(answers) {
		a := <-answers
		if a.err != nil {
			return a.err
		}
		count[a.status]++
		if a.status == http.StatusTooManyRequests {
			if n, err := strconv.Atoi(a.again); err != nil || n < 1 {
				return fmt.Errorf("429 with Retry-After %q", a.again)
			}
			busy = a.again
		}
	}
	if count[http.StatusAccepted] != 1 || count[http.StatusTooManyRequests] != 4 {
		return fmt.Errorf("answers %v, want one 202 and four 429", count)
	}
	s.say("client", 0, "one request was answered 202, four were answered 429 with Retry-After: %s", busy)
	return nil
}

// watch prints what an operator would see.
func (s *story) watch(ctx context.Context) {
	var last joblock.Status
	for ctx.Err() == nil {
		sts, _ := s.locks.Status(ctx, s.key) // none if it fails
		for _, st := range sts {
			if !st.Locked() || st.State == last.State && st.Fence == last.Fence {
				continue
			}
			what := "by " + st.Holder
			if st.State != joblock.StateHeld {
				what = "reserved for its job"
			}
			s.say("status", st.Fence, "%s, %s", st.State, what)
			last = st
		}
		pause(ctx, 20*time.Millisecond)
	}
}

func (s *story) untilFree(ctx context.Context) error {
	for {
		sts, err := s.locks.Status(ctx, s.key)
		if err != nil {
			return err
		}
		if st := sts[0]; !st.Locked() {
			s.say("status", st.Fence, "%s, %s: %s", st.State, st.Ended, st.Reason)
			return nil
		}
		if pause(ctx, 20*time.Millisecond); ctx.Err() != nil {
			return fmt.Errorf("waiting for the lock to be free: %w", context.Cause(ctx))
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func await(ctx context.Context, done <-chan struct{}, what string) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
	}
}
