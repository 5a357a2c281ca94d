package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit"
	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// A request takes the lock of its key and enqueues a job with it. A second request is refused until the job has ended,
// through a failed attempt and its retry, and the lock is then free.
func TestFromTheRequestToTheEndOfTheJob(t *testing.T) {
	t.Parallel()
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	p, err := toolkit.New(asynq.RedisClientOpt{Addr: db.Addr(), DB: db.Number()}, &toolkit.Config{Locks: &joblock.Config{
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	web := httptest.NewServer(handoff.Middleware(p.Locks, func(*http.Request) (handoff.Claim, error) {
		return handoff.Claim{Key: joblock.Key("export", "acct-7")}, nil
	})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lock, _ := joblock.FromContext(r.Context())
		if _, err := p.Jobs.Enqueue(r.Context(), handoff.Carry(lock), asynq.NewTask("export", nil), asynq.MaxRetry(1)); err != nil {
			handoff.Refuse(w, r, err)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})))
	t.Cleanup(web.Close)
	post := func() int {
		t.Helper()
		res, err := http.Post(web.URL, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}

	attempts, finish := make(chan int64), make(chan error)
	tasks := asynq.NewServeMux()
	tasks.HandleFunc("export", func(ctx context.Context, _ *asynq.Task) error {
		lock, ok := joblock.FromContext(ctx)
		if !ok {
			return errors.New("the job has no lock")
		}
		attempts <- lock.Fence()
		return <-finish
	})
	server, err := p.NewServer(asynq.Config{
		Concurrency: 1, LogLevel: asynq.FatalLevel,
		TaskCheckInterval: 50 * time.Millisecond, DelayedTaskCheckInterval: 50 * time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
	})
	if err == nil {
		err = server.Start(tasks)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)

	if code := post(); code != http.StatusAccepted {
		t.Fatalf("the first request: %d, want 202", code)
	}
	var last int64
	for attempt, result := range []error{errors.New("not yet"), nil} {
		fence := <-attempts
		if fence <= last {
			t.Errorf("attempt %d has fence %d, want more than %d", attempt+1, fence, last)
		}
		last = fence
		if code := post(); code != http.StatusTooManyRequests {
			t.Errorf("a request during attempt %d: %d, want 429", attempt+1, code)
		}
		finish <- result
	}
	for post() == http.StatusTooManyRequests {
		time.Sleep(10 * time.Millisecond)
	}
	<-attempts // of the next job
	finish <- nil
	var st joblock.Status
	for {
		var err error
		if st, err = testkit.One(p.Locks.Status(t.Context(), joblock.Key("export", "acct-7"))); err != nil {
			t.Fatal(err)
		}
		if !st.Locked() {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if st.Ended != driver.EndedDone || st.Fence <= last {
		t.Errorf("at the end the lock is %s, ended %q under fence %d; want done, above %d", st.State, st.Ended, st.Fence, last)
	}
}

// A process that has a lock is killed with SIGKILL: the lock is the next waiter's when the lease has ended.
func TestHolderIsKilled(t *testing.T) {
	t.Parallel()
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	other := exec.CommandContext(t.Context(), os.Args[0])
	other.Env = append(os.Environ(), "JOBLOCK_E2E_ROLE=hold",
		"JOBLOCK_E2E_REDIS="+db.Addr(), "JOBLOCK_E2E_DATABASE="+strconv.Itoa(db.Number()))
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	held, parseErr := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if err := errors.Join(err, parseErr); err != nil {
		t.Fatalf("the other process printed %q: %v", line, err)
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait() // it was killed

	locks, err := joblock.New(testkit.Must(redisstore.New(db.Client(t), nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := locks.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	lock, err := locks.Acquire(t.Context(), "k", joblock.MaxWait(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if lock.Fence() <= held || lock.Prior() != driver.EndedLapsed {
		t.Errorf("fence %d after %d, prior %q; want more, and lapsed", lock.Fence(), held, lock.Prior())
	}
}

// playHold takes a lock, prints its fence and holds the lock until the process is killed.
func playHold() int {
	db, err := strconv.Atoi(os.Getenv("JOBLOCK_E2E_DATABASE"))
	if err == nil {
		rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("JOBLOCK_E2E_REDIS"), DB: db})
		var locks *joblock.Locker
		if locks, err = joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{TTL: time.Second}); err == nil {
			var lock *joblock.Lock
			if lock, err = locks.Acquire(context.Background(), "k"); err == nil {
				fmt.Println(lock.Fence())
				select {}
			}
		}
	}
	fmt.Println(err)
	return 1
}
