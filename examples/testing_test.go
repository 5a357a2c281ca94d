package examples_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit"
	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/joblocktest"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// An application's code, for the tests that docs/testing.md quotes.

// exports are the routes of a web process.
func exports(locks *joblock.Locker, jobs *handoff.Client) http.Handler {
	routes := http.NewServeMux()
	perAccount := handoff.Middleware(locks, func(r *http.Request) (handoff.Claim, error) {
		return handoff.Claim{Key: joblock.Key("export", r.PathValue("account"))}, nil
	})
	routes.Handle("POST /exports/{account}", perAccount(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lock, _ := joblock.FromContext(r.Context())
		if _, err := jobs.Enqueue(r.Context(), handoff.Carry(lock), asynq.NewTask("export", []byte(r.PathValue("account")), asynq.MaxRetry(5))); err != nil {
			handoff.Refuse(w, r, err)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})))
	return routes
}

var errNoLock = errors.New("no lock")

// export is the handler of a job. It writes the pages of an export, each under the fence of its lock.
func export(ctx context.Context, task *asynq.Task) error {
	lock, ok := joblock.LocksFromContext(ctx).ByKey(joblock.Key("export", string(task.Payload())))
	if !ok {
		return errNoLock
	}
	for page := range 3 {
		if err := writePage(ctx, page, lock.Fence()); err != nil {
			return err
		}
	}
	return nil
}

// writePage is a write to a resource. A test may replace it.
var writePage = func(ctx context.Context, page int, fence int64) error { return context.Cause(ctx) }

// rollupDay is the function of a cron job. It returns the day to roll up, the day before the tick.
func rollupDay(ctx context.Context) (string, error) {
	tick, ok := scheduler.TickFrom(ctx)
	if !ok {
		return "", errors.New("no tick")
	}
	return tick.At.AddDate(0, 0, -1).Format(time.DateOnly), nil
}

// [busy
func TestASecondExportIsRefused(t *testing.T) {
	k := joblocktest.New(t, nil)
	k.Hold(joblock.Key("export", "acct-7")) // another request or job has the lock

	w := httptest.NewRecorder()
	exports(k.Locks, nil).ServeHTTP(w, httptest.NewRequest("POST", "/exports/acct-7", nil))
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
		t.Errorf("status %d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
	}
}

func TestAnExportNeedsTheStore(t *testing.T) {
	k := joblocktest.New(t, nil)
	k.Fail() // Redis is unreachable

	w := httptest.NewRecorder()
	exports(k.Locks, nil).ServeHTTP(w, httptest.NewRequest("POST", "/exports/acct-7", nil))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d", w.Code)
	}
}

// busy]

// [job
func TestExportRunsUnderItsLock(t *testing.T) {
	k := joblocktest.New(t, nil)
	ctx := k.Context(joblock.Key("export", "acct-7")) // as worker.Middleware gives it to the job
	if err := export(ctx, asynq.NewTask("export", []byte("acct-7"))); err != nil {
		t.Error(err)
	}
	if err := export(t.Context(), asynq.NewTask("export", []byte("acct-7"))); !errors.Is(err, errNoLock) {
		t.Errorf("without its lock the export returns %v", err)
	}
}

// job]

func TestExportStopsWhenItsLockIsLost(t *testing.T) {
	before := writePage
	defer func() { writePage = before }()
	// [lost
	k := joblocktest.New(t, nil)
	key := joblock.Key("export", "acct-7")
	ctx := k.Context(key)

	var written []int
	writePage = func(ctx context.Context, page int, fence int64) error {
		if page == 1 {
			k.Lose(key) // in the middle of the work
			<-ctx.Done()
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		written = append(written, page)
		return nil
	}
	err := export(ctx, asynq.NewTask("export", []byte("acct-7")))
	if !errors.Is(err, joblock.ErrLost) || len(written) != 1 {
		t.Errorf("pages %v, error %v; want one page and ErrLost", written, err)
	}
	// lost]
}

// [tick
func TestRollupIsForTheDayBefore(t *testing.T) {
	tick := scheduler.Tick{Name: "rollup", At: time.Date(2026, 3, 1, 3, 0, 0, 0, time.UTC), Cause: scheduler.CauseTick}
	day, err := rollupDay(scheduler.WithTick(t.Context(), tick))
	if err != nil || day != "2026-02-28" {
		t.Errorf("%s, %v", day, err)
	}
}

// tick]

// [schedule
func TestRollupRunsEveryNight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a bubble: its clock begins at midnight of 2000-01-01, UTC
		k := joblocktest.New(t, nil)
		s, err := scheduler.New(k.Locks, &scheduler.Config{Scope: "shop"})
		check(err)
		var days []string
		check(s.Func("rollup", "0 3 * * *", func(ctx context.Context) error {
			day, err := rollupDay(ctx)
			days = append(days, day)
			return err
		}))
		k.Go(s.Run)

		time.Sleep(72 * time.Hour) // milliseconds
		synctest.Wait()
		if got := fmt.Sprint(days); got != "[1999-12-31 2000-01-01 2000-01-02]" {
			t.Errorf("rolled up %s", got)
		}
	})
}

// schedule]

// [trigger
func TestRollupNow(t *testing.T) {
	k := joblocktest.New(t, nil)
	s, err := scheduler.New(k.Locks, &scheduler.Config{Scope: "shop"})
	check(err)
	check(s.Func("rollup", "0 3 * * *", func(ctx context.Context) error {
		_, err := rollupDay(ctx)
		return err
	}))
	k.Go(s.Run)

	wait, err := admin.Of(s).Trigger(t.Context(), "rollup")
	check(err)
	execution, err := wait(t.Context())
	if err != nil || execution.State != scheduler.Done {
		t.Errorf("%+v, %v", execution, err)
	}
}

// trigger]

// [whole
func TestFromTheRequestToTheEndOfTheJob(t *testing.T) {
	k := joblocktest.New(t, nil)
	redis := miniredis.RunT(t) // asynq's Redis, in the memory of this test
	p, err := toolkit.New(asynq.RedisClientOpt{Addr: redis.Addr()}, &toolkit.Config{Store: k.Store})
	check(err)
	defer p.Close(context.Background())

	started, finish := make(chan bool), make(chan bool)
	tasks := asynq.NewServeMux()
	tasks.HandleFunc("export", func(ctx context.Context, task *asynq.Task) error {
		started <- true
		<-finish
		return export(ctx, task)
	})
	server, err := p.NewServer(asynq.Config{Concurrency: 1, LogLevel: asynq.FatalLevel, TaskCheckInterval: 10 * time.Millisecond})
	check(err)
	check(server.Start(tasks))

	post := func() int {
		w := httptest.NewRecorder()
		exports(p.Locks, p.Jobs).ServeHTTP(w, httptest.NewRequest("POST", "/exports/acct-7", nil))
		return w.Code
	}
	if first := post(); first != http.StatusAccepted {
		t.Fatalf("status %d", first)
	}
	<-started
	if second := post(); second != http.StatusTooManyRequests {
		t.Errorf("status %d while the job runs", second)
	}
	finish <- true
	for k.Status(joblock.Key("export", "acct-7")).Locked() { // until the job has given its lock back
		time.Sleep(time.Millisecond)
	}
}

// whole]
