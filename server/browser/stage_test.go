package browser

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/server"
	"github.com/joblock/toolkit/worker"
)

// A stage is a Redis of its own, a server with pages on it, and what the pages show.
type stage struct {
	*testing.T
	redis *redistest.Server
	proxy *redistest.Proxy
	rdb   *redis.Client // not through the proxy
	locks *joblock.Locker
	web   *httptest.Server
	away  atomic.Bool // the server closes every connection
	url   string
	token string
	path  string // of the file of accounts

	group sync.WaitGroup
}

var quiet = slog.New(slog.DiscardHandler)

func withToken(s *stage, cfg *server.Config) {
	token, digest, err := server.NewAccountToken("reader")
	s.nil(err)
	s.token, s.path = token, filepath.Join(s.TempDir(), "accounts.json")
	s.nil(os.WriteFile(s.path, []byte(`{"accounts": [{"id": "reader", "sha256": "`+digest+`", "scopes": ["read"]}]}`), 0o600))
	accounts, err := server.OpenAccounts(s.path, quiet)
	s.nil(err)
	cfg.Authorize = accounts
}

func newStage(t *testing.T, changes ...func(*stage, *server.Config)) *stage {
	t.Helper()
	s := &stage{T: t, redis: redistest.Start(t)}
	s.proxy = redistest.NewProxy(t, s.redis.Addr())
	s.rdb = redis.NewClient(&redis.Options{Addr: s.redis.Addr()})
	var err error
	s.locks, err = joblock.New(testkit.Must(redisstore.New(s.rdb, nil)), &joblock.Config{Holder: "jobs2:88", Logger: quiet})
	s.nil(err)

	through := redis.NewClient(&redis.Options{Addr: s.proxy.Addr(), MaxRetries: -1, DialTimeout: time.Second})
	store := testkit.Must(redisstore.New(through, nil))
	locks, err := joblock.New(store, &joblock.Config{Holder: "server", Logger: quiet})
	s.nil(err)
	inspector := asynq.NewInspectorFromRedisClient(s.rdb)
	cfg := server.Config{
		Locks: locks, Authorize: server.Anyone(), Store: store, Redis: through, Logger: quiet,
		Databases: []server.Database{{Name: "jobs", Inspector: inspector}},
	}
	for _, change := range changes {
		change(s, &cfg)
	}
	srv, err := server.New(cfg)
	s.nil(err)
	p, err := srv.Pages(server.PagesConfig{})
	s.nil(err)
	root := p.Root()
	s.web = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.away.Load() {
			panic(http.ErrAbortHandler)
		}
		root.ServeHTTP(w, r)
	}))
	s.url = s.web.URL + "/"
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		s.nil(srv.Close(ctx))
		s.web.Close()
		_ = locks.Close(ctx)
		_ = s.locks.Close(ctx)
		s.group.Wait()
		_ = through.Close()
		_ = s.rdb.Close()
	})
	return s
}

func (s *stage) nil(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *stage) lock(key, holder string) *joblock.Lock {
	s.Helper()
	l, err := s.locks.TryAcquire(s.Context(), key, joblock.Holder(holder))
	s.nil(err)
	return l
}

func (s *stage) release(l *joblock.Lock) { s.Helper(); s.nil(l.Release(s.Context())) }

func (s *stage) park(l *joblock.Lock, job string) {
	s.Helper()
	_, err := l.Park(s.Context(), joblock.ForJob(job), joblock.Reserve(time.Hour))
	s.nil(err)
}

func (s *stage) status(key string) joblock.Status {
	s.Helper()
	st, err := s.locks.Status(s.Context(), key)
	s.nil(err)
	return st[0]
}

// wait stands in line for a key until the end of the test, and returns when the store knows.
func (s *stage) wait(key, holder string) {
	s.Helper()
	was := s.status(key).Waiters
	s.group.Go(func() {
		if l, err := s.locks.Acquire(s.Context(), key, joblock.Holder(holder)); err == nil {
			_ = l.Release(context.Background())
		}
	})
	s.await(func() bool { return s.status(key).Waiters != was })
}

// fill makes something of everything: what a shop might have in the middle of a working day.
func (s *stage) fill() {
	ctx := s.Context()
	client, inspector := asynq.NewClientFromRedisClient(s.rdb), asynq.NewInspectorFromRedisClient(s.rdb)
	w, err := worker.New(s.locks, inspector, &worker.Config{Logger: quiet})
	s.nil(err)
	mux := asynq.NewServeMux()
	mux.Use(w.Middleware)
	mux.HandleFunc("export", func(ctx context.Context, _ *asynq.Task) error { <-ctx.Done(); return ctx.Err() })
	mux.HandleFunc("webhook", func(context.Context, *asynq.Task) error {
		return errors.New("the customer's server answers 503 Service Unavailable")
	})
	workers := asynq.NewServerFromRedisClient(s.rdb, w.Configure(asynq.Config{
		Concurrency: 3, Queues: map[string]int{"exports": 1, "webhooks": 1}, LogLevel: asynq.FatalLevel, ShutdownTimeout: time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 10 * time.Minute },
	}))
	s.nil(workers.Start(mux))
	keeping, stop := context.WithCancel(ctx)
	s.group.Go(func() { _ = w.RunKeeper(keeping) })
	jobs, err := handoff.NewClient(s.locks, client, inspector, nil)
	s.nil(err)
	s.Cleanup(func() {
		stop()
		workers.Shutdown()
		end, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = w.Close(end)
		_ = jobs.Close(end)
	})
	enqueue := func(kind, queue, id, key string, opts ...asynq.Option) {
		lock := s.lock(key, "web1:71")
		_, err := jobs.Enqueue(ctx, handoff.Carry(lock), asynq.NewTask(kind, nil), append(opts, asynq.Queue(queue), asynq.TaskID(id), asynq.MaxRetry(3), asynq.Timeout(30*time.Minute))...)
		s.nil(err)
	}
	enqueue("export", "exports", "export-41", "exports:acct-7")
	enqueue("export", "exports", "export-42", "exports:acct-12", asynq.ProcessIn(8*time.Hour))
	enqueue("webhook", "webhooks", "hook-993", "webhooks:acme")
	enqueue("webhook", "webhooks", "hook-994", "webhooks:globex", asynq.ProcessIn(time.Hour))
	for _, id := range []string{"order-17", "order-18", "order-19"} { // the first fails for good, and halts the others
		_, err := jobs.Enqueue(ctx, handoff.Sequence{Key: "webhooks:initech", HaltOnFailure: true}, asynq.NewTask("webhook", nil),
			asynq.Queue("webhooks"), asynq.TaskID(id), asynq.MaxRetry(0))
		s.nil(err)
	}
	s.wait("exports:acct-7", "web2:72")
	s.wait("exports:acct-7", "web3:73")
	s.lock("deploy:shop", "ops1:7474 make deploy")
	s.wait("deploy:shop", "ops2:7489 make deploy")
	s.lock("reports:2026-11", "jobs2:88 monthly")
	s.lock("search:reindex", "jobs1:87 reindex")
	_, err = client.Enqueue(asynq.NewTask("export", nil), asynq.Queue("exports"), asynq.TaskID("export-40"), asynq.ProcessIn(time.Hour))
	s.nil(err)
	orphan, err := s.locks.TryAcquire(ctx, "exports:acct-3", joblock.Holder("jobs3:91 attempt 1/4"), joblock.TTL(time.Second))
	s.nil(err)
	token, err := orphan.Park(ctx, joblock.ForJob("exports/export-40"), joblock.Reserve(2*time.Hour))
	s.nil(err)
	resumed, err := s.locks.Resume(ctx, token, joblock.ForJob("exports/export-40"), joblock.Holder("jobs3:91 attempt 1/4"), joblock.Reserve(2*time.Hour))
	s.nil(err)
	(*core.Lock)(resumed).StopRenewing()
	geocoder := limit.New(s.locks, 4)
	for _, who := range []string{"jobs1:87", "jobs1:87", "jobs2:88", "jobs3:91"} {
		_, err := geocoder.Acquire(ctx, "geocoder", joblock.Holder(who))
		s.nil(err)
	}
	s.group.Go(func() {
		_, _ = geocoder.Acquire(ctx, "geocoder", joblock.Holder("jobs2:88"), joblock.MaxWait(time.Hour))
	})

	cron, err := scheduler.New(s.locks, &scheduler.Config{Scope: "shop", Node: "app1:31", Logger: quiet})
	s.nil(err)
	never := func(context.Context) error { return nil }
	for name, spec := range map[string]string{
		"invoices": "CRON_TZ=Europe/Berlin 0 6 * * *", "cleanup": "@every 15m", "heartbeat": "*/5 * * * *", "reminders": "CRON_TZ=Europe/Berlin 30 2 * * *", "statements": "0 7 1 * *",
	} {
		s.nil(cron.Func(name, spec, never))
	}
	s.nil(cron.Func("rollup", "CRON_TZ=Europe/Berlin 0 3 * * *", func(context.Context) error { return errors.New(`relation "sales_2026" does not exist`) }))
	s.group.Go(func() { _ = cron.Run(ctx) })
	ann, err := admin.New(s.locks, "shop", "ann")
	s.nil(err)
	for _, name := range []string{"cleanup", "heartbeat", "rollup", "cleanup"} {
		s.await(func() bool { return triggerAndWait(ctx, ann, name) }) // once the node has announced the job to the others
	}
	s.nil(ann.Pause(ctx, "statements", "waiting for the new template"))
	s.await(func() bool {
		info, err := inspector.GetTaskInfo("webhooks", "hook-993")
		return err == nil && info.State == asynq.TaskStateRetry
	})
	s.await(func() bool {
		info, err := inspector.GetTaskInfo("webhooks", "order-17")
		return err == nil && info.State == asynq.TaskStateArchived
	})
	s.await(func() bool { return s.status("exports:acct-3").State == joblock.StateOrphaned })
	s.await(func() bool { return s.status("exports:acct-7").State == joblock.StateHeld })
}

func (s *stage) await(f func() bool) {
	s.Helper()
	for until := time.Now().Add(30 * time.Second); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			s.Fatal("it never happens")
		}
	}
}

// A sight is a page to look at.
type sight struct {
	name, path string
	has        string
	live       bool
}

func (s *stage) sights() []sight {
	q := url.QueryEscape
	return []sight{
		{"overview", "", "Held for longest", true},
		{"locks", "locks", "exports:acct-7", true},
		{"lock", "lock?key=" + q("exports:acct-7"), "What frees it.", true},
		{"lock-orphaned", "lock?key=" + q("exports:acct-3"), "orphaned", true},
		{"limit", "lock?key=geocoder", "Permits", true},
		{"jobs", "jobs", "export-41", true},
		{"job", "job?job=" + q("webhooks/hook-993"), "503 Service Unavailable", true},
		{"sequences", "sequences", "order-17", true},
		{"limits", "limits", "geocoder", true},
		{"cron", "cron", "rollup", true},
		{"cronjob", "cronjob?scope=shop&name=rollup", "sales_2026", true},
		{"events", "events", "Events", true},
		{"nodes", "nodes", "app1:31", true},
		{"doctor", "doctor", "Doctor", false},
		{"audit", "audit", "Audit", false},
		{"help", "help", "Before you force a lock", false},
		{"force", "act?do=force-release&key=" + q("exports:acct-7"), "If you go on", false},
		{"bulk", "bulk?prefix=exports:", "Free many locks", false},
	}
}

// triggerAndWait executes a cron job once. It returns false if that was not possible.
func triggerAndWait(ctx context.Context, a *admin.Admin, job string) bool {
	wait, err := a.Trigger(ctx, job)
	if err == nil {
		_, err = wait(ctx)
	}
	return err == nil
}
